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
use crate::walk::fast::compact_row::CompactRow;
use crate::walk::fast::fast_path::{FastPath, FrameSink, Stop};
use crate::walk::fast::row_cache::{CacheHit, Counted, RowStore};
use crate::walk::fast::stack::{Addresses, Stack as _, StackSlice, highest_cfa};
use crate::walk::frames::{Cursor, Frames, known};
use crate::walk::step::FramePointer;
use crate::walk::walker::Walker;

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
        // After a row was looked up the walk by cached rows is tried once more; a second
        // miss at the same frame means that the row cannot be kept.
        let mut missed_at = None;
        loop {
            let is_missed = frames.run(trace);
            if is_missed && missed_at.replace(trace.len()) != Some(trace.len()) && frames.fetch() {
                continue;
            }
            let Some(frame) = frames.next() else { break };
            if !trace.push(frame.pc.addr(), frame.provenance) {
                return trace.finish(End::<S::Error>::FrameLimit);
            }
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
    /// ordinary. What it finds is what [`advance`](Self::advance) would; where it
    /// stops, that continues. Returns whether it stopped for want of a row.
    #[inline(never)]
    pub(super) fn run(&mut self, trace: &mut Trace) -> bool {
        if !C::KEEPS && const { CompactRow::of_all(S::COVERAGE) }.is_none() {
            return false;
        }
        let Some(Cursor { pc, sp, fp: FramePointer::Known(fp), provenance, is_by_fp }) = self.next
        else {
            return false;
        };
        // Meanwhile the trace ends with the frame that comes next.
        if !trace.push(pc.addr(), provenance) {
            return false;
        }
        let first = trace.len();
        let left = usize::try_from(self.left).unwrap_or(usize::MAX).saturating_sub(1);
        let end = first.saturating_add(left);
        let mut at = FastPath { at: sp, fp, is_by_fp, stop: Stop::Other };
        let mut last = pc;
        // Retry once after marking the row as used; a second stop there means that the fast
        // walk cannot continue.
        let mut is_touched = false;
        let end = loop {
            let found = self.run_fast(&mut at, last, (trace.room(end), &mut TraceSink));
            if let Some(addr) = trace.fill(found) {
                last = FramePc::Return(addr);
                is_touched = false;
            }
            match at.stop {
                Stop::Other => break self.fast_error(last, &at).map(End::Step),
                Stop::NeedsFullStep => match self.walker.touch(last.lookup_addr()) {
                    Touched::Outermost => break Some(End::Outermost),
                    Touched::Yes if !is_touched => is_touched = true,
                    _ => break None,
                },
                _ => break None,
            }
        };
        let steps = trace.len().wrapping_sub(first);
        let answered = steps.wrapping_add(usize::from(end.is_some()));
        self.walker.cache.count(Counted::Hits(answered));
        if let Some(end) = end {
            self.finish(end);
            return false;
        }
        let provenance = trace.pop().unwrap_or(provenance);
        if steps != 0 {
            self.left = self.left.saturating_sub(u32::try_from(steps).unwrap_or(u32::MAX));
            self.are_registers_known = false;
            let (pc, provenance) = match at.stop {
                Stop::Trampoline(real) => (FramePc::Return(real), provenance.with_trampoline()),
                _ => (last, provenance),
            };
            let FastPath { at: sp, fp, is_by_fp, .. } = at;
            let fp = FramePointer::Known(fp);
            self.next = Some(Cursor { pc, sp, fp, provenance, is_by_fp });
        }
        at.stop == Stop::NoRow
    }

    /// Looks up the row of the next frame so that the cache has it; `false` if it cannot
    /// be kept, or there is none.
    #[inline(never)]
    fn fetch(&mut self) -> bool {
        let Some(at) = &self.next else { return false };
        let frame = at.context(known(&self.registers, self.are_registers_known));
        self.walker.fetch(&frame, self.mem)
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
        let FastPath { at: sp, fp, is_by_fp, stop } = *from;
        if sp & A::WORD.bytes().wrapping_sub(1) != 0 {
            return 0;
        }
        if let Some(row) = const { CompactRow::of_all(S::COVERAGE) } {
            return from.follow_chain(arch, code, self.mem, (row, stack_end), log);
        }
        let linear = arch.stack_addr(sp);
        let words = if A::WORD == WordSize::Eight { self.mem.words(linear) } else { None };
        if let Some((start, words)) = words {
            // Of the register, which may be an offset in a segment.
            let start = start.get().wrapping_sub(linear.get()).wrapping_add(sp);
            let Some((mut stack, at)) = StackSlice::new(start, words, sp, stack_end) else {
                return 0;
            };
            let mut walk = FastPath { at, fp, is_by_fp, stop };
            let steps = walk.run(addr, &*arch, cache, code, &mut stack, log);
            let FastPath { at, fp, is_by_fp, stop } = walk;
            *from = FastPath { at: stack.sp(at), fp, is_by_fp, stop };
            return steps;
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
