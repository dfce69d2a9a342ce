//! The steps of a walk that records its frames and takes over those of the walk before.

use core::cell::Cell;

use super::previous::{PreviousFrames, PreviousRest};
use super::trace::{IncrementalTrace, LastStand, ValidityKey};
use super::words::{FrameRecord, StackWord, Tag, TaggedWords, frame_of};
use crate::end::End;
use crate::hint::cold_path;
use crate::origin::Origin;
use crate::register::WordSize;
use crate::table_error::TableError;
use crate::trace::TraceFrame;
use crate::walk::fast::fast_path::FrameSink as _;

/// What became of a frame that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The walk before was not there.
    Fresh,
    /// The walk before was there too, and continued with the frames of
    /// [`IncrementalTrace::rest`].
    Met,
    /// There is no room for it.
    NoRoom,
}

/// What the next walk has of the walk before if nothing in memory has changed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kept {
    /// All of it.
    All,
    /// All frames, the last of which is this one, with this stack pointer.
    Frames {
        last: TraceFrame,
        sp: u64,
        stand: LastStand,
    },
    Nothing,
}

/// What became of the frames after the one that was met.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reused {
    /// They are all as they were, and a cached row said that the last of them has no
    /// caller.
    All,
    /// The first `count` of them are frames of this walk, the last of which is this one, with
    /// this stack and frame pointer.
    Frames { count: usize, last: TraceFrame, sp: u64, fp: u64 },
    /// None is.
    Nothing,
}

impl<const N: usize> IncrementalTrace<N> {
    /// The words after the first frame, if all but words is as it was.
    #[inline]
    pub(crate) fn words_after_first(&self, conditions: &ValidityKey) -> Option<TaggedWords<'_>> {
        let is_same = self.conditions.as_ref() == Some(conditions);
        is_same.then(|| self.words(self.start, Self::WORDS).without_first(2))
    }

    /// Whether this is the first frame, to which no step led.
    #[inline]
    pub(crate) fn starts_with(&self, first: FrameRecord, slots: WordSize) -> bool {
        self.words(self.start, Self::WORDS).start_with(first, slots)
    }

    /// Takes all frames for the next walk, if `words` words after the first frame, which is
    /// the same, are all: its end is to be looked at, unless a cached row has said it.
    #[inline]
    pub(crate) fn keep_all(&mut self, words: usize, slots: WordSize) -> Kept {
        let is_all = self.start.wrapping_add(words).wrapping_add(2) == Self::WORDS;
        let stand = match self.last_stand {
            _ if !is_all => return Kept::Nothing,
            _ if self.is_end_cached => None,
            Some(stand) if words != 0 => Some(stand),
            _ => return Kept::Nothing,
        };
        self.reused = self.len.saturating_sub(1);
        match stand.zip(self.used().last()) {
            Some((stand, last)) => {
                let sp = last.0.addr(slots).wrapping_add(slots.bytes());
                Kept::Frames { last: frame_of(last), sp, stand }
            }
            None => Kept::All,
        }
    }

    /// Notes where the walk stands at its last frame.
    #[inline]
    pub(crate) const fn stand(&mut self, stand: Option<LastStand>) {
        self.last_stand = stand;
    }

    /// Starts a walk under these conditions, in which the last `same` words would be read
    /// again as they are.
    #[inline]
    pub(crate) fn begin(&mut self, conditions: Option<ValidityKey>, same: usize) {
        self.forget_old();
        let used = self.used();
        if let Some(old) = used.before_last(same) {
            let words = old.len();
            // The first frame has a frame pointer of its own.
            let fp = used.first(used.len().wrapping_sub(words)).last_fp().unwrap_or(0);
            self.old = PreviousRest { words, fp };
            self.was_end_cached = self.is_end_cached;
        }
        self.is_end_cached = false;
        self.last_stand = None;
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
        let entry = frame.to_entry();
        let mut old = self.old_frames(slots);
        let is_met = is_fp_known && old.should_stop(&entry);
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
        self.was_end_cached = false;
    }

    #[inline]
    fn old_words(&self) -> TaggedWords<'_> {
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
        let (words, tags) = frame.placeholders(slots);
        let at = self.words_end;
        let (all, all_tags) = (self.words.as_flattened_mut(), self.tags.as_flattened_mut());
        let place = all.get_mut(at..).and_then(<[StackWord]>::first_chunk_mut);
        let tag = all_tags.get_mut(at..).and_then(<[Tag]>::first_chunk_mut);
        if let (Some(place), Some(tag)) = (place, tag) {
            (*place, *tag) = (words, tags);
        }
        self.words_end = self.words_end.wrapping_add(2);
        self.len = self.len.wrapping_add(1);
    }

    /// The entries after the last frame, at most `limit`, and the old frames that
    /// may still be met.
    #[cfg(not(before_rust_1_88))]
    #[expect(clippy::incompatible_msrv, reason = "left out for older compilers, see build.rs")]
    #[inline]
    pub(crate) fn room(
        &mut self,
        limit: usize,
        slots: WordSize,
    ) -> (&mut [[StackWord; 2]], PreviousFrames<'_>) {
        let limit = limit.min(N.saturating_sub(self.len));
        let old_start = Self::start_of(self.old);
        let split = self.words.as_flattened_mut().split_at_mut_checked(old_start);
        let (new, words) = split.unwrap_or_default();
        let (entries, _) = new.get_mut(self.words_end..).unwrap_or_default().as_chunks_mut();
        let limit = limit.min(entries.len());
        let tags = self.tags.as_flattened().get(old_start..).unwrap_or_default();
        let old = PreviousFrames::new(TaggedWords { words, tags }, self.old.fp, slots);
        (entries.get_mut(..limit).unwrap_or_default(), old)
    }

    /// The same for a compiler that finds pairs of words at even places only.
    #[cfg(before_rust_1_88)]
    pub(crate) fn room(
        &mut self,
        limit: usize,
        slots: WordSize,
    ) -> (&mut [[StackWord; 2]], PreviousFrames<'_>) {
        let limit = limit.min(N.saturating_sub(self.len));
        let old_start = Self::start_of(self.old);
        let split = self.words.split_at_mut_checked(old_start >> 1);
        let (new, words) = split.unwrap_or_default();
        let entries = new.get_mut(self.words_end.div_ceil(2)..).unwrap_or_default();
        let limit = limit.min(entries.len());
        let words = words.as_flattened().get(old_start & 1..).unwrap_or_default();
        let tags = self.tags.as_flattened().get(old_start..).unwrap_or_default();
        let old = PreviousFrames::new(TaggedWords { words, tags }, self.old.fp, slots);
        (entries.get_mut(..limit).unwrap_or_default(), old)
    }

    /// Where the first entry of the room is.
    #[inline(always)]
    const fn room_start(&self) -> usize {
        if cfg!(before_rust_1_88) { self.words_end.div_ceil(2) << 1 } else { self.words_end }
    }

    /// Whether the room has an entry.
    #[inline(always)]
    const fn has_room(&self) -> bool {
        let end = Self::start_of(self.old);
        let end = if cfg!(before_rust_1_88) { end & !1 } else { end };
        end.saturating_sub(self.room_start()) >= 2
    }

    /// Makes `count` entries of the room frames. `old` are the frames that may still be met,
    /// `is_met` whether the first of these was.
    #[inline]
    pub(crate) fn fill(&mut self, count: usize, old: PreviousRest, is_met: bool, slots: WordSize) {
        self.pack(count, slots);
        self.old = old;
        if is_met {
            // It is both the last one that was added and the first of the old.
            let mut old = self.old_frames(slots);
            old.skip();
            let after = old.rest();
            self.move_to(Self::start_of(after).wrapping_sub(self.used_len()));
            self.old = after;
        }
    }

    /// Writes the words of `count` entries of the room in place of these.
    #[inline]
    fn pack(&mut self, count: usize, slots: WordSize) {
        // Each has at most two, so none is overwritten that is still to be read.
        let (room_start, end) = (self.room_start(), self.words_end);
        let words = Cell::from_mut(self.words.as_flattened_mut()).as_slice_of_cells();
        let entries = words.get(room_start..).unwrap_or_default();
        let entries = entries.get(..count.wrapping_mul(2)).unwrap_or(entries);
        let words = words.get(end..).unwrap_or_default();
        let tags = self.tags.as_flattened_mut().get_mut(end..).unwrap_or_default();
        let mut places = words.iter().zip(tags);
        let room = places.len();
        let mut put = |word, tag| {
            if let Some((place, to)) = places.next() {
                place.set(word);
                *to = tag;
            }
        };
        for entry in entries.chunks_exact(2) {
            let [low, high] = entry else { break };
            let frame = FrameRecord::from_entry(&[low.get(), high.get()]);
            let ([fp, ra], [fp_tag, tag], len) = frame.words_read(slots);
            if len == 2 {
                put(fp, fp_tag);
            }
            put(ra, tag);
        }
        self.words_end = end.wrapping_add(room.wrapping_sub(places.len()));
        self.len = self.len.wrapping_add(count);
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
            copy_within(self.tags.as_flattened_mut(), from, start, len);
        }
        (self.start, self.words_end) = (start, start.wrapping_add(len).min(Self::WORDS));
    }

    /// The last frame that was added.
    pub(crate) fn last(&self) -> Option<TraceFrame> {
        self.used().last().map(frame_of)
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
    pub(crate) fn reuse(&mut self, limit: usize, slots: WordSize) -> Reused {
        let rest = self.old_words();
        let whole = rest.of_frames(limit.min(N.saturating_sub(self.len)));
        let (words, frames) = (whole.len(), whole.frames());
        let is_all = words == rest.len() && self.was_end_cached;
        let fp = whole.last_fp().unwrap_or(self.old.fp);
        let reused = whole.last().map_or(Reused::Nothing, |last| {
            let sp = last.0.addr(slots).wrapping_add(slots.bytes());
            Reused::Frames { count: frames, last: frame_of(last), sp, fp }
        });
        self.words_end = Self::start_of(self.old).wrapping_add(words);
        self.len = self.len.wrapping_add(frames);
        self.reused = frames;
        self.forget_old();
        if is_all { Reused::All } else { reused }
    }

    /// Notes that a cached row said that the last frame has no caller.
    #[inline]
    pub(crate) const fn mark_end_cached(&mut self) {
        self.is_end_cached = true;
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
