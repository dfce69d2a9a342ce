//! What a check found, as text and as JSON.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;
use std::path::PathBuf;

use serde::Serialize;
use sframe::{CfiError, CfiOmissionReason, Table};
use unwind_target::Untrusted;
use unwind_target::counted::{bytes_in_ranges, counted};
use unwind_target::elf::error::Part;
use unwind_target::rows::call_frames::{BuiltTable, CallFrames};
use unwind_target::untrusted::escaped;

use crate::commands::sframe::check::comparison::{Comparison, Difference, Uncovered, Unreadable};
use crate::commands::sframe::check::expression::infix;
use crate::commands::sframe::code::Code;
use crate::commands::sframe::format::FormatArg;

/// What came of a validation of all tables.
#[derive(Debug, Default)]
pub(super) struct Validation {
    pub(super) errors: u64,
    pub(super) notes: u64,
    pub(super) first_errors: Vec<String>,
    pub(super) first_notes: Vec<String>,
    /// Rows of each table.
    pub(super) rows: Vec<u64>,
}

/// What a table that was made here does not have, ascending.
#[derive(Debug)]
pub(super) struct Losses<'a> {
    frames: &'a CallFrames,
    ranges: Vec<Loss>,
}

#[derive(Debug)]
struct Loss {
    range: Range<u64>,
    /// The section whose entry it is from.
    part: Option<Part>,
    reason: CfiOmissionReason,
}

impl<'a> Losses<'a> {
    pub(super) fn new(built: &BuiltTable, frames: &'a CallFrames) -> Self {
        let from_cfi = built
            .lost
            .iter()
            .map(|lost| (lost.range.start, lost.range.size, Some(lost.part), lost.range.reason));
        let from_table = built
            .overlaps
            .iter()
            .map(|lost| (lost.start, lost.size, None, CfiOmissionReason::Table(lost.reason)));
        let mut ranges: Vec<_> = from_cfi
            .chain(from_table)
            .map(|(start, size, part, reason)| Loss {
                range: start..start.saturating_add(size),
                part,
                reason,
            })
            .collect();
        ranges.sort_by_key(|loss| loss.range.start);
        Self { frames, ranges }
    }

    /// Why an address has no row, and where that reason ends; `None` up to the
    /// next reason.
    fn at(&self, addr: u64) -> (Option<&Loss>, u64) {
        let after = self.ranges.partition_point(|loss| loss.range.start <= addr);
        let before = self.ranges.get(..after).unwrap_or_default();
        // Ranges of malformed entries may be long and cover others.
        let covering = before.iter().rev().take(64).find(|loss| loss.range.contains(&addr));
        match covering {
            Some(loss) => (Some(loss), loss.range.end),
            None => (None, self.ranges.get(after).map_or(u64::MAX, |loss| loss.range.start)),
        }
    }

    /// A reason, with the expression that it is about.
    fn describe(&self, loss: &Loss) -> String {
        let reason = loss.reason;
        let (
            Some(part),
            CfiOmissionReason::Cfi(CfiError::CfaExpression { at })
            | CfiOmissionReason::Cfi(CfiError::RaExpression { at })
            | CfiOmissionReason::Cfi(CfiError::FpExpression { at }),
        ) = (loss.part, reason)
        else {
            return reason.to_string();
        };
        match infix(self.frames.bytes(part), at, self.frames.endian()) {
            Some(text) => format!("{reason}, {text}"),
            None => reason.to_string(),
        }
    }
}

/// Code without a row for one reason.
#[derive(Debug, Default)]
struct Missing {
    bytes: u64,
    ranges: u64,
    is_fault: bool,
    first: Vec<MissingRange>,
}

#[derive(Debug, Serialize)]
struct MissingRange {
    start: String,
    size: u64,
    why: String,
}

/// What a check found.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) file: PathBuf,
    pub(super) built: Option<FormatArg>,
    pub(super) tables: &'a [Table<'a>],
    pub(super) validation: Validation,
    pub(super) comparison: Option<Comparison>,
    pub(super) losses: Option<Losses<'a>>,
    /// The first entry that is not in order in the table by which the file's call frame information
    /// is searched.
    pub(super) disorder: Option<u32>,
    pub(super) code: &'a Code,
    /// How much to show of each kind.
    pub(super) first: usize,
}

/// The reason of code that a table says nothing of, for no known reason.
const NO_REASON: &str = "no-row";

impl Report<'_> {
    /// How much is wrong.
    pub(super) fn faults(&self) -> u64 {
        let differences = self.comparison.as_ref().map_or(0, |comparison| comparison.differences);
        let unexplained = match self.losses {
            Some(_) => self.missing().get(NO_REASON).map_or(0, |missing| missing.ranges),
            None => 0,
        };
        self.validation.errors.saturating_add(differences).saturating_add(unexplained)
    }

    /// Code without a row, by reason.
    fn missing(&self) -> BTreeMap<&'static str, Missing> {
        let mut by_reason: BTreeMap<_, Missing> = BTreeMap::new();
        let missing = self.comparison.iter().flat_map(|comparison| &comparison.missing);
        for Uncovered { range, is_plain } in missing {
            let mut addr = range.start;
            while addr < range.end {
                let (loss, end) = match &self.losses {
                    Some(losses) => losses.at(addr),
                    None => (None, range.end),
                };
                // gimli, which knows nothing of reasons, says that there is none.
                let is_excuse = |loss: &Loss| !is_plain || loss.reason.is_fault();
                let loss = loss.filter(|loss| self.built != Some(FormatArg::V3) || is_excuse(loss));
                let reason = loss.map(|loss| loss.reason);
                let end = end.min(range.end);
                let size = end.saturating_sub(addr);
                let missing = by_reason.entry(reason.map_or(NO_REASON, CfiOmissionReason::name));
                let missing = missing.or_default();
                missing.bytes = missing.bytes.saturating_add(size);
                missing.ranges = missing.ranges.saturating_add(1);
                missing.is_fault = reason.is_some_and(CfiOmissionReason::is_fault);
                if missing.first.len() < self.first {
                    let why = match (&self.losses, loss) {
                        (Some(losses), Some(loss)) => losses.describe(loss),
                        _ => "not in the table".into(),
                    };
                    let start = self.code.place(addr).to_string();
                    missing.first.push(MissingRange { start, size, why });
                }
                addr = end;
            }
        }
        by_reason
    }

    /// Of the code whose rules the format can say: bytes, and bytes with a row.
    fn expressible(&self) -> Option<(u64, u64)> {
        let comparison = self.comparison.as_ref().filter(|_| self.losses.is_some())?;
        let missing = self.missing();
        let said = |(name, missing): (&&str, &Missing)| {
            if **name == *NO_REASON || missing.is_fault { 0 } else { missing.bytes }
        };
        let inexpressible = missing.iter().map(said).fold(0, u64::saturating_add);
        let bytes = comparison.code_bytes.saturating_sub(inexpressible);
        Some((bytes, comparison.covered_bytes))
    }

    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let kind = match self.built {
            Some(format) => format!("a {format} table made of its call frame information"),
            None => "its tables".into(),
        };
        writeln!(out, "{}: {kind}", escaped(&self.file))?;
        for (table, rows) in self.tables.iter().zip(&self.validation.rows) {
            let header = table.header();
            writeln!(
                out,
                "  table         version {}, {}, {}, {}",
                header.version.number(),
                counted(header.num_fdes, "function", "functions"),
                counted(*rows, "row", "rows"),
                counted(table.bytes().len(), "byte", "bytes")
            )?;
        }
        let Validation { errors, notes, first_errors, first_notes, .. } = &self.validation;
        let (errors, notes) =
            (counted(*errors, "error", "errors"), counted(*notes, "note", "notes"));
        writeln!(out, "  validation    {errors}, {notes}")?;
        for finding in first_errors.iter().chain(first_notes) {
            writeln!(out, "    {finding}")?;
        }
        if let Some(index) = self.disorder {
            writeln!(
                out,
                "  search table  entry {index} of .eh_frame_hdr is not in order: a search by it misses code"
            )?;
        }
        match &self.comparison {
            Some(comparison) => self.write_comparison(out, comparison),
            None => writeln!(out, "  comparison    none: the file has no call frame information"),
        }
    }

    fn write_comparison(&self, out: &mut impl Write, comparison: &Comparison) -> io::Result<()> {
        let Comparison { fdes, rows, code_bytes, covered_bytes, places, differences, .. } =
            comparison;
        writeln!(
            out,
            "  compared to   {}, {}, {} of code",
            counted(*fdes, "entry", "entries"),
            counted(*rows, "row", "rows"),
            counted(*code_bytes, "byte", "bytes")
        )?;
        writeln!(
            out,
            "  comparison    {}, {}",
            counted(*places, "place", "places"),
            counted(*differences, "difference", "differences")
        )?;
        for difference in comparison.first_differences.iter().take(self.first) {
            writeln!(out, "    {}: {difference}", self.code.place(difference.addr))?;
        }
        if comparison.unreadable_count != 0 {
            let entries = counted(comparison.unreadable_count, "entry", "entries");
            writeln!(out, "  unreadable    {entries}")?;
            for Unreadable { entry, error } in comparison.unreadable.iter().take(self.first) {
                writeln!(out, "    entry at {entry:#x}: {error}")?;
            }
        }
        writeln!(
            out,
            "  covered       {}, {}",
            counted(*covered_bytes, "byte", "bytes"),
            percent(*covered_bytes, *code_bytes)
        )?;
        if comparison.context_bytes != 0 {
            let bytes = counted(comparison.context_bytes, "byte", "bytes");
            writeln!(out, "    {bytes} of them where the caller is left to the signal context")?;
        }
        if let Some((bytes, covered)) = self.expressible() {
            writeln!(out, "    of what the format can say: {}", percent(covered, bytes))?;
        }
        for (name, missing) in self.missing() {
            let Missing { bytes, ranges, first, .. } = missing;
            writeln!(out, "  missing       {}: {name}", bytes_in_ranges(bytes, ranges))?;
            for MissingRange { start, size, why } in first {
                writeln!(out, "    {start}+{size:#x}: {why}")?;
            }
        }
        Ok(())
    }

    pub(super) fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, &self.json())?;
        writeln!(out)
    }

    fn json(&self) -> Json<'_> {
        let tables = self.tables.iter().zip(&self.validation.rows);
        Json {
            schema: SCHEMA,
            file: Untrusted::from(&self.file),
            built: self.built,
            tables: tables
                .map(|(table, &rows)| JsonTable {
                    version: table.header().version.number(),
                    functions: table.header().num_fdes,
                    rows,
                    bytes: table.bytes().len(),
                })
                .collect(),
            validation: JsonValidation {
                errors: self.validation.errors,
                notes: self.validation.notes,
                first_errors: &self.validation.first_errors,
                first_notes: &self.validation.first_notes,
            },
            search_table_disorder: self.disorder,
            comparison: self.comparison.as_ref().map(|comparison| JsonComparison {
                entries: comparison.fdes,
                rows: comparison.rows,
                code_bytes: comparison.code_bytes,
                covered_bytes: comparison.covered_bytes,
                context_bytes: comparison.context_bytes,
                places: comparison.places,
                unreadable: comparison.unreadable_count,
                differences: comparison.differences,
                first_differences: comparison
                    .first_differences
                    .iter()
                    .take(self.first)
                    .map(|difference| JsonDifference::new(difference, self.code))
                    .collect(),
            }),
            missing: self
                .missing()
                .into_iter()
                .map(|(reason, missing)| JsonMissing {
                    reason,
                    bytes: missing.bytes,
                    ranges: missing.ranges,
                    first: missing.first,
                })
                .collect(),
            expressible: self
                .expressible()
                .map(|(bytes, covered_bytes)| JsonExpressible { bytes, covered_bytes }),
        }
    }
}

/// A part of a whole, rounded down so that nothing short of all is 100.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".into();
    }
    let scaled = u128::from(part).saturating_mul(1_000_000);
    let parts = scaled.checked_div(whole.into()).unwrap_or(0);
    let (whole, fraction) = (parts.checked_div(10_000), parts.checked_rem(10_000));
    format!("{}.{:04} %", whole.unwrap_or(0), fraction.unwrap_or(0))
}

/// The version of the structure: it rises when a field changes its meaning or
/// goes.
const SCHEMA: u32 = 1;

#[derive(Debug, Serialize)]
struct Json<'a> {
    schema: u32,
    file: Untrusted,
    built: Option<FormatArg>,
    tables: Vec<JsonTable>,
    validation: JsonValidation<'a>,
    search_table_disorder: Option<u32>,
    comparison: Option<JsonComparison<'a>>,
    missing: Vec<JsonMissing>,
    expressible: Option<JsonExpressible>,
}

#[derive(Debug, Serialize)]
struct JsonTable {
    version: u8,
    functions: u32,
    rows: u64,
    bytes: usize,
}

#[derive(Debug, Serialize)]
struct JsonValidation<'a> {
    errors: u64,
    notes: u64,
    first_errors: &'a [String],
    first_notes: &'a [String],
}

#[derive(Debug, Serialize)]
struct JsonComparison<'a> {
    entries: u64,
    rows: u64,
    code_bytes: u64,
    covered_bytes: u64,
    context_bytes: u64,
    places: u64,
    unreadable: u64,
    differences: u64,
    first_differences: Vec<JsonDifference<'a>>,
}

#[derive(Debug, Serialize)]
struct JsonDifference<'a> {
    addr: String,
    what: &'a [&'static str],
    table: &'a str,
    cfi: &'a str,
}

impl<'a> JsonDifference<'a> {
    fn new(difference: &'a Difference, code: &Code) -> Self {
        Self {
            addr: code.place(difference.addr).to_string(),
            what: &difference.what,
            table: &difference.table,
            cfi: &difference.frames,
        }
    }
}

#[derive(Debug, Serialize)]
struct JsonMissing {
    reason: &'static str,
    bytes: u64,
    ranges: u64,
    first: Vec<MissingRange>,
}

#[derive(Debug, Serialize)]
struct JsonExpressible {
    bytes: u64,
    covered_bytes: u64,
}

#[cfg(test)]
mod tests {
    use unwind_target::rows::call_frames::FrameSections;

    use super::*;

    /// 8 bytes that a table has lost for a reason, of 24.
    fn faults_of_losing(is_plain: bool, reason: CfiOmissionReason) -> (u64, Option<(u64, u64)>) {
        let frames =
            CallFrames { abi: sframe::Abi::Amd64Little, sections: FrameSections::default() };
        let missing = Uncovered { range: 0x1000..0x1008, is_plain };
        let report = Report {
            file: PathBuf::new(),
            built: Some(FormatArg::V3),
            tables: &[],
            validation: Validation::default(),
            disorder: None,
            comparison: Some(Comparison {
                code_bytes: 24,
                covered_bytes: 16,
                missing: vec![missing],
                ..Comparison::default()
            }),
            losses: Some(Losses {
                frames: &frames,
                ranges: vec![Loss { range: 0x1000..0x1008, part: None, reason }],
            }),
            code: &Code::default(),
            first: 1,
        };
        (report.faults(), report.expressible())
    }

    #[test]
    fn what_version_3_can_say_and_does_not_is_a_fault_whatever_reason_it_has() {
        let reason = CfiOmissionReason::Cfi(CfiError::StackPointer);
        assert_eq!(faults_of_losing(false, reason), (0, Some((16, 16))));
        assert_eq!(faults_of_losing(true, reason), (1, Some((24, 16))));
        // Malformed information is no table's fault.
        assert_eq!(faults_of_losing(true, CfiOmissionReason::Cfi(CfiError::NotCode)).0, 0);
    }

    #[test]
    fn a_part_is_never_rounded_up_to_the_whole() {
        assert_eq!(percent(1, 1), "100.0000 %");
        assert_eq!(percent(u64::MAX - 1, u64::MAX), "99.9999 %");
        assert_eq!(percent(0, 7), "0.0000 %");
        assert_eq!(percent(0, 0), "-");
        assert_eq!(percent(1, 3), "33.3333 %");
    }
}
