//! Walks into a trace: by rows in compact form for as long as that works.

use core::borrow::BorrowMut;

use crate::addr::{FramePc, VirtAddr};
use crate::arch::Arch;
use crate::end::End;
use crate::memory::Memory;
use crate::register::WordSize;
use crate::return_addresses::ReturnAddresses;
use crate::source::RowSource;
use crate::trace::{PackedFrame, Trace};
use crate::walk::cursor::Cursor;
use crate::walk::fast::compact_row::CompactRow;
use crate::walk::fast::fast_path::{FastPath, FrameSink, Stop};
use crate::walk::fast::row_cache::{CacheHit, Counted, RowStore};
use crate::walk::fast::stack::{Addresses, StackSlice, highest_cfa};
use crate::walk::frames::Frames;
use crate::walk::step::FramePointer;
use crate::walk::walker::{LookedUp, Walker};

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
        trace.clear();
        let mut frames = self.frames(regs.borrow_mut(), mem);
        // At all times the trace ends with the frame that comes next.
        while let Some(Cursor { pc, provenance, .. }) = frames.next {
            if !trace.push(pc.addr(), provenance) {
                return trace.finish(End::<S::Error>::FrameLimit);
            }
            // Where it was when a row was marked as used: a second stop there means that the
            // walk by cached rows cannot continue.
            let mut touched_at = None;
            let found = loop {
                let continues = match frames.run(trace) {
                    Stop::NoRow => match frames.look_up(true) {
                        LookedUp::Kept => true,
                        found @ LookedUp::Row(_) => break found,
                    },
                    Stop::NeedsFullStep => {
                        frames.touch() && touched_at.replace(trace.len()) != Some(trace.len())
                    }
                    Stop::Other => frames.find_error(),
                    Stop::Trampoline(_) | Stop::BySink => false,
                };
                if !continues {
                    break LookedUp::Kept;
                }
            };
            frames.leave(found);
        }
        // An iterator without a next frame has a reason for it.
        trace.finish(frames.end().unwrap_or(End::FrameLimit));
    }
}

/// A walk into a trace continues for as long as it can.
struct TraceSink;

impl FrameSink for TraceSink {
    type Entry = PackedFrame;

    #[inline]
    fn entry(pc: VirtAddr, _: u64, _: u64, row: CompactRow) -> PackedFrame {
        PackedFrame::new(pc, row.provenance())
    }

    #[inline]
    fn should_stop(&mut self, _: &PackedFrame) -> bool {
        false
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
    /// Walks for as long as the rows are in the cache and nothing is out of the
    /// ordinary, and returns why it stopped. What it finds is what
    /// [`advance`](Self::advance) would; where it stops, that continues.
    ///
    /// The trace ends with the next frame, before and after.
    #[inline(never)]
    pub(super) fn run(&mut self, trace: &mut Trace) -> Stop {
        if !self.walker.cache.keeps() && const { CompactRow::of_all(S::COVERAGE) }.is_none() {
            return Stop::Other;
        }
        let Some(Cursor { pc, sp, fp: FramePointer::Known(fp), is_by_fp, .. }) = self.next else {
            return Stop::Other;
        };
        let most = self.left.wrapping_sub(1);
        let mut at = FastPath { at: sp, fp, is_by_fp, stop: Stop::Other };
        let steps = self.run_fast(&mut at, pc, (trace.room(most), &mut TraceSink));
        if let Some((mut addr, mut provenance)) = trace.fill(steps) {
            let FastPath { at: sp, fp, is_by_fp, stop } = at;
            if let Stop::Trampoline(real) = stop {
                (addr, provenance) = (real, provenance.with_trampoline());
                trace.replace_last(addr, provenance);
            }
            let (pc, fp) = (FramePc::Return(addr), FramePointer::Known(fp));
            self.next = Some(Cursor { pc, sp, fp, provenance, is_by_fp });
            self.left = self.left.saturating_sub(steps);
            self.registers_of.leave();
            self.walker.cache.count(Counted::Asked(steps));
        }
        at.stop
    }

    /// Marks the row of the next frame as used; `false` if it says that there is no caller,
    /// with which the walk ends, or is not in the cache.
    #[inline(never)]
    fn touch(&mut self) -> bool {
        let Some(at) = &self.next else { return false };
        let touched = self.walker.touch(at.pc.lookup_addr());
        if touched == Touched::Outermost {
            self.end_by_cache(End::Outermost);
        }
        touched == Touched::Yes
    }

    /// Ends the walk if the next frame has no caller and its cached row tells why. Returns
    /// that the walk by cached rows does not continue.
    #[inline(never)]
    pub(super) fn find_error(&mut self) -> bool {
        if let Some(Cursor { pc, sp, fp: FramePointer::Known(fp), is_by_fp, .. }) = self.next {
            let at = FastPath { at: sp, fp, is_by_fp, stop: Stop::Other };
            if let Some(error) = self.fast_error(pc, &at) {
                self.end_by_cache(End::Step(error));
            }
        }
        false
    }

    fn end_by_cache(&mut self, end: End<S::Error>) {
        self.walker.cache.count(Counted::Asked(1));
        self.finish(end);
    }

    /// Continues from the frame at `pc` by rows of the cache, writes the frames to
    /// the room, and returns how many they are.
    #[inline]
    pub(in crate::walk) fn run_fast<L: FrameSink>(
        &mut self,
        from: &mut FastPath<u64>,
        pc: FramePc,
        log: (&mut [L::Entry], &mut L),
    ) -> usize {
        from.stop = Stop::Other;
        let addr = pc.lookup_addr();
        let Walker { arch, cache, code, stack_end, .. } = &mut *self.walker;
        let stack_end = highest_cfa(A::WORD, *stack_end);
        let FastPath { at: sp, .. } = *from;
        if sp & A::WORD.bytes().wrapping_sub(1) != 0 {
            return 0;
        }
        if let Some(row) = const { CompactRow::of_all(S::COVERAGE) } {
            return from.follow_chain(arch, code, self.mem, (row, stack_end), log);
        }
        let linear = arch.stack_addr(sp);
        if A::WORD == WordSize::Eight {
            // Of the register, which may be an offset in a segment.
            let start = |addr: VirtAddr| addr.get().wrapping_sub(linear.get()).wrapping_add(sp);
            if let Some((addr_of_first, words)) = self.mem.words(linear) {
                let stack = StackSlice::new(start(addr_of_first), words, sp, stack_end);
                return from.run_slice(addr, &*arch, cache, code, stack, log);
            }
            if let Some((addr_of_first, words)) = self.mem.shared_words(linear) {
                let stack = StackSlice::new(start(addr_of_first), words, sp, stack_end);
                return from.run_slice(addr, &*arch, cache, code, stack, log);
            }
        }
        if sp >= stack_end {
            return 0;
        }
        let mut stack = Addresses { arch, mem: self.mem, stack_end };
        from.run(addr, arch, cache, code, &mut stack, log)
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
    /// Marks the row for a lookup address as used.
    #[inline(never)]
    pub(in crate::walk) fn touch(&mut self, addr: VirtAddr) -> Touched {
        match self.cache.get(addr, CacheHit::NONE) {
            Some(kept) if kept.row.is_outermost() => Touched::Outermost,
            Some(kept) => {
                self.cache.touch(kept);
                Touched::Yes
            }
            None => Touched::No,
        }
    }
}

/// A row of the cache that a fast walk stopped at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::walk) enum Touched {
    /// It is marked as used.
    Yes,
    /// It says that the frame has no caller.
    Outermost,
    /// It is not in the cache.
    No,
}
