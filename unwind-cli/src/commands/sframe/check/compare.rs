//! A table held against call frame information, place by place.
//!
//! The rows of call frame information are gimli's, so nothing of what makes
//! tables here is used to judge them.

use std::fmt;
use std::ops::Range;

use gimli::{
    BaseAddresses, CieOrFde, EhFrame, FrameDescriptionEntry, RegisterRule, UnwindContext,
    UnwindContextStorage, UnwindSection, UnwindTableRow, X86_64,
};
use sframe::{Abi, Fde, PcType, Table};
use unwind_target::elf::error::Part;
use unwind_target::rows::call_frames::{CallFrames, joined};

use crate::commands::sframe::check::comparison::{Comparison, Difference, Uncovered, Unreadable};
use crate::commands::sframe::check::machine::{Caller, Found, Machine, Reader};
use crate::commands::sframe::formulas::Rules;
use crate::progress::Progress;

/// How many places are looked at, for each byte of both sides and in any case.
/// A rule can ask for the pc, and a table have blocks of a byte, in code of any
/// length.
const PLACES_PER_BYTE: u64 = 16;
const MIN_PLACES: u64 = 1 << 18;

/// How many differences, and unreadable entries, are kept.
const KEPT: usize = 10_000;

/// Holds `tables` against `frames`.
pub(super) fn compare(
    frames: &CallFrames,
    tables: &[Table<'_>],
    progress: &Progress,
) -> Comparison {
    let vendor = match frames.abi {
        Abi::Aarch64Big | Abi::Aarch64Little => gimli::Vendor::AArch64,
        _ => gimli::Vendor::Default,
    };
    let mut bases = BaseAddresses::default();
    if let Some(text) = frames.sections.text {
        bases = bases.set_text(text);
    }
    if let Some(got) = frames.sections.got {
        bases = bases.set_got(got);
    }
    let mut comparer = Comparer::new(frames, tables);
    let mut before = 0_u64;
    for (index, section) in frames.sections.list.iter().enumerate() {
        comparer.part = (index != 0).then_some(section.part);
        comparer.keeps_code = index.saturating_add(1) < frames.sections.list.len();
        let reader = Reader::new(&section.bytes, frames.endian());
        let progress = |done| progress.set(before.saturating_add(done), frames.byte_len());
        if section.part == Part::DebugFrame {
            let mut section = gimli::DebugFrame::from(reader);
            section.set_address_size(8);
            section.set_vendor(vendor);
            comparer.run(&section, &bases, progress);
        } else {
            let bases = bases.clone().set_eh_frame(section.addr);
            let mut section = EhFrame::from(reader);
            section.set_address_size(8);
            section.set_vendor(vendor);
            comparer.run(&section, &bases, progress);
        }
        comparer.described.append(&mut comparer.code);
        comparer.described = joined(std::mem::take(&mut comparer.described));
        before = before.saturating_add(u64::try_from(section.bytes.len()).unwrap_or(u64::MAX));
    }
    if let Some(error) = frames.sections.unread {
        comparer.unreadable(u64::MAX, error);
    }
    comparer.result
}

/// Room for what malformed information remembers.
struct Storage;

impl<T: gimli::ReaderOffset> UnwindContextStorage<T> for Storage {
    type Rules = [(gimli::Register, RegisterRule<T>); 192];
    type Stack = Box<[UnwindTableRow<T, Self>; 64]>;
}

struct Comparer<'t, 'a> {
    abi: Abi,
    tables: &'t [Table<'a>],
    /// Where functions of the tables start, ascending.
    starts: Vec<u64>,
    /// The function looked at last, and where its rows start.
    cached: Option<(usize, Fde, Vec<u32>)>,
    /// How many places are still to be looked at.
    places_left: u64,
    /// The section that is read, where it is not the only or the first one.
    part: Option<Part>,
    /// Another section is to be read after this one.
    keeps_code: bool,
    /// The code that this section describes, if another one is to be read.
    code: Vec<Range<u64>>,
    /// The code that earlier sections describe, ascending: a later section is not
    /// asked about it.
    described: Vec<Range<u64>>,
    result: Comparison,
}

/// One row of gimli's, with what it is evaluated by.
struct CfiRow<'r, S> {
    section: &'r S,
    encoding: gimli::Encoding,
    ra: gimli::Register,
    row: &'r UnwindTableRow<usize, Storage>,
    entry: u64,
    is_signal: bool,
}

impl<S> CfiRow<'_, S> {
    /// Whether the rules are those of nearly all code, for which every format
    /// has words.
    fn is_plain(&self, abi: Abi) -> bool {
        let fits = |offset: i64| i32::try_from(offset).is_ok();
        let is_cfa_plain = match *self.row.cfa() {
            gimli::CfaRule::RegisterAndOffset { register, offset } => {
                matches!(register, X86_64::RSP | X86_64::RBP) && fits(offset)
            }
            gimli::CfaRule::Expression(_) => false,
        };
        let is_fp_plain = match self.row.register(X86_64::RBP) {
            None | Some(RegisterRule::SameValue) => true,
            Some(RegisterRule::Offset(offset)) => fits(offset),
            Some(_) => false,
        };
        abi == Abi::Amd64Little
            && !self.is_signal
            && is_cfa_plain
            && self.row.register(X86_64::RA) == Some(RegisterRule::Offset(-8))
            && is_fp_plain
            && self.row.register(X86_64::RSP).is_none()
    }
}

impl<'t, 'a> Comparer<'t, 'a> {
    fn new(frames: &CallFrames, tables: &'t [Table<'a>]) -> Self {
        let bytes = tables.iter().map(|table| table.bytes().len());
        let bytes = bytes.fold(frames.byte_len(), usize::saturating_add);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let places_left = bytes.saturating_mul(PLACES_PER_BYTE).max(MIN_PLACES);
        let ranges = tables
            .iter()
            .flat_map(|table| (0..table.header().num_fdes).filter_map(|i| table.range(i)));
        let mut starts: Vec<_> = ranges.map(|range| range.start).collect();
        starts.sort_unstable();
        let result = Comparison::default();
        Self {
            abi: frames.abi,
            tables,
            starts,
            cached: None,
            places_left,
            part: None,
            keeps_code: false,
            code: Vec::new(),
            described: Vec::new(),
            result,
        }
    }

    fn run<'s, S>(&mut self, section: &S, bases: &BaseAddresses, progress: impl Fn(u64))
    where
        S: UnwindSection<Reader<'s>>,
    {
        /// Entries between two reports of progress.
        const STRIDE: u64 = 4096;
        let mut context = UnwindContext::<usize, Storage>::new_in();
        let mut entries = section.entries(bases);
        let mut entries_read = 0_u64;
        loop {
            let partial = match entries.next() {
                Ok(None) => return,
                Ok(Some(CieOrFde::Cie(_))) => continue,
                Ok(Some(CieOrFde::Fde(partial))) => partial,
                // gimli goes no further.
                Err(error) => return self.unreadable(u64::MAX, error),
            };
            let entry = u64::try_from(partial.offset()).unwrap_or(u64::MAX);
            entries_read = entries_read.saturating_add(1);
            if entries_read.is_multiple_of(STRIDE) {
                progress(entry);
            }
            let fde = partial.parse(UnwindSection::cie_from_offset);
            if fde.as_ref().is_ok_and(|fde| self.is_described(fde.initial_address())) {
                continue;
            }
            self.result.fdes = self.result.fdes.saturating_add(1);
            match fde {
                Ok(fde) => {
                    if self.keeps_code {
                        self.code.push(fde.initial_address()..fde.end_address());
                    }
                    if let Err(error) = self.fde(section, bases, &mut context, &fde) {
                        self.unreadable(entry, error);
                    }
                }
                Err(error) => self.unreadable(entry, error),
            }
        }
    }

    fn unreadable(&mut self, entry: u64, error: impl fmt::Display) {
        self.result.unreadable_count = self.result.unreadable_count.saturating_add(1);
        if self.result.unreadable.len() < KEPT {
            let error = match self.part {
                Some(part) => format!("in {part}: {error}"),
                None => error.to_string(),
            };
            self.result.unreadable.push(Unreadable { entry, error });
        }
    }

    /// Whether an earlier section describes the code at an address.
    fn is_described(&self, addr: u64) -> bool {
        let next = self.described.partition_point(|range| range.end <= addr);
        self.described.get(next).is_some_and(|range| range.start <= addr)
    }

    fn fde<'s, S>(
        &mut self,
        section: &S,
        bases: &BaseAddresses,
        context: &mut UnwindContext<usize, Storage>,
        fde: &FrameDescriptionEntry<Reader<'s>>,
    ) -> gimli::Result<()>
    where
        S: UnwindSection<Reader<'s>>,
    {
        let entry = u64::try_from(fde.offset()).unwrap_or(u64::MAX);
        let cie = fde.cie();
        let (encoding, ra) = (cie.encoding(), cie.return_address_register());
        let is_signal = fde.is_signal_trampoline();
        let mut table = fde.rows(section, bases, context)?;
        while let Some(row) = table.next_row()? {
            // LLVM's last location is often the end.
            let end = row.end_address().min(fde.end_address());
            let range = row.start_address()..end;
            if !range.is_empty() {
                let row = CfiRow { section, encoding, ra, row, entry, is_signal };
                self.row(&row, range);
            }
        }
        Ok(())
    }

    fn row<'s, S: UnwindSection<Reader<'s>>>(&mut self, row: &CfiRow<'_, S>, range: Range<u64>) {
        self.result.rows = self.result.rows.saturating_add(1);
        let len = range.end.saturating_sub(range.start);
        self.result.code_bytes = self.result.code_bytes.saturating_add(len);
        let mut addr = range.start;
        while addr < range.end {
            if !self.takes_place(row.entry) {
                return;
            }
            let (found, next) = self.find(addr);
            let next = next.min(range.end);
            let bytes = next.saturating_sub(addr);
            match found {
                None => self.missing(addr..next, row.is_plain(self.abi)),
                Some(found) => {
                    self.result.covered_bytes = self.result.covered_bytes.saturating_add(bytes);
                    self.stretch(row, found, addr..next);
                }
            }
            addr = next;
        }
    }

    /// Compares where neither side says something else, at the first address;
    /// at all of them if a rule asks for the pc.
    fn stretch<'s, S>(
        &mut self,
        row: &CfiRow<'_, S>,
        found: Result<unwind_core::Row, sframe::Error>,
        range: Range<u64>,
    ) where
        S: UnwindSection<Reader<'s>>,
    {
        for addr in range.clone() {
            if addr != range.start && !self.takes_place(row.entry) {
                return;
            }
            self.result.places = self.result.places.saturating_add(1);
            let machine = Machine::new(self.abi, addr);
            let expected = machine.gimli_row(row.section, row.encoding, row.row, row.ra);
            let expected = match expected {
                Ok(expected) => expected,
                Err(error) => return self.unreadable(row.entry, error),
            };
            match &found {
                Err(error) => self.differ(addr, vec!["all"], error.to_string(), row),
                Ok(table_row) => {
                    let actual = machine.row(table_row);
                    if actual == Found::Context {
                        let len = range.end.saturating_sub(addr);
                        self.result.context_bytes = self.result.context_bytes.saturating_add(len);
                        return;
                    }
                    let what = differing(actual, expected);
                    if !what.is_empty() {
                        let rules = Rules { abi: self.abi, row: *table_row };
                        self.differ(addr, what, rules.to_string(), row);
                    }
                }
            }
            if !machine.read_pc.get() {
                return;
            }
        }
    }

    /// Whether one more place may be looked at. Says once if not.
    fn takes_place(&mut self, entry: u64) -> bool {
        let Some(left) = self.places_left.checked_sub(1) else { return false };
        if left == 0 {
            self.unreadable(entry, "more places than are compared");
        }
        self.places_left = left;
        left != 0
    }

    fn differ<S>(
        &mut self,
        addr: u64,
        what: Vec<&'static str>,
        table: String,
        row: &CfiRow<'_, S>,
    ) {
        self.result.differences = self.result.differences.saturating_add(1);
        if self.result.first_differences.len() < KEPT {
            let frames = describe(row.row, row.ra);
            self.result.first_differences.push(Difference { addr, what, table, frames });
        }
    }

    fn missing(&mut self, range: Range<u64>, is_plain: bool) {
        if let Some(last) = self.result.missing.last_mut()
            && (last.range.end, last.is_plain) == (range.start, is_plain)
        {
            last.range.end = range.end;
            return;
        }
        self.result.missing.push(Uncovered { range, is_plain });
    }

    /// The row of the tables at an address, and the next address where they may
    /// have another one.
    fn find(&mut self, addr: u64) -> (Option<Result<unwind_core::Row, sframe::Error>>, u64) {
        for (index, table) in self.tables.iter().enumerate() {
            match table.find(addr) {
                Ok(None) => {}
                Ok(Some(found)) => {
                    let next = self.next_row(index, &found.fde, addr);
                    return (Some(found.row()), next);
                }
                Err(error) => return (Some(Err(error)), addr.saturating_add(1)),
            }
        }
        let after = self.starts.partition_point(|&start| start <= addr);
        (None, self.starts.get(after).copied().unwrap_or(u64::MAX))
    }

    /// Where the row after that of `addr` starts in a function of a table.
    fn next_row(&mut self, index: usize, fde: &Fde, addr: u64) -> u64 {
        let end = fde.range.start.saturating_add(fde.range.size.into());
        if self.cached.as_ref().is_none_or(|(table, cached, _)| (*table, cached) != (index, fde)) {
            let fres = self.tables.get(index).and_then(|table| table.fres(fde).ok());
            let starts = fres.into_iter().flatten().flatten().map(|fre| fre.start).collect();
            self.cached = Some((index, *fde, starts));
        }
        let Some((.., starts)) = &self.cached else { return end };
        let offset = addr.wrapping_sub(fde.range.start);
        let (block, offset, block_end) = match fde.pc_type() {
            Ok(PcType::Mask(size)) => {
                let inside = offset.checked_rem(size.get().into()).unwrap_or(0);
                let block = addr.saturating_sub(inside);
                (block, inside, block.saturating_add(size.get().into()))
            }
            _ => (fde.range.start, offset, end),
        };
        let after = starts.partition_point(|&start| u64::from(start) <= offset);
        let next = starts.get(after).map(|&start| block.saturating_add(start.into()));
        next.unwrap_or(block_end).min(block_end).min(end)
    }
}

/// What differs. `None` is information that has no return address, which no
/// row can say.
fn differing(actual: Found, expected: Option<Found>) -> Vec<&'static str> {
    let (actual, expected) = match (actual, expected) {
        (Found::Outermost, Some(Found::Outermost)) => return Vec::new(),
        (Found::Caller(actual), Some(Found::Caller(expected))) => (actual, expected),
        _ => return vec!["RA"],
    };
    let Caller { cfa, ra, fp, sp, is_ra_signed } = actual;
    let fields = [
        ("CFA", cfa == expected.cfa),
        ("RA", ra == expected.ra),
        ("FP", fp == expected.fp),
        ("SP", sp == expected.sp),
        ("signed RA", is_ra_signed == expected.is_ra_signed),
    ];
    fields.into_iter().filter(|(_, same)| !same).map(|(name, _)| name).collect()
}

/// A row of gimli's as text.
fn describe(row: &UnwindTableRow<usize, Storage>, ra: gimli::Register) -> String {
    use fmt::Write as _;
    let mut text = match *row.cfa() {
        gimli::CfaRule::RegisterAndOffset { register, offset } => {
            format!("CFA=r{}{offset:+}", register.0)
        }
        gimli::CfaRule::Expression(e) => format!("CFA=expression at {:#x}", e.offset),
    };
    for &(register, ref rule) in row.registers() {
        let name = if register == ra { "RA".into() } else { format!("r{}", register.0) };
        // Writing to a string does not fail.
        _ = match *rule {
            RegisterRule::Undefined => write!(text, " {name}=undefined"),
            RegisterRule::SameValue => write!(text, " {name}=same"),
            RegisterRule::Offset(offset) => write!(text, " {name}=*(CFA{offset:+})"),
            RegisterRule::ValOffset(offset) => write!(text, " {name}=CFA{offset:+}"),
            RegisterRule::Register(source) => write!(text, " {name}=r{}", source.0),
            RegisterRule::Expression(e) => write!(text, " {name}=*(expression at {:#x})", e.offset),
            RegisterRule::ValExpression(e) => write!(text, " {name}=expression at {:#x}", e.offset),
            _ => write!(text, " {name}=?"),
        };
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::as_conversions, reason = "tests")]
mod tests {
    use std::path::Path;

    use sframe::Format;
    use testdata::{CfiBuilder, Cie};

    use super::*;
    use unwind_target::rows::call_frames::{FrameSection, FrameSections};

    #[test]
    fn a_rule_that_asks_for_the_pc_is_compared_in_a_bounded_number_of_places() {
        // CFA = rsp+8, and 8 more in the last five bytes of each block of 16, as in
        // a PLT, but for 2 GiB.
        let plt = [0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        let mut cfi = CfiBuilder::eh_frame(0x1000);
        let cie = cfi.cie(&Cie::amd64());
        cfi.fde(cie, 0x10_0000, 0x7fff_fff0, &plt);
        let frames = CallFrames {
            abi: Abi::Amd64Little,
            sections: FrameSections {
                list: vec![FrameSection {
                    part: Part::EhFrame,
                    bytes: cfi.build().to_vec(),
                    addr: 0x1000,
                }],
                ..FrameSections::default()
            },
        };
        let built = frames.build(Format::V3, 0x2000, |_| {}).unwrap();
        let table = Table::parse(&built.bytes).unwrap().at(built.addr);
        let progress = Progress::new(Path::new("plt"), 0);
        let result = compare(&frames, &[table], &progress);
        assert!((MIN_PLACES / 2..=MIN_PLACES).contains(&result.places), "{}", result.places);
        assert_eq!((result.differences, result.unreadable_count), (0, 1));
        assert_eq!(result.unreadable.first().unwrap().error, "more places than are compared");
    }
}
