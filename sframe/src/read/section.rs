//! A section: one table or several.

use core::iter::FusedIterator;

use crate::{
    error::Error,
    format::header::MAGIC,
    read::{lookup::Lookup, table::Table},
};

/// A section as linkers leave it: one table, none, or several one after
/// another, each at a multiple of 8 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    bytes: &'a [u8],
    addr: u64,
}

impl<'a> Section<'a> {
    /// The section in `bytes`, of which nothing is read yet. Empty `bytes` have no tables.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, addr: 0 }
    }

    /// Says that the section is loaded, or linked, at `addr`.
    #[must_use]
    pub const fn at(mut self, addr: u64) -> Self {
        self.addr = addr;
        self
    }

    /// The tables in order.
    #[must_use]
    pub const fn tables(&self) -> Tables<'a> {
        Tables { rest: self.bytes, addr: self.addr, first: true }
    }

    /// Finds the row that covers `pc` in any of the tables.
    ///
    /// # Errors
    ///
    /// As [`Table::find`] and [`Table::parse`]; a malformed table is an
    /// error only if no table before it covers `pc`.
    pub fn find(&self, pc: u64) -> Result<Option<Lookup>, Error> {
        for table in self.tables() {
            if let Some(found) = table?.find(pc)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// The tables of a [`Section`], in order.
///
/// After an error the iterator is at its end: where the next table would be is
/// not known.
#[derive(Clone, Debug)]
pub struct Tables<'a> {
    rest: &'a [u8],
    addr: u64,
    first: bool,
}

impl Tables<'_> {
    /// What is after a table is another one only if it looks like that.
    fn is_table(&self) -> bool {
        self.rest
            .first_chunk()
            .is_some_and(|&magic| [MAGIC, MAGIC.swap_bytes()].contains(&u16::from_le_bytes(magic)))
    }
}

impl<'a> Iterator for Tables<'a> {
    type Item = Result<Table<'a>, Error>;

    #[inline(never)]
    fn next(&mut self) -> Option<Self::Item> {
        let first = core::mem::take(&mut self.first);
        if self.rest.is_empty() || (!first && !self.is_table()) {
            return None;
        }
        let bytes = core::mem::take(&mut self.rest);
        Some(Table::parse(bytes).map(|section| {
            let section = section.at(self.addr);
            let next = section.bytes().len().next_multiple_of(8);
            self.rest = bytes.get(next..).unwrap_or_default();
            self.addr = self.addr.wrapping_add(u64::try_from(next).unwrap_or_default());
            section
        }))
    }
}

impl FusedIterator for Tables<'_> {}
