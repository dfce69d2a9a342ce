//! The frames of the walk before, which a walk may meet.

use super::words::{FrameRecord, StackWord, Words};
use crate::register::WordSize;

/// The frames of the walk before that may still be met, innermost first.
#[derive(Clone, Copy)]
pub(crate) struct PreviousFrames<'a> {
    rest: Words<'a>,
    /// The frame pointer of the frame before.
    fp: u64,
    /// Where the return address of the first of them is, in slots; 0 if it is nowhere, the
    /// highest if there is none.
    slot: u64,
    pub(super) slots: WordSize,
}

/// How many words old frames have, and the frame pointer of the frame before.
#[derive(Clone, Copy)]
pub(crate) struct PreviousRest {
    pub(super) words: usize,
    pub(super) fp: u64,
}

impl<'a> PreviousFrames<'a> {
    #[inline]
    pub(super) fn new(rest: Words<'a>, fp: u64, slots: WordSize) -> Self {
        let mut frames = Self { rest, fp, slot: 0, slots };
        frames.find_slot();
        frames
    }

    #[inline]
    fn find_slot(&mut self) {
        self.slot = match self.rest.split_first() {
            Some((ra, ..)) if ra.slot == StackWord::NOWHERE => 0,
            Some((ra, ..)) => ra.slot,
            None => u64::MAX,
        };
    }

    /// What is left of them.
    #[inline]
    pub(crate) const fn rest(&self) -> PreviousRest {
        PreviousRest { words: self.rest.len(), fp: self.fp }
    }

    /// Goes past the first of them.
    #[inline]
    pub(super) fn skip(&mut self) {
        if let Some((_, fp, rest)) = self.rest.split_first() {
            self.fp = fp.unwrap_or(self.fp);
            self.rest = rest;
            self.find_slot();
        }
    }

    /// Whether fast steps lead on from the first of them as from this frame. The
    /// stack pointers are known to be equal.
    #[inline]
    fn is_like(&self, (ra, fp): (&StackWord, Option<u64>), frame: &FrameRecord) -> bool {
        ra.value == frame.pc
            && fp.unwrap_or(self.fp) == frame.fp
            && ra.tag.provenance().is_exact() == frame.provenance.is_exact()
            && ra.slot != StackWord::NOWHERE
    }

    /// Whether the return address of one of them may be at this slot, or below.
    #[inline]
    pub(super) const fn may_meet(&self, slot: u64) -> bool {
        self.slot <= slot
    }

    /// Whether the walk before was at this frame too; it is then the first frame of the
    /// rest.
    // Frames come with rising stack pointers. Where they do not, at signals, some
    // are not met, and that is all.
    pub(super) fn meet(&mut self, frame: &FrameRecord) -> bool {
        let slot = self.slots.slot_below(frame.sp);
        while self.may_meet(slot) {
            let Some((ra, fp, _)) = self.rest.split_first() else { return false };
            if ra.sp(self.slots) == frame.sp && self.is_like((ra, fp), frame) {
                return true;
            }
            self.skip();
        }
        false
    }
}
