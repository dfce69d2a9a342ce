//! The frames of one walk, one after another.
//!
//! Frames come one step late: the iterator finds a frame's caller before it hands the frame out. So
//! each frame comes with its CFA, and a walk that stops at a limit knows whether there was more.

use core::borrow::{Borrow, BorrowMut};
use core::fmt;
use core::iter::FusedIterator;

use crate::addr::{FramePc, VirtAddr};
use crate::arch::Arch;
use crate::end::End;
use crate::memory::{Memory, ReadError};
use crate::origin::Origin;
use crate::register::Registers as _;
use crate::return_addresses::ReturnAddresses;
use crate::row::Row;
use crate::source::RowSource;
use crate::step_error::StepError;
use crate::trace::{Provenance, TraceFrame};
use crate::walk::cursor::Cursor;
use crate::walk::fast::row_cache::RowStore;
use crate::walk::rules::{check_return_address, is_zero_an_end};
use crate::walk::step::{FramePointer, Step, Stepper};
use crate::walk::walker::{LookedUp, Walker, Whom};

/// One frame of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// Where its execution stands.
    pub pc: FramePc,
    /// Its stack pointer at that point, a register value.
    pub sp: u64,
    /// Its CFA, a register value: the stack pointer of its caller. `None` if
    /// the walk ends here without having found it.
    pub cfa: Option<u64>,
    /// How the frame was found.
    pub provenance: Provenance,
}

/// What a trace keeps of it.
impl From<Frame> for TraceFrame {
    fn from(frame: Frame) -> Self {
        Self::new(frame.pc.addr(), frame.provenance)
    }
}

impl<A, S, F, T, C> Walker<A, S, F, T, C>
where
    A: Arch,
    S: RowSource<A>,
    F: RowSource<A>,
    F::Error: Into<S::Error>,
    T: ReturnAddresses,
    C: RowStore,
{
    /// Starts a walk at `regs`: registers, or a reference to some that the caller
    /// lends. What a signal interrupted overwrites them.
    pub fn frames<'w, M: Memory, R: BorrowMut<A::Regs>>(
        &'w mut self,
        regs: R,
        mem: &'w mut M,
    ) -> Frames<'w, A, S, F, T, C, M, R> {
        self.begin();
        Frames::new(self, regs, mem)
    }
}

/// The frames of one walk, innermost first.
///
/// The iterator is always one step ahead, so each frame comes with its CFA,
/// and the last one is known to be the last. A frame that was handed out
/// stands, whatever comes after it.
pub struct Frames<'w, A: Arch, S: RowSource<A>, F, T, C, M, R = <A as Arch>::Regs> {
    pub(super) walker: &'w mut Walker<A, S, F, T, C>,
    pub(super) mem: &'w mut M,
    /// The frame that comes next.
    pub(super) next: Option<Cursor>,
    pub(super) registers: R,
    pub(super) registers_of: RegistersOf,
    /// A frame comes after a gap.
    pub(super) has_gap: bool,
    /// How many frames there may still be: that one and those after it.
    pub(super) left: usize,
    pub(super) table_errors: u32,
    pub(super) end: Option<End<S::Error>>,
}

impl<'w, A, S, F, T, C, M, R> Frames<'w, A, S, F, T, C, M, R>
where
    A: Arch,
    R: BorrowMut<A::Regs>,
    S: RowSource<A>,
    F: RowSource<A>,
    F::Error: Into<S::Error>,
    T: ReturnAddresses,
    C: RowStore,
    M: Memory,
{
    /// Why there are no more frames; `None` while there are.
    #[must_use]
    pub fn end(&self) -> Option<End<S::Error>> {
        if self.next.is_some() { None } else { self.end }
    }

    /// Whether the frames are all frames of the stack: the walk is over, its last frame
    /// is known to be the outermost one, and none came
    /// [after a gap](Provenance::is_after_gap).
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !self.has_gap && self.end().is_some_and(|end| end.is_outermost())
    }

    /// Says of a walk that has just begun that its first frame has called: the registers are
    /// those that it has when the callee returns. The pc is a return address then, and of the
    /// other registers those need be known that calls preserve.
    pub const fn begin_in_caller(&mut self) {
        self.registers_of = RegistersOf::Caller;
        if let Some(next) = &mut self.next {
            next.pc = FramePc::Return(next.pc.addr());
            next.provenance = Provenance::new(Origin::Registers, next.pc);
        }
    }

    /// How many malformed table rows the walk went past by its fallback.
    #[must_use]
    pub const fn table_errors(&self) -> u32 {
        self.table_errors
    }

    pub(super) fn new(walker: &'w mut Walker<A, S, F, T, C>, registers: R, mem: &'w mut M) -> Self {
        let mut frames = Self {
            walker,
            mem,
            next: None,
            registers,
            registers_of: RegistersOf::Next,
            has_gap: false,
            left: 0,
            table_errors: 0,
            end: None,
        };
        frames.start();
        frames
    }

    fn start(&mut self) {
        self.left = self.walker.most_frames();
        if !self.walker.arch.is_walkable() {
            self.end = Some(End::NotWalkable);
        } else if self.left == 0 {
            self.end = Some(End::FrameLimit);
        } else {
            self.enter(Origin::Registers);
        }
    }

    /// Makes the frame of which all registers are known the next one.
    fn enter(&mut self, origin: Origin) {
        let regs: &A::Regs = self.registers.borrow();
        match self.walker.arch.code_addr(regs.pc()) {
            Some(pc) => {
                let pc = FramePc::Exact(pc);
                let provenance = Provenance::new(origin, pc);
                let (sp, fp) = (regs.sp(), FramePointer::new(regs.fp()));
                let has_called_innermost = false;
                self.next =
                    Some(Cursor { pc, sp, fp, provenance, is_by_fp: false, has_called_innermost });
            }
            None => {
                let pc = regs.pc();
                self.finish(End::Step(StepError::NonCanonical { pc }));
            }
        }
    }

    pub(super) fn finish(&mut self, end: End<S::Error>) {
        self.next = None;
        self.end = Some(end);
    }

    /// Finds the row of the next frame.
    // A lookup is the deepest that a walk goes: so the function that it calls, `advance` and
    // `run` are on the stack one at a time, and the frames alone all the while.
    #[inline]
    pub(super) fn look_up(&mut self, whom: Whom) -> LookedUp<S::Error> {
        let Some(at) = &self.next else { return LookedUp::Row(Ok(None)) };
        let registers = known(&self.registers, self.registers_of);
        self.walker.look_up(at, registers, whom, self.mem)
    }

    /// Hands the next frame out, whose row may have been looked up already.
    #[inline]
    pub(super) fn leave(&mut self, found: &mut LookedUp<S::Error>) -> Option<Frame> {
        self.next.as_ref()?;
        if matches!(found, LookedUp::Kept) {
            *found = self.look_up(Whom::CacheFirst);
        }
        let LookedUp::Row(row) = &*found else { return None };
        let at = self.next.take()?;
        let cfa = self.advance(&at, row);
        self.left = self.left.saturating_sub(1);
        if self.left == 0 && self.next.is_some() {
            self.finish(End::FrameLimit);
        }
        Some(Frame { pc: at.pc, sp: at.sp, cfa, provenance: at.provenance })
    }

    /// Finds the frame after `at`, of which the source has this row, and returns
    /// the CFA of `at`, if it has one.
    #[inline(never)]
    fn advance(&mut self, at: &Cursor, row: &Result<Option<Row>, S::Error>) -> Option<u64> {
        let found = match self.find_caller(at, row) {
            Ok(found) => found,
            Err(end) => {
                // What anyone has called has its return address below the stack that its process starts with.
                let arch = &self.walker.arch;
                let is_start = matches!(row, Ok(None))
                    && arch.is_initial_stack(arch.stack_addr(at.sp), self.mem);
                self.finish(if is_start { End::Outermost } else { end });
                return None;
            }
        };
        match found.next {
            Next::Outermost => {
                self.finish(End::Outermost);
                None
            }
            Next::ZeroReturnAddress { cfa } => {
                self.finish(End::ZeroReturnAddress);
                Some(cfa)
            }
            Next::Interrupted { sp } => {
                let next = self.next.as_mut().filter(|_| found.provenance.is_after_gap());
                if let Some(next) = next {
                    next.provenance = next.provenance.with_gap();
                    self.has_gap = true;
                }
                Some(sp)
            }
            Next::Caller { pc, cfa, mut fp, is_after_trampoline } => {
                let mut provenance = found.provenance.at(pc);
                self.has_gap |= provenance.is_after_gap();
                if let FramePointer::Assumed(value) = fp {
                    // The caller has it as it would have any other.
                    fp = FramePointer::Known(value);
                    provenance = provenance.with_assumed_fp();
                }
                if is_after_trampoline {
                    provenance = provenance.with_trampoline();
                }
                self.registers_of.leave();
                let is_by_fp = at.is_by_fp || provenance.origin() == Origin::FramePointer;
                let has_called_innermost = at.pc.is_exact();
                self.next =
                    Some(Cursor { pc, sp: cfa, fp, provenance, is_by_fp, has_called_innermost });
                Some(cfa)
            }
        }
    }

    /// Steps out of `at` by the source's row or else by the fallback's.
    fn find_caller(
        &mut self,
        at: &Cursor,
        row: &Result<Option<Row>, S::Error>,
    ) -> Result<Found, End<S::Error>> {
        let failure = match row {
            Ok(Some(row)) => match self.step(at, row) {
                Ok(next) => {
                    let provenance = Provenance::of_row(row.origin(), at.doubts(row));
                    return Ok(Found { next: self.doubt_registers(at, row, next), provenance });
                }
                Err(error) => End::Step(error),
            },
            Ok(None) => End::NoRow,
            Err(error) => End::Table(*error),
        };
        if failure.is_retryable() || matches!(failure, End::Step(StepError::ReturnProbe { .. })) {
            return Err(failure);
        }
        let covered = !matches!(failure, End::NoRow);
        let fallback = match self
            .walker
            .fallback
            .row(&at.context(known(&self.registers, self.registers_of)), self.mem)
        {
            Ok(Some(row)) => row,
            Ok(None) => return Err(failure),
            Err(error) => return Err(if covered { failure } else { End::Table(error.into()) }),
        };
        // The same again would fail the same way.
        if matches!(row, Ok(Some(row)) if *row == fallback) {
            return Err(failure);
        }
        match self.step(at, &fallback) {
            Ok(next) => {
                if matches!(failure, End::Table(_)) {
                    self.table_errors = self.table_errors.saturating_add(1);
                }
                let found = Provenance::of_row(fallback.origin(), at.doubts(&fallback));
                // A guess that fails is no evidence against the fallback, a table's row is.
                let provenance = match row {
                    Ok(None) => found,
                    Ok(Some(row)) if row.is_guess() => found.with_failure(),
                    _ => found.with_failure().with_gap(),
                };
                Ok(Found { next: self.doubt_registers(at, &fallback, next), provenance })
            }
            // What is wrong with the row that covers the pc says more.
            Err(error) if covered && !error.is_not_resident() => Err(failure),
            Err(error) => Err(End::Step(error)),
        }
    }

    /// Doubts the registers of a caller that may be those of another one. Its CFA and return address
    /// do not depend on them.
    fn doubt_registers(&mut self, at: &Cursor, row: &Row, mut next: Next) -> Next {
        if at.may_be_overwritten(row) {
            // None is recovered through that frame.
            self.registers_of = RegistersOf::Other;
            if let Next::Caller { fp, .. } = &mut next {
                *fp = fp.doubted(row.fp());
            }
        }
        next
    }

    /// Applies a row and checks what it leads to.
    fn step(&mut self, at: &Cursor, row: &Row) -> Result<Next, StepError> {
        let interrupted = if row.is_signal() { self.enter_interrupted(at, row)? } else { None };
        if let Some(sp) = interrupted {
            return Ok(Next::Interrupted { sp });
        }
        match self.step_to_caller(at, row, false) {
            Err(StepError::UnknownRegister(register)) if self.recover(at, register) => {
                let known = row.needs().and_then(|_| self.row_by_registers(at));
                self.step_to_caller(at, known.as_ref().unwrap_or(row), true)
            }
            result => result,
        }
    }

    /// Applies a row that says where the caller is. If they are recovered, the registers
    /// that are kept are the frame's.
    // Nothing of it is on the stack while a signal's registers are.
    #[inline(never)]
    fn step_to_caller(
        &mut self,
        at: &Cursor,
        row: &Row,
        is_recovered: bool,
    ) -> Result<Next, StepError> {
        let Walker { arch, code, stack_end, .. } = &mut *self.walker;
        let is_innermost = self.registers_of == RegistersOf::Next;
        let registers = (is_innermost || is_recovered).then(|| self.registers.borrow());
        let recovered_fp = registers.and_then(|registers: &A::Regs| registers.fp());
        let fp = match recovered_fp {
            Some(fp) if is_recovered => &FramePointer::Known(fp),
            _ => &at.fp,
        };
        let (sp, stack_end) = (at.sp, *stack_end);
        let mut stepper =
            Stepper { arch, sp, fp, registers, is_innermost, stack_end, mem: self.mem };
        let step = stepper.step(row)?;
        let caller = match step {
            Step::Outermost => return Ok(Next::Outermost),
            Step::ZeroReturnAddress { cfa, slot } => {
                if !is_zero_an_end(row, at.is_by_fp, stack_end == Some(cfa)) {
                    return Err(StepError::ZeroReturnAddress { cfa });
                }
                return match slot {
                    Some(slot) => self.end_at_zero(cfa, slot, at.sp),
                    None => Ok(Next::ZeroReturnAddress { cfa }),
                };
            }
            Step::Caller(caller) => caller,
        };
        if caller.ra < ADDRESSES_START && is_zero_an_end(row, at.is_by_fp, false) {
            let slot = caller.ra_slot.filter(|slot| arch.is_initial_stack(*slot, self.mem));
            if slot.is_some() {
                return Ok(Next::Outermost);
            }
        }
        let saved = check_return_address(arch, caller.ra)?;
        let real = code.resolve(saved, caller.ra_slot);
        if real.is_none() && !row.is_signal() && !code.is_code(FramePc::Return(saved).lookup_addr())
        {
            return Err(match code.is_trampoline(saved) {
                true => StepError::ReturnProbe { pc: saved },
                false => StepError::NotCode { pc: saved },
            });
        }
        let pc = real.unwrap_or(saved);
        let pc = if row.is_signal() { FramePc::Exact(pc) } else { FramePc::Return(pc) };
        let is_after_trampoline = real.is_some();
        Ok(Next::Caller { pc, cfa: caller.cfa, fp: caller.fp, is_after_trampoline })
    }

    /// Ends the stack at a slot that has a zero, unless a return address is beside it: up to
    /// [`WORDS_ABOVE_ZERO`] above, or one word below it, if that is not below `sp`. Memory there
    /// that may come is an error.
    ///
    /// The slot below is looked at for rows that are wrong by one. Below that are what the frame
    /// has not written yet and what functions before have left, which tells nothing.
    // A walk comes here once at most, at its end.
    #[cold]
    #[inline(never)]
    fn end_at_zero(&mut self, cfa: u64, slot: VirtAddr, sp: u64) -> Result<Next, StepError> {
        let word = A::WORD.bytes();
        let Walker { arch, stack_end, .. } = &*self.walker;
        let bottom = arch.stack_addr(sp);
        let mut addr = slot.checked_sub(word).filter(|below| *below >= bottom).unwrap_or(slot);
        let above = slot.wrapping_add(word.wrapping_mul(WORDS_ABOVE_ZERO.wrapping_add(1)));
        let stop = stack_end.map_or(above, |end| above.min(arch.stack_addr(end)));
        while addr < stop {
            let value = match self.mem.read_word(addr, A::WORD) {
                Ok(value) => value,
                Err(error @ ReadError::NotResident) => {
                    return Err(StepError::Unreadable { addr, error });
                }
                // What is mapped ends here.
                Err(_) => break,
            };
            let pc = self.walker.arch.code_addr(value).filter(|_| value != 0);
            if let Some(pc) = pc.filter(|pc| self.is_caller(*pc)) {
                return Err(StepError::CallerBesideZero { cfa, pc });
            }
            addr = addr.wrapping_add(word);
        }
        Ok(Next::ZeroReturnAddress { cfa })
    }

    /// Whether a value is the return address of a call in code that the source knows, or of a
    /// signal handler, which nothing has called. Where the code cannot be read, a table has to know
    /// it: a convention knows any address.
    fn is_caller(&mut self, pc: VirtAddr) -> bool {
        let Self { walker, mem, .. } = self;
        let pc = FramePc::Return(pc);
        if !walker.code.is_code(pc.lookup_addr()) {
            return false;
        }
        let is_called = walker.arch.follows_call(pc.addr(), *mem);
        let at = Cursor::at_return_address(pc);
        match walker.look_up(&at, None, Whom::SourceAlone, *mem) {
            LookedUp::Row(Ok(Some(row))) if row.is_signal() => true,
            LookedUp::Row(Ok(Some(row))) => {
                is_called.unwrap_or(row.origin() != Origin::FramePointer)
            }
            LookedUp::Row(Ok(None)) | LookedUp::Kept => false,
            LookedUp::Row(Err(_)) => is_called == Some(true),
        }
    }

    /// Makes what a signal interrupted the next frame, and returns its stack
    /// pointer; `None` if `at` has no context and the row's rules are to be
    /// applied.
    // All registers are on the stack only while it runs.
    #[inline(never)]
    fn enter_interrupted(&mut self, at: &Cursor, row: &Row) -> Result<Option<u64>, StepError> {
        // Looked at where they were returned, so that they are copied once.
        match &self.walker.arch.signal_context(at.pc.addr(), at.sp, self.mem) {
            Ok(Some(regs)) => {
                let sp = regs.sp();
                *self.registers.borrow_mut() = *regs;
                self.registers_of = RegistersOf::Next;
                self.enter(Origin::SignalContext);
                Ok(Some(sp))
            }
            Ok(None) if row.is_context_only() => Err(StepError::UnknownTrampoline),
            Ok(None) => Ok(None),
            Err(error) => Err(*error),
        }
    }
}

/// Where addresses of code begin, at the lowest: what is below, and is in the place of a return
/// address, may be the number of arguments of a program.
const ADDRESSES_START: u64 = 1 << 16;

/// How far above a return address of zero a walk looks for one that is not: an ordinary frame.
const WORDS_ABOVE_ZERO: u64 = 64;

/// Whose registers a walk keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegistersOf {
    /// The next frame's, all of them: it was sampled or interrupted.
    Next,
    /// Those of a frame before it that was sampled or interrupted.
    Innermost,
    /// Those of a caller before it, as far as calls preserve them.
    Caller,
    /// Those of a frame from which the way to the next one is not known.
    Other,
}

impl RegistersOf {
    /// The walk continues with another frame.
    #[inline]
    pub(super) const fn leave(&mut self) {
        if matches!(self, Self::Next) {
            *self = Self::Innermost;
        }
    }
}

/// The registers, if they are all those of the next frame.
// A function of its own: the rest of the walk is borrowed meanwhile.
#[inline]
pub(super) fn known<R, B: Borrow<R>>(registers: &B, of: RegistersOf) -> Option<&R> {
    (of == RegistersOf::Next).then(|| registers.borrow())
}

/// A step that succeeded.
struct Found {
    next: Next,
    /// Who found the row, whether it may lead past callers, and whether it is the
    /// fallback's after a failure.
    provenance: Provenance,
}

/// Where a step led.
enum Next {
    /// To an ordinary caller.
    Caller {
        pc: FramePc,
        /// The frame's CFA, the caller's stack pointer.
        cfa: u64,
        /// The caller's frame pointer.
        fp: FramePointer,
        is_after_trampoline: bool,
    },
    /// To what a signal interrupted, which is the next frame already.
    Interrupted {
        /// Its stack pointer.
        sp: u64,
    },
    /// Nowhere: the row says that there is no caller.
    Outermost,
    /// Nowhere: the return address is zero.
    ZeroReturnAddress {
        /// The frame's CFA.
        cfa: u64,
    },
}

impl<A, S, F, T, C, M, R> Iterator for Frames<'_, A, S, F, T, C, M, R>
where
    A: Arch,
    R: BorrowMut<A::Regs>,
    S: RowSource<A>,
    F: RowSource<A>,
    F::Error: Into<S::Error>,
    T: ReturnAddresses,
    C: RowStore,
    M: Memory,
{
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        self.leave(&mut LookedUp::Kept)
    }
}

impl<A, S, F, T, C, M, R> FusedIterator for Frames<'_, A, S, F, T, C, M, R>
where
    A: Arch,
    R: BorrowMut<A::Regs>,
    S: RowSource<A>,
    F: RowSource<A>,
    F::Error: Into<S::Error>,
    T: ReturnAddresses,
    C: RowStore,
    M: Memory,
{
}

impl<A: Arch, S: RowSource<A>, F, T, C, M, R> fmt::Debug for Frames<'_, A, S, F, T, C, M, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames").field("next", &self.next).field("left", &self.left).finish()
    }
}
