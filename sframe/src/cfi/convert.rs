//! Entries become functions of a builder.

use alloc::vec::Vec;
use core::{num::NonZeroU8, ops::Range};

use unwind_cfi::{
    CfiAbi, CfiError, CfiSection, Cie, Entries, Fde, NoRow, RowChange, Rows, Rules, States, Step,
};
use unwind_core::Row;

use super::{eh_returns::EhReturns, lost::CfiOmission};
use crate::{
    compact::rbx,
    format::{fde::PauthKey, header::Abi},
    write::{
        builder::Builder,
        encode::{Encoder, ShortRow},
        function::Function,
        lost::WriteError,
        work_counter,
    },
};

/// The most states that an entry may remember. Compilers nest few.
const MAX_REMEMBERED: usize = 256;

/// What was made of call frame information.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CfiReport {
    /// FDEs that were read, malformed ones included.
    pub fdes: u64,
    /// FDEs of which nothing could be used.
    pub unusable: u64,
    /// Bytes of code that the usable FDEs describe.
    pub code_bytes: u64,
    /// Bytes of code among them that were handed to `lost`.
    pub lost_bytes: u64,
}

/// Makes functions of call frame information, one entry at a time.
///
/// [`Builder::add_cfi`] does all of it at once.
#[derive(Debug)]
pub struct CfiConverter<'a> {
    pub(super) entries: Entries<'a>,
    /// Those after the ones that were looked through for CIEs.
    ahead: Entries<'a>,
    /// The CIEs that were met so, by ascending offset.
    cies: Vec<CieSlot>,
    /// Those of them that an FDE has named.
    pub(super) known: Vec<Known<'a>>,
    /// The index in `known` of the one named last.
    last: usize,
    /// Slots for the states that an entry remembers.
    pub(super) slots: Vec<Rules>,
    /// The rows of the function that is being made, if all have the short form.
    short: Vec<ShortRow>,
    /// Its rows otherwise.
    rows: Vec<(u32, Row)>,
    /// The code that the last FDE is about.
    pub(super) code: Option<Range<u64>>,
    /// Where in it the function may be on its way to a handler.
    pub(super) eh_returns: EhReturns,
    pub(super) report: CfiReport,
}

/// Where a CIE is. One that lies inside another entry is none: otherwise many
/// could share their instructions, and each would run them.
#[derive(Clone, Copy, Debug)]
struct CieSlot {
    at: u64,
    /// Its index among those that are known.
    known: Option<usize>,
}

/// A CIE that an FDE has named.
#[derive(Debug)]
pub(super) struct Known<'a> {
    at: u64,
    /// With the rules that its FDEs start from.
    cie: Result<(Cie<'a>, Rules), CfiError>,
    /// The states that its FDEs may restore. No compiler leaves any.
    remembered: Vec<Rules>,
    /// Whether its FDEs begin with the caller's [rbx](crate::compact) unchanged, as those of all compilers do
    /// on an ABI that has it.
    pub(super) keeps_rbx: bool,
}

impl<'a> Known<'a> {
    /// What an FDE starts from that names this CIE, if it is one: the CIE, its rules, and the states that
    /// may be restored.
    #[inline]
    pub(super) fn of<'k>(
        known: Option<&'k Self>,
        fde: &Fde<'_>,
    ) -> Result<(&'k Cie<'a>, &'k Rules, &'k [Rules]), CfiError> {
        let known = known.ok_or(CfiError::NotCie { at: fde.cie })?;
        match &known.cie {
            Ok((cie, rules)) => Ok((cie, rules, &known.remembered)),
            Err(reason) => Err(*reason),
        }
    }
}

impl Builder {
    /// Adds the functions of `.eh_frame` or `.debug_frame`: one for each FDE. Only an FDE of
    /// repeated code becomes several, such as that of a linkage table: its first entry, and a run
    /// of equal blocks.
    ///
    /// Ranges of code whose rules no row or not this table's format can express are handed to
    /// `lost`, and so are malformed entries. Everything else is added.
    ///
    /// # Errors
    ///
    /// [`WriteError::OutOfMemory`] and [`WriteError::TooLarge`]; entries before
    /// that one have been added then.
    ///
    /// # Example
    ///
    /// ```
    /// use sframe::{Abi, Builder, CfiSection, Format, Table};
    /// use unwind_core::{CfaRule, RegRule, Row};
    ///
    /// let eh_frame = [
    ///     0x14, 0, 0, 0, 0, 0, 0, 0, // CIE of 20 bytes
    ///     1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, // code 1, data -8, RA 16, pc-relative
    ///     0x0c, 7, 8, 0x90, 1, 0, 0, // CFA = rsp+8, RA at CFA-8
    ///     0x10, 0, 0, 0, 0x1c, 0, 0, 0, // FDE of 16 bytes, CIE 28 bytes back
    ///     0xe0, 0x0f, 0, 0, 8, 0, 0, 0, // from 0x1000 on, 8 bytes
    ///     0, 0x44, 0x0e, 16, // 4 bytes on: CFA = rsp+16
    /// ];
    /// let mut builder = Builder::new(Format::V3, Abi::Amd64Little)?;
    /// let report = builder.add_cfi(CfiSection::eh_frame(&eh_frame, 0), |lost| panic!("{lost}"))?;
    /// assert_eq!(report.code_bytes, 8);
    /// let bytes = builder.finish(0x2000, |lost| panic!("{lost}"))?;
    ///
    /// let found = Table::parse(&bytes)?.at(0x2000).find(0x1004)?.expect("the FDE covers it");
    /// assert_eq!(found.row()?, Row::new(CfaRule::sp(16), RegRule::Offset(-8), RegRule::SameValue));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_cfi(
        &mut self,
        section: CfiSection<'_>,
        mut lost: impl FnMut(CfiOmission),
    ) -> Result<CfiReport, WriteError> {
        // What most tables come to. Memory that grows is copied, and its pages are new each time.
        self.fres.try_reserve(section.len().saturating_sub(section.len() / 8))?;
        self.entries.try_reserve(section.len() / 48)?;
        let mut converter = CfiConverter::new(section, self);
        while converter.next(self, &mut lost)? {}
        Ok(converter.report())
    }
}

impl<'a> CfiConverter<'a> {
    /// Starts with the first entry of a section, for tables of the ABI of
    /// `builder`.
    #[must_use]
    pub fn new(section: CfiSection<'a>, builder: &Builder) -> Self {
        let abi = match builder.abi() {
            Abi::Aarch64Big => CfiAbi::Aarch64Big,
            Abi::Aarch64Little => CfiAbi::Aarch64Little,
            Abi::S390xBig => CfiAbi::S390x,
            _ => CfiAbi::X86_64,
        };
        Self::of(section, abi)
    }

    /// The same for any ABI.
    pub(crate) fn of(section: CfiSection<'a>, abi: CfiAbi) -> Self {
        let entries = Entries::new(section, abi);
        Self {
            entries,
            ahead: entries,
            cies: Vec::new(),
            known: Vec::new(),
            last: 0,
            slots: Vec::new(),
            short: Vec::new(),
            rows: Vec::new(),
            code: None,
            eh_returns: EhReturns::default(),
            report: CfiReport::default(),
        }
    }

    /// Adds what the next FDE says to `builder`; false at the end.
    ///
    /// # Errors
    ///
    /// [`WriteError::OutOfMemory`] and [`WriteError::TooLarge`].
    pub fn next(
        &mut self,
        builder: &mut Builder,
        lost: &mut impl FnMut(CfiOmission),
    ) -> Result<bool, WriteError> {
        self.code = None;
        self.eh_returns.clear();
        let (entry, reason) = match self.entries.next_fde() {
            Ok(None) => return Ok(false),
            Ok(Some(fde)) => match self.fde(builder, &fde, lost)? {
                Ok(()) => return Ok(true),
                Err(reason) => (fde.at, reason),
            },
            Err(fault) => fault,
        };
        self.report.fdes = self.report.fdes.saturating_add(1);
        self.report.unusable = self.report.unusable.saturating_add(1);
        lost(CfiOmission { entry, start: 0, size: 0, reason: reason.into() });
        Ok(true)
    }

    /// The offset of the next entry in the section, in bytes.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.entries.position()
    }

    /// The code that the last FDE describes, in addresses of the target,
    /// whether or not a table can say its rules. `None` before the first FDE and
    /// after one of which nothing could be used.
    #[must_use]
    pub const fn code(&self) -> Option<&Range<u64>> {
        self.code.as_ref()
    }

    /// Where in that code the function may return to where an exception is caught, as libgcc's
    /// `_Unwind_RaiseException` does, ascending and apart. Few functions do.
    ///
    /// No row of a table says so: who walks by the table marks the rows of these addresses by
    /// [`Row::with_eh_return`]. Without it a stack may count as complete that lacks frames, if the thread
    /// was stopped right before such a function goes to the handler.
    #[must_use]
    pub fn eh_returns(&self) -> &[Range<u64>] {
        self.eh_returns.ranges()
    }

    /// What was made so far.
    #[must_use]
    pub const fn report(&self) -> CfiReport {
        self.report
    }

    /// The inner error is a reason to leave out the whole entry.
    fn fde(
        &mut self,
        builder: &mut Builder,
        fde: &Fde<'a>,
        lost: &mut impl FnMut(CfiOmission),
    ) -> Result<Result<(), CfiError>, WriteError> {
        let found = self.find_cie(fde.cie)?;
        let known = found.and_then(|at| self.known.get(at));
        let (cie, initial, remembered) = match Known::of(known, fde) {
            Ok(start) => start,
            Err(reason) => return Ok(Err(reason)),
        };
        let body = self.entries.body(fde, cie);
        let body = match body.as_ref() {
            Ok(body) => body,
            Err(reason) => return Ok(Err(*reason)),
        };
        let report = &mut self.report;
        report.fdes = report.fdes.saturating_add(1);
        let size = u32::try_from(body.len).ok().filter(|&size| size != 0);
        let Some(size) = size else {
            let reason = if body.len == 0 { CfiError::Empty } else { CfiError::TooLong };
            report.unusable = report.unusable.saturating_add(1);
            let reason = reason.into();
            lost(CfiOmission { entry: fde.at, start: body.start, size: body.len, reason });
            return Ok(Ok(()));
        };
        self.code = Some(body.start..body.start.saturating_add(body.len));
        report.code_bytes = report.code_bytes.saturating_add(size.into());
        let mut lost = |range: CfiOmission| {
            report.lost_bytes = report.lost_bytes.saturating_add(range.size);
            lost(range);
        };
        let mut states = States::new(&mut self.slots);
        states.set(remembered);
        let mut rows = Rows::new(&self.entries, cie, initial, body, size, &mut states);
        if run_short(builder.encoder, &mut rows, &mut self.short)?
            && builder.add_short(&function(cie, body.start, size, &[]), &self.short)?
        {
            return Ok(Ok(()));
        }
        self.rows.clear();
        let mut sink = Sink {
            builder,
            entry: fde.at,
            start: body.start,
            cie,
            rows: &mut self.rows,
            open: Open::Run(0),
            lost: &mut lost,
        };
        states.set(remembered);
        let mut rows = Rows::new(&self.entries, cie, initial, body, size, &mut states);
        while let Some((at, _)) = rows.next() {
            self.eh_returns.row(body.start.wrapping_add(at.into()), &rows)?;
            match rows.row() {
                Some(row) => sink.row(at, row)?,
                None => sink.no_row(at, rows.no_row())?,
            }
        }
        sink.end(size)?;
        self.eh_returns.end(body.start.wrapping_add(size.into()));
        Ok(Ok(()))
    }

    /// The index in `known` of the CIE at an offset; `None` if there is none.
    #[inline]
    pub(super) fn find_cie(&mut self, at: u64) -> Result<Option<usize>, WriteError> {
        if self.known.get(self.last).is_none_or(|known| known.at != at) {
            let Some(index) = self.meet_cie(at)? else { return Ok(None) };
            self.last = index;
        }
        Ok(Some(self.last))
    }

    /// The same, of one that may not be known.
    fn meet_cie(&mut self, at: u64) -> Result<Option<usize>, WriteError> {
        let mut next = self.ahead.position();
        while let Some(is_cie) = self.ahead.pass(at) {
            if is_cie {
                self.cies.try_reserve(1)?;
                self.cies.push(CieSlot { at: next, known: None });
            }
            next = self.ahead.position();
        }
        let index = self.cies.binary_search_by(|met| {
            work_counter::steps(1);
            met.at.cmp(&at)
        });
        let Some(met) = index.ok().and_then(|index| self.cies.get(index)) else {
            return Ok(None);
        };
        if met.known.is_some() {
            return Ok(met.known);
        }
        let last = self.known.len();
        let known = self.read_cie(at)?;
        self.known.try_reserve(1)?;
        self.known.push(known);
        if let Some(met) = index.ok().and_then(|index| self.cies.get_mut(index)) {
            met.known = Some(last);
        }
        Ok(Some(last))
    }

    fn read_cie(&mut self, at: u64) -> Result<Known<'a>, WriteError> {
        if self.slots.is_empty() {
            self.slots.try_reserve_exact(MAX_REMEMBERED)?;
            self.slots.resize(MAX_REMEMBERED, Rules::UNSET);
        }
        let mut states = States::new(&mut self.slots);
        let cie = self.entries.cie(at).and_then(|cie| {
            let rules = cie.initial_rules(&self.entries, &mut states)?;
            Ok((cie, rules))
        });
        let mut remembered = Vec::new();
        remembered.try_reserve_exact(states.as_slice().len())?;
        remembered.extend_from_slice(states.as_slice());
        let is_x86 = matches!(self.entries.abi(), CfiAbi::X86_64 | CfiAbi::Ia32);
        let named = cie.as_ref().is_ok_and(|(cie, _)| cie.may_name(rbx::REGISTER));
        let keeps_rbx = is_x86 && !named && remembered.is_empty();
        Ok(Known { at, cie, remembered, keeps_rbx })
    }
}

/// Runs an entry whose rows all have the short form, as nearly all have: false at the first one
/// that has not. What is left in `short` then means nothing.
#[inline]
fn run_short(
    encoder: Encoder,
    rows: &mut Rows<'_, '_, '_>,
    short: &mut Vec<ShortRow>,
) -> Result<bool, WriteError> {
    short.clear();
    let mut rules = None;
    let mut before = 0;
    while let Some((at, change)) = rows.next() {
        let cfa = match change {
            RowChange::Cfa(cfa) => cfa,
            RowChange::Any => {
                if rows.is_eh_return() {
                    return Ok(false);
                }
                // Looked at where it is: a copy would wait for it.
                let row = rows.row();
                let Some(row) = row.as_ref() else { return Ok(false) };
                rules = encoder.short_rules(row);
                row.cfa()
            }
        };
        let row = rules.and_then(|rules| encoder.short_row(at, cfa, rules));
        let Some(row) = row else { return Ok(false) };
        if row.bits != core::mem::replace(&mut before, row.bits) {
            if short.len() == short.capacity() {
                short.try_reserve(1)?;
            }
            short.push(row);
        }
    }
    Ok(true)
}

/// A function about which a CIE says the rest.
fn function<'a>(cie: &Cie<'_>, start: u64, size: u32, rows: &'a [(u32, Row)]) -> Function<'a> {
    let mut function = Function::new(start, size, rows);
    function.signal = cie.is_signal();
    function.pauth_key = if cie.uses_key_b() { PauthKey::B } else { PauthKey::A };
    function
}

/// What the rows since the last change of kind are.
#[derive(Clone, Copy)]
enum Open {
    /// Rows that go into one function, from this offset on.
    Run(u32),
    /// Blocks from this offset on.
    Blocks(u32, Row, Row, Step),
    /// Nothing that can be said, from this offset on.
    Omission(u32, CfiError),
}

/// Collects the rows of one FDE and hands them to a builder.
struct Sink<'s, L> {
    builder: &'s mut Builder,
    entry: u64,
    start: u64,
    cie: &'s Cie<'s>,
    rows: &'s mut Vec<(u32, Row)>,
    open: Open,
    lost: &'s mut L,
}

impl<L: FnMut(CfiOmission)> Sink<'_, L> {
    /// From `at` on this row holds.
    #[inline]
    fn row(&mut self, at: u32, row: Row) -> Result<(), WriteError> {
        let Open::Run(from) = self.open else {
            self.end(at)?;
            self.open = Open::Run(at);
            return self.push(0, row);
        };
        self.push(at.saturating_sub(from), row)
    }

    /// From `at` on this holds.
    fn no_row(&mut self, at: u32, rules: NoRow) -> Result<(), WriteError> {
        let is_open = match (self.open, rules) {
            (Open::Omission(_, open), NoRow::Error(reason)) => open == reason,
            (Open::Blocks(_, a, b, step), NoRow::Blocks(c, d, other)) => {
                (a, b, step) == (c, d, other)
            }
            _ => false,
        };
        if !is_open {
            self.end(at)?;
            self.open = match rules {
                NoRow::Blocks(before, after, step) => Open::Blocks(at, before, after, step),
                NoRow::Error(reason) => Open::Omission(at, reason),
            };
        }
        Ok(())
    }

    #[inline]
    fn push(&mut self, offset: u32, row: Row) -> Result<(), WriteError> {
        if self.rows.len() == self.rows.capacity() {
            self.rows.try_reserve(1)?;
        }
        self.rows.push((offset, row));
        Ok(())
    }

    /// What is open ends at `end`.
    fn end(&mut self, end: u32) -> Result<(), WriteError> {
        match self.open {
            Open::Run(from) => {
                if from < end && !self.rows.is_empty() {
                    self.add(from, end, None)?;
                }
                self.rows.clear();
                Ok(())
            }
            Open::Blocks(from, before, after, step) => self.blocks(from, end, before, after, step),
            Open::Omission(from, reason) => {
                let start = self.start.wrapping_add(from.into());
                let size = end.saturating_sub(from).into();
                let reason = reason.into();
                (self.lost)(CfiOmission { entry: self.entry, start, size, reason });
                Ok(())
            }
        }
    }

    /// Adds the rows as a function.
    fn add(&mut self, from: u32, end: u32, blocks: Option<NonZeroU8>) -> Result<(), WriteError> {
        let start = self.start.wrapping_add(from.into());
        let mut function = function(self.cie, start, end.saturating_sub(from), self.rows);
        function.block_size = blocks;
        let (entry, lost) = (self.entry, &mut self.lost);
        self.builder.add(&function, |range| lost(CfiOmission::from_table(entry, &range)))
    }

    /// Adds code in which each block has a row for its first part and another
    /// for the rest. The code may start inside a block: that part is a function
    /// of its own, as blocks count from their function's start.
    fn blocks(
        &mut self,
        from: u32,
        end: u32,
        before: Row,
        after: Row,
        step: Step,
    ) -> Result<(), WriteError> {
        self.rows.try_reserve(2)?;
        let mask = u64::from(step.mask);
        let start = self.start.wrapping_add(from.into());
        let inside = u32::try_from(start & mask).unwrap_or_default();
        let mut from = from;
        if inside != 0 {
            let block = u32::from(step.mask).saturating_add(1);
            let first = end.min(from.saturating_add(block.saturating_sub(inside)));
            let at = u32::from(step.at);
            if inside < at {
                self.rows.push((0, before));
            }
            self.rows.push((at.saturating_sub(inside), after));
            self.add(from, first, None)?;
            self.rows.clear();
            from = first;
        }
        if from < end {
            self.rows.push((0, before));
            self.rows.push((step.at.into(), after));
            self.add(from, end, NonZeroU8::new(step.mask.saturating_add(1)))?;
            self.rows.clear();
        }
        Ok(())
    }
}
