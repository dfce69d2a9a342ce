//! The walk: from the registers of a sample to its outermost frame.

mod retrace;

use core::borrow::{Borrow, BorrowMut};
use core::fmt;
use core::iter::FusedIterator;

use crate::short_stack::{Addresses, Stack as _, Words, highest_cfa};
use crate::short_walk::{Log, ShortWalk, Stop};
use crate::step::{Step, Stepper};
use crate::trace::{AllFrames, Provenance};
use crate::{
    Arch, FrameContext, FramePc, KeptRow, Memory, NoRows, Origin, Registers, Row, RowSource,
    StepError, TableError, UnwindCache, VirtAddr, WordSize,
};

/// Why a walk has no more frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum End<E> {
    /// The last frame is the outermost one: its row says that it has no
    /// caller.
    Outermost,
    /// The last frame's return address is zero, which is how start-up code
    /// marks the outermost frame. A zero that a frame pointer led to, or a look
    /// at the instructions, is none: see [`StepError::ZeroReturnAddress`].
    ZeroReturnAddress,
    /// There are more frames than were asked for, or than there is room for.
    Full,
    /// No source covers the last frame's pc.
    NoRow,
    /// The last frame's row could not be applied.
    Step(StepError),
    /// The table that covers the last frame's pc is malformed.
    Table(E),
    /// There is no stack to walk: the target runs in a mode whose stacks this
    /// CPU's back end does not know, such as VM86.
    NotWalkable,
}

impl<E: TableError> End<E> {
    /// Whether the last frame is known to be the outermost one.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        matches!(self, Self::Outermost | Self::ZeroReturnAddress)
    }

    /// Whether the same walk may get further at another time or place, where
    /// absent memory may be brought in.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Step(error) => error.is_not_resident(),
            Self::Table(error) => error.is_not_resident(),
            _ => false,
        }
    }
}

impl<E: fmt::Display> fmt::Display for End<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outermost => f.write_str("outermost frame"),
            Self::ZeroReturnAddress => f.write_str("return address zero"),
            Self::Full => f.write_str("more frames than room"),
            Self::NoRow => f.write_str("no source covers this pc"),
            Self::Step(error) => error.fmt(f),
            Self::Table(error) => write!(f, "malformed table: {error}"),
            Self::NotWalkable => f.write_str("no stack that can be walked"),
        }
    }
}

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

/// What a host knows of the target's code.
pub trait TargetCode {
    /// Returns the real return address if `ra` is a trampoline's.
    ///
    /// A tracer that wants to see a function return (a uretprobe and the like)
    /// replaces its return address by that of a trampoline and remembers the
    /// real one. A walk would show the trampoline in place of the caller.
    ///
    /// `slot` is where `ra` was saved, if it was in memory: it tells apart the
    /// frames that return to the same trampoline. Calls come in the order of
    /// the frames, innermost first. The answer is used without further checks.
    #[inline]
    fn real_return(&mut self, ra: VirtAddr, slot: Option<VirtAddr>) -> Option<VirtAddr> {
        let _ = (ra, slot);
        None
    }

    /// Whether the target has code at `call`, the last byte of what must have
    /// been a call. A return address for which it says no is none, and the
    /// walk ends with [`StepError::NotCode`].
    #[inline]
    fn is_code(&mut self, call: VirtAddr) -> bool {
        let _ = call;
        true
    }

    /// A number that changes whenever an answer given before may no longer be
    /// right. `None` if there is none, as where an answer depends on the calls
    /// before: each return address of a walk is then asked about, and
    /// [`Walker::retrace`] takes nothing over.
    #[inline]
    fn generation(&self) -> Option<u64> {
        None
    }
}

/// Nothing is known of the target's code: every return address is what it
/// seems.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnyCode;

impl TargetCode for AnyCode {
    #[inline]
    fn generation(&self) -> Option<u64> {
        Some(0)
    }
}

/// Walks stacks of one CPU by one set of sources. It keeps nothing of a walk
/// but what its sources keep.
#[derive(Clone, Copy, Debug)]
pub struct Walker<A, S, F = NoRows, T = AnyCode> {
    arch: A,
    source: S,
    fallback: F,
    code: T,
    max_frames: u32,
    stack_end: Option<u64>,
}

impl<A: Arch, S: RowSource<A>> Walker<A, S> {
    /// How many frames a walk has at most unless
    /// [`max_frames`](Self::max_frames) says otherwise.
    pub const DEFAULT_MAX_FRAMES: u32 = 510;

    /// A walker that takes its rows from `source` alone.
    #[must_use]
    pub const fn new(arch: A, source: S) -> Self {
        Self {
            arch,
            source,
            fallback: NoRows,
            code: AnyCode,
            max_frames: Self::DEFAULT_MAX_FRAMES,
            stack_end: None,
        }
    }
}

impl<A, S, F, T> Walker<A, S, F, T>
where
    A: Arch,
    S: RowSource<A>,
    F: RowSource<A>,
    F::Error: Into<S::Error>,
    T: TargetCode,
{
    /// Goes on by `fallback` where the source has no row, has a malformed one,
    /// or has one that cannot be applied. Frames found so have a
    /// [`Provenance`] that says it.
    ///
    /// Absent memory is the exception: it is not a fault of the row, so the
    /// walk ends there and can be tried again.
    #[must_use]
    pub fn fallback<G>(self, fallback: G) -> Walker<A, S, G, T>
    where
        G: RowSource<A>,
        G::Error: Into<S::Error>,
    {
        let Self { arch, source, code, max_frames, stack_end, .. } = self;
        Walker { arch, source, fallback, code, max_frames, stack_end }
    }

    /// Asks `code` about each return address.
    #[must_use]
    pub fn code<U: TargetCode>(self, code: U) -> Walker<A, S, F, U> {
        let Self { arch, source, fallback, max_frames, stack_end, .. } = self;
        Walker { arch, source, fallback, code, max_frames, stack_end }
    }

    /// Ends a walk after so many frames, if there are more.
    #[must_use]
    pub const fn max_frames(mut self, frames: u32) -> Self {
        self.max_frames = frames;
        self
    }

    /// Ends a walk that would leave the stack: `end` is the value of the stack
    /// pointer when the stack is empty. With signal handlers on a stack of
    /// their own it must be the higher of the two.
    #[must_use]
    pub const fn stack_end(mut self, end: u64) -> Self {
        self.stack_end = Some(end);
        self
    }

    /// Starts a walk at `regs`: registers, or a reference to some that the caller
    /// lends. What a signal interrupted overwrites them.
    pub fn frames<'w, M: Memory, R: BorrowMut<A::Regs>>(
        &'w mut self,
        regs: R,
        mem: &'w mut M,
    ) -> Frames<'w, A, S, F, T, M, R> {
        let mut frames = Frames {
            walker: self,
            mem,
            next: None,
            registers: regs,
            are_registers_known: true,
            left: 0,
            table_errors: 0,
            end: None,
        };
        frames.walker.source.begin();
        frames.walker.fallback.begin();
        frames.start();
        frames
    }

    /// Walks the whole stack at `regs`, as [`frames`](Self::frames) takes them,
    /// into `trace`, which is emptied first.
    pub fn trace<const N: usize, M: Memory>(
        &mut self,
        regs: impl BorrowMut<A::Regs>,
        mem: &mut M,
        trace: &mut UnwindCache<N, S::Error>,
    ) {
        trace.clear();
        let mut frames = self.frames(regs, mem);
        loop {
            frames.run(trace);
            let Some(frame) = frames.next() else { break };
            if !trace.push(frame.pc.addr(), frame.provenance) {
                return trace.finish(End::Full);
            }
        }
        // An iterator without a next frame has a reason for it.
        trace.finish(frames.end().unwrap_or(End::Full));
    }
}

/// The frames of one walk, innermost first.
///
/// The iterator is always one step ahead, so each frame comes with its CFA,
/// and the last one is known to be the last. A frame that was handed out
/// stands, whatever comes after it.
pub struct Frames<'w, A: Arch, S: RowSource<A>, F, T, M, R = <A as Arch>::Regs> {
    walker: &'w mut Walker<A, S, F, T>,
    mem: &'w mut M,
    /// The frame that comes next.
    next: Option<Cursor>,
    /// All registers of that frame, where they are known.
    registers: R,
    are_registers_known: bool,
    left: u32,
    table_errors: u32,
    end: Option<End<S::Error>>,
}

/// Where a walk stands: what is known of every frame.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    pc: FramePc,
    sp: u64,
    fp: Option<u64>,
    provenance: Provenance,
    /// A frame pointer led to this frame or to one before it: the stack pointer
    /// is right only if that was one.
    is_by_fp: bool,
}

impl Cursor {
    /// What a source may look at.
    #[inline]
    const fn context<'r, R>(&self, registers: Option<&'r R>) -> FrameContext<'r, R> {
        FrameContext { pc: self.pc, sp: self.sp, fp: self.fp, registers }
    }
}

impl<A, S, F, T, M, R> Frames<'_, A, S, F, T, M, R>
where
    A: Arch,
    R: BorrowMut<A::Regs>,
    S: RowSource<A>,
    F: RowSource<A>,
    F::Error: Into<S::Error>,
    T: TargetCode,
    M: Memory,
{
    /// Why there are no more frames; `None` while there are.
    #[must_use]
    pub fn end(&self) -> Option<End<S::Error>> {
        if self.next.is_some() { None } else { self.end }
    }

    /// How many malformed table rows the walk went past by its fallback.
    #[must_use]
    pub const fn table_errors(&self) -> u32 {
        self.table_errors
    }

    fn start(&mut self) {
        self.left = self.walker.max_frames;
        if !self.walker.arch.is_walkable() {
            self.end = Some(End::NotWalkable);
        } else if self.left == 0 {
            self.end = Some(End::Full);
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
                let (sp, fp) = (regs.sp(), regs.fp());
                self.next = Some(Cursor { pc, sp, fp, provenance, is_by_fp: false });
            }
            None => {
                let pc = regs.pc();
                self.finish(End::Step(StepError::NonCanonical { pc }));
            }
        }
    }

    fn finish(&mut self, end: End<S::Error>) {
        self.next = None;
        self.end = Some(end);
    }

    /// Walks on for as long as rows have a short form and nothing is out of the
    /// ordinary. What it finds is what [`advance`](Self::advance) would; where it
    /// stops, that goes on.
    #[inline(never)]
    fn run<const N: usize>(&mut self, trace: &mut UnwindCache<N, S::Error>) {
        let Some(Cursor { pc, sp, fp: Some(fp), provenance, is_by_fp }) = self.next else {
            return;
        };
        // Meanwhile the trace ends with the frame that comes next.
        if !trace.push(pc.addr(), provenance) {
            return;
        }
        let first = trace.len();
        let left = usize::try_from(self.left).unwrap_or(usize::MAX).saturating_sub(1);
        let end = first.saturating_add(left);
        let mut at = ShortWalk { at: sp, fp, is_by_fp, stop: Stop::Other };
        let mut last = pc;
        // A row that is at hand now leads on; were it not, once would do.
        let mut is_ready = false;
        let is_outermost = loop {
            let found = self.run_short(&mut at, last, (trace.room(end), &mut AllFrames));
            if let Some(addr) = trace.fill(found) {
                last = FramePc::Return(addr);
                is_ready = false;
            }
            let are_known = self.are_registers_known && trace.len() == first;
            let registers = known(&self.registers, are_known);
            let frame = FrameContext { pc: last, sp: at.at, fp: Some(at.fp), registers };
            match ready(at.stop, &mut self.walker.source, &frame, self.mem) {
                Ready::Yes if !is_ready => is_ready = true,
                ready => break ready == Ready::Outermost,
            }
        };
        let steps = trace.len().wrapping_sub(first);
        self.walker.source.answered(steps.wrapping_add(usize::from(is_outermost)));
        if is_outermost {
            return self.finish(End::Outermost);
        }
        let provenance = trace.pop().unwrap_or(provenance);
        if steps != 0 {
            self.left = self.left.saturating_sub(u32::try_from(steps).unwrap_or(u32::MAX));
            self.are_registers_known = false;
            let (pc, provenance) = match at.stop {
                Stop::Trampoline(real) => (FramePc::Return(real), provenance.with_trampoline()),
                _ => (last, provenance),
            };
            let ShortWalk { at: sp, fp, is_by_fp, .. } = at;
            self.next = Some(Cursor { pc, sp, fp: Some(fp), provenance, is_by_fp });
        }
    }

    /// Walks on from the frame at `pc` by rows that are at hand, writes the frames to
    /// the room, and returns how many they are.
    #[inline]
    fn run_short<L: Log>(
        &mut self,
        from: &mut ShortWalk<u64>,
        pc: FramePc,
        log: (&mut [L::Entry], &mut L),
    ) -> usize {
        from.stop = Stop::Other;
        let addr = pc.lookup_addr();
        let Walker { arch, source, code, stack_end, .. } = &mut *self.walker;
        let stack_end = highest_cfa(A::WORD, *stack_end);
        let ShortWalk { at: sp, fp, is_by_fp, stop } = *from;
        if sp & A::WORD.bytes().wrapping_sub(1) != 0 {
            return 0;
        }
        if S::IS_CHAIN {
            return from.follow_chain(arch, code, self.mem, stack_end, log);
        }
        if A::WORD == WordSize::Eight
            && let linear = arch.stack_addr(sp)
            && let Some((start, words)) = self.mem.words(linear)
        {
            // Of the register, which may be an offset in a segment.
            let start = start.get().wrapping_sub(linear.get()).wrapping_add(sp);
            let Some((mut stack, at)) = Words::new(start, words, sp, stack_end) else { return 0 };
            let mut walk = ShortWalk { at, fp, is_by_fp, stop };
            let steps = walk.run(addr, &*arch, source, code, &mut stack, log);
            let ShortWalk { at, fp, is_by_fp, stop } = walk;
            *from = ShortWalk { at: stack.sp(at), fp, is_by_fp, stop };
            return steps;
        }
        if sp > stack_end {
            return 0;
        }
        let mut stack = Addresses { arch, mem: self.mem, stack_end };
        from.run(addr, arch, source, code, &mut stack, log)
    }

    /// Looks up the row of `at` in the source.
    // A lookup is the deepest that a walk goes: so this, `advance` and `run` are
    // on the stack one at a time, and the frames alone all the while.
    #[inline(never)]
    fn look_up(&mut self, at: &Cursor) -> Result<Option<Row>, S::Error> {
        self.walker
            .source
            .row(&at.context(known(&self.registers, self.are_registers_known)), self.mem)
    }

    /// Finds the frame after `at`, of which the source has this row, and returns
    /// the CFA of `at`, if it has one.
    #[inline(never)]
    fn advance(&mut self, at: &Cursor, row: &Result<Option<Row>, S::Error>) -> Option<u64> {
        let found = match self.find_caller(at, row) {
            Ok(found) => found,
            Err(end) => {
                self.finish(end);
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
            Next::Interrupted { sp } => Some(sp),
            Next::Caller { pc, cfa, fp, is_behind_trampoline } => {
                let mut provenance = Provenance::new(found.origin, pc);
                if found.after_failure {
                    provenance = provenance.with_failure();
                }
                if is_behind_trampoline {
                    provenance = provenance.with_trampoline();
                }
                self.are_registers_known = false;
                let is_by_fp = at.is_by_fp || found.origin == Origin::FramePointer;
                self.next = Some(Cursor { pc, sp: cfa, fp, provenance, is_by_fp });
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
                    return Ok(Found { next, origin: row.origin(), after_failure: false });
                }
                Err(error) => End::Step(error),
            },
            Ok(None) => End::NoRow,
            Err(error) => End::Table(*error),
        };
        if failure.is_retryable() {
            return Err(failure);
        }
        let covered = !matches!(failure, End::NoRow);
        let fallback = match self
            .walker
            .fallback
            .row(&at.context(known(&self.registers, self.are_registers_known)), self.mem)
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
                Ok(Found { next, origin: fallback.origin(), after_failure: covered })
            }
            // What is wrong with the row that covers the pc says more.
            Err(error) if covered && !error.is_not_resident() => Err(failure),
            Err(error) => Err(End::Step(error)),
        }
    }

    /// Applies a row and checks what it leads to.
    fn step(&mut self, at: &Cursor, row: &Row) -> Result<Next, StepError> {
        if row.is_signal()
            && let Some(sp) = self.enter_interrupted(at, row)?
        {
            return Ok(Next::Interrupted { sp });
        }
        self.step_to_caller(at, row)
    }

    /// Applies a row that says where the caller is.
    // Nothing of it is on the stack while a signal's registers are.
    #[inline(never)]
    fn step_to_caller(&mut self, at: &Cursor, row: &Row) -> Result<Next, StepError> {
        let Walker { arch, code, stack_end, .. } = &mut *self.walker;
        let frame = at.context(known(&self.registers, self.are_registers_known));
        let step = Stepper { arch, frame, stack_end: *stack_end, mem: self.mem }.step(row)?;
        let caller = match step {
            Step::Outermost => return Ok(Next::Outermost),
            Step::ZeroReturnAddress { cfa } => {
                let is_guess = matches!(row.origin(), Origin::FramePointer | Origin::Instructions);
                return match is_guess || at.is_by_fp && row.is_from_sp() {
                    true => Err(StepError::ZeroReturnAddress { cfa }),
                    false => Ok(Next::ZeroReturnAddress { cfa }),
                };
            }
            Step::Caller(caller) => caller,
        };
        let saved = arch.code_addr(caller.ra).ok_or(StepError::NonCanonical { pc: caller.ra })?;
        let real = code.real_return(saved, caller.ra_slot);
        if real.is_none() && !row.is_signal() && !code.is_code(FramePc::Return(saved).lookup_addr())
        {
            return Err(StepError::NotCode { pc: saved });
        }
        let pc = real.unwrap_or(saved);
        let pc = if row.is_signal() { FramePc::Exact(pc) } else { FramePc::Return(pc) };
        let is_behind_trampoline = real.is_some();
        Ok(Next::Caller { pc, cfa: caller.cfa, fp: caller.fp, is_behind_trampoline })
    }

    /// Makes what a signal interrupted the next frame, and returns its stack
    /// pointer; `None` if `at` has no context and the row's rules are to be
    /// applied.
    // All registers are on the stack only while it runs.
    #[inline(never)]
    fn enter_interrupted(&mut self, at: &Cursor, row: &Row) -> Result<Option<u64>, StepError> {
        match self.walker.arch.signal_context(at.pc.addr(), at.sp, self.mem)? {
            Some(regs) => {
                let sp = regs.sp();
                *self.registers.borrow_mut() = regs;
                self.are_registers_known = true;
                self.enter(Origin::SignalContext);
                Ok(Some(sp))
            }
            None if row.is_context_only() => Err(StepError::UnknownTrampoline),
            None => Ok(None),
        }
    }
}

/// Whether a walk can go on from where it stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ready {
    /// The frame's row is at hand, and marked as used.
    Yes,
    /// The frame has no caller.
    Outermost,
    /// Not by rows in short form.
    No,
}

/// Sees to the row of the frame at which a walk stopped: looks it up, or marks it
/// as used.
#[inline(never)]
fn ready<A: Arch, S: RowSource<A>, M: Memory>(
    stop: Stop,
    source: &mut S,
    frame: &FrameContext<'_, A::Regs>,
    mem: &mut M,
) -> Ready {
    match stop {
        Stop::NoRow if source.fetch(frame, mem) => Ready::Yes,
        Stop::AtRow => match source.quick(frame.pc.lookup_addr(), KeptRow::NONE) {
            Some(kept) if kept.row.is_outermost() => Ready::Outermost,
            Some(kept) if kept.row.is_some() => {
                source.used(kept);
                Ready::Yes
            }
            _ => Ready::No,
        },
        _ => Ready::No,
    }
}

/// Registers that may be those of an earlier frame, unless they are.
// A function of its own: the rest of the walk is borrowed meanwhile.
#[inline]
fn known<R, B: Borrow<R>>(registers: &B, are_known: bool) -> Option<&R> {
    are_known.then(|| registers.borrow())
}

/// A step that succeeded, and by whose row.
struct Found {
    next: Next,
    origin: Origin,
    /// Whether the source had a row or an error, and the fallback took over.
    after_failure: bool,
}

/// Where a step led.
enum Next {
    /// To an ordinary caller.
    Caller {
        pc: FramePc,
        /// The frame's CFA, the caller's stack pointer.
        cfa: u64,
        /// The caller's frame pointer, if known.
        fp: Option<u64>,
        is_behind_trampoline: bool,
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

impl<A, S, F, T, M, R> Iterator for Frames<'_, A, S, F, T, M, R>
where
    A: Arch,
    R: BorrowMut<A::Regs>,
    S: RowSource<A>,
    F: RowSource<A>,
    F::Error: Into<S::Error>,
    T: TargetCode,
    M: Memory,
{
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        let at = self.next.take()?;
        let row = self.look_up(&at);
        let cfa = self.advance(&at, &row);
        self.left = self.left.saturating_sub(1);
        if self.left == 0 && self.next.is_some() {
            self.finish(End::Full);
        }
        Some(Frame { pc: at.pc, sp: at.sp, cfa, provenance: at.provenance })
    }
}

impl<A, S, F, T, M, R> FusedIterator for Frames<'_, A, S, F, T, M, R>
where
    A: Arch,
    R: BorrowMut<A::Regs>,
    S: RowSource<A>,
    F: RowSource<A>,
    F::Error: Into<S::Error>,
    T: TargetCode,
    M: Memory,
{
}

impl<A: Arch, S: RowSource<A>, F, T, M, R> fmt::Debug for Frames<'_, A, S, F, T, M, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames").field("next", &self.next).field("left", &self.left).finish()
    }
}
