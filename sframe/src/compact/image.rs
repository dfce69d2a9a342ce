//! The bytes of an image, row by row.

use alloc::vec::Vec;
use core::ops::Range;

use crate::{
    compact::{
        format::{HEADER, MAGIC, MAX_PAGES, PAGE_SHIFT, PAGE_SIZE},
        rule::Rule,
    },
    write::lost::WriteError,
};

/// An image in which rows ascend as they come.
pub(super) struct Image {
    bytes: Vec<u8>,
    /// The numbers of the pages.
    pages: Range<u64>,
    /// The first page that has no row yet.
    next: u64,
    rows: u32,
    /// The rule that holds since the last row.
    holds: u16,
}

impl Image {
    /// Without rows, for addresses of this range.
    pub(super) fn new(span: &Range<u64>) -> Result<Self, WriteError> {
        let first = span.start >> PAGE_SHIFT;
        let pages = first..span.end.div_ceil(PAGE_SIZE).max(first);
        let count = pages.end.saturating_sub(first);
        if count > MAX_PAGES {
            return Err(WriteError::TooFarApart { pages: count });
        }
        let index = usize::try_from(count).ok().and_then(|count| count.checked_add(1));
        let mut image = Self { bytes: Vec::new(), next: first, pages, rows: 0, holds: 0 };
        let len = index.and_then(|index| index.checked_mul(4)?.checked_add(HEADER));
        let len = len.map(|len| len.next_multiple_of(8)).ok_or(WriteError::TooLarge)?;
        image.bytes.try_reserve(len)?;
        image.bytes.resize(len, 0);
        image.set(0, MAGIC);
        Ok(image)
    }

    /// From `at` on this rule holds. After all others, and inside the range.
    pub(super) fn hold(&mut self, at: u64, rule: u16) -> Result<(), WriteError> {
        if rule == self.holds {
            return Ok(());
        }
        let (page, low) = (at >> PAGE_SHIFT, at % PAGE_SIZE);
        self.open_up_to(page)?;
        if page < self.pages.end {
            if low != 0 && self.next == page {
                self.open()?;
            }
            self.holds = rule;
            if low == 0 {
                self.open()?;
            } else {
                self.row(low)?;
            }
        }
        self.holds = rule;
        Ok(())
    }

    /// Opens the pages before this one, with what holds.
    fn open_up_to(&mut self, page: u64) -> Result<(), WriteError> {
        while self.next < page.min(self.pages.end) {
            self.open()?;
        }
        Ok(())
    }

    /// Opens the next page with what holds.
    fn open(&mut self) -> Result<(), WriteError> {
        self.index(self.rows);
        self.next = self.next.saturating_add(1);
        self.row(0)
    }

    /// Notes the first row of the next page.
    fn index(&mut self, row: u32) {
        let page = self.next.saturating_sub(self.pages.start);
        let at = usize::try_from(page).unwrap_or_default().saturating_mul(4);
        self.set(at.saturating_add(HEADER), row.to_le_bytes());
    }

    fn row(&mut self, low: u64) -> Result<(), WriteError> {
        let low = u16::try_from(low).unwrap_or_default();
        self.rows = self.rows.checked_add(1).ok_or(WriteError::TooLarge)?;
        self.put(low.to_le_bytes().as_slice())?;
        self.put(self.holds.to_le_bytes().as_slice())
    }

    /// The whole image, with these rules after number 0.
    pub(super) fn finish(mut self, rules: &[Rule]) -> Result<Vec<u8>, WriteError> {
        self.open_up_to(self.pages.end)?;
        self.index(self.rows);
        if self.rows % 2 != 0 {
            self.put(&[0; 4])?;
        }
        self.put(&Rule::NONE.0)?;
        self.bytes.try_reserve(rules.len().saturating_mul(Rule::NONE.0.len()))?;
        for rule in rules {
            self.put(&rule.0)?;
        }
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes();
        let len = |len: usize| number(u64::try_from(len).unwrap_or(u64::MAX));
        self.set(8, number(self.pages.end.saturating_sub(self.pages.start)));
        self.set(12, len(rules.len().saturating_add(1)));
        self.set(16, self.rows.to_le_bytes());
        self.set(20, number(self.pages.start));
        Ok(self.bytes)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        if self.bytes.capacity().saturating_sub(self.bytes.len()) < bytes.len() {
            self.bytes.try_reserve(bytes.len())?;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Writes over bytes that are there.
    fn set<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        let place = self.bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut());
        if let Some(place) = place {
            *place = bytes;
        }
    }
}
