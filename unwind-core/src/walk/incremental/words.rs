//! Frames as the words that led to them.

use core::slice::Iter;

use crate::addr::{FramePc, VirtAddr};
use crate::register::WordSize;
use crate::trace::{Provenance, TraceFrame};
use crate::walk::fast::fast_path::Caller;

/// A word of the stack that a step read, or what stands in its place.
// Without padding: a walk writes one or two of them a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(Rust, packed)]
pub(crate) struct StackWord {
    /// What was read.
    pub(super) value: u64,
    /// Where it was read: a value of the stack pointer, in slots.
    pub(super) slot: u64,
    pub(super) tag: Tag,
}

impl StackWord {
    pub(super) const NONE: Self = Self { value: 0, slot: Self::NOWHERE, tag: Tag(0) };

    /// The slot of no word: no stack reaches as far.
    pub(super) const NOWHERE: u64 = u64::MAX;

    /// The return address of a caller.
    #[inline]
    pub(super) fn return_address(Caller { pc, slot, row, .. }: Caller) -> Self {
        Self { value: pc.get(), slot, tag: Tag(row.provenance().bits()) }
    }

    /// Its frame pointer, if the row that led there says that it was saved.
    #[inline]
    pub(super) fn saved_fp(Caller { slot, fp, row, .. }: Caller) -> Option<Self> {
        let slot = slot.wrapping_sub(row.fp_slots().into());
        (!row.keeps_fp()).then_some(Self { value: fp, slot, tag: Tag::FP })
    }

    /// The address of the slot, in the stack segment.
    #[inline]
    pub(super) const fn addr(&self, word: WordSize) -> u64 {
        self.slot.wrapping_shl(word.bytes().trailing_zeros())
    }

    /// The stack pointer of the frame, of a return address.
    #[inline]
    pub(super) const fn sp(&self, word: WordSize) -> u64 {
        self.addr(word).wrapping_add(word.bytes())
    }

    /// The frame, of a return address.
    #[inline]
    pub(super) fn frame(&self) -> TraceFrame {
        TraceFrame::new(VirtAddr::new(self.value), self.tag.provenance())
    }

    /// Whether it is the last word of a frame: the return address.
    #[inline]
    pub(super) const fn is_frame(&self) -> bool {
        self.tag.is_frame()
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

/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameRecord {
    pub(super) pc: u64,
    pub(super) sp: u64,
    /// No fast step leads on from a frame without a frame pointer, so it may be
    /// taken for one with any.
    pub(super) fp: u64,
    pub(super) provenance: Provenance,
}

impl FrameRecord {
    pub(crate) fn new(pc: FramePc, sp: u64, fp: Option<u64>, provenance: Provenance) -> Self {
        Self { pc: pc.addr().get(), sp, fp: fp.unwrap_or(0), provenance }
    }

    /// The words that stand for it where something else than a fast step led to it.
    /// Whoever compares words stops at the first.
    #[inline]
    pub(super) fn placeholders(self, word: WordSize) -> [StackWord; 2] {
        let Self { pc, sp, fp, provenance } = self;
        let ra = StackWord { value: pc, slot: word.slot_below(sp), tag: Tag(provenance.bits()) };
        let is_aligned = ra.sp(word) == sp;
        let ra = if is_aligned { ra } else { StackWord { slot: StackWord::NOWHERE, ..ra } };
        [StackWord { value: fp, slot: StackWord::NOWHERE, tag: Tag::OTHER_FP }, ra]
    }
}

/// Words of frames, innermost first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words<'a>(pub(super) &'a [StackWord]);

impl<'a> Words<'a> {
    #[inline]
    pub(super) const fn len(self) -> usize {
        self.0.len()
    }

    /// The first `len`.
    #[inline]
    pub(super) fn first(self, len: usize) -> Self {
        Self(self.0.get(..len).unwrap_or(self.0))
    }

    /// Whether they are of this frame, to which no fast step led, and others.
    #[inline]
    pub(super) fn start_with(self, frame: FrameRecord, slots: WordSize) -> bool {
        let words = frame.placeholders(slots);
        let [_, ra] = words;
        self.0.first_chunk() == Some(&words) && ra.slot != StackWord::NOWHERE
    }

    /// The first of their frames, its frame pointer if that is among them, and the words of
    /// the others.
    #[inline]
    pub(super) const fn split_first(self) -> Option<(&'a StackWord, Option<u64>, Self)> {
        match self.0 {
            [ra, rest @ ..] if ra.is_frame() => Some((ra, None, Self(rest))),
            [fp, ra, rest @ ..] => Some((ra, Some(fp.value), Self(rest))),
            _ => None,
        }
    }

    /// Without a frame pointer after the last return address.
    #[inline]
    pub(super) fn of_whole_frames(self) -> Self {
        match self.0 {
            [first @ .., last] if !last.is_frame() => Self(first),
            _ => self,
        }
    }

    /// All but the first `len`.
    #[inline]
    pub(super) fn without_first(self, len: usize) -> Self {
        Self(self.0.get(len..).unwrap_or_default())
    }

    /// The frames that the last `count` words follow, and those that these are of, if there
    /// is one.
    #[inline]
    pub(super) fn before_last(self, count: usize) -> Option<Self> {
        let is_frame = |at: usize| self.0.get(at).is_some_and(StackWord::is_frame);
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
        let mut ends = self.0.iter().enumerate().filter(|(_, word)| word.is_frame());
        let after = most.checked_sub(1).and_then(|before| ends.nth(before));
        self.first(after.map_or(0, |(last, _)| last.wrapping_add(1)))
    }

    /// How many frames they are.
    pub(super) fn frames(self) -> usize {
        self.0.iter().filter(|word| word.is_frame()).count()
    }

    /// The last frame pointer among them.
    pub(super) fn last_fp(self) -> Option<u64> {
        self.0.iter().rfind(|word| !word.is_frame()).map(|word| word.value)
    }
}

/// The frames of some words, innermost first.
#[derive(Clone, Debug)]
pub(super) struct RecordedFrames<'a> {
    words: Iter<'a, StackWord>,
    len: usize,
}

impl<'a> RecordedFrames<'a> {
    /// The first `len` of them.
    #[inline]
    pub(super) fn new(words: Words<'a>, len: usize) -> Self {
        Self { words: words.0.iter(), len }
    }
}

impl Iterator for RecordedFrames<'_> {
    type Item = TraceFrame;

    #[inline]
    fn next(&mut self) -> Option<TraceFrame> {
        self.len = self.len.checked_sub(1)?;
        self.words.find(|word| word.is_frame()).map(StackWord::frame)
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
        self.words.rfind(|word| word.is_frame()).map(StackWord::frame)
    }
}

impl ExactSizeIterator for RecordedFrames<'_> {}

#[cfg(test)]
#[allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "tests"
)]
mod tests {
    extern crate alloc;
    use alloc::vec::Vec;

    use super::*;
    use crate::origin::Origin;
    use crate::row::Row;
    use crate::rule::{CfaRule, RegRule};
    use crate::walk::fast::compact_row::CompactRow;

    fn frame(number: u64) -> FrameRecord {
        let (pc, sp, fp) = (0x1000 + number, 0x8000 + 64 * number, 0x9000 + number);
        FrameRecord { pc, sp, fp, provenance: Provenance::of_row(Origin::Table, false) }
    }

    /// The words of that frame, to which a step led by a row that has the frame pointer so far
    /// below the return address.
    fn kept(number: u64, fp_slots: u8, word: WordSize) -> Vec<StackWord> {
        let slot = i32::try_from(word.bytes()).unwrap();
        let saved = match fp_slots {
            0 => RegRule::SameValue,
            slots => RegRule::Offset(-slot - slot * i32::from(slots)),
        };
        let row = Row::new(CfaRule::sp(slot * 300), RegRule::Offset(-slot), saved);
        let row = CompactRow::new(&row, word).unwrap();
        let FrameRecord { pc, sp, fp, .. } = frame(number);
        let caller = Caller { pc: VirtAddr::new(pc), slot: word.slot_below(sp), fp, row };
        let ra = StackWord::return_address(caller);
        StackWord::saved_fp(caller).into_iter().chain([ra]).collect()
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
                    let words =
                        FrameRecord { provenance, ..frame(0) }.placeholders(WordSize::Eight);
                    let [fp, ra] = words.map(|word| word.tag);
                    assert_eq!((ra.is_frame(), ra.is_other()), (true, false));
                    assert_eq!(ra.provenance(), provenance);
                    assert_eq!((fp.is_frame(), fp.is_other()), (false, true));
                    assert!(!Tag::FP.is_other());
                }
            }
        }
    }

    #[test]
    fn words_are_where_the_step_read_them() {
        for (size, slot) in [(WordSize::Eight, 8), (WordSize::Four, 4)] {
            let found = |words: &[StackWord]| -> Vec<_> {
                words.iter().map(|word| (word.addr(size), word.value, word.is_frame())).collect()
            };
            assert_eq!(found(&kept(0, 0, size)), [(0x8000 - slot, 0x1000, true)]);
            for slots in [1, 3, 255] {
                let fp = (0x8000 - slot - slot * u64::from(slots), 0x9000, false);
                assert_eq!(found(&kept(0, slots, size)), [fp, (0x8000 - slot, 0x1000, true)]);
            }
            assert!(kept(0, 3, size).iter().all(|word| !word.tag.is_other()));
            // Of a stack pointer between two slots, nothing is met.
            let words = frame(0).placeholders(size);
            assert_eq!(words.map(|word| word.slot)[0], StackWord::NOWHERE);
            assert_eq!(words[1].addr(size), 0x8000 - slot);
            assert_eq!(
                words.map(|word| (word.is_frame(), word.tag.is_other())),
                [(false, true), (true, false)]
            );
            // Nothing is met of a frame that was found in another way.
            let trampoline = frame(0).provenance.with_trampoline();
            assert!(Words(&words).start_with(frame(0), size));
            let other = FrameRecord { provenance: trampoline, ..frame(0) };
            assert!(!Words(&words).start_with(other, size));
            let between = FrameRecord { sp: 0x8002, ..frame(0) };
            assert_eq!(between.placeholders(size).map(|word| word.slot), [StackWord::NOWHERE; 2]);
        }
    }

    /// A frame leads on as before if all words after its own are the same.
    #[test]
    fn what_may_be_met_begins_with_the_frame_before_those_whose_words_are_all_the_same() {
        for kinds in 0..16 {
            let (mut words, mut starts) = (Vec::new(), Vec::new());
            for number in 0..4 {
                let fp_slots = u8::from(kinds >> number & 1 != 0);
                starts.push(words.len());
                words.extend(kept(number, fp_slots, WordSize::Eight));
            }
            let all = Words(&words);
            for same in 0..=words.len() {
                let first_same = words.len() - same;
                // The first frame of which each word is the same; there may be none.
                let whole = starts.iter().position(|&start| start >= first_same).unwrap_or(4);
                let expected = (same != 0).then(|| words.len() - starts[whole.saturating_sub(1)]);
                assert_eq!(all.before_last(same).map(Words::len), expected, "{kinds} {same}");
            }
        }
    }

    #[test]
    fn frames_come_from_either_end_and_are_as_many_as_they_say() {
        for kinds in 0..3_usize.pow(4) {
            let kinds = [1, 3, 9, 27].map(|power| u8::try_from(kinds / power % 3).unwrap());
            let mut words = Vec::new();
            for (number, kind) in (0..).zip(kinds) {
                match kind {
                    2 => words.extend(frame(number).placeholders(WordSize::Eight)),
                    fp_slots => words.extend(kept(number, fp_slots, WordSize::Eight)),
                }
            }
            let all = Words(&words);
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
                assert!(part.0.last().is_none_or(StackWord::is_frame));
                assert!(len - part.len() < 2);
            }
        }
    }
}
