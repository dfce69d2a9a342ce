//! Walks that write their frames: by rows in compact form for as long as that works.

use core::borrow::BorrowMut;

use crate::addr::{FramePc, VirtAddr};
use crate::arch::Arch;
use crate::end::End;
use crate::memory::Memory;
use crate::origin::Origin;
use crate::register::Registers as _;
use crate::register::WordSize;
use crate::return_addresses::ReturnAddresses;
use crate::source::RowSource;
use crate::trace::{PackedFrame, Provenance, Trace};
use crate::walk::cursor::Cursor;
use crate::walk::fast::compact_row::CompactRow;
use crate::walk::fast::fast_path::{Caller, FastPath, FrameSink, Stop};
use crate::walk::fast::row_cache::{CacheHit, Counted, RowStore};
use crate::walk::fast::stack::{Addresses, StackSlice, highest_cfa};
use crate::walk::frames::Frames;
use crate::walk::step::FramePointer;
use crate::walk::walker::{LookedUp, Walker, Whom, look_up_by_addr};

impl<A, S, F, T, C> Walker<A, S, F, T, C>
where
    A: Arch,
    S: RowSource<A>,
    F: RowSource<A>,
    F::Error: Into<S::Error>,
    T: ReturnAddresses,
    C: RowStore,
{
    /// Walks the whole stack at `regs`, as [`frames`](Self::frames) takes them,
    /// into `trace`, which is emptied first.
    pub fn trace<M: Memory>(
        &mut self,
        mut regs: impl BorrowMut<A::Regs>,
        mem: &mut M,
        trace: &mut Trace,
    ) {
        let regs = regs.borrow_mut();
        self.begin();
        trace.clear();
        let mut asked = LookedUp::Kept;
        let Some((pc, most)) = self.start(regs, trace) else {
            return self.trace_on(None, regs, mem, &mut asked, trace);
        };
        let mut at = FastPath::new(regs.sp(), regs.fp().unwrap_or(0), false);
        let first = self.cached(pc);
        if first.is_some_and(|first| first.row.is_outermost()) {
            // Nothing is asked of the stack.
            return self.finish_outermost(0, trace);
        }
        at.first = first.map_or(at.first, CacheHit::place);
        let log = (trace.room(most), &mut TraceSink);
        let steps = self.run_fast(&mut at, pc, mem, &mut asked, log);
        // What most walks are: by rows of the cache to the outermost frame. They make nothing
        // of what another one needs.
        if at.stop == Stop::Outermost {
            return self.finish_outermost(steps, trace);
        }
        let last = CallerLog::fill(trace, steps, &TraceSink);
        // Where a copy of a stack ends, walks do: the frame is asked for why it has no caller.
        let pc = last.map_or(pc, |(addr, _)| FramePc::Return(addr));
        // A copy, so that what most walks need of it is in registers.
        let begun = Begun { at, steps, last };
        if at.stop == Stop::Other && self.finish_failed(pc, &begun, mem, trace) {
            return;
        }
        self.trace_on(Some(&begun), regs, mem, &mut asked, trace);
    }

    /// Writes the frame at `regs`, and returns its pc, and how many callers it may have. `None` if no
    /// walk by compact rows starts there.
    #[inline]
    fn start(&mut self, regs: &A::Regs, trace: &mut Trace) -> Option<(FramePc, usize)> {
        let most = self.most_frames().checked_sub(1)?;
        let has_rows = self.cache.keeps() || const { CompactRow::of_all(S::COVERAGE) }.is_some();
        if !has_rows || !self.arch.is_walkable() || regs.fp().is_none() {
            return None;
        }
        let pc = FramePc::Exact(self.arch.code_addr(regs.pc())?);
        trace.push(pc.addr(), Provenance::new(Origin::Registers, pc)).then_some((pc, most))
    }

    /// What the cache has of the first frame, unless all rows are the same.
    #[inline]
    fn cached(&mut self, pc: FramePc) -> Option<CacheHit> {
        match const { CompactRow::of_all(S::COVERAGE) } {
            Some(_) => None,
            None => self.cache.get(pc.lookup_addr(), CacheHit::NONE),
        }
    }

    /// Ends a walk at the frame after this number of steps.
    #[inline]
    fn finish_outermost(&mut self, steps: usize, trace: &mut Trace) {
        trace.fill(steps);
        self.cache.count(Counted::Asked(steps.wrapping_add(1)));
        trace.finish(End::<S::Error>::Outermost);
    }

    /// Ends a walk at the frame with this pc, if that has no caller; false if it may have one.
    #[inline(never)]
    fn finish_failed<M: Memory>(
        &mut self,
        pc: FramePc,
        begun: &Begun,
        mem: &mut M,
        trace: &mut Trace,
    ) -> bool {
        let Some(error) = self.fast_error(pc, &begun.at, mem) else { return false };
        self.cache.count(Counted::Asked(begun.steps.wrapping_add(1)));
        trace.finish(End::<S::Error>::Step(error));
        true
    }

    /// Continues a walk that has begun, or begins it. `asked` is what it had asked for.
    // Both are where they were, so that they are on the stack once.
    #[inline(never)]
    fn trace_on<M: Memory>(
        &mut self,
        begun: Option<&Begun>,
        regs: &mut A::Regs,
        mem: &mut M,
        asked: &mut LookedUp<S::Error>,
        trace: &mut Trace,
    ) {
        let mut frames = Frames::new(self, regs, mem);
        if let Some(Begun { at, steps, last }) = begun {
            frames.go_to(at, *steps, *last, trace);
        }
        frames.finish_trace(trace, begun.map(|begun| begun.at.stop), asked);
    }
}

/// How far a walk has come by compact rows.
#[derive(Clone, Copy)]
struct Begun {
    at: FastPath<u64>,
    /// How many callers were found.
    steps: usize,
    /// The last of them, and how it was found.
    last: Option<(VirtAddr, Provenance)>,
}

/// Where the frames of a walk are written to.
pub(super) trait FrameLog: CallerLog {
    /// How many frames it has.
    fn len(&self) -> usize;

    /// Adds a frame; `false` if there is no room.
    fn push(&mut self, pc: VirtAddr, provenance: Provenance) -> bool;
}

/// Where the frames are written to that rows in compact form lead to.
pub(super) trait CallerLog {
    /// What takes them.
    type Sink: FrameSink + Default;

    /// The places after the last frame, `most` of them at most.
    fn room(&mut self, most: usize) -> &mut [<Self::Sink as FrameSink>::Kept];

    /// Makes the first `count` entries of the room frames, and returns the address of the
    /// last of them, and how it was found.
    fn fill(&mut self, count: usize, sink: &Self::Sink) -> Option<(VirtAddr, Provenance)>;

    /// Makes this the last frame in place of the one that is.
    fn replace_last(&mut self, pc: VirtAddr, provenance: Provenance);
}

impl FrameLog for Trace {
    fn len(&self) -> usize {
        Self::len(self)
    }

    #[inline]
    fn push(&mut self, pc: VirtAddr, provenance: Provenance) -> bool {
        Self::push(self, pc, provenance)
    }
}

impl CallerLog for Trace {
    type Sink = TraceSink;

    #[inline]
    fn room(&mut self, most: usize) -> &mut [PackedFrame] {
        Self::room(self, most)
    }

    #[inline]
    fn fill(&mut self, count: usize, _: &TraceSink) -> Option<(VirtAddr, Provenance)> {
        Self::fill(self, count)
    }

    fn replace_last(&mut self, pc: VirtAddr, provenance: Provenance) {
        Self::replace_last(self, pc, provenance);
    }
}

/// A walk into a trace continues for as long as it can.
#[derive(Clone, Copy, Default)]
pub(super) struct TraceSink;

impl FrameSink for TraceSink {
    type Kept = PackedFrame;

    #[inline]
    fn entry(Caller { pc, row, .. }: Caller) -> PackedFrame {
        PackedFrame::new(pc, row.provenance())
    }
}

impl<A, S, F, T, C, M, R> Frames<'_, A, S, F, T, C, M, R>
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
    /// Walks on into `trace`, which is emptied first. Where it has too little room its end is
    /// [`FrameLimit`](End::FrameLimit) and [`end`](Self::end) is `None`: the other frames come next.
    pub fn trace(&mut self, trace: &mut Trace) {
        trace.clear();
        self.finish_trace(trace, None, &mut LookedUp::Kept);
    }

    #[inline]
    fn finish_trace(
        &mut self,
        trace: &mut Trace,
        begun: Option<Stop>,
        asked: &mut LookedUp<S::Error>,
    ) {
        self.write(trace, begun, asked);
        trace.finish(self.end().unwrap_or(End::FrameLimit));
    }

    /// Writes the frames to a log until there are no more or it has no room. It may have begun: why
    /// the first [run](Self::run) stopped. `asked` is what that had asked for, or else nothing.
    pub(super) fn write<L: FrameLog + ?Sized>(
        &mut self,
        log: &mut L,
        mut begun: Option<Stop>,
        asked: &mut LookedUp<S::Error>,
    ) {
        // At all times the log ends with the frame that comes next.
        while let Some(Cursor { pc, provenance, .. }) = self.next {
            if begun.is_none() && !log.push(pc.addr(), provenance) {
                return;
            }
            // Where it was when a row was marked as used: a second stop there means that the
            // walk by cached rows cannot continue.
            let mut touched_at = None;
            loop {
                let stop = match begun.take() {
                    // Why was asked already.
                    Some(Stop::Other) => break,
                    Some(stop) => stop,
                    None => self.run(log, asked),
                };
                let continues = match stop {
                    Stop::NoRow if S::IS_BY_ADDR => false,
                    Stop::NoRow => {
                        *asked = self.look_up(Whom::SourceAndKeep);
                        matches!(asked, LookedUp::Kept)
                    }
                    Stop::Outermost => {
                        self.end_by_cache(End::Outermost);
                        false
                    }
                    Stop::Unused => {
                        self.touch();
                        touched_at.replace(log.len()) != Some(log.len())
                    }
                    Stop::Other => self.find_error(),
                    Stop::Trampoline(_) => false,
                };
                if !continues {
                    break;
                }
            }
            self.leave(asked);
            *asked = LookedUp::Kept;
        }
    }

    /// Walks for as long as the rows are in the cache and nothing is out of the
    /// ordinary, and returns why it stopped. What it finds is what
    /// [`advance`](Self::advance) would; where it stops, that continues.
    ///
    /// The log ends with the next frame afterwards, if anything was written.
    #[inline(never)]
    pub(super) fn run<L: CallerLog + ?Sized>(
        &mut self,
        log: &mut L,
        found: &mut LookedUp<S::Error>,
    ) -> Stop {
        if !self.walker.cache.keeps() && const { CompactRow::of_all(S::COVERAGE) }.is_none() {
            return Stop::Other;
        }
        let Some(Cursor { pc, sp, fp: FramePointer::Known(fp), is_by_fp, .. }) = self.next else {
            return Stop::Other;
        };
        let most = self.left.wrapping_sub(1);
        let mut at = FastPath::new(sp, fp, is_by_fp);
        let mut sink = L::Sink::default();
        let room = (log.room(most), &mut sink);
        let steps = self.walker.run_fast(&mut at, pc, self.mem, found, room);
        let last = log.fill(steps, &sink);
        self.go_to(&at, steps, last, log);
        at.stop
    }

    /// Takes the steps of a walk by compact rows, the frames of which are in the log, this one last.
    #[inline]
    fn go_to<L: CallerLog + ?Sized>(
        &mut self,
        at: &FastPath<u64>,
        steps: usize,
        last: Option<(VirtAddr, Provenance)>,
        log: &mut L,
    ) {
        let Some(Cursor { pc, .. }) = self.next else { return };
        if let Some((mut addr, mut provenance)) = last {
            let FastPath { at: sp, fp, is_by_fp, stop, .. } = *at;
            if let Stop::Trampoline(real) = stop {
                (addr, provenance) = (real, provenance.with_trampoline());
                log.replace_last(addr, provenance);
            }
            let has_called_innermost = pc.is_exact() && steps == 1;
            let (pc, fp) = (FramePc::Return(addr), FramePointer::Known(fp));
            self.next = Some(Cursor { pc, sp, fp, provenance, is_by_fp, has_called_innermost });
            self.left = self.left.saturating_sub(steps);
            self.registers_of.leave();
            self.walker.cache.count(Counted::Asked(steps));
        }
    }

    /// Marks the row of the next frame as used.
    #[inline(never)]
    pub(super) fn touch(&mut self) {
        if let Some(at) = &self.next {
            self.walker.touch(at.pc.lookup_addr());
        }
    }

    /// Ends the walk if the next frame has no caller and its cached row tells why. Returns
    /// that the walk by cached rows does not continue.
    #[inline(never)]
    pub(super) fn find_error(&mut self) -> bool {
        if let Some(Cursor { pc, sp, fp: FramePointer::Known(fp), is_by_fp, .. }) = self.next {
            let at = FastPath::new(sp, fp, is_by_fp);
            if let Some(error) = self.walker.fast_error(pc, &at, self.mem) {
                self.end_by_cache(End::Step(error));
            }
        }
        false
    }

    pub(super) fn end_by_cache(&mut self, end: End<S::Error>) {
        self.walker.cache.count(Counted::Asked(1));
        self.finish(end);
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
    /// Continues from the frame at `pc` by rows of the cache, writes the frames to
    /// the room, and returns how many entries they are, as [`FastPath::run`] does.
    #[inline]
    fn run_fast<M: Memory, L: FrameSink>(
        &mut self,
        from: &mut FastPath<u64>,
        pc: FramePc,
        mem: &mut M,
        found: &mut LookedUp<S::Error>,
        log: (&mut [L::Kept], &mut L),
    ) -> usize {
        from.stop = Stop::Other;
        let addr = pc.lookup_addr();
        let Walker { arch, source, cache, code, stack_end, .. } = self;
        let stack_end = highest_cfa(A::WORD, *stack_end);
        let FastPath { at: sp, .. } = *from;
        if sp & A::WORD.bytes().wrapping_sub(1) != 0 {
            return 0;
        }
        if let Some(row) = const { CompactRow::of_all(S::COVERAGE) } {
            return from.follow_chain(arch, code, mem, (row, stack_end), log);
        }
        let mut keep = |cache: &mut C, addr| {
            S::IS_BY_ADDR && {
                *found = look_up_by_addr(source, cache, addr, Whom::SourceAndKeep);
                matches!(found, LookedUp::Kept)
            }
        };
        let rows = (cache, &mut keep);
        let linear = arch.stack_addr(sp);
        if A::WORD == WordSize::Eight {
            // Of the register, which may be an offset in a segment.
            let start = |addr: VirtAddr| addr.get().wrapping_sub(linear.get()).wrapping_add(sp);
            if let Some((addr_of_first, words)) = mem.words(linear) {
                let stack = StackSlice::new(start(addr_of_first), words, sp, stack_end);
                return from.run_slice::<A, F, C, T, _, L>(addr, &*arch, rows, code, stack, log);
            }
            if let Some((addr_of_first, words)) = mem.shared_words(linear) {
                let stack = StackSlice::new(start(addr_of_first), words, sp, stack_end);
                return from.run_slice::<A, F, C, T, _, L>(addr, &*arch, rows, code, stack, log);
            }
            if mem.lends_words_alone() {
                return 0;
            }
        }
        if sp >= stack_end {
            return 0;
        }
        let mut stack = Addresses { arch, mem, stack_end };
        // A copy, so that the caller's is in registers.
        let mut walk = *from;
        let steps = walk.run::<A, F, C, T, _, L>(addr, arch, rows, code, &mut stack, log);
        *from = walk;
        steps
    }

    /// Marks the row for a lookup address as used, if the cache has it.
    #[inline(never)]
    pub(in crate::walk) fn touch(&mut self, addr: VirtAddr) {
        if let Some(kept) = self.cache.get(addr, CacheHit::NONE) {
            self.cache.touch(kept);
        }
    }
}
