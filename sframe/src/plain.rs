//! Lookups in tables of the most frequent form.

use unwind_core::{Base, CfaRule, RegRule, Row};

use crate::{
    Abi, Error, Header, Section, Version,
    fde::Entry,
    lookup::Checkpoint,
    plain_rows::{FoundRow, PlainRows},
    search::Ascending,
};

/// A table of the most frequent form: in order, of 64-bit x86 code, with the
/// return address of all functions at one place, and no such place for the
/// frame pointer.
///
/// Here nothing is settled at a lookup that can be settled before. A function
/// or row of another form, or with something wrong, is left to
/// [`Section::find_any_row`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain {
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
    position: Position,
    /// How far into the function the pc is, in bytes.
    pub(crate) offset: u32,
    /// Where its first row is among all rows.
    first: usize,
    pub(crate) num_fres: u32,
    info: u8,
    /// Whether its rows are default ones.
    is_default: bool,
}

/// Where a function is in the table.
#[derive(Clone, Copy)]
struct Position {
    /// In units of the array that the table is searched as.
    at: usize,
    /// How many of them an entry is.
    unit: usize,
}

impl Position {
    fn index(self) -> u32 {
        self.at.checked_div(self.unit).and_then(|at| u32::try_from(at).ok()).unwrap_or(u32::MAX)
    }
}

impl Plain {
    /// What is known of a table; `None` if it is of another form.
    #[inline]
    pub(crate) fn new(header: &Header) -> Option<Self> {
        let relative = header.flags.pcrel();
        let layout = match header.version {
            Version::V2 => Layout::V2 { relative },
            Version::V3 if relative => Layout::V3,
            _ => return None,
        };
        let is_usual = header.flags.sorted()
            && header.abi == Abi::Amd64Little
            && header.fixed_fp_offset.is_none();
        let ra_offset = header.fixed_ra_offset.filter(|_| is_usual)?;
        let anchor = if relative { header.fdes_at().0.cast_signed() } else { 0 };
        Some(Self { layout, ra_offset, anchor })
    }

    /// Finds the rules for `pc` among the functions of `section` that ascend,
    /// one or more.
    ///
    /// `MANY` says that these are all of the table.
    #[inline(always)]
    pub(crate) fn find_row<const MANY: bool>(
        &self,
        section: &Section<'_>,
        among: Ascending,
        pc: u64,
        checkpoint: impl FnOnce(&Function) -> Option<Checkpoint>,
    ) -> Result<Option<Row>, Error> {
        // From the anchor, where no start wraps.
        let offset = pc.wrapping_sub(section.addr()).cast_signed();
        let Some(offset) = offset.checked_sub(self.anchor) else {
            return section.find_any_row(None, pc);
        };
        let (fdes, fres) = (section.fdes_bytes(), section.fres_bytes());
        let (position, function) = match self.layout {
            Layout::V2 { relative } => Function::find_v2::<MANY>(fdes, relative, among, offset),
            Layout::V3 => Function::find_v3::<MANY>(fdes, fres, among, offset),
        };
        let found = function.and_then(|function| {
            let rows = PlainRows::new(fres, function.first, function.num_fres, function.offset);
            let rows = rows.from(checkpoint(&function));
            Some((rows.last(function.width())?, function))
        });
        let Some((row, function)) = found else {
            return section.find_any_row(Some(position.index()), pc);
        };
        match self.rules(row, &function) {
            Some(row) => Ok(Some(row)),
            None => section.row_at(position.index(), row.at),
        }
    }

    /// The rules of a default row.
    #[inline(always)]
    fn rules(&self, row: FoundRow<'_>, function: &Function) -> Option<Row> {
        let FoundRow { info, words, .. } = row;
        if !function.is_default {
            return None;
        }
        // Nearly every row has others behind it, so that more can be read.
        let word =
            u64::from_le_bytes(words.first_chunk().copied().unwrap_or_else(|| padded(words)));
        // As the highest bits of a word, so that a shift extends the sign.
        let bits = u32::from(info.word_size()?).wrapping_mul(u8::BITS);
        let unused = u64::BITS.wrapping_sub(bits);
        let signed = |word: u64| low((word << unused).cast_signed() >> unused);
        let (cfa, second) = (signed(word), signed(word >> bits));
        let base = if info.cfa_base_is_sp() { Base::Sp } else { Base::Fp };
        let cfa = CfaRule::Offset(base, cfa);
        let ra = RegRule::AtCfa(self.ra_offset.into());
        // Each rule by itself, so that it is known where it is packed.
        let row = match info.word_count() {
            0 => return Some(Row::outermost()),
            1 => Row::new(cfa, ra, RegRule::Same),
            _ => Row::new(cfa, ra, RegRule::AtCfa(second)),
        };
        Some(if function.info & Function::SIGNAL != 0 { row.with_signal() } else { row })
    }
}

impl Function {
    /// Of `info`: a signal trampoline, in V3.
    const SIGNAL: u8 = 0x80;
    /// Of `info`: the width of starts, and that the function is one of blocks.
    const WIDTH_AND_MASK: u8 = 0x1f;
    /// Of `info2`: how words are meant.
    const KIND: u8 = 0x1f;

    pub(crate) fn index(&self) -> u32 {
        self.position.index()
    }

    /// The code of the width of starts; another for a function of blocks.
    #[inline(always)]
    const fn width(&self) -> u8 {
        self.info & Self::WIDTH_AND_MASK
    }

    /// The last function that starts at or before `pc`, from the anchor, and what
    /// the table says of it if it covers that. Starts count from the entries if
    /// they are `relative`.
    #[inline(always)]
    fn find_v2<const MANY: bool>(
        fdes: &[u8],
        relative: bool,
        among: Ascending,
        pc: i64,
    ) -> (Position, Option<Self>) {
        // In words, five of which are an entry.
        let (words, _) = fdes.as_chunks::<4>();
        let mask = if relative { usize::MAX } else { 0 };
        let resolve = |at: usize, start: [u8; 4]| {
            i64::from(i32::from_le_bytes(start)).wrapping_add(to_i64(at.wrapping_mul(4) & mask))
        };
        let is_reached = |at| words.get(at).is_some_and(|&word| resolve(at, word) <= pc);
        let position = search::<MANY>(among, 5, is_reached);
        let of = |Position { at, .. }| {
            let &[start, size, first, num_fres, [info, ..]] = words.get(at..)?.first_chunk()?;
            Some(Self {
                position,
                offset: offset_in(resolve(at, start), u32::from_le_bytes(size), pc)?,
                first: usize::try_from(u32::from_le_bytes(first)).ok()?,
                num_fres: u32::from_le_bytes(num_fres),
                info: info & !Self::SIGNAL,
                is_default: true,
            })
        };
        (position, of(position))
    }

    /// The same in version 3.
    #[inline(always)]
    fn find_v3<const MANY: bool>(
        fdes: &[u8],
        fres: &[u8],
        among: Ascending,
        pc: i64,
    ) -> (Position, Option<Self>) {
        // In double words, two of which are an entry.
        let (words, _) = fdes.as_chunks::<8>();
        let resolve = |at: usize, start: [u8; 8]| {
            i64::from_le_bytes(start).wrapping_add(to_i64(at.wrapping_mul(8)))
        };
        let is_reached = |at| words.get(at).is_some_and(|&word| resolve(at, word) <= pc);
        let position = search::<MANY>(among, 2, is_reached);
        let of = |Position { at, .. }| {
            let &[start, [a, b, c, d, rest @ ..]] = words.get(at..)?.first_chunk()?;
            let offset = offset_in(resolve(at, start), u32::from_le_bytes([a, b, c, d]), pc)?;
            let attribute = usize::try_from(u32::from_le_bytes(rest)).ok()?;
            let &[a, b, info, info2, _] = fres.get(attribute..)?.first_chunk()?;
            let num_fres = u16::from_le_bytes([a, b]).into();
            let first = attribute.wrapping_add(Entry::ATTRIBUTE_SIZE);
            let is_default = info2 & Self::KIND == 0;
            Some(Self { position, offset, first, num_fres, info, is_default })
        };
        (position, of(position))
    }
}

/// The last function that is reached, by [`Ascending`].
#[inline(always)]
fn search<const MANY: bool>(
    among: Ascending,
    unit: usize,
    is_reached: impl FnMut(usize) -> bool,
) -> Position {
    let at = match MANY {
        true => among.last_of_many(unit, is_reached),
        false => among.last_of_few(unit, is_reached),
    };
    Position { at, unit }
}

/// How far `pc` is into the function of this start and size, if that covers it.
#[inline(always)]
fn offset_in(start: i64, size: u32, pc: i64) -> Option<u32> {
    let offset = pc.wrapping_sub(start);
    (offset.cast_unsigned() < size.into()).then(|| low(offset).cast_unsigned())
}

/// The last bytes of a table, with zeros behind.
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
    u64::try_from(offset).unwrap_or_default().cast_signed()
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use alloc::vec;

    use testdata::SectionBuilder;

    use super::*;

    /// The rules at `pc` if they are found here, and not left to others.
    fn found(section: &Section<'_>, pc: i64) -> Option<Row> {
        let plain = Plain::new(&section.header())?;
        let among = Ascending::all(&section.header())?;
        let (fdes, fres) = (section.fdes_bytes(), section.fres_bytes());
        let pc = pc.wrapping_sub(plain.anchor);
        let (_, function) = match plain.layout {
            Layout::V2 { relative } => Function::find_v2::<true>(fdes, relative, among, pc),
            Layout::V3 => Function::find_v3::<true>(fdes, fres, among, pc),
        };
        let function = function?;
        let rows = PlainRows::new(fres, function.first, function.num_fres, function.offset);
        plain.rules(rows.last(function.width())?, &function)
    }

    #[test]
    fn default_rows_of_usual_tables_are_found_here() {
        const SORTED: u8 = SectionBuilder::SORTED;
        const RELATIVE: u8 = SORTED | SectionBuilder::PCREL;
        let rows = || {
            let last = testdata::Row::sp(8, &[]);
            vec![testdata::Row::sp(0, &[16]), testdata::Row::fp(4, &[24, -16]), last]
        };
        for (version, flags) in [(2, SORTED), (2, RELATIVE), (3, RELATIVE)] {
            // Of each width of starts.
            for size in [0x20, 0x200, 0x2_0000] {
                let function = testdata::Function::new(0x100, size, rows());
                let table = SectionBuilder { flags, ..SectionBuilder::amd64(version) };
                let bytes = table.clone().function(function.clone()).build();
                let section = Section::parse(&bytes).unwrap();
                let ra = RegRule::AtCfa(-8);
                let first = Row::new(CfaRule::sp(16), ra, RegRule::Same);
                let second = Row::new(CfaRule::fp(24), ra, RegRule::AtCfa(-16));
                let expected = [None, Some(first), Some(second), Some(Row::outermost())];
                assert_eq!([0xff, 0x103, 0x104, 0x108].map(|pc| found(&section, pc)), expected);
                // Version 2 has no such flag, and the bit no meaning.
                let bytes = table.clone().function(function.clone().signal()).build();
                let first = if version == 3 { first.with_signal() } else { first };
                assert_eq!(found(&Section::parse(&bytes).unwrap(), 0x100), Some(first));
                // What is of another form is left to others.
                let bytes = table.function(function.blocks(16)).build();
                assert_eq!(found(&Section::parse(&bytes).unwrap(), 0x100), None);
            }
        }
    }
}
