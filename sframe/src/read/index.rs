//! An index over a table, in memory that the caller gives.

use crate::sign::Signed;
use unwind_core::Row;

use crate::{
    error::Error,
    format::flags::Flags,
    read::{
        bisect::Ascending,
        checkpoint::{CheckpointShape, Checkpoints, EVERY, LONG},
        lookup::{self, Lookup},
        slice::SliceSource,
        table::Table,
    },
};

/// A table and an index over it, in words that the caller lends.
///
/// A lookup gives the same answers as without the index, in fewer steps: code
/// addresses lead to the few functions around them, a table that is not sorted
/// is put in order, and the rows of long functions are entered in the middle.
///
/// The words hold, in this order, as far as they go:
///
/// ```text
///     order        a word for each function, if the table is not sorted
///     granules     a word for each 8 KiB of code, or for more if there are too
///                  few words: the last function that starts at or before it
///     checkpoints  two words for each 32 rows of functions of 96 rows or more
/// ```
///
/// # Example
///
/// ```
/// # let bytes = [
/// #     0xe2, 0xde, 2, 1, 3, 0, 0xf8, 0, 1, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0,
/// #     0x40, 0xf0, 0xff, 0xff, 0x20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 3, 8,
/// # ];
/// let table = sframe::Table::parse(&bytes)?.at(0x2000);
/// let mut memory = [0; 16];
/// let indexed = table.index(&mut memory);
/// assert_eq!(indexed.find(0x1044), table.find(0x1044));
/// # Ok::<(), sframe::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct IndexedTable<'a, 'i> {
    table: Table<'a>,
    /// Positions to indices, where they differ.
    order: Option<&'i [u32]>,
    /// The position of the last function that starts at or before a granule.
    /// None if there is no index.
    granules: &'i [u32],
    /// Where the first granule starts, in bytes from the section.
    base: i64,
    /// The binary logarithm of a granule's size in bytes.
    shift: u32,
    checkpoints: Checkpoints<'i>,
}

/// The usual size of a granule: 8 KiB.
const GRANULE_SHIFT: u32 = 13;
/// Functions far apart have granules of more than the usual size, so that the
/// addresses that a table claims do not say how much memory it takes.
const GRANULES_PER_FUNCTION: u64 = 15;
impl<'a> Table<'a> {
    /// How many words of memory [`index`](Self::index) can use: at most as many as the table has
    /// bytes, and two more.
    #[must_use]
    pub fn index_len(&self) -> usize {
        let order = match survey(self) {
            Some(Survey { ascends: true, .. }) => 0,
            Some(_) => self.header().num_fdes,
            None => return 0,
        };
        let (base, last) = bounds(self);
        let granules = (last.wrapping_sub(base).unsigned() >> GRANULE_SHIFT).saturating_add(2);
        let most = u64::from(self.header().num_fdes).saturating_mul(GRANULES_PER_FUNCTION);
        let granules = granules.min(most.saturating_add(2));
        let rows = self.header().fre_len / 2;
        let points: u64 = self
            .fdes()
            .flatten()
            .filter(|fde| fde.num_fres >= LONG)
            .map(|fde| {
                u64::from(fde.num_fres.min(rows) / EVERY).saturating_mul(2).saturating_add(2)
            })
            .fold(0, u64::saturating_add)
            // Functions may share rows.
            .min(self.header().fre_len.into());
        let words = u64::from(order).saturating_add(granules).saturating_add(points);
        usize::try_from(words).unwrap_or(usize::MAX)
    }

    /// Builds an index in `memory`, of as much of the table as there is room for. The index is
    /// empty if there is too little room, if the table is not sorted and its functions overlap, or
    /// if it claims to be sorted and is not.
    ///
    /// It takes time linear in the size of the table and the memory; if the
    /// table is not sorted, that to sort the functions.
    #[must_use]
    pub fn index<'i>(&self, memory: &'i mut [u32]) -> IndexedTable<'a, 'i> {
        let shape = self.fill_index(memory);
        self.with_index(memory, shape)
    }

    /// The same for who keeps the memory beside the table's bytes: only writes the index, for
    /// [`with_index`](Self::with_index).
    #[must_use]
    pub fn fill_index(&self, memory: &mut [u32]) -> IndexShape {
        self.try_fill_index(memory).unwrap_or_default()
    }

    fn try_fill_index(&self, memory: &mut [u32]) -> Option<IndexShape> {
        let survey = survey(self)?;
        let (order, memory) = match survey.ascends {
            true => (None, memory),
            false => {
                let (order, memory) = sort(self, memory)?;
                (Some(order), memory)
            }
        };
        let table = Positions::new(self, order);
        let (base, last) = (table.start(0), table.start(table.count().saturating_sub(1)));
        let span = last.wrapping_sub(base).unsigned();
        let shift = granule_shift(span, memory.len())?;
        let count = usize::try_from(span >> shift).map_or(0, |last| last.saturating_add(2));
        let (granules, memory) = memory.split_at_mut_checked(count)?;
        table.fill(granules, base, shift);
        let checkpoints = Checkpoints::fill(self, memory);
        let ordered = order.map_or(0, <[u32]>::len);
        Some(IndexShape { ordered, granules: count, base, shift, checkpoints })
    }

    /// The table with an index that was written for it, at this address or another one.
    ///
    /// With words of another table, or that were changed, it finds what those say, but never panics.
    #[must_use]
    pub fn with_index<'i>(&self, memory: &'i [u32], shape: IndexShape) -> IndexedTable<'a, 'i> {
        let IndexShape { ordered, granules, base, shift, checkpoints } = shape;
        let (order, memory) = memory.split_at_checked(ordered).unwrap_or_default();
        let (granules, memory) = memory.split_at_checked(granules).unwrap_or_default();
        let order = Some(order).filter(|order| !order.is_empty());
        let checkpoints = Checkpoints::with(memory, checkpoints);
        IndexedTable { table: *self, order, granules, base, shift, checkpoints }
    }
}

/// Which words of an index are what, for [`Table::with_index`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexShape {
    ordered: usize,
    granules: usize,
    base: i64,
    shift: u32,
    checkpoints: CheckpointShape,
}

impl IndexShape {
    /// Whether there is an index.
    #[must_use]
    pub const fn is_indexed(&self) -> bool {
        self.granules != 0
    }
}

/// The table without an index.
impl<'a> From<Table<'a>> for IndexedTable<'a, '_> {
    fn from(table: Table<'a>) -> Self {
        let (order, granules, checkpoints) = (None, [].as_slice(), Checkpoints::NONE);
        Self { table, order, granules, base: 0, shift: 0, checkpoints }
    }
}

impl<'a> IndexedTable<'a, '_> {
    /// The table.
    #[must_use]
    pub const fn table(&self) -> &Table<'a> {
        &self.table
    }

    /// Whether there is an index. Without it, lookups are those of the table.
    #[must_use]
    pub const fn is_indexed(&self) -> bool {
        !self.granules.is_empty()
    }

    /// Finds the row that covers `pc`, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// As [`Table::find`].
    pub fn find(&self, pc: u64) -> Result<Option<Lookup>, Error> {
        if !self.is_indexed() {
            return self.table.find(pc);
        }
        let Some(among) = self.among(pc) else { return Ok(None) };
        let table = &self.table;
        let mut source = SliceSource::new(table, Some(among)).by(self.order, self.checkpoints);
        lookup::find(&mut source, &table.header(), table.addr(), pc)
    }

    /// Finds the rules for `pc`, or `None` if there are none. The same as
    /// [`find`](Self::find) and [`Lookup::row`], but faster.
    ///
    /// # Errors
    ///
    /// As [`find`](Self::find) and [`Lookup::row`].
    #[inline]
    pub fn find_row(&self, pc: u64) -> Result<Option<Row>, Error> {
        let table = &self.table;
        let Some(fast) = &table.fast else { return self.find_any_row(pc) };
        let among = match self.is_indexed() {
            false => Ascending::all(&table.header),
            true => match self.among(pc) {
                Some(among) => among,
                None => return Ok(None),
            },
        };
        table.find_row_fast(fast, among, &self.checkpoints, pc)
    }

    /// The same for tables of any form.
    #[cold]
    fn find_any_row(&self, pc: u64) -> Result<Option<Row>, Error> {
        let table = &self.table;
        let among = match self.is_indexed() {
            false => return table.find_row(pc),
            true => self.among(pc),
        };
        let Some(among) = among else { return Ok(None) };
        let mut source = SliceSource::new(table, Some(among)).by(self.order, self.checkpoints);
        lookup::find_row(&mut source, &table.header(), table.addr(), pc)
    }

    /// The functions around `pc`; `None` if it is before all.
    #[inline(always)]
    fn among(&self, pc: u64) -> Option<Ascending> {
        let offset = self.table.offset(pc);
        if offset < self.base {
            return None;
        }
        let granule = offset.wrapping_sub(self.base).unsigned() >> self.shift;
        let pair =
            usize::try_from(granule).ok().and_then(|at| self.granules.get(at..)?.first_chunk());
        let &[first, last] = match pair {
            Some(pair) => pair,
            // After the start of the last function.
            None => &[*self.granules.last()?; 2],
        };
        Some(Ascending { first, count: last.wrapping_sub(first).wrapping_add(1) })
    }
}

/// What has to be known of a table before it is indexed.
struct Survey {
    ascends: bool,
}

/// Looks at all functions; `None` if no index can be built.
fn survey(table: &Table<'_>) -> Option<Survey> {
    let positions = Positions::new(table, None);
    let count = positions.count();
    let mut ascends = true;
    let mut apart = true;
    let mut last = i64::MIN;
    let mut end = i64::MIN;
    for at in 0..count {
        let (start, size) = positions.range(at);
        ascends &= last <= start;
        apart &= size == 0 || end <= start;
        last = start;
        // No order of addresses holds for code that wraps.
        end = end.max(start.checked_add(size.into())?);
    }
    // A search in a table that lies finds what it finds, and a scan the first of
    // functions that overlap: so shall the index.
    let same =
        if table.header().flags.contains(Flags::SORTED) { ascends } else { !ascends || apart };
    (count > 0 && same).then_some(Survey { ascends })
}

/// The lowest and the highest start of a function.
fn bounds(table: &Table<'_>) -> (i64, i64) {
    let positions = Positions::new(table, None);
    let starts = (0..positions.count()).map(|at| positions.start(at));
    let (least, most) = starts
        .fold((i64::MAX, i64::MIN), |(least, most), start| (least.min(start), most.max(start)));
    (least, most)
}

/// Puts the functions in order, in the first words of `memory`, and returns
/// those left; `None` if there are too few or functions overlap: then the
/// first in the table that covers a pc is found, which an order cannot tell.
fn sort<'i>(table: &Table<'_>, memory: &'i mut [u32]) -> Option<(&'i [u32], &'i mut [u32])> {
    let count = usize::try_from(table.header().num_fdes).ok()?;
    let (order, memory) = memory.split_at_mut_checked(count)?;
    for (slot, index) in order.iter_mut().zip(0..) {
        *slot = index;
    }
    let table = Positions::new(table, None);
    // By size, too, so that none of equal start hides another.
    let key = |index| (table.range(index), index);
    unwind_core::sort::sort(order, |a, b| key(a) < key(b));
    let mut end = i64::MIN;
    for &index in order.iter().filter(|&&index| table.size(index) != 0) {
        let (start, size) = table.range(index);
        if start < end {
            return None;
        }
        end = start.saturating_add(size.into());
    }
    Some((order, memory))
}

/// The size of granules, by its logarithm, so that those of `span` bytes fit in
/// `words`.
fn granule_shift(span: u64, words: usize) -> Option<u32> {
    let words = u64::try_from(words).ok()?;
    (GRANULE_SHIFT..u64::BITS).find(|&shift| (span >> shift).saturating_add(2) <= words)
}

/// The functions by their positions in ascending order.
#[derive(Clone, Copy)]
struct Positions<'s, 'a> {
    table: &'s Table<'a>,
    order: Option<&'s [u32]>,
}

impl<'s, 'a> Positions<'s, 'a> {
    const fn new(table: &'s Table<'a>, order: Option<&'s [u32]>) -> Self {
        Self { table, order }
    }

    const fn count(&self) -> u32 {
        self.table.header().num_fdes
    }

    /// The start in bytes from the section, as a search compares it, and the size.
    fn range(&self, position: u32) -> (i64, u32) {
        let index = match self.order {
            None => Some(position),
            Some(order) => usize::try_from(position).ok().and_then(|at| order.get(at).copied()),
        };
        let found = index.and_then(|index| self.table.entry(index));
        found.map_or((0, 0), |(start, entry)| (start, entry.size))
    }

    fn start(&self, position: u32) -> i64 {
        let (start, _) = self.range(position);
        start
    }

    fn size(&self, position: u32) -> u32 {
        let (_, size) = self.range(position);
        size
    }

    /// Fills in the last function at or before each granule, the first of which
    /// starts at `base`.
    fn fill(&self, granules: &mut [u32], base: i64, shift: u32) {
        let last = self.count().saturating_sub(1);
        let mut position = 0;
        for (number, granule) in (0_u64..).zip(granules) {
            // After the last start it may be beyond all numbers.
            let start = number
                .checked_shl(shift)
                .filter(|&bytes| bytes >> shift == number)
                .and_then(|bytes| base.checked_add_unsigned(bytes))
                .unwrap_or(i64::MAX);
            while position < last && self.start(position.wrapping_add(1)) <= start {
                position = position.wrapping_add(1);
            }
            *granule = position;
        }
    }
}

#[cfg(test)]
#[allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "tests"
)]
mod tests {
    extern crate alloc;
    use alloc::vec;

    use testdata::{Function, Row, TableBuilder};

    use super::*;
    use crate::read::source::Source as _;

    /// How many of `words` words an index uses.
    fn used(table: &Table<'_>, words: usize) -> usize {
        let mut memory = vec![0; words];
        let index = table.index(&mut memory);
        let pairs = index.checkpoints.pairs();
        index.order.map_or(0, <[u32]>::len) + index.granules.len() + 2 * pairs
    }

    /// Functions that touch one another, 0x1800 bytes each.
    fn table(flags: u8, row_counts: &[u32]) -> TableBuilder {
        let rows = |count| (0..count).map(|row| Row::sp(row, &[8])).collect();
        let functions = (0_i64..).zip(row_counts);
        TableBuilder {
            flags,
            functions: functions
                .map(|(at, &count)| Function::new(at * 0x1800 - 0x4000, 0x1800, rows(count)))
                .collect(),
            ..TableBuilder::amd64(2)
        }
    }

    #[test]
    fn the_words_that_an_index_asks_for_are_those_that_it_makes_use_of() {
        let sorted = table(TableBuilder::SORTED, &[97, 3, 95, 150, 500, 1]);
        let mut unsorted = table(0, &[97, 3, 95, 150, 500, 1]);
        unsorted.functions.reverse();
        // Starts over 0x7800 bytes; 3, 4 and 15 points.
        let words = 3 + 2 + 2 * (1 + 3 + 1 + 4 + 1 + 15);
        for (table, words) in [(sorted, words), (unsorted, words + 6)] {
            let bytes = table.build();
            let table = Table::parse(&bytes).unwrap().at(0x40_0000);
            assert_eq!(table.index_len(), words);
            assert_eq!([words, 9 * words].map(|len| used(&table, len)), [words; 2]);
        }
    }

    #[test]
    fn an_index_that_is_kept_by_itself_finds_the_same_and_a_wrong_one_harms_nothing() {
        let mut unsorted = table(0, &[97, 3, 95, 150, 500, 1]);
        unsorted.functions.reverse();
        let bytes = unsorted.build();
        let table = Table::parse(&bytes).unwrap().at(0x40_0000);
        let mut words = vec![0; table.index_len()];
        let shape = table.fill_index(&mut words);
        assert!(shape.is_indexed() && !table.fill_index(&mut []).is_indexed());
        let elsewhere = Table::parse(&bytes).unwrap().at(0x7f00_0040_0000);
        let mut found = 0;
        for at in (0x3f_b000_u64..0x40_6000).step_by(5) {
            let row = table.find_row(at);
            found += u32::from(matches!(row, Ok(Some(_))));
            assert_eq!(table.with_index(&words, shape).find_row(at), row);
            let there = elsewhere.with_index(&words, shape).find_row(at + 0x7f00_0000_0000);
            assert_eq!(there, row);
        }
        assert!(found > 5_000, "{found}");
        let mut state = 1_u32;
        for _ in 0..200 {
            let wrong = words.iter().map(|&word| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if state >> 30 == 0 { state } else { word }
            });
            let wrong: alloc::vec::Vec<u32> = wrong.collect();
            let len = usize::try_from(state >> 8).unwrap() % (wrong.len() + 1);
            for words in [&wrong[..], &wrong[..len]] {
                for at in (0x3f_b000_u64..0x40_6000).step_by(0x155) {
                    _ = table.with_index(words, shape).find_row(at);
                    _ = table.with_index(words, shape).find(at);
                }
            }
        }
    }

    #[test]
    fn as_many_long_functions_as_fit_have_a_checkpoint() {
        let bytes = table(TableBuilder::SORTED, &[97, 97, 97]).build();
        let table = Table::parse(&bytes).unwrap();
        let granules = 1 + 2;
        assert_eq!(used(&table, granules + 1), granules);
        assert_eq!(used(&table, granules + 4), granules + 4);
        assert_eq!(used(&table, granules + 3 * 2 * 4), granules + 3 * 2 * 4);
    }

    #[test]
    fn rows_of_usual_tables_are_found_in_the_short_way() {
        for (flags, is_open) in [(TableBuilder::SORTED, true), (0, false)] {
            let bytes = table(flags, &[3, 1]).build();
            let table = Table::parse(&bytes).unwrap();
            let mut memory = vec![0; table.index_len()];
            let index = table.index(&mut memory);
            assert_eq!((index.is_indexed(), index.table.fast.is_some()), (true, is_open));
        }
    }

    #[test]
    fn a_function_of_96_rows_is_entered_at_a_checkpoint() {
        let bytes = table(TableBuilder::SORTED, &[96, 95, 150]).build();
        let table = Table::parse(&bytes).unwrap();
        let mut memory = vec![0; table.index_len()];
        let index = table.index(&mut memory);
        // As lookups ask for it.
        let source = SliceSource::new(&table, None).by(index.order, index.checkpoints);
        let passed = |function, rows, target| {
            source.checkpoint(function, rows, target).map(|point| point.passed)
        };
        assert_eq!(
            [31, 32, 63, 64, 900].map(|target| passed(0, 96, target)),
            [None, Some(32), Some(32), Some(64), Some(64)]
        );
        assert_eq!(passed(1, 95, 94), None);
        assert_eq!(passed(2, 150, 140), Some(128));
    }

    #[test]
    fn rows_that_a_table_has_no_bytes_for_need_no_memory() {
        let mut bytes = table(TableBuilder::SORTED, &[100]).build();
        let rows = Table::parse(&bytes).unwrap().header().fre_len;
        // The number of rows of the first function.
        bytes[28 + 12..][..4].copy_from_slice(&u32::MAX.to_le_bytes());
        let table = Table::parse(&bytes).unwrap();
        let points = usize::try_from(rows / 2 / EVERY).unwrap();
        assert_eq!(table.index_len(), 2 + 2 + 2 * points);
    }
}
