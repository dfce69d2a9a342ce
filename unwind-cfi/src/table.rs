//! Rows of one loaded object, straight from its call frame information.

use core::ops::Range;

use unwind_core::{DwarfReg, FrameContext, Memory, RegRule, RegisterRules, Registers, Row, RowKey};

use crate::{
    abi::CfiAbi,
    entry::{Body, Cie, Entries, ExceptionData, Fde},
    error::CfiError,
    evaluation::{MAX_INSTRUCTIONS, MAX_REMEMBERED, PcRules},
    execute::Run,
    frame_rules::FrameRules,
    index::IndexEntry,
    rules::Rules,
    rules_in_frame::{InFrame, RulesInFrame},
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
    id: Option<u64>,
}

/// How many FDEs about no code may come before the one that is looked for. A linker names one
/// of those that start at the same address: the first, which is of a function without
/// instructions where a compiler has found that it cannot be reached. 20 in a row were seen.
pub(crate) const MAX_EMPTY: u32 = 64;

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
        Self { entries: Entries::new(section, abi), search, bias: 0, id: None }
    }

    /// The same object, loaded this much above the addresses that the section counts from,
    /// in bytes, wrapping. Without this they are the same.
    #[must_use]
    pub const fn bias(mut self, bias: u64) -> Self {
        self.bias = bias;
        self
    }

    /// The same object, which this number names in all address spaces: see
    /// [`RowKey::table`].
    #[must_use]
    pub const fn with_id(mut self, id: u64) -> Self {
        self.id = Some(id);
        self
    }

    /// What names the row for an address of the code; `None` without a
    /// [number](Self::with_id).
    pub(crate) fn row_key(&self, addr: u64) -> Option<RowKey> {
        Some(RowKey { table: self.id?, offset: addr.wrapping_sub(self.bias) })
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
        match self.find_frequent_row(addr) {
            Some(row) => Ok(Some(row)),
            None => match &self.find_rules(addr) {
                Ok(Some(at_pc)) => self.row_of(at_pc).map(Some),
                Ok(None) => Ok(None),
                Err(error) => Err(*error),
            },
        }
    }

    /// The row for an address, if all that it comes from is what nearly all rows come from. `None` says
    /// nothing.
    #[inline(never)]
    fn find_frequent_row(&self, addr: u64) -> Option<Row> {
        let pc = self.pc(addr);
        let at = self.find_fde(pc).ok()??;
        self.entries.frequent_row(at, pc)
    }

    /// The rules for an address, as all entries have them.
    #[inline(never)]
    fn find_rules(&self, addr: u64) -> Result<Option<PcRules>, CfiError> {
        // What is returned is looked at where it is, so that it is on the stack once.
        match &self.find_place(addr) {
            Ok(Some(place)) => place.evaluate(&self.entries),
            Ok(None) => Ok(None),
            Err(error) => Err(*error),
        }
    }

    /// The row that rules come to.
    #[inline(never)]
    fn row_of(&self, at_pc: &PcRules) -> Result<Row, CfiError> {
        at_pc.row(&self.entries.registers, self.entries.section().addr)
    }

    /// The row of a frame, by [`find_row`](Self::find_row) for its
    /// [lookup address](FrameContext::lookup_addr), or where it takes the frame's registers and
    /// memory, by what expressions come to in this frame. `mem` is the memory of the program.
    ///
    /// The row of an expression is right for this frame alone. It may say that
    /// [more has to be known](Row::needs) to tell the caller: a walk finds that out and asks again, or
    /// ends with that reason.
    ///
    /// # Errors
    ///
    /// As `find_row`; and if an expression is malformed or longer than 64 bytes, or comes to what no
    /// row says: a return address that is nowhere in memory, or a CFA 2 GiB or more below the frame,
    /// unless the code has the mark of a signal frame.
    #[inline]
    pub fn find_row_in<R: Registers, M: Memory>(
        &self,
        frame: &FrameContext<'_, R>,
        mem: &mut M,
    ) -> Result<Option<Row>, CfiError> {
        match self.find_frequent_row(frame.lookup_addr().get()) {
            Some(row) => Ok(Some(row)),
            None => self.find_other_row_in(frame, mem),
        }
    }

    #[inline(never)]
    fn find_other_row_in<R: Registers, M: Memory>(
        &self,
        frame: &FrameContext<'_, R>,
        mem: &mut M,
    ) -> Result<Option<Row>, CfiError> {
        match &self.find_rules(frame.lookup_addr().get()) {
            Ok(Some(at_pc)) => {
                let row = self.row_of(at_pc);
                let is_more = RulesInFrame::say_more(at_pc, &row);
                if is_more { self.row_in(at_pc, frame, mem) } else { row }.map(Some)
            }
            Ok(None) => Ok(None),
            Err(error) => Err(*error),
        }
    }

    /// The row of the frame, by rules of which some are expressions.
    #[cold]
    #[inline(never)]
    fn row_in<R: Registers, M: Memory>(
        &self,
        at_pc: &PcRules,
        frame: &FrameContext<'_, R>,
        mem: &mut M,
    ) -> Result<Row, CfiError> {
        let section = self.entries.section();
        let copy = |_: &mut M, at: u64, bytes: &mut [u8]| copy(section, at, bytes);
        let rules = RulesInFrame { at_pc, abi: self.abi(), section: section.addr, bias: self.bias };
        rules.row(frame.sp(), &mut InFrame { frame, mem, copy })
    }

    /// The rules for an address of the code, where some are expressions that no row can say:
    /// they have a row in a frame. `None` if there are none such, or no FDE is about the address.
    ///
    /// It takes as long as [`find_row`](Self::find_row), so who looks for a row asks that first,
    /// and this where [it may say more](FrameRules::may_say_more).
    ///
    /// # Errors
    ///
    /// As `find_row`, of what is malformed.
    pub fn find_frame_rules(&self, addr: u64) -> Result<Option<FrameRules>, CfiError> {
        let Some(at_pc) = self.find_rules(addr)? else { return Ok(None) };
        let section = self.entries.section();
        let copy = |at: u64, bytes: &mut [u8]| match copy(section, at, bytes) {
            true => Ok(()),
            false => Err(CfiError::Truncated),
        };
        let found = FrameRules::new(&at_pc, self.abi(), section.addr, copy)?;
        Ok(found.map(|found| found.loaded(self.bias)))
    }

    /// The rules of the [other registers](RegisterRules) for an address of the code; `None`
    /// if no FDE is about it. A register that no rule can tell is undefined.
    ///
    /// It takes one search, and a run of the instructions for each register that calls
    /// preserve.
    ///
    /// # Errors
    ///
    /// As [`find_row`](Self::find_row), of what is malformed.
    #[inline(never)]
    pub fn find_register_rules(&self, addr: u64) -> Result<Option<RegisterRules>, CfiError> {
        let Some(place) = self.find_place(addr)? else { return Ok(None) };
        let mut rules = RegisterRules::new();
        for &register in self.abi().preserved() {
            let at_pc = place.evaluate(&self.entries.keeping(register))?;
            let rule = at_pc.map_or(RegRule::Undefined, |at_pc| at_pc.rules.kept_rule());
            rules.add(DwarfReg(register), rule);
        }
        Ok(Some(rules))
    }

    /// The addresses of the code that the FDE of an address is about; `None` if none is.
    ///
    /// # Errors
    ///
    /// As [`find_row`](Self::find_row), of what is malformed.
    #[inline(never)]
    pub fn find_code(&self, addr: u64) -> Result<Option<Range<u64>>, CfiError> {
        let place = self.find_place(addr)?;
        Ok(place.map(|Place { body, .. }| {
            let start = self.entries.abi().address(body.start.wrapping_add(self.bias));
            start..start.saturating_add(body.len)
        }))
    }

    /// What unwinding of exceptions needs to know of the function of an address; `None` if no
    /// FDE is about it. Addresses are as the section counts.
    ///
    /// # Errors
    ///
    /// As [`find_row`](Self::find_row), of what is malformed.
    #[inline(never)]
    pub fn find_exception_data(&self, addr: u64) -> Result<Option<ExceptionData>, CfiError> {
        let place = self.find_place(addr)?;
        Ok(place.and_then(|place| self.entries.exception_data(&place.fde)))
    }

    /// The FDE of an address, and the place in its code.
    #[inline(never)]
    fn find_place(&self, addr: u64) -> Result<Option<Place<'a>>, CfiError> {
        let pc = self.pc(addr);
        let Some(mut at) = self.find_fde(pc)? else { return Ok(None) };
        let mut tries = MAX_EMPTY;
        let (fde, cie, body) = loop {
            let fde = match self.entries.fde_at(at) {
                // A CIE, or the end of the section, after FDEs about no code.
                Err(CfiError::NotFde { .. }) if tries != MAX_EMPTY => return Ok(None),
                fde => fde?,
            };
            let cie = self.entries.cie(fde.cie)?;
            let body = self.entries.body(&fde, &cie)?;
            if body.len != 0 || tries == 0 {
                break (fde, cie, body);
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
        Ok(Some(Place { fde, cie, body, offset, pc }))
    }

    /// An address as the section counts.
    #[inline]
    const fn pc(&self, addr: u64) -> u64 {
        self.entries.abi().address(addr.wrapping_sub(self.bias))
    }

    /// The offset in the section of the FDE with the last start that is not above `pc`.
    #[inline]
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

/// Fills bytes from an address by which a section counts; false if it has none there.
fn copy(section: &CfiSection<'_>, at: u64, bytes: &mut [u8]) -> bool {
    let from = usize::try_from(at.wrapping_sub(section.addr)).ok();
    let from = from.and_then(|from| section.bytes.get(from..)?.get(..bytes.len()));
    from.map(|from| bytes.copy_from_slice(from)).is_some()
}

/// A place in the code that an FDE is about.
struct Place<'a> {
    fde: Fde<'a>,
    cie: Cie<'a>,
    body: Body<'a>,
    /// In bytes from the start of that code.
    offset: u64,
    /// Its address, as the section counts.
    pc: u64,
}

impl Place<'_> {
    /// The rules there, in the form in which they are handed on, so that they are not copied.
    #[inline(never)]
    fn evaluate(&self, entries: &Entries<'_>) -> Result<Option<PcRules>, CfiError> {
        // Nearly all remember one state at a time at most: the stack is spared the others.
        match self.evaluate_in(entries, &mut [Rules::UNSET; 1]) {
            Err(CfiError::TooManyRemembered) => self.evaluate_nested(entries),
            found => found,
        }
    }

    #[cold]
    #[inline(never)]
    fn evaluate_nested(&self, entries: &Entries<'_>) -> Result<Option<PcRules>, CfiError> {
        self.evaluate_in(entries, &mut [Rules::UNSET; MAX_REMEMBERED])
    }

    // The run of the CIE's instructions and that of the FDE's are on the stack one after the other.
    #[inline(always)]
    fn evaluate_in(
        &self,
        entries: &Entries<'_>,
        slots: &mut [Rules],
    ) -> Result<Option<PcRules>, CfiError> {
        let remembered = &mut States::new(slots);
        if self.cie.instructions.len() > MAX_INSTRUCTIONS {
            return Err(CfiError::TooManyInstructions);
        }
        match &self.cie.initial_rules(entries, remembered) {
            Ok(initial) => self.run(entries, initial, remembered),
            Err(error) => Err(*error),
        }
    }

    /// The rules there of an entry that starts from these.
    #[inline(never)]
    fn run(
        &self,
        entries: &Entries<'_>,
        initial: &Rules,
        remembered: &mut States<'_>,
    ) -> Result<Option<PcRules>, CfiError> {
        let mut run = Run::new(entries, &self.cie, initial, remembered, &self.body);
        match run.run_to(self.offset) {
            Ok(_) => Ok(Some(PcRules::new(&run.rules, &self.cie, self.pc))),
            Err((stop, _)) => Err(run.reason(stop)),
        }
    }
}
