//! `unwind sframe stat`: how large tables are, and what is in them.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use sframe::FdeType;
use unwind_core::{BaseReg, CfaRule, RegRule, Row};
use unwind_target::counted::bytes_in_ranges;
use unwind_target::elf::ElfFile;
use unwind_target::rows::call_frames::{BuiltTable, CallFrames};
use unwind_target::{ElfError, InputError, Untrusted};

use crate::commands::sframe::check::percent;
use crate::commands::sframe::error::SframeError;
use crate::commands::sframe::format::FormatArg;
use crate::commands::sframe::input::{Content, Form, each_image};
use crate::commands::sframe::shared_rows::RowsLeft;
use crate::failure::Failure;
use crate::progress::Progress;

/// Show how large tables are, and what is in them.
///
/// Those are the tables of the file itself, if it has some, and what version 2
/// and version 3 make of its call frame information.
#[derive(Debug, clap::Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct Args {
    /// ELF files: programs, libraries, objects, archives; `-` is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Print one JSON object for each file instead of text; `--help` describes it
    #[arg(long)]
    json: bool,
}

const LONG_HELP: &str = "\
First-frame rows compute the CFA from a register other than the stack and the
frame pointer, or load it by one: they are of use only where all registers are
known, in the first frame and below a signal frame.

JSON (its JSON Schema: docs/schema/sframe-stat.json): one object with
  schema        1; rises when a field changes its meaning or goes
  file
  sections      bytes by name: .text, .eh_frame, .eh_frame_hdr, .debug_frame
  entries       FDEs of the call frame information
  code_bytes    bytes of code that they are about
  tables        a list, each with
    source              `file`, or the format of a table that was made here
    version, bytes
    functions           flexible, blocks, signal and rowless ones among them
    rows, max_rows      of all functions; of the function that has most
    first_frame_rows, outermost_rows, signed_rows
    covered_bytes       bytes of code
    malformed           functions that cannot be read, or share too many rows
    left_out            a list by reason: reason, ranges, bytes";

/// Runs `unwind sframe stat`.
///
/// # Errors
///
/// [`Failure`] if the file cannot be read, or has nothing to show.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    each_image(&args.files, Form::ELF, |image| match &image.content {
        Content::Elf(elf) => stat(args, &image.path, elf),
        Content::Raw(..) => Ok(()),
    })
}

fn stat(args: &Args, path: &Path, elf: &ElfFile) -> Result<(), Failure> {
    let elf_error = |error| InputError::Elf { path: path.to_path_buf(), error };
    let statistics = Statistics::of(path, elf).map_err(|fault| match fault {
        Fault::Elf(error) => Failure::from(elf_error(error)),
        Fault::Sframe(error) => error.into(),
    })?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        serde_json::to_writer_pretty(&mut out, &statistics)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out))
    } else {
        statistics.write(&mut out)
    }
    .and_then(|()| out.flush())
    .map_err(Failure::output)
}

enum Fault {
    Elf(ElfError),
    Sframe(SframeError),
}

impl From<ElfError> for Fault {
    fn from(error: ElfError) -> Self {
        Self::Elf(error)
    }
}

impl From<SframeError> for Fault {
    fn from(error: SframeError) -> Self {
        Self::Sframe(error)
    }
}

/// The version of the structure: it rises when a field changes its meaning or
/// goes.
const SCHEMA: u32 = 1;

/// What is shown of a file.
#[derive(Debug, Serialize)]
struct Statistics {
    schema: u32,
    file: Untrusted,
    sections: BTreeMap<&'static str, u64>,
    entries: u64,
    code_bytes: u64,
    tables: Vec<Table>,
}

/// What is shown of a table.
#[derive(Debug, Default, Serialize)]
struct Table {
    source: String,
    version: u8,
    bytes: u64,
    functions: u64,
    flexible: u64,
    blocks: u64,
    signal: u64,
    rowless: u64,
    rows: u64,
    max_rows: u64,
    first_frame_rows: u64,
    outermost_rows: u64,
    signed_rows: u64,
    covered_bytes: u64,
    malformed: u64,
    left_out: Vec<LeftOut>,
}

/// Code that is not in a table, for one reason.
#[derive(Debug, Serialize)]
struct LeftOut {
    reason: &'static str,
    ranges: u64,
    bytes: u64,
}

impl Statistics {
    fn of(path: &Path, file: &ElfFile) -> Result<Self, Fault> {
        let mut statistics = Self {
            schema: SCHEMA,
            file: Untrusted::from(path),
            sections: sizes(file)?,
            entries: 0,
            code_bytes: 0,
            tables: Vec::new(),
        };
        let sections = file.sframe_sections()?;
        if sections.iter().any(|section| !section.bytes.is_empty()) {
            let mut all = Table { source: "file".into(), ..Table::default() };
            for table in sections.iter().flat_map(|section| section.tables().tables()) {
                let table =
                    table.map_err(|error| SframeError::Table { path: path.into(), error })?;
                all.add(&table);
            }
            statistics.tables.push(all);
        }
        if let Some(frames) = CallFrames::read(file)? {
            let progress = Progress::new(path, file.byte_len());
            for format in [FormatArg::V2, FormatArg::V3] {
                let built = frames
                    .build(format.format(), 0, |done| progress.set(done, frames.byte_len()))
                    .map_err(|error| SframeError::Write { path: path.into(), error })?;
                statistics.entries = built.report.fdes;
                statistics.code_bytes = built.report.code_bytes;
                statistics.tables.push(Table::built(format, &built));
            }
            progress.finish();
        }
        match statistics.tables.is_empty() {
            true => Err(SframeError::NoFrames { path: path.into() }.into()),
            false => Ok(statistics),
        }
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}", self.file)?;
        for (name, bytes) in &self.sections {
            writeln!(out, "  {name:<22}{bytes:>14} bytes")?;
        }
        writeln!(out, "  {:<22}{:>14}", "entries", self.entries)?;
        writeln!(out, "  {:<22}{:>14} bytes", "code", self.code_bytes)?;
        let line = |out: &mut dyn Write, name: &str, cell: &dyn Fn(&Table) -> String| {
            write!(out, "  {name:<22}")?;
            self.tables.iter().try_for_each(|table| write!(out, "{:>14}", cell(table)))?;
            writeln!(out)
        };
        let size = |name| self.sections.get(name).copied().unwrap_or(0);
        let frames = size(".eh_frame");
        let both = frames.saturating_add(size(".eh_frame_hdr"));
        writeln!(out)?;
        line(out, "table", &|t| t.source.clone())?;
        line(out, "version", &|t| t.version.to_string())?;
        line(out, "bytes", &|t| t.bytes.to_string())?;
        line(out, "  of .eh_frame", &|t| ratio(t.bytes, frames))?;
        line(out, "  of it and its index", &|t| ratio(t.bytes, both))?;
        line(out, "functions", &|t| t.functions.to_string())?;
        line(out, "  flexible", &|t| t.flexible.to_string())?;
        line(out, "  of blocks", &|t| t.blocks.to_string())?;
        line(out, "  signal", &|t| t.signal.to_string())?;
        line(out, "  without rows", &|t| t.rowless.to_string())?;
        line(out, "  malformed", &|t| t.malformed.to_string())?;
        line(out, "rows", &|t| t.rows.to_string())?;
        line(out, "  a function", &|t| ratio(t.rows, t.functions))?;
        line(out, "  most of a function", &|t| t.max_rows.to_string())?;
        line(out, "  first frame only", &|t| t.first_frame_rows.to_string())?;
        line(out, "  outermost", &|t| t.outermost_rows.to_string())?;
        line(out, "  signed", &|t| t.signed_rows.to_string())?;
        line(out, "covered bytes", &|t| t.covered_bytes.to_string())?;
        line(out, "  of the code", &|t| percent(t.covered_bytes, self.code_bytes))?;
        for table in &self.tables {
            for LeftOut { reason, ranges, bytes } in &table.left_out {
                writeln!(
                    out,
                    "left out of {}: {}: {reason}",
                    table.source,
                    bytes_in_ranges(*bytes, *ranges)
                )?;
            }
        }
        Ok(())
    }
}

impl Table {
    fn built(format: FormatArg, built: &BuiltTable) -> Self {
        let mut table = Self { source: format.to_string(), ..Self::default() };
        if let Ok(section) = sframe::Table::parse(&built.bytes) {
            table.add(&section.at(built.addr));
        }
        table.left_out = built
            .lost_by_reason()
            .into_iter()
            .map(|(reason, (ranges, bytes))| LeftOut { reason, ranges, bytes })
            .collect();
        table
    }

    /// Counts what is in a table of a section.
    fn add(&mut self, section: &sframe::Table<'_>) {
        self.version = section.header().version.number();
        let len = u64::try_from(section.bytes().len()).unwrap_or(u64::MAX);
        self.bytes = self.bytes.saturating_add(len);
        let mut rows_left = RowsLeft::counted(section);
        for fde in section.fdes() {
            self.functions = self.functions.saturating_add(1);
            let Ok(fde) = fde else {
                self.malformed = self.malformed.saturating_add(1);
                continue;
            };
            let one = |is| u64::from(u8::from(is));
            self.flexible = self.flexible.saturating_add(one(fde.fde_type() == FdeType::Flexible));
            self.blocks = self.blocks.saturating_add(one(fde.is_mask()));
            self.signal = self.signal.saturating_add(one(fde.is_signal()));
            self.rowless = self.rowless.saturating_add(one(fde.num_fres == 0));
            self.covered_bytes = self.covered_bytes.saturating_add(fde.range.size.into());
            let mut rows = 0_u64;
            let mut malformed = false;
            for fre in rows_left.of(section, &fde).into_iter().flatten() {
                let Ok(row) =
                    fre.and_then(|fre| fde.row(&fre).map_err(sframe::Violation::Malformed))
                else {
                    malformed = true;
                    break;
                };
                rows = rows.saturating_add(1);
                self.first_frame_rows =
                    self.first_frame_rows.saturating_add(one(is_for_first_frame(&row)));
                self.outermost_rows = self.outermost_rows.saturating_add(one(row.is_outermost()));
                self.signed_rows = self.signed_rows.saturating_add(one(row.is_ra_signed()));
            }
            self.malformed = self.malformed.saturating_add(one(malformed));
            self.rows = self.rows.saturating_add(rows);
            self.max_rows = self.max_rows.max(rows);
        }
    }
}

/// Whether a rule of the row needs a register that only the first frame has.
fn is_for_first_frame(row: &Row) -> bool {
    let (CfaRule::Register(base, _)
    | CfaRule::AtRegister(base, _)
    | CfaRule::AtRegisterPlus(base, ..)) = row.cfa();
    let of = |rule| match rule {
        RegRule::Register(base, _) | RegRule::AtRegister(base, _) => {
            matches!(base, BaseReg::Reg(_))
        }
        _ => false,
    };
    !row.is_outermost() && (matches!(base, BaseReg::Reg(_)) || of(row.ra()) || of(row.fp()))
}

/// The sizes of the sections that tables are compared to.
fn sizes(file: &ElfFile) -> Result<BTreeMap<&'static str, u64>, ElfError> {
    let names = [".text", ".eh_frame", ".eh_frame_hdr", ".debug_frame"];
    let mut sizes = BTreeMap::new();
    for section in file.sections()? {
        if let Some(name) = names.iter().find(|name| name.as_bytes() == section.name) {
            sizes.insert(*name, section.size);
        }
    }
    Ok(sizes)
}

/// A ratio with three digits.
fn ratio(part: u64, whole: u64) -> String {
    let thousandths = u128::from(part).saturating_mul(1000).checked_div(whole.into());
    match thousandths {
        Some(n) => format!("{}.{:03}", n.wrapping_div(1000), n.wrapping_rem(1000)),
        None => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_registers_other_than_sp_and_fp_are_for_the_first_frame() {
        let r10 = BaseReg::Reg(unwind_core::DwarfReg(10));
        let saved = RegRule::Offset(-8);
        for (cfa, ra, fp, first) in [
            (CfaRule::sp(8), saved, RegRule::SameValue, false),
            (
                CfaRule::AtRegister(BaseReg::Fp, -8),
                saved,
                RegRule::AtRegister(BaseReg::Fp, 0),
                false,
            ),
            (CfaRule::Register(r10, 0), saved, RegRule::SameValue, true),
            (CfaRule::AtRegister(r10, 0), saved, RegRule::SameValue, true),
            (CfaRule::sp(8), RegRule::Register(r10, 0), RegRule::SameValue, true),
            (CfaRule::sp(8), saved, RegRule::AtRegister(r10, 8), true),
        ] {
            let row = Row::new(cfa, ra, fp);
            assert_eq!(is_for_first_frame(&row), first, "{row:?}");
        }
        assert!(!is_for_first_frame(&Row::outermost()));
    }

    #[test]
    fn ratios_have_three_digits() {
        assert_eq!(ratio(1085, 1000), "1.085");
        assert_eq!(ratio(7, 0), "-");
        assert_eq!(ratio(0, 7), "0.000");
    }
}
