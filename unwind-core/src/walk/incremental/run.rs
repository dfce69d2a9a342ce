//! A walk that continues the one before.

use core::borrow::BorrowMut;

use super::record::{Arrival, Reused};
use super::trace::{IncrementalTrace, ValidityKey};
use super::verify::verify;
use super::words::FrameRecord;
use crate::addr::FramePc;
use crate::arch::Arch;
use crate::end::End;
use crate::memory::Memory;
use crate::origin::Origin;
use crate::register::Registers as _;
use crate::return_addresses::ReturnAddresses;
use crate::source::RowSource;
use crate::trace::{Provenance, TraceFrame};
use crate::walk::cursor::Cursor;
use crate::walk::fast::fast_error::SimpleEnd;
use crate::walk::fast::fast_path::{FastPath, Stop};
use crate::walk::fast::row_cache::{Counted, RowStore};
use crate::walk::frames::{Frames, known};
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
    /// Walks the whole stack at `regs`, as [`frames`](Self::frames) takes them, and
    /// reuses of `last`, the walk of the same task before, what has not changed.
    /// The result, in `last` too, is that of [`trace`](Self::trace).
    ///
    /// Samples of one thread that are close in time share the outer part of the
    /// stack. So the words that the last walk has read are compared first, from the outermost
    /// one on until one differs, many at a time since none depends on another. Where this walk
    /// then meets a frame of the last one before words that are all the same, with the same
    /// pc, stack and frame pointer, the same steps lead on from there to the end, and the
    /// frames stay where they are.
    ///
    /// It pays for repeated backtraces of deep stacks and at high sampling rates: an
    /// unchanged stack of 100 frames and more whose words are in memory costs about a
    /// quarter of a walk. A frame that is found again costs one and a half to two times one of
    /// [`trace`](Self::trace), so where less than two thirds of the frames stay, or
    /// there are few, that is faster. [`IncrementalTrace::reused`] tells.
    ///
    /// # What is reused
    ///
    /// Steps by rows in the [cache](Self::cache), and by frame pointers alone. All other
    /// steps are taken again: of rows with rules on other registers, of signal
    /// frames, by the fallback, after trampolines. So is the last frame's, and
    /// with it the reason for the end, unless it takes no more than a look to see that it is the
    /// same: such a row says that there is no caller, or leads to a return address that is zero
    /// or cannot be read. Frames before such a step are found again, as those before a word that
    /// differs.
    ///
    /// Nothing is reused if [`RowSource::generation`] of a source,
    /// [`ReturnAddresses::generation`] or the stack's end has changed.
    ///
    /// # Memory that changes meanwhile
    ///
    /// Each word that a reused step depends on is read once, in this walk.
    pub fn trace_incremental<const N: usize, M: Memory>(
        &mut self,
        mut regs: impl BorrowMut<A::Regs>,
        mem: &mut M,
        last: &mut IncrementalTrace<N>,
    ) {
        self.begin();
        let same = self.verify(regs.borrow(), mem, last);
        let end = same.and_then(|words| last.end_after(words));
        let end = end.filter(|_| self.is_first(regs.borrow(), last));
        // It was kept of a walk that went by no frame pointer alone, if that matters.
        if end.is_some_and(|end| end.is_same(A::WORD, false, mem)) {
            last.keep_all();
        } else {
            last.begin(self.conditions(), same.unwrap_or(0));
            Frames::new(self, regs.borrow_mut(), mem).trace_rest(last);
        }
    }

    /// How many of the last words would be read again with the same values; `None` if the
    /// same steps need not be taken.
    #[inline]
    fn verify<const N: usize, M: Memory>(
        &self,
        regs: &A::Regs,
        mem: &mut M,
        last: &IncrementalTrace<N>,
    ) -> Option<usize> {
        let words = last.words_after_first(&self.conditions()?)?;
        Some(verify(words, regs.sp(), &self.arch, mem))
    }

    /// Whether the sampled frame is that of the last walk, and there may be as many frames.
    #[inline]
    fn is_first<const N: usize>(&self, regs: &A::Regs, last: &IncrementalTrace<N>) -> bool {
        let (Some(pc), Some(fp)) = (self.arch.code_addr(regs.pc()), regs.fp()) else {
            return false;
        };
        let pc = FramePc::Exact(pc);
        let provenance = Provenance::new(Origin::Registers, pc);
        let frame = FrameRecord::new(pc, regs.sp(), Some(fp), provenance);
        let is_allowed = self.arch.is_walkable() && self.most_frames() >= last.len();
        is_allowed && last.starts_with(frame, A::WORD)
    }

    #[inline]
    fn conditions(&self) -> Option<ValidityKey> {
        Some(ValidityKey {
            source: self.source.generation(),
            fallback: self.fallback.generation(),
            code: self.code.generation()?,
            stack_end: self.stack_end,
        })
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
    /// Adds the next frame and those after it to `last`.
    fn trace_rest<const N: usize>(mut self, last: &mut IncrementalTrace<N>) {
        while let Some(Cursor { pc, sp, fp, provenance, .. }) = self.next {
            let frame = FrameRecord::new(pc, sp, fp.value(), provenance);
            let is_fp_known = matches!(fp, FramePointer::Known(_));
            let arrival = last.arrive(frame, is_fp_known, A::WORD);
            if arrival == Arrival::NoRoom {
                return last.finish(End::<S::Error>::FrameLimit);
            }
            let mut found = self.resume(last, arrival == Arrival::Met);
            let at = self.next;
            if self.end.is_some() {
                self.next = None;
            } else {
                self.leave(&mut found);
            }
            let known = last.simple_end;
            if let (Some(End::ZeroReturnAddress), None, Some(at)) = (self.end(), known, at) {
                last.simple_end = self.zero_end(&at);
            }
        }
        // An iterator without a next frame has a reason for it.
        last.finish(self.end().unwrap_or(End::FrameLimit));
    }

    /// Walks on from the next frame, which is the last one of `last`, for as long
    /// as rows have a compact form and nothing is out of the ordinary, or the last
    /// walk went the same way. What it finds is what [`advance`](Self::advance)
    /// would; where it stops, that continues, unless there is an [`end`](Self::end): the next
    /// frame is then the last one.
    ///
    /// Returns the next frame's row if that was looked up and is not kept.
    #[inline(never)]
    fn resume<const N: usize>(
        &mut self,
        last: &mut IncrementalTrace<N>,
        mut is_met: bool,
    ) -> LookedUp<S::Error> {
        let Some(Cursor {
            mut pc, sp, fp: FramePointer::Known(fp), mut provenance, is_by_fp, ..
        }) = self.next
        else {
            return LookedUp::Kept;
        };
        // How many callers there may still be.
        let most = self.left.saturating_sub(1);
        let mut left = most;
        let mut at = FastPath { at: sp, fp, is_by_fp, stop: Stop::Other };
        let mut answered = 0_usize;
        // How many there might still be when a row was last looked up: a second miss at
        // the same frame means that the row cannot be kept.
        let mut ready_at = None;
        let mut found = LookedUp::Kept;
        // Why there is no caller, if cached rows say, and how many did.
        let end = loop {
            if is_met {
                if let Some(Reused { count, last: frame, sp, fp, end }) = last.reuse(left, A::WORD)
                {
                    (at.at, at.fp) = (sp, fp);
                    TraceFrame { pc, provenance } = frame;
                    left = left.saturating_sub(count);
                    // Where it matters, no frame pointer alone led to any of the old ones.
                    if let Some(same) =
                        end.filter(|end| end.is_same(A::WORD, at.is_by_fp, self.mem))
                    {
                        last.simple_end = end;
                        break Some((same.end(), 0));
                    }
                    at.is_by_fp |= last.is_by_fp(count);
                }
            }
            let (room, mut recorder) = last.room(left, A::WORD);
            let places = room.len();
            let words = self.run_fast(&mut at, pc, &mut found, (room, &mut recorder));
            let recorded = recorder.done();
            is_met = at.stop == Stop::BySink;
            let steps = last.fill(words, recorded, A::WORD);
            // A frame may have two words. Where there was room for them and no frame came, it is
            // not for lack of room.
            let is_full = places.saturating_sub(words) < 2 && (steps != 0 || !last.has_room());
            answered = answered.wrapping_add(steps);
            left = left.saturating_sub(steps);
            if let Some(frame) = last.last().filter(|_| steps != 0) {
                TraceFrame { pc, provenance } = frame;
            }
            let continues = match at.stop {
                Stop::BySink => true,
                Stop::Outermost => {
                    last.simple_end = Some(SimpleEnd::Outermost);
                    break Some((End::Outermost, 1));
                }
                Stop::Unused => {
                    self.walker.touch(pc.lookup_addr());
                    ready_at.replace(left) != Some(left)
                }
                Stop::NoRow if S::IS_BY_ADDR => false,
                Stop::NoRow => {
                    let mut of = self.registers_of;
                    if left != most {
                        of.leave();
                    }
                    let registers = known(&self.registers, of);
                    let (sp, fp) = (at.at, FramePointer::Known(at.fp));
                    let is_by_fp = at.is_by_fp;
                    // Sources do not ask.
                    let has_called_innermost = false;
                    let cursor = Cursor { pc, sp, fp, provenance, is_by_fp, has_called_innermost };
                    found = self.walker.look_up(&cursor, registers, true, self.mem);
                    let is_kept = matches!(found, LookedUp::Kept);
                    is_kept && ready_at.replace(left) != Some(left)
                }
                Stop::Other if is_full && left != 0 && last.make_room() => true,
                Stop::Other => {
                    let found = self.fast_error(pc, &at);
                    break found.map(|(error, end)| {
                        last.simple_end = end;
                        (End::Step(error), 1)
                    });
                }
                Stop::Trampoline(real) => {
                    (pc, provenance) = (FramePc::Return(real), provenance.with_trampoline());
                    last.pop();
                    let frame = FrameRecord::new(pc, at.at, Some(at.fp), provenance);
                    is_met = last.arrive(frame, true, A::WORD) == Arrival::Met;
                    true
                }
            };
            if !continues {
                break None;
            }
        };
        let answered = answered.wrapping_add(end.map_or(0, |(_, rows)| rows));
        self.walker.cache.count(Counted::Asked(answered));
        self.end = end.map(|(end, _)| end);
        if left != most {
            self.left = left.saturating_add(1);
            self.registers_of.leave();
            let (sp, fp) = (at.at, FramePointer::Known(at.fp));
            let (is_by_fp, has_called_innermost) = (at.is_by_fp, last.has_called_innermost());
            self.next = Some(Cursor { pc, sp, fp, provenance, is_by_fp, has_called_innermost });
        }
        found
    }
}
