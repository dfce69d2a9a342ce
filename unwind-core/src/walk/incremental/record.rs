//! The steps of a walk that records its frames and takes over those of the walk before.

use core::slice::IterMut;

use super::previous::{PreviousFrames, PreviousRest};
use super::trace::{IncrementalTrace, ValidityKey};
use super::words::{FrameRecord, StackWord, Words};
use crate::end::End;
use crate::hint::cold_path;
use crate::origin::Origin;
use crate::register::WordSize;
use crate::table_error::TableError;
use crate::trace::TraceFrame;
use crate::walk::fast::fast_error::SimpleEnd;
use crate::walk::fast::fast_path::{Caller, FrameSink};

/// What became of a frame that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The walk before was not there.
    Fresh,
    /// The walk before was there too, and continued with the frames that may still be met.
    Met,
    /// There is no room for it.
    NoRoom,
}

/// The frames after the one that was met, which are frames of this walk too. There may be none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reused {
    pub(crate) count: usize,
    /// The last frame of all, with its stack and frame pointer.
    pub(crate) last: TraceFrame,
    pub(crate) sp: u64,
    pub(crate) fp: u64,
    /// Why that had no caller, if it is the last one of the walk before.
    pub(crate) end: Option<SimpleEnd>,
}

/// What a walk by compact rows writes its words by.
#[derive(Clone, Copy)]
pub(crate) struct Recorder<'a> {
    /// How many frame pointers it has taken.
    fps: usize,
    /// The frames that may still be met.
    old: PreviousFrames<'a>,
    /// The first of them was, and is the last one taken.
    is_met: bool,
}

/// The same without what it borrows.
#[derive(Clone, Copy)]
pub(crate) struct Recorded {
    fps: usize,
    old: PreviousRest,
    is_met: bool,
}

impl Recorder<'_> {
    #[inline]
    pub(crate) const fn done(&self) -> Recorded {
        let Self { fps, old, is_met } = self;
        Recorded { fps: *fps, old: old.rest(), is_met: *is_met }
    }
}

impl FrameSink for Recorder<'_> {
    type Kept = StackWord;
    const IS_COPIED: bool = true;

    #[inline]
    fn entry(caller: Caller) -> StackWord {
        StackWord::return_address(caller)
    }

    #[inline]
    fn write_before(&mut self, caller: Caller, room: &mut IterMut<'_, StackWord>) -> bool {
        let Some(word) = StackWord::saved_fp(caller) else { return true };
        let Some(place) = room.next() else { return false };
        *place = word;
        self.fps = self.fps.wrapping_add(1);
        true
    }

    #[inline]
    fn should_stop(&mut self, caller: Caller) -> bool {
        let Caller { pc, slot, fp, row } = caller;
        if !self.old.may_meet(slot) {
            return false;
        }
        let sp = StackWord::return_address(caller).sp(self.old.slots);
        let frame = FrameRecord { pc: pc.get(), sp, fp, provenance: row.provenance() };
        self.is_met = self.old.meet(&frame);
        self.is_met
    }
}

impl<const N: usize> IncrementalTrace<N> {
    /// The words after the first frame, if all but words is as it was.
    #[inline]
    pub(crate) fn words_after_first(&self, conditions: &ValidityKey) -> Option<Words<'_>> {
        let is_same = self.conditions.as_ref() == Some(conditions);
        is_same.then(|| self.words(self.start, Self::WORDS).without_first(2))
    }

    /// Whether this is the first frame, to which no step led.
    #[inline]
    pub(crate) fn starts_with(&self, first: FrameRecord, slots: WordSize) -> bool {
        self.words(self.start, Self::WORDS).start_with(first, slots)
    }

    /// Why the last walk had no more frames, if `words` words after the first frame, which is
    /// the same, are all.
    #[inline]
    pub(crate) fn end_after(&self, words: usize) -> Option<SimpleEnd> {
        let is_all = self.start.wrapping_add(words).wrapping_add(2) == Self::WORDS;
        self.simple_end.filter(|_| is_all)
    }

    /// Takes all frames over, and the end.
    #[inline]
    pub(crate) const fn keep_all(&mut self) {
        self.reused = self.len.saturating_sub(1);
    }

    /// Starts a walk under these conditions, in which the last `same` words would be read
    /// again as they are.
    #[inline]
    pub(crate) fn begin(&mut self, conditions: Option<ValidityKey>, same: usize) {
        self.forget_old();
        let used = self.used();
        if let Some(old) = used.before_last(same) {
            let words = old.len();
            // The first frame has a frame pointer of its own. Where there is no other, it need
            // not be looked for.
            let is_only = used.len() == self.len.wrapping_add(1);
            let first = if is_only { 1 } else { used.len().wrapping_sub(words) };
            let fp = used.first(first).last_fp().unwrap_or(0);
            self.old = PreviousRest { words, fp };
            self.old_end = self.simple_end;
        }
        self.simple_end = None;
        (self.start, self.words_end, self.len) = (0, 0, 0);
        self.end = None;
        self.conditions = conditions;
        self.reused = 0;
    }

    /// Adds a frame that something else than a fast step led to, on a stack with
    /// slots of this size. Without its frame pointer its next
    /// step may be another one than before.
    #[inline]
    pub(crate) fn arrive(
        &mut self,
        frame: FrameRecord,
        is_fp_known: bool,
        slots: WordSize,
    ) -> Arrival {
        let mut old = self.old_frames(slots);
        let is_met = is_fp_known && old.meet(&frame);
        let met = old.rest();
        old.skip();
        let after = old.rest();
        self.old = met;
        if is_met && self.len < N {
            let place = Self::start_of(after).saturating_sub(2);
            if place >= self.words_end {
                self.move_to(place.wrapping_sub(self.used_len()));
                self.put(frame, slots);
                self.old = after;
                return Arrival::Met;
            }
        }
        if !self.make_room() {
            return Arrival::NoRoom;
        }
        self.put(frame, slots);
        Arrival::Fresh
    }

    /// Where the old frames begin.
    #[inline]
    const fn start_of(old: PreviousRest) -> usize {
        Self::WORDS.saturating_sub(old.words)
    }

    pub(super) const fn forget_old(&mut self) {
        self.old = Self::NO_OLD;
        self.old_end = None;
    }

    #[inline]
    fn old_words(&self) -> Words<'_> {
        self.words(Self::start_of(self.old), Self::WORDS)
    }

    #[inline]
    fn used_len(&self) -> usize {
        self.words_end.saturating_sub(self.start)
    }

    #[inline]
    fn old_frames(&self, slots: WordSize) -> PreviousFrames<'_> {
        PreviousFrames::new(self.old_words(), self.old.fp, slots)
    }

    /// Adds the words of a frame to which no fast step led; there is room for two.
    #[inline]
    fn put(&mut self, frame: FrameRecord, slots: WordSize) {
        let room = self.words.as_flattened_mut().get_mut(self.words_end..);
        if let Some(place) = room.and_then(<[StackWord]>::first_chunk_mut) {
            *place = frame.placeholders(slots);
        }
        self.words_end = self.words_end.wrapping_add(2);
        self.len = self.len.wrapping_add(1);
    }

    /// Room after the last frame for the words of at most `limit` frames, and what writes them
    /// there.
    #[inline]
    pub(crate) fn room(
        &mut self,
        limit: usize,
        slots: WordSize,
    ) -> (&mut [StackWord], Recorder<'_>) {
        let limit = limit.min(N.saturating_sub(self.len));
        let old_start = Self::start_of(self.old);
        let split = self.words.as_flattened_mut().split_at_mut_checked(old_start);
        let (new, old) = split.unwrap_or_default();
        // A frame has a word at least.
        let room = new.get_mut(self.words_end..).unwrap_or_default();
        let limit = limit.min(room.len());
        let old = PreviousFrames::new(Words(old), self.old.fp, slots);
        let recorder = Recorder { fps: 0, old, is_met: false };
        (room.get_mut(..limit).unwrap_or_default(), recorder)
    }

    /// Whether the room has a place for a frame.
    #[inline]
    pub(crate) const fn has_room(&self) -> bool {
        Self::start_of(self.old).saturating_sub(self.words_end) >= 2
    }

    /// Makes the first `count` words of the room frames, as far as they are of any, and returns
    /// how many these are.
    #[inline]
    pub(crate) fn fill(&mut self, count: usize, recorded: Recorded, slots: WordSize) -> usize {
        let Recorded { fps, old, is_met } = recorded;
        let frames = count.saturating_sub(fps);
        let new = self.words(self.words_end, self.words_end.wrapping_add(count));
        self.words_end = self.words_end.wrapping_add(new.of_whole_frames().len());
        self.len = self.len.wrapping_add(frames);
        self.old = old;
        if is_met {
            // It is both the last one that was added and the first of the old.
            let mut old = self.old_frames(slots);
            old.skip();
            let after = old.rest();
            self.move_to(Self::start_of(after).wrapping_sub(self.used_len()));
            self.old = after;
        }
        frames
    }

    /// Makes room for one more frame before the old ones; `false` if there is
    /// none even without them.
    pub(crate) fn make_room(&mut self) -> bool {
        if self.len >= N {
            return false;
        }
        if self.has_room() {
            return true;
        }
        cold_path();
        self.move_to(0);
        if !self.has_room() {
            self.forget_old();
        }
        self.has_room()
    }

    /// Moves the frames that were added, of which there may be none.
    #[inline]
    fn move_to(&mut self, start: usize) {
        let (from, len) = (self.start, self.used_len());
        if start == from {
            return;
        }
        if len != 0 {
            copy_within(self.words.as_flattened_mut(), from, start, len);
        }
        (self.start, self.words_end) = (start, start.wrapping_add(len).min(Self::WORDS));
    }

    /// The last frame that was added.
    pub(crate) fn last(&self) -> Option<TraceFrame> {
        self.used().0.last().map(StackWord::frame)
    }

    /// Whether a frame pointer alone led to one of the last `count` frames.
    pub(crate) fn is_by_fp(&self, count: usize) -> bool {
        let mut last = self.frames().rev().take(count);
        last.any(|frame| frame.provenance.origin() == Origin::FramePointer)
    }

    /// Whether the frame before the last one was sampled or interrupted.
    pub(crate) fn has_called_innermost(&self) -> bool {
        self.frames().rev().nth(1).is_some_and(|frame| frame.pc.is_exact())
    }

    /// Takes the last frame back.
    pub(crate) fn pop(&mut self) {
        let used = self.used();
        let before = used.first(used.len().saturating_sub(1)).of_whole_frames().len();
        self.words_end = self.start.wrapping_add(before);
        self.len = self.len.saturating_sub(1);
    }

    /// Adds the old frames after the one that was met, which are as they were, at most `limit`
    /// of them, on a stack with slots of this size. No other one is met in this walk.
    #[inline]
    pub(crate) fn reuse(&mut self, limit: usize, slots: WordSize) -> Option<Reused> {
        let rest = self.old_words();
        let whole = rest.of_frames(limit.min(N.saturating_sub(self.len)));
        let (words, count) = (whole.len(), whole.frames());
        let end = self.old_end.filter(|_| words == rest.len());
        let fp = whole.last_fp().unwrap_or(self.old.fp);
        self.words_end = Self::start_of(self.old).wrapping_add(words);
        self.len = self.len.wrapping_add(count);
        self.reused = count;
        self.forget_old();
        let last = self.used().0.last()?;
        Some(Reused { count, last: last.frame(), sp: last.sp(slots), fp, end })
    }

    /// Ends the walk.
    #[inline]
    pub(crate) fn finish<E: TableError>(&mut self, end: End<E>) {
        self.move_to(Self::WORDS.saturating_sub(self.used_len()));
        self.forget_old();
        let addr = match end {
            End::Table(_) => self.last().map(|frame| frame.pc.lookup_addr()),
            _ => None,
        };
        self.end = Some(end.with_fault(addr.unwrap_or_default()));
    }
}

/// Moves `len` elements.
#[inline]
fn copy_within<T: Copy>(all: &mut [T], from: usize, to: usize, len: usize) {
    let Some(room) = all.len().checked_sub(len) else { return };
    if from <= room && to <= room {
        all.copy_within(from..from.wrapping_add(len), to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_is_not_moved() {
        let moved = |from, to, len| {
            let mut all = [1, 2, 3, 4];
            copy_within(&mut all, from, to, len);
            all
        };
        assert_eq!(moved(0, 2, 2), [1, 2, 1, 2]);
        assert_eq!(moved(2, 0, 2), [3, 4, 3, 4]);
        for (from, to, len) in [(0, 3, 2), (3, 0, 2), (0, 0, 5), (usize::MAX, 0, 1)] {
            assert_eq!(moved(from, to, len), [1, 2, 3, 4], "{from} {to} {len}");
        }
    }
}
