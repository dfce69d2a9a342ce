//! The reader of compact tables.

use core::{iter::FusedIterator, ops::Range};

use unwind_core::{CfaLoads, RegRule, Row};

use crate::{
    compact::{
        error::CompactError,
        format::{HEADER, MAGIC, MAX_ADDR, MAX_PAGES, MAX_RULES, PAGE_SHIFT, PAGE_SIZE},
        rule::{self, Rule},
    },
    format::bytes::Endian,
};

/// A compact table: the image of a file's rows that a BPF program reads, read by the same rules.
///
/// Made by `CompactBuilder` (feature `write`). A lookup is two reads and a bisection among the rows
/// of a page. The format is described in this crate's `src/compact/mod.rs`.
///
/// # Example
///
/// ```
/// use sframe::{CfaRule, CompactTable, RegRule};
///
/// // Pairs of numbers of 32 bits, the first of which is the low one.
/// let [u, t] = [*b"UNWT", *b"ABL1"].map(u32::from_le_bytes);
/// let words = [
///     [u, t],
///     [1, 2],                // one page, two rules
///     [3, 0x40],             // three rows, from address 0x40_0000 on
///     [0, 0],
///     [0, 3],                // the page has the rows from 0 to 3
///     [0, 0x0001_1040],      // no row at 0; rule 1 from 0x1040 on
///     [0x0000_1060, 0],      // no row from 0x1060 on; padding
///     [0, 0], [0, 0], [0, 0], // rule 0
///     [0x0100_0101, 0],      // rule 1: CFA = sp + offset, RA at CFA + offset, FP unchanged
///     [8, 0],                // the CFA's offset
///     [0, 0xffff_fff8],      // the return address's, -8
/// ];
/// let bytes: Vec<u8> = words.as_flattened().iter().flat_map(|word| word.to_le_bytes()).collect();
///
/// let table = CompactTable::parse(&bytes)?;
/// let row = table.row(0x40_1050).expect("it is in the second row");
/// assert_eq!((row.cfa(), row.ra()), (CfaRule::sp(8), RegRule::Offset(-8)));
/// assert_eq!(table.row(0x40_1060), None);
/// # Ok::<(), sframe::CompactError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CompactTable<'a> {
    /// The number of the first page.
    first: u32,
    index: &'a [u8],
    rows: &'a [u8],
    rules: &'a [u8],
}

/// The number at an index of an array of them.
fn number(array: &[u8], index: u32) -> Option<u32> {
    let at = usize::try_from(index).ok()?.checked_mul(4)?;
    Some(Endian::Little.u32(*array.get(at..)?.first_chunk()?))
}

/// The start of a row in its page, and the number of its rule.
fn parts(row: u32) -> (u16, u16) {
    let [a, b, c, d] = row.to_le_bytes();
    (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]))
}

/// This many items of a size, and what is after them and the zeros up to a word.
fn split(bytes: &[u8], count: u32, size: usize) -> Result<(&[u8], &[u8]), CompactError> {
    let size = usize::try_from(count).ok().and_then(|count| count.checked_mul(size));
    let (items, rest) =
        size.and_then(|size| bytes.split_at_checked(size)).ok_or(CompactError::Length)?;
    let (padding, rest) = rest.split_at_checked(items.len() % 8).ok_or(CompactError::Length)?;
    if padding.iter().any(|byte| *byte != 0) {
        return Err(CompactError::Header);
    }
    Ok((items, rest))
}

impl<'a> CompactTable<'a> {
    /// The table in `bytes`, which are all of it. Everything is checked, in time linear in their
    /// number, so that a lookup has an answer for each address.
    ///
    /// # Errors
    ///
    /// [`CompactError`] says what is malformed first.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, CompactError> {
        let (header, rest) = bytes.split_at_checked(HEADER).ok_or(CompactError::Length)?;
        if !header.starts_with(&MAGIC) {
            return Err(CompactError::Magic);
        }
        let field = |index| number(header, index).unwrap_or_default();
        let (pages, rules, rows, first) = (field(2), field(3), field(4), field(5));
        let end = u64::from(first).saturating_add(pages.into());
        let has_rules = rules != 0 && u64::from(rules) <= MAX_RULES;
        let has_pages = u64::from(pages) <= MAX_PAGES && end <= MAX_ADDR >> PAGE_SHIFT;
        if !has_rules || !has_pages || (field(6), field(7)) != (0, 0) {
            return Err(CompactError::Header);
        }
        let (index, rest) = split(rest, pages.saturating_add(1), 4)?;
        let (rows, rest) = split(rest, rows, 4)?;
        let (rules, rest) = split(rest, rules, rule::SIZE)?;
        if !rest.is_empty() {
            return Err(CompactError::Length);
        }
        let table = Self { first, index, rows, rules };
        table.check()?;
        Ok(table)
    }

    /// Whether all rows are in order, and all rules what they can be.
    fn check(&self) -> Result<(), CompactError> {
        for (rule, bytes) in (0_u32..).zip(self.rules.chunks_exact(rule::SIZE)) {
            let is_good = self.rule(rule).is_some_and(|rule| rule.is_good());
            let is_none = bytes.iter().all(|byte| *byte == 0);
            if !is_good || is_none != (rule == 0) {
                return Err(CompactError::Rule { rule });
            }
        }
        let mut next = 0_u32;
        for page in 0..self.num_pages() {
            let is_good = |rows: &Range<u32>| {
                rows.start == next && !rows.is_empty() && rows.end <= self.num_rows()
            };
            let rows = self.rows_of(page).filter(is_good);
            let Range { start, end } = rows.ok_or(CompactError::Page { page })?;
            let mut least = 0_u32;
            for row in start..end {
                let found = number(self.rows, row).map(parts);
                let in_order = |(at, rule): &(u16, u16)| {
                    let is_ordered = u32::from(*at) >= least && (*at == 0 || row != start);
                    is_ordered && u32::from(*rule) < self.num_rules()
                };
                let (at, _) = found.filter(in_order).ok_or(CompactError::Row { row })?;
                least = u32::from(at).wrapping_add(1);
            }
            next = end;
        }
        // That of the last page, or of a table without pages.
        let is_whole = number(self.index, self.num_pages()) == Some(self.num_rows());
        if is_whole && next == self.num_rows() {
            return Ok(());
        }
        Err(CompactError::Page { page: self.num_pages() })
    }

    /// How many pages of 64 KiB there are from the first to the last that has a row.
    #[must_use]
    pub fn num_pages(&self) -> u32 {
        count(self.index, 4).saturating_sub(1)
    }

    /// How many rows there are, with those that repeat at the start of a page what holds there.
    #[must_use]
    pub fn num_rows(&self) -> u32 {
        count(self.rows, 4)
    }

    /// How many different rules there are, with the one that says that there is no row.
    #[must_use]
    pub fn num_rules(&self) -> u32 {
        count(self.rules, rule::SIZE)
    }

    /// The row that covers an address of the file; `None` if there is none, or its CFA is found by
    /// [loads](Self::loads).
    #[must_use]
    pub fn row(&self, addr: u64) -> Option<Row> {
        self.find(addr)?.row()
    }

    /// How the CFA is found at an address where it takes loads that no row says, with a row that says the
    /// rest, whatever it says of the CFA.
    #[must_use]
    pub fn loads(&self, addr: u64) -> Option<(Row, CfaLoads)> {
        self.find(addr)?.loads()
    }

    /// Where the caller's value of DWARF's register 3 is, x86's `rbx` and `ebx`, in a frame at an address;
    /// `None` if that is not known. A walk that meets a CFA which is
    /// [found from it](unwind_core::BaseReg::Reg) needs the rules of all frames before.
    #[must_use]
    pub fn rbx(&self, addr: u64) -> Option<RegRule> {
        self.find(addr)?.rbx().rule()
    }

    fn find(&self, addr: u64) -> Option<Rule> {
        let page = u32::try_from(addr >> PAGE_SHIFT).ok()?.checked_sub(self.first)?;
        let [a, b, ..] = addr.to_le_bytes();
        let low = u16::from_le_bytes([a, b]);
        let Range { start, end } = self.rows_of(page)?;
        // The first row of the page starts at or before each address of it.
        let (mut row, mut len) = (start, end.checked_sub(start)?);
        while len > 1 {
            let half = len >> 1;
            let middle = row.checked_add(half)?;
            if parts(number(self.rows, middle)?).0 <= low {
                row = middle;
            }
            len = len.wrapping_sub(half);
        }
        self.rule_of(row)
    }

    /// All rows in order, each with the addresses of which it is the row, up to the end of its page.
    #[must_use]
    pub const fn rows(&self) -> CompactRows<'a> {
        CompactRows { table: *self, page: 0, row: 0 }
    }

    /// The indices of the rows of a page, from the first of the table.
    fn rows_of(&self, page: u32) -> Option<Range<u32>> {
        Some(number(self.index, page)?..number(self.index, page.checked_add(1)?)?)
    }

    fn rule_of(&self, row: u32) -> Option<Rule> {
        let (_, rule) = parts(number(self.rows, row)?);
        self.rule(rule.into())
    }

    fn rule(&self, number: u32) -> Option<Rule> {
        let at = usize::try_from(number).ok()?.checked_mul(rule::SIZE)?;
        self.rules.get(at..)?.first_chunk().copied().map(Rule)
    }
}

fn count(array: &[u8], size: usize) -> u32 {
    array.len().checked_div(size).and_then(|count| u32::try_from(count).ok()).unwrap_or_default()
}

/// The rows of a [`CompactTable`]: ranges of addresses that touch one another, and their rows;
/// `None` where there is none, or the CFA is found by [loads](CompactTable::loads).
#[derive(Clone, Debug)]
pub struct CompactRows<'a> {
    table: CompactTable<'a>,
    page: u32,
    row: u32,
}

impl Iterator for CompactRows<'_> {
    type Item = (Range<u64>, Option<Row>);

    fn next(&mut self) -> Option<Self::Item> {
        let table = &self.table;
        let rows = table.rows_of(self.page)?;
        let page = u64::from(table.first).saturating_add(self.page.into()) << PAGE_SHIFT;
        let (start, _) = parts(number(table.rows, self.row)?);
        let row = table.rule_of(self.row).and_then(|rule| rule.row());
        self.row = self.row.checked_add(1)?;
        let end = match rows.contains(&self.row) {
            true => parts(number(table.rows, self.row)?).0.into(),
            false => {
                self.page = self.page.checked_add(1)?;
                PAGE_SIZE
            }
        };
        Some((page.saturating_add(start.into())..page.saturating_add(end), row))
    }
}

impl FusedIterator for CompactRows<'_> {}
