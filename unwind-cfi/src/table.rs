//! Rows of one loaded object, straight from its call frame information.

use unwind_core::Row;

use crate::{
    abi::CfiAbi,
    entry::Entries,
    error::CfiError,
    evaluation::{Evaluation, MAX_INSTRUCTIONS, MAX_REMEMBERED},
    index::IndexEntry,
    rules::Rules,
    search_table::SearchTable,
    section::CfiSection,
    states::States,
};

/// The call frame information of one loaded object: finds the row of a pc without a table
/// made before, without allocation, in bounded time.
#[derive(Clone, Copy, Debug)]
pub struct CfiTable<'a> {
    entries: Entries<'a>,
    search: Search<'a>,
    bias: u64,
}

/// How many FDEs about no code may come before the one that is looked for. Linkers name one
/// of those that start at the same address, which may be such.
pub(crate) const MAX_EMPTY: u32 = 4;

/// How the FDE of an address is found.
#[derive(Clone, Copy, Debug)]
enum Search<'a> {
    Table(SearchTable<'a>),
    Index(&'a [IndexEntry]),
}

impl<'a> CfiTable<'a> {
    /// The `.eh_frame` of a loaded object, with its `.eh_frame_hdr` of which `header` are
    /// the bytes and `header_addr` the address.
    ///
    /// `None` if the header has no table that can be searched, or is that of another
    /// section: an [index](crate::index) has to be made then.
    ///
    /// # Errors
    ///
    /// What is wrong with the header. Entries are looked at when they are used.
    pub fn with_search_table(
        section: CfiSection<'a>,
        abi: CfiAbi,
        header: &'a [u8],
        header_addr: u64,
    ) -> Result<Option<Self>, CfiError> {
        let table = SearchTable::new(header, header_addr)?;
        Ok(table
            .filter(|table| table.eh_frame == section.addr && section.is_eh)
            .map(|table| Self::new(section, abi, Search::Table(table))))
    }

    /// A section with an [index](crate::index) of it.
    #[must_use]
    pub fn with_index(section: CfiSection<'a>, abi: CfiAbi, index: &'a [IndexEntry]) -> Self {
        Self::new(section, abi, Search::Index(index))
    }

    fn new(section: CfiSection<'a>, abi: CfiAbi, search: Search<'a>) -> Self {
        Self { entries: Entries::new(section, abi), search, bias: 0 }
    }

    /// The same object, loaded this much above the addresses that the section counts from,
    /// in bytes, wrapping. Without this they are the same.
    #[must_use]
    pub const fn bias(mut self, bias: u64) -> Self {
        self.bias = bias;
        self
    }

    /// The code that the information describes.
    #[must_use]
    pub const fn abi(&self) -> CfiAbi {
        self.entries.abi()
    }

    /// The row for an address of the code; `None` if no FDE is about it.
    ///
    /// It takes a search among all FDEs and a run of at most [`MAX_INSTRUCTIONS`] bytes of
    /// the FDE's instructions, and as many of its CIE's.
    ///
    /// # Errors
    ///
    /// [`CfiError`] if the information for the address is malformed, or says what no row
    /// can.
    pub fn find_row(&self, addr: u64) -> Result<Option<Row>, CfiError> {
        let pc = self.entries.abi().address(addr.wrapping_sub(self.bias));
        let Some(mut at) = self.find_fde(pc)? else { return Ok(None) };
        let mut tries = MAX_EMPTY;
        let (cie, body) = loop {
            let fde = self.entries.fde_at(at)?;
            let cie = self.entries.cie(fde.cie)?;
            let body = self.entries.body(&fde, &cie)?;
            if body.len != 0 || tries == 0 {
                break (cie, body);
            }
            at = fde.end(&self.entries);
            tries = tries.saturating_sub(1);
        };
        // No code continues after the end of the address space.
        let Some(offset) = pc.checked_sub(body.start).filter(|&offset| offset < body.len) else {
            return Ok(None);
        };
        if body.instructions.len() > MAX_INSTRUCTIONS {
            return Err(CfiError::TooManyInstructions);
        }
        let mut slots = [Rules::UNSET; MAX_REMEMBERED];
        let mut remembered = States::new(&mut slots);
        let mut evaluation = Evaluation::new(&self.entries, &cie, &mut remembered, offset)?;
        match evaluation.run(&self.entries, &cie, &body, &mut remembered) {
            Ok(_) => evaluation.row(&self.entries, &cie, pc).map(Some),
            Err((error, _)) => Err(error),
        }
    }

    /// The offset in the section of the FDE that is about `pc`, if one is.
    fn find_fde(&self, pc: u64) -> Result<Option<u64>, CfiError> {
        match self.search {
            Search::Table(table) => {
                let Some(addr) = table.find(pc) else { return Ok(None) };
                let addr = self.entries.abi().address(addr);
                let section = self.entries.section();
                let at = addr.checked_sub(section.addr).filter(|&at| at < section.len_u64());
                at.map(Some).ok_or(CfiError::OutsideSection { addr })
            }
            Search::Index(index) => {
                let after = index.partition_point(|entry| entry.start <= pc);
                Ok(after.checked_sub(1).and_then(|last| index.get(last)).map(|entry| entry.at))
            }
        }
    }
}
