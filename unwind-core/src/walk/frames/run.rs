//! A walk by rows in short form, for as long as that goes.

use core::borrow::BorrowMut;

use super::{Cursor, Frames, known};
use crate::short_stack::{Addresses, Stack as _, Words, highest_cfa};
use crate::short_walk::{Log, ShortWalk, Stop};
use crate::step::FramePointer;
use crate::trace::AllFrames;
use crate::{
    Arch, End, FrameContext, FramePc, KeptRow, Memory, RowSource, TargetCode, UnwindCache, Walker,
    WordSize,
};

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
    /// Walks on for as long as rows have a short form and nothing is out of the
    /// ordinary. What it finds is what [`advance`](Self::advance) would; where it
    /// stops, that goes on.
    #[inline(never)]
    pub(in crate::walk) fn run<const N: usize>(&mut self, trace: &mut UnwindCache<N, S::Error>) {
        let Some(Cursor { pc, sp, fp: FramePointer::Known(fp), provenance, is_by_fp }) = self.next
        else {
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
        let end = loop {
            let found = self.run_short(&mut at, last, (trace.room(end), &mut AllFrames));
            if let Some(addr) = trace.fill(found) {
                last = FramePc::Return(addr);
                is_ready = false;
            }
            if at.stop == Stop::Other {
                break self.failure(last, &at).map(End::Step);
            }
            let are_known = self.are_registers_known && trace.len() == first;
            let registers = known(&self.registers, are_known);
            let frame = FrameContext { pc: last, sp: at.at, fp: Some(at.fp), registers };
            match ready(at.stop, &mut self.walker.source, &frame, self.mem) {
                Ready::Yes if !is_ready => is_ready = true,
                ready => break (ready == Ready::Outermost).then_some(End::Outermost),
            }
        };
        let steps = trace.len().wrapping_sub(first);
        self.walker.source.answered(steps.wrapping_add(usize::from(end.is_some())));
        if let Some(end) = end {
            return self.finish(end);
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
            let fp = FramePointer::Known(fp);
            self.next = Some(Cursor { pc, sp, fp, provenance, is_by_fp });
        }
    }

    /// Walks on from the frame at `pc` by rows that are at hand, writes the frames to
    /// the room, and returns how many they are.
    #[inline]
    pub(super) fn run_short<L: Log>(
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
        if let Some(row) = S::CHAIN {
            return from.follow_chain(arch, code, self.mem, (row, stack_end), log);
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
        if sp >= stack_end {
            return 0;
        }
        let mut stack = Addresses { arch, mem: self.mem, stack_end };
        from.run(addr, arch, source, code, &mut stack, log)
    }
}

/// Whether a walk can go on from where it stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
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
pub(super) fn ready<A: Arch, S: RowSource<A>, M: Memory>(
    stop: Stop,
    source: &mut S,
    frame: &FrameContext<'_, A::Regs>,
    mem: &mut M,
) -> Ready {
    match stop {
        Stop::NoRow if source.fetch(frame, mem) => Ready::Yes,
        Stop::AtRow => match source.quick(frame.pc.lookup_addr(), KeptRow::NONE) {
            Some(kept) if kept.row.is_outermost() => Ready::Outermost,
            Some(kept) => {
                source.used(kept);
                Ready::Yes
            }
            None => Ready::No,
        },
        _ => Ready::No,
    }
}
