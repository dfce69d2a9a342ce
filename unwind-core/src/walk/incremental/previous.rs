//! The frames of the walk before, which a walk may meet.

use super::words::{FrameRecord, StackWord, TaggedWords};
use crate::addr::VirtAddr;
use crate::register::WordSize;
use crate::walk::fast::compact_row::CompactRow;
use crate::walk::fast::fast_path::FrameSink;

/// The frames of the walk before that may still be met, innermost first.
pub(crate) struct PreviousFrames<'a> {
    rest: TaggedWords<'a>,
    /// The frame pointer of the frame before.
    fp: u64,
    /// The stack pointer of the first of them; the highest if there is none.
    sp: u64,
    /// The size of a slot, as a power of two.
    shift: u32,
}

/// How many words old frames have, and the frame pointer of the frame before.
#[derive(Clone, Copy)]
pub(crate) struct PreviousRest {
    pub(super) words: usize,
    pub(super) fp: u64,
}

impl<'a> PreviousFrames<'a> {
    #[inline]
    pub(super) fn new(rest: TaggedWords<'a>, fp: u64, slots: WordSize) -> Self {
        let shift = slots.bytes().trailing_zeros();
        let mut frames = Self { rest, fp, sp: u64::MAX, shift };
        frames.find_sp();
        frames
    }

    #[inline]
    fn find_sp(&mut self) {
        let ra = match (self.rest.tags, self.rest.words) {
            ([tag, ..], [ra, ..]) if tag.is_frame() => ra,
            (_, [_, ra, ..]) => ra,
            _ => return self.sp = u64::MAX,
        };
        self.sp = ra.slot.wrapping_add(1).wrapping_shl(self.shift);
    }

    /// What is left of them.
    #[inline]
    pub(crate) const fn rest(&self) -> PreviousRest {
        PreviousRest { words: self.rest.len(), fp: self.fp }
    }

    /// Goes past the first of them.
    #[inline]
    pub(super) fn skip(&mut self) {
        self.rest = match (self.rest.tags, self.rest.words) {
            ([tag, tags @ ..], [_, words @ ..]) if tag.is_frame() => TaggedWords { words, tags },
            ([_, _, tags @ ..], [fp, _, words @ ..]) => {
                self.fp = fp.value;
                TaggedWords { words, tags }
            }
            _ => TaggedWords { words: &[], tags: &[] },
        };
        self.find_sp();
    }

    /// Whether fast steps lead on from the first of them as from this frame. The
    /// stack pointers are known to be equal.
    #[inline]
    fn is_like(&self, frame: &FrameRecord) -> bool {
        let (ra, tag, fp) = match (self.rest.tags, self.rest.words) {
            ([tag, ..], [ra, ..]) if tag.is_frame() => (ra, tag, self.fp),
            ([_, tag, ..], [fp, ra, ..]) => (ra, tag, fp.value),
            _ => return false,
        };
        ra.value == frame.pc
            && fp == frame.fp
            && tag.provenance().is_exact() == frame.provenance.is_exact()
            && ra.slot != StackWord::NOWHERE
    }
}

impl FrameSink for PreviousFrames<'_> {
    type Kept = [StackWord; 2];

    #[inline]
    fn entry(pc: VirtAddr, sp: u64, fp: u64, row: CompactRow) -> [StackWord; 2] {
        let provenance = row.provenance();
        FrameRecord { pc: pc.get(), sp, fp, provenance, fp_slots: row.fp_slots() }.to_entry()
    }

    /// Whether the walk before was there too; it is then the first frame of the
    /// rest.
    // Frames come with rising stack pointers. Where they do not, at signals, some
    // are not met, and that is all.
    #[inline]
    fn should_stop(&mut self, entry: &[StackWord; 2]) -> bool {
        let frame = FrameRecord::from_entry(entry);
        while self.sp <= frame.sp {
            if self.rest.words.is_empty() {
                return false;
            }
            if self.sp == frame.sp && self.is_like(&frame) {
                return true;
            }
            self.skip();
        }
        false
    }
}
