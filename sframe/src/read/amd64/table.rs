//! The search of a table for the function that covers a pc, and for its row.

use crate::sign::{Signed, Unsigned};
use unwind_core::{BaseReg, CfaRule, RegRule, Row};

use crate::{
    format::{
        fde::FdeEntry,
        flags::Flags,
        header::{Abi, Header, Version},
    },
    read::{
        amd64::rows::{FastRows, FoundRow},
        bisect::Ascending,
        source::Checkpoint,
    },
};

/// The reader of a table of the most frequent form: sorted, of 64-bit x86 code, with
/// one place of the return address for all functions, and none of the frame pointer.
///
/// It holds what the header says, so that no lookup decodes that again. It answers
/// for default rows of functions that are well formed, and leaves all else to the
/// general reader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FastReader {
    layout: Layout,
    ra_offset: i8,
    /// What the start of entry 0 counts from, in bytes from the section.
    anchor: i64,
}

/// The layouts of a function table that are in use today.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// Version 2: starts count from the section, or from their entries.
    V2 { relative: bool },
    /// Version 3: starts count from their entries.
    V3,
}

/// What the table says of a function that covers the pc.
pub(crate) struct Function {
    /// Where its entry is, in units of the array that the table is searched as.
    pub(crate) at: usize,
    /// How far into the function the pc is, in bytes.
    pub(crate) offset: u32,
    /// Where its first row is among all rows.
    first: usize,
    pub(crate) num_fres: u32,
    /// Its info, and above that its info2.
    info: u16,
}

/// What the fast reader finds.
#[derive(Debug)]
pub(crate) enum FastLookup {
    /// The rules for the pc.
    Row(Row),
    /// The row, the rules of which the general reader has to decode.
    RowAt {
        /// The index of its function.
        index: u32,
        /// Where it is, in bytes from the first row of all functions.
        at: usize,
    },
    /// Nothing, or something malformed: the general reader has to look.
    Unknown {
        /// The position of the last function that starts at or before the pc, or of
        /// the first function, if the search got so far.
        position: Option<u32>,
    },
}

impl FastReader {
    /// What is known of a table; `None` if it is of another form.
    #[inline]
    pub(crate) fn new(header: &Header) -> Option<Self> {
        let relative = header.flags.contains(Flags::PCREL);
        let layout = match header.version {
            Version::V2 => Layout::V2 { relative },
            Version::V3 if relative => Layout::V3,
            _ => return None,
        };
        let is_open = header.flags.contains(Flags::SORTED)
            && header.abi == Abi::Amd64Little
            && header.fixed_fp_offset.is_none();
        let ra_offset = header.fixed_ra_offset.filter(|_| is_open)?;
        let anchor = if relative { header.fdes_at().0.signed() } else { 0 };
        Some(Self { layout, ra_offset, anchor })
    }

    /// Finds the rules for `pc`, in bytes from the table, among these functions.
    ///
    /// `fdes` are the entries of all functions, `fres` their rows.
    #[inline(always)]
    pub(crate) fn find_row(
        &self,
        fdes: &[u8],
        fres: &[u8],
        among: Ascending,
        pc: i64,
        checkpoint: impl FnOnce(&Function) -> Option<Checkpoint>,
    ) -> FastLookup {
        // From the anchor, where no start wraps.
        let Some(offset) = pc.checked_sub(self.anchor) else {
            return FastLookup::Unknown { position: None };
        };
        let (at, function) = match self.layout {
            Layout::V2 { relative } => Function::find_v2(fdes, relative, among, offset),
            Layout::V3 => Function::find_v3(fdes, fres, among, offset),
        };
        let found = function.and_then(|function| {
            let rows = FastRows::new(fres, function.first, function.num_fres, function.offset);
            let rows = rows.from(checkpoint(&function));
            Some((rows.last(function.width())?, function))
        });
        let Some((row, function)) = found else {
            return FastLookup::Unknown { position: Some(self.index(at)) };
        };
        match self.rules(row, &function) {
            Some(row) => FastLookup::Row(row),
            None => FastLookup::RowAt { index: self.index(at), at: row.at },
        }
    }

    /// The index of the function that was found there.
    #[inline]
    pub(crate) fn index(&self, at: usize) -> u32 {
        let unit = match self.layout {
            Layout::V2 { .. } => Function::V2_UNITS,
            Layout::V3 => Function::V3_UNITS,
        };
        at.checked_div(unit).and_then(|at| u32::try_from(at).ok()).unwrap_or(u32::MAX)
    }

    /// The rules of a default row.
    #[inline(always)]
    fn rules(&self, row: FoundRow<'_>, function: &Function) -> Option<Row> {
        let FoundRow { info, words, .. } = row;
        if function.info & Function::KIND != 0 {
            return None;
        }
        // Nearly every row has others after it, so that more can be read.
        let word =
            u64::from_le_bytes(words.first_chunk().copied().unwrap_or_else(|| padded(words)));
        // As the highest bits of a word, so that a shift extends the sign. By so
        // many bits modulo those of `word`, as two words may be all of it.
        let unused = u32::from(info.word_size()?).wrapping_mul(u8::BITS).wrapping_neg();
        let extended = |word: u64| low(word.signed().wrapping_shr(unused));
        let cfa = extended(word.wrapping_shl(unused));
        let second = extended(word.wrapping_shl(unused.wrapping_mul(2)));
        let base = if info.cfa_base_is_sp() { BaseReg::Sp } else { BaseReg::Fp };
        let cfa = CfaRule::Register(base, cfa);
        let ra = RegRule::Offset(self.ra_offset.into());
        // Each rule by itself, so that it is known where it is packed.
        let row = match info.word_count() {
            0 => return Some(Row::outermost()),
            1 => Row::new(cfa, ra, RegRule::SameValue),
            _ => Row::new(cfa, ra, RegRule::Offset(second)),
        };
        Some(if function.info & Function::SIGNAL != 0 { row.with_signal() } else { row })
    }
}

impl Function {
    /// Of `info`: a signal trampoline, in V3.
    const SIGNAL: u16 = 0x80;
    /// Of `info`: the width of starts, and that the function is one of blocks.
    const WIDTH_AND_MASK: u16 = 0x1f;
    /// Of `info2`: how words are meant.
    const KIND: u16 = 0x1f00;
    /// How many words are an entry of V2.
    const V2_UNITS: usize = 5;
    /// How many double words are one of V3.
    const V3_UNITS: usize = 2;

    /// The code of the width of starts; another for a function of blocks.
    #[inline(always)]
    const fn width(&self) -> u16 {
        self.info & Self::WIDTH_AND_MASK
    }

    /// The last function that starts at or before `pc`, from the anchor, and what
    /// the table says of it if it covers that. Starts count from the entries if
    /// they are `relative`.
    #[inline(always)]
    fn find_v2(fdes: &[u8], relative: bool, among: Ascending, pc: i64) -> (usize, Option<Self>) {
        let words = Units::<4>::new(fdes);
        let mask = if relative { usize::MAX } else { 0 };
        let resolve = |at: usize, start: [u8; 4]| {
            i64::from(i32::from_le_bytes(start)).wrapping_add(to_i64(at.wrapping_mul(4) & mask))
        };
        let is_reached = |at| words.get(at).is_some_and(|word| resolve(at, word) <= pc);
        let at = among.last_at_hand(Self::V2_UNITS, is_reached);
        let of = || {
            let [start, size, first, num_fres, [info, ..]] = words.array(at)?;
            Some(Self {
                at,
                offset: offset_in(resolve(at, start), u32::from_le_bytes(size), pc)?,
                first: usize::try_from(u32::from_le_bytes(first)).ok()?,
                num_fres: u32::from_le_bytes(num_fres),
                info: u16::from(info) & !Self::SIGNAL,
            })
        };
        (at, of())
    }

    /// The same in version 3.
    #[inline(always)]
    fn find_v3(fdes: &[u8], fres: &[u8], among: Ascending, pc: i64) -> (usize, Option<Self>) {
        let words = Units::<8>::new(fdes);
        let resolve = |at: usize, start: [u8; 8]| {
            i64::from_le_bytes(start).wrapping_add(to_i64(at.wrapping_mul(8)))
        };
        let is_reached = |at| words.get(at).is_some_and(|word| resolve(at, word) <= pc);
        let at = among.last_at_hand(Self::V3_UNITS, is_reached);
        let of = || {
            let [start, [a, b, c, d, rest @ ..]] = words.array(at)?;
            let offset = offset_in(resolve(at, start), u32::from_le_bytes([a, b, c, d]), pc)?;
            let attribute = usize::try_from(u32::from_le_bytes(rest)).ok()?;
            let &[a, b, c, d, _] = fres.get(attribute..)?.first_chunk()?;
            let num_fres = u16::from_le_bytes([a, b]).into();
            let first = attribute.wrapping_add(FdeEntry::ATTRIBUTE_SIZE);
            let info = u16::from_le_bytes([c, d]);
            Some(Self { at, offset, first, num_fres, info })
        };
        (at, of())
    }
}

/// Bytes in units of `N`.
#[cfg(not(before_rust_1_88))]
#[derive(Clone, Copy)]
struct Units<'a, const N: usize>(&'a [[u8; N]]);

#[cfg(not(before_rust_1_88))]
impl<'a, const N: usize> Units<'a, N> {
    #[expect(clippy::incompatible_msrv, reason = "left out for older compilers, see build.rs")]
    #[inline(always)]
    fn new(bytes: &'a [u8]) -> Self {
        Self(bytes.as_chunks().0)
    }

    #[inline(always)]
    fn get(self, at: usize) -> Option<[u8; N]> {
        self.0.get(at).copied()
    }

    /// The units from `at` on.
    #[inline(always)]
    fn array<const M: usize>(self, at: usize) -> Option<[[u8; N]; M]> {
        self.0.get(at..)?.first_chunk().copied()
    }
}

/// The same, with a check more a unit.
#[cfg(before_rust_1_88)]
#[derive(Clone, Copy)]
struct Units<'a, const N: usize>(&'a [u8]);

#[cfg(before_rust_1_88)]
impl<'a, const N: usize> Units<'a, N> {
    #[inline(always)]
    fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    #[inline(always)]
    fn get(self, at: usize) -> Option<[u8; N]> {
        self.0.get(at.checked_mul(N)?..)?.first_chunk().copied()
    }

    #[inline(always)]
    fn array<const M: usize>(self, at: usize) -> Option<[[u8; N]; M]> {
        let mut units = [[0; N]; M];
        let to = units.as_flattened_mut();
        to.copy_from_slice(self.0.get(at.checked_mul(N)?..)?.get(..to.len())?);
        Some(units)
    }
}

/// How far `pc` is into the function of this start and size, if that covers it.
#[inline(always)]
fn offset_in(start: i64, size: u32, pc: i64) -> Option<u32> {
    let offset = pc.wrapping_sub(start);
    (offset.unsigned() < size.into()).then(|| low(offset).unsigned())
}

/// The last bytes of a table, with zeros after them.
#[cold]
fn padded(bytes: &[u8]) -> [u8; 8] {
    let mut padded = [0; 8];
    for (to, &from) in padded.iter_mut().zip(bytes) {
        *to = from;
    }
    padded
}

/// The low half of a word.
#[inline(always)]
fn low(word: i64) -> i32 {
    let [a, b, c, d, ..] = word.to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}

#[inline(always)]
fn to_i64(offset: usize) -> i64 {
    u64::try_from(offset).unwrap_or_default().signed()
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use alloc::vec;

    use testdata::TableBuilder;

    use super::*;
    use crate::read::{bisect::Ascending, table::Table};

    /// The rules at `pc` if they are found here, and not left to others.
    fn found(table: &Table<'_>, pc: i64) -> Option<Row> {
        let reader = FastReader::new(&table.header())?;
        let among = Ascending::all(&table.header());
        let (fdes, fres) = (table.fdes_bytes(), table.fres_bytes());
        let pc = pc.wrapping_sub(reader.anchor);
        let (_, function) = match reader.layout {
            Layout::V2 { relative } => Function::find_v2(fdes, relative, among, pc),
            Layout::V3 => Function::find_v3(fdes, fres, among, pc),
        };
        let function = function?;
        let rows = FastRows::new(fres, function.first, function.num_fres, function.offset);
        reader.rules(rows.last(function.width())?, &function)
    }

    #[test]
    fn default_rows_of_usual_tables_are_found_here() {
        const SORTED: u8 = TableBuilder::SORTED;
        const RELATIVE: u8 = SORTED | TableBuilder::PCREL;
        let rows = || {
            let last = testdata::Row::sp(8, &[]);
            vec![testdata::Row::sp(0, &[16]), testdata::Row::fp(4, &[24, -16]), last]
        };
        for (version, flags) in [(2, SORTED), (2, RELATIVE), (3, RELATIVE)] {
            // Of each width of starts.
            for size in [0x20, 0x200, 0x2_0000] {
                let function = testdata::Function::new(0x100, size, rows());
                let builder = TableBuilder { flags, ..TableBuilder::amd64(version) };
                let bytes = builder.clone().function(function.clone()).build();
                let table = Table::parse(&bytes).unwrap();
                let ra = RegRule::Offset(-8);
                let first = Row::new(CfaRule::sp(16), ra, RegRule::SameValue);
                let second = Row::new(CfaRule::fp(24), ra, RegRule::Offset(-16));
                let expected = [None, Some(first), Some(second), Some(Row::outermost())];
                assert_eq!([0xff, 0x103, 0x104, 0x108].map(|pc| found(&table, pc)), expected);
                // Version 2 has no such flag, and the bit no meaning.
                let bytes = builder.clone().function(function.clone().signal()).build();
                let first = if version == 3 { first.with_signal() } else { first };
                assert_eq!(found(&Table::parse(&bytes).unwrap(), 0x100), Some(first));
                // What is of another form is left to others.
                let bytes = builder.function(function.blocks(16)).build();
                assert_eq!(found(&Table::parse(&bytes).unwrap(), 0x100), None);
            }
        }
    }
}
