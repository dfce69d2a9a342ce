//! Frames as the words that led to them.

use core::iter::Zip;
use core::slice::Iter;

use crate::addr::{FramePc, VirtAddr};
use crate::register::WordSize;
use crate::trace::{Provenance, TraceFrame};

/// A word of the stack that a step read, or what stands in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StackWord {
    /// What was read.
    pub(super) value: u64,
    /// Where it was read: a value of the stack pointer, in slots.
    pub(super) slot: u64,
}

impl StackWord {
    pub(super) const NONE: Self = Self { value: 0, slot: Self::NOWHERE };

    /// The slot of no word: no stack reaches as far.
    pub(super) const NOWHERE: u64 = u64::MAX;

    /// The address of the slot, in the stack segment.
    #[inline]
    pub(super) const fn addr(&self, word: WordSize) -> u64 {
        self.slot.wrapping_shl(word.bytes().trailing_zeros())
    }
}

/// What a [`StackWord`] is: of a return address the [`Provenance`] of its frame, of a frame
/// pointer one of two values that no frame's provenance has. A frame with the registers of
/// the sample has an exact pc, and no row that failed led there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(u8);

impl Tag {
    /// The frame pointer of the frame whose return address is next.
    const FP: Self = Self(Provenance::NO_FRAMES);
    /// The same of a frame to which no fast step led: neither of its two words was read
    /// from the stack.
    const OTHER_FP: Self = Self(Provenance::NO_FRAMES | 1 << 7);

    pub(super) const NONE: Self = Self(0);

    /// Whether it is the last word of a frame: the return address.
    #[inline]
    pub(super) const fn is_frame(self) -> bool {
        self.0 & Provenance::NO_FRAMES_MASK != Provenance::NO_FRAMES
    }

    /// Whether it is the first word of a frame to which no fast step led.
    #[inline]
    pub(super) const fn is_other(self) -> bool {
        self.0 == Self::OTHER_FP.0
    }

    #[inline]
    pub(super) const fn provenance(self) -> Provenance {
        Provenance::from_bits(self.0)
    }
}

/// A frame, and the step that led to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameRecord {
    pub(super) pc: u64,
    pub(super) sp: u64,
    pub(super) fp: u64,
    pub(super) provenance: Provenance,
    /// How far below the return address its frame pointer was saved, in slots; 0
    /// if it is its callee's. The return address was just below its stack pointer.
    /// Says nothing if there was no step, or another one than a fast one.
    pub(super) fp_slots: u8,
}

impl FrameRecord {
    /// A frame to which something else than a fast step led.
    pub(crate) fn from_full_step(
        pc: FramePc,
        sp: u64,
        fp: Option<u64>,
        provenance: Provenance,
    ) -> Self {
        // No fast step leads on from a frame without a frame pointer, so it may be
        // taken for one with any.
        let (pc, fp) = (pc.addr().get(), fp.unwrap_or(0));
        Self { pc, sp, fp, provenance, fp_slots: 0 }
    }

    /// In the place of two words, for as long as a walk is under way.
    #[inline]
    pub(super) const fn to_entry(self) -> [StackWord; 2] {
        let Self { pc, sp, fp, provenance, fp_slots } = self;
        let step = u64::from_le_bytes([provenance.bits(), fp_slots, 0, 0, 0, 0, 0, 0]);
        [StackWord { value: fp, slot: step }, StackWord { value: pc, slot: sp }]
    }

    /// The inverse.
    #[inline]
    pub(super) const fn from_entry([low, high]: &[StackWord; 2]) -> Self {
        let [provenance, fp_slots, ..] = low.slot.to_le_bytes();
        let provenance = Provenance::from_bits(provenance);
        Self { pc: high.value, sp: high.slot, fp: low.value, provenance, fp_slots }
    }

    /// Returns the words that a fast step to it read, and their count; with one word both
    /// places hold it.
    #[inline]
    pub(super) fn words_read(self, word: WordSize) -> ([StackWord; 2], [Tag; 2], usize) {
        let Self { pc, sp, fp, provenance, fp_slots } = self;
        let slot = Self::slot_below(sp, word);
        let (ra, tag) = (StackWord { value: pc, slot }, Tag(provenance.bits()));
        if fp_slots == 0 {
            return ([ra; 2], [tag; 2], 1);
        }
        let fp = StackWord { value: fp, slot: slot.wrapping_sub(fp_slots.into()) };
        ([fp, ra], [Tag::FP, tag], 2)
    }

    /// The words that stand for it where something else than a fast step led to it.
    /// Whoever compares words stops at the first.
    #[inline]
    pub(super) fn placeholders(self, word: WordSize) -> ([StackWord; 2], [Tag; 2]) {
        let Self { pc, sp, fp, provenance, .. } = self;
        let slot = Self::slot_below(sp, word);
        let ra = StackWord { value: pc, slot };
        let is_aligned = ra.addr(word).wrapping_add(word.bytes()) == sp;
        let ra = if is_aligned { ra } else { StackWord { slot: StackWord::NOWHERE, ..ra } };
        let tags = [Tag::OTHER_FP, Tag(provenance.bits())];
        ([StackWord { value: fp, slot: StackWord::NOWHERE }, ra], tags)
    }

    /// The slot just below a stack pointer.
    #[inline]
    const fn slot_below(sp: u64, word: WordSize) -> u64 {
        sp.wrapping_sub(word.bytes()).wrapping_shr(word.bytes().trailing_zeros())
    }
}

/// The frame with this return address.
#[inline]
pub(super) fn frame_of((word, tag): (&StackWord, Tag)) -> TraceFrame {
    TraceFrame::new(VirtAddr::new(word.value), tag.provenance())
}

/// Words, and what they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaggedWords<'a> {
    pub(super) words: &'a [StackWord],
    pub(super) tags: &'a [Tag],
}

impl<'a> TaggedWords<'a> {
    /// The words from `start` to `end`.
    #[inline]
    pub(super) fn new(words: &'a [StackWord], tags: &'a [Tag], start: usize, end: usize) -> Self {
        let words = words.get(start..end).unwrap_or_default();
        Self { words, tags: tags.get(start..end).unwrap_or_default() }
    }

    #[inline]
    pub(super) const fn len(self) -> usize {
        self.words.len()
    }

    /// The first `len`.
    #[inline]
    pub(super) fn first(self, len: usize) -> Self {
        Self::new(self.words, self.tags, 0, len.min(self.len()))
    }

    /// Whether they are of this frame, to which no fast step led, and others.
    #[inline]
    pub(super) fn start_with(self, frame: FrameRecord, slots: WordSize) -> bool {
        let (words, tags) = frame.placeholders(slots);
        let is_same = self.words.first_chunk() == Some(&words);
        let [_, ra] = words;
        is_same && self.tags.first_chunk() == Some(&tags) && ra.slot != StackWord::NOWHERE
    }

    /// Without a frame pointer after the last return address.
    #[inline]
    pub(super) fn of_whole_frames(self) -> Self {
        match self.tags.last() {
            Some(tag) if !tag.is_frame() => self.first(self.len().saturating_sub(1)),
            _ => self,
        }
    }

    /// All but the first `len`.
    #[inline]
    pub(super) fn without_first(self, len: usize) -> Self {
        Self::new(self.words, self.tags, len.min(self.len()), self.len())
    }

    /// The frames that the last `count` words follow, and those that these are of, if there
    /// is one.
    #[inline]
    pub(super) fn before_last(self, count: usize) -> Option<Self> {
        let is_frame = |at: usize| self.tags.get(at).is_some_and(|tag| tag.is_frame());
        let mut first = self.len().checked_sub(count).filter(|_| count != 0)?;
        if let Some(before) = first.checked_sub(1) {
            // Of the frame before, or the frame pointer without which a return address is no
            // whole frame.
            let is_pair = before.checked_sub(1).is_some_and(|at| !is_frame(at));
            first = if is_pair { before.wrapping_sub(1) } else { before };
        }
        Some(self.without_first(first))
    }

    /// The words of at most `most` frames.
    #[inline]
    pub(super) fn of_frames(self, most: usize) -> Self {
        if self.len() <= most || self.frames() <= most {
            return self;
        }
        let mut ends = self.tags.iter().enumerate().filter(|(_, tag)| tag.is_frame());
        let after = most.checked_sub(1).and_then(|before| ends.nth(before));
        self.first(after.map_or(0, |(last, _)| last.wrapping_add(1)))
    }

    /// How many frames they are.
    pub(super) fn frames(self) -> usize {
        self.tags.iter().filter(|tag| tag.is_frame()).count()
    }

    /// The last frame pointer among them.
    pub(super) fn last_fp(self) -> Option<u64> {
        let at = self.tags.iter().rposition(|tag| !tag.is_frame())?;
        self.words.get(at).map(|word| word.value)
    }

    /// The last one.
    pub(super) fn last(self) -> Option<(&'a StackWord, Tag)> {
        Some((self.words.last()?, *self.tags.last()?))
    }
}

/// The frames of some words, innermost first.
#[derive(Clone, Debug)]
pub(super) struct RecordedFrames<'a> {
    words: Zip<Iter<'a, StackWord>, Iter<'a, Tag>>,
    len: usize,
}

impl<'a> RecordedFrames<'a> {
    /// The first `len` of them.
    #[inline]
    pub(super) fn new(TaggedWords { words, tags }: TaggedWords<'a>, len: usize) -> Self {
        Self { words: words.iter().zip(tags), len }
    }
}

impl Iterator for RecordedFrames<'_> {
    type Item = TraceFrame;

    #[inline]
    fn next(&mut self) -> Option<TraceFrame> {
        self.len = self.len.checked_sub(1)?;
        self.words.find(|(_, tag)| tag.is_frame()).map(|(word, tag)| frame_of((word, *tag)))
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.len, Some(self.len))
    }
}

impl DoubleEndedIterator for RecordedFrames<'_> {
    #[inline]
    fn next_back(&mut self) -> Option<TraceFrame> {
        self.len = self.len.checked_sub(1)?;
        self.words.rfind(|(_, tag)| tag.is_frame()).map(|(word, tag)| frame_of((word, *tag)))
    }
}

impl ExactSizeIterator for RecordedFrames<'_> {}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "tests")]
mod tests {
    extern crate alloc;
    use alloc::vec::Vec;

    use super::*;
    use crate::origin::Origin;

    fn kept(number: u64, fp_slots: u8) -> FrameRecord {
        let (pc, sp, fp) = (0x1000 + number, 0x8000 + 64 * number, 0x9000 + number);
        FrameRecord { pc, sp, fp, provenance: Provenance::of_row(Origin::Table, false), fp_slots }
    }

    #[test]
    fn an_entry_is_the_frame() {
        for fp_slots in [0, 1, 255] {
            let frame = kept(3, fp_slots);
            assert_eq!(FrameRecord::from_entry(&frame.to_entry()), frame);
        }
    }

    #[test]
    fn a_tag_of_a_return_address_is_never_one_of_a_frame_pointer() {
        let pcs = [FramePc::Exact, FramePc::Return].map(|pc| pc(VirtAddr::new(0x1000)));
        for origin in (0..8).map(Origin::from_code) {
            for (pc, is_guess) in pcs.into_iter().flat_map(|pc| [(pc, false), (pc, true)]) {
                let found = Provenance::of_row(origin, is_guess).at(pc);
                let assumed = [found, found.with_assumed_fp()];
                let failed = assumed.into_iter().flat_map(|it| [it, it.with_failure()]);
                let all = failed.flat_map(|it| [it, it.with_trampoline(), it.with_gap()]);
                for provenance in all.chain([Provenance::new(origin, pcs[0])]) {
                    let (_, [fp, ra]) =
                        FrameRecord { provenance, ..kept(0, 0) }.placeholders(WordSize::Eight);
                    assert!(ra.is_frame() && !ra.is_other() && ra.provenance() == provenance);
                    assert!(!fp.is_frame() && fp.is_other() && !Tag::FP.is_other());
                }
            }
        }
    }

    #[test]
    fn words_are_where_the_step_read_them() {
        for (size, slot) in [(WordSize::Eight, 8), (WordSize::Four, 4)] {
            let (words, tags, len) = kept(0, 0).words_read(size);
            assert_eq!((words[0].addr(size), words[0].value, len), (0x8000 - slot, 0x1000, 1));
            assert!(tags[0].is_frame() && !tags[0].is_other());
            let (words, tags, len) = kept(0, 3).words_read(size);
            let found = words.map(|word| (word.addr(size), word.value));
            assert_eq!(found, [(0x8000 - 4 * slot, 0x9000), (0x8000 - slot, 0x1000)]);
            assert_eq!((tags.map(Tag::is_frame), len), ([false, true], 2));
            // Of a stack pointer between two slots, nothing is met.
            let (words, tags) = kept(0, 0).placeholders(size);
            assert_eq!((words[0].slot, words[1].addr(size)), (StackWord::NOWHERE, 0x8000 - slot));
            assert_eq!(
                tags.map(|tag| (tag.is_frame(), tag.is_other())),
                [(false, true), (true, false)]
            );
            // Nothing is met of a frame that was found in another way.
            let all = TaggedWords { words: &words, tags: &tags };
            let trampoline = kept(0, 0).provenance.with_trampoline();
            assert!(all.start_with(kept(0, 0), size));
            assert!(!all.start_with(FrameRecord { provenance: trampoline, ..kept(0, 0) }, size));
            let between = FrameRecord { sp: 0x8002, ..kept(0, 0) };
            assert_eq!(between.placeholders(size).0.map(|word| word.slot), [StackWord::NOWHERE; 2]);
        }
    }

    /// A frame leads on as before if all words after its own are the same.
    #[test]
    fn what_may_be_met_begins_with_the_frame_before_those_whose_words_are_all_the_same() {
        for kinds in 0..16 {
            let (mut words, mut tags, mut starts) = (Vec::new(), Vec::new(), Vec::new());
            for number in 0..4 {
                let fp_slots = u8::from(kinds >> number & 1 != 0);
                let (of_frame, their_tags, len) =
                    kept(number, fp_slots).words_read(WordSize::Eight);
                starts.push(words.len());
                words.extend(&of_frame[..len]);
                tags.extend(&their_tags[..len]);
            }
            let all = TaggedWords { words: &words, tags: &tags };
            for same in 0..=words.len() {
                let first_same = words.len() - same;
                // The first frame of which each word is the same; there may be none.
                let whole = starts.iter().position(|&start| start >= first_same).unwrap_or(4);
                let expected = (same != 0).then(|| words.len() - starts[whole.saturating_sub(1)]);
                assert_eq!(all.before_last(same).map(TaggedWords::len), expected, "{kinds} {same}");
            }
        }
    }

    #[test]
    fn frames_come_from_either_end_and_are_as_many_as_they_say() {
        for kinds in 0..3_usize.pow(4) {
            let kinds = [1, 3, 9, 27].map(|power| kinds / power % 3);
            let (mut words, mut tags) = (Vec::new(), Vec::new());
            for (number, kind) in (0..).zip(kinds) {
                let (of_frame, their_tags, len) = match kind {
                    0 => kept(number, 0).words_read(WordSize::Eight),
                    1 => kept(number, 1).words_read(WordSize::Eight),
                    _ => {
                        let (words, tags) = kept(number, 0).placeholders(WordSize::Eight);
                        (words, tags, 2)
                    }
                };
                words.extend(&of_frame[..len]);
                tags.extend(&their_tags[..len]);
            }
            let all = TaggedWords { words: &words, tags: &tags };
            assert_eq!((all.frames(), all.of_whole_frames().len()), (4, words.len()));
            for front in 0..=4 {
                let mut frames = RecordedFrames::new(all, 4);
                let pc = |frame: TraceFrame| frame.pc.addr().get() - 0x1000;
                let mut found: Vec<_> = frames.by_ref().take(front).map(pc).collect();
                assert_eq!(frames.len(), 4 - front);
                let back: Vec<_> = frames.by_ref().rev().map(pc).collect();
                found.extend(back.iter().rev());
                assert_eq!(
                    (found, frames.next(), frames.next_back()),
                    ([0, 1, 2, 3].into(), None, None)
                );
                let first = all.of_frames(front);
                assert_eq!((first.frames(), first.of_whole_frames().len()), (front, first.len()));
            }
            for len in 0..words.len() {
                let part = all.first(len).of_whole_frames();
                assert!(part.last().is_none_or(|(_, tag)| tag.is_frame()) && len - part.len() < 2);
            }
        }
    }
}
