//! A stack as the fast walk reads it: in slots, upwards.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::arch::Arch;
use crate::memory::Memory;
use crate::register::WordSize;

/// What a stack pointer may be, and what is saved above it.
///
/// Where anything is out of the ordinary, the answer is `None`, and the full step decides.
pub(crate) trait Stack {
    /// A value of the stack pointer: a multiple of a slot, and on the stack.
    type At: Copy + PartialEq;

    /// The value `slots` slots higher, which may be beyond the stack.
    fn above(&self, at: Self::At, slots: u64) -> Self::At;

    /// The value of a frame pointer, if it is a multiple of a slot and on the
    /// stack, at the stack pointer or above.
    fn at_fp(&self, sp: Self::At, fp: u64) -> Option<Self::At>;

    /// The CFA, and the two words below it, of a frame whose frame pointer is where
    /// [`at_fp`](Self::at_fp) takes it: the caller's, and the return address.
    fn frame_record(&mut self, sp: Self::At, fp: u64) -> Option<(Self::At, [u64; 2])>;

    /// The return address just below a CFA, if that is on the stack.
    fn return_address(&mut self, cfa: Self::At) -> Option<u64>;

    /// What is saved `slots` slots below the return address, which was read.
    fn below_return_address(&mut self, cfa: Self::At, slots: u8) -> Option<u64>;

    /// The stack pointer's value.
    fn sp(&self, at: Self::At) -> u64;

    /// The number of the slot just below, of all that a stack pointer can reach.
    fn slot_below(&self, at: Self::At) -> u64;
}

/// A stack whose words are in memory, as a slice.
pub(crate) struct StackSlice<'m, W> {
    /// The stack pointer's value at the first word.
    start: u64,
    words: &'m [W],
}

/// A word of a stack in memory.
pub(crate) trait SliceWord {
    fn get(&self) -> u64;
}

impl SliceWord for [u8; 8] {
    #[inline]
    fn get(&self) -> u64 {
        u64::from_le_bytes(*self)
    }
}

impl SliceWord for AtomicU64 {
    #[inline]
    fn get(&self) -> u64 {
        u64::from_le(self.load(Ordering::Relaxed))
    }
}

/// The number of the word just below a value of the stack pointer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SlotIndex(usize);

impl<'m, W: SliceWord> StackSlice<'m, W> {
    /// The stack up to `stack_end` in words, the first of which is at `start`, and
    /// where `sp` is on it, if it is.
    #[inline]
    pub(crate) fn new(
        start: u64,
        words: &'m [W],
        sp: u64,
        stack_end: u64,
    ) -> Option<(Self, SlotIndex)> {
        let end = usize::try_from(stack_end.checked_sub(start)? >> 3).unwrap_or(usize::MAX);
        let words = words.get(..end.min(words.len()))?;
        let at = slots_between(start, sp).filter(|at| *at <= words.len())?;
        Some((Self { start, words }, SlotIndex(at.wrapping_sub(1))))
    }

    #[inline]
    fn get(&self, number: usize) -> Option<u64> {
        self.words.get(number).map(SliceWord::get)
    }
}

impl<W: SliceWord> Stack for StackSlice<'_, W> {
    type At = SlotIndex;

    #[inline]
    fn above(&self, SlotIndex(at): SlotIndex, slots: u64) -> SlotIndex {
        SlotIndex(at.wrapping_add(usize::try_from(slots).unwrap_or(usize::MAX)))
    }

    #[inline]
    fn at_fp(&self, sp: SlotIndex, fp: u64) -> Option<SlotIndex> {
        let slots = slots_between(self.sp(sp), fp).filter(|slots| *slots < self.words.len())?;
        Some(SlotIndex(sp.0.wrapping_add(slots)))
    }

    #[inline]
    fn frame_record(&mut self, sp: SlotIndex, fp: u64) -> Option<(SlotIndex, [u64; 2])> {
        let low = slots_between(self.start, fp)?;
        let cfa = SlotIndex(low.wrapping_add(1));
        let record = [self.get(low)?, self.get(cfa.0)?];
        // Less the word just below.
        (low >= sp.0.wrapping_add(1)).then_some((cfa, record))
    }

    #[inline]
    fn return_address(&mut self, SlotIndex(at): SlotIndex) -> Option<u64> {
        self.get(at)
    }

    #[inline]
    fn below_return_address(&mut self, SlotIndex(at): SlotIndex, slots: u8) -> Option<u64> {
        self.get(at.wrapping_sub(slots.into()))
    }

    #[inline]
    fn sp(&self, SlotIndex(at): SlotIndex) -> u64 {
        // Lossless, and what wraps is the number just below the first word.
        let above = u64::try_from(at.wrapping_add(1)).unwrap_or(u64::MAX);
        self.start.wrapping_add(above.wrapping_shl(3))
    }

    #[inline]
    fn slot_below(&self, SlotIndex(at): SlotIndex) -> u64 {
        // The first word is a whole number of slots below a stack pointer, which is a multiple.
        u64::try_from(at).unwrap_or(u64::MAX).wrapping_add(self.start >> 3)
    }
}

/// How many slots of eight bytes `to` is above `from`. More than any stack has if
/// it is below, or no multiple apart: what is left of the division goes to the
/// highest bits.
#[inline]
fn slots_between(from: u64, to: u64) -> Option<usize> {
    usize::try_from(to.wrapping_sub(from).rotate_right(3)).ok()
}

/// A stack that is read by its addresses.
pub(crate) struct Addresses<'m, A, M> {
    pub(crate) arch: &'m A,
    pub(crate) mem: &'m mut M,
    /// As [`highest_cfa`] says.
    pub(crate) stack_end: u64,
}

impl<A: Arch, M: Memory> Addresses<'_, A, M> {
    #[inline]
    fn get(&mut self, sp: u64) -> Option<u64> {
        self.mem.read_word(self.arch.stack_addr(sp), A::WORD).ok()
    }
}

impl<A: Arch, M: Memory> Stack for Addresses<'_, A, M> {
    type At = u64;

    #[inline]
    fn above(&self, at: u64, slots: u64) -> u64 {
        // Both are far below the end of the address space.
        at.wrapping_add(slots.wrapping_mul(A::WORD.bytes()))
    }

    #[inline]
    fn at_fp(&self, sp: u64, fp: u64) -> Option<u64> {
        // As above.
        let slots = fp.wrapping_sub(sp).rotate_right(A::WORD.bytes().trailing_zeros());
        (slots >> MAX_SLOTS_BITS == 0).then_some(fp)
    }

    #[inline]
    fn frame_record(&mut self, sp: u64, fp: u64) -> Option<(u64, [u64; 2])> {
        let cfa = self.above(self.at_fp(sp, fp)?, 2);
        if cfa > self.stack_end {
            return None;
        }
        let record = self.mem.read_pair(self.arch.stack_addr(fp), A::WORD).ok()?;
        Some((cfa, record))
    }

    #[inline]
    fn return_address(&mut self, cfa: u64) -> Option<u64> {
        if cfa > self.stack_end {
            return None;
        }
        // No slot is below the base, so nothing wraps.
        self.get(cfa.wrapping_sub(A::WORD.bytes()))
    }

    #[inline]
    fn below_return_address(&mut self, cfa: u64, slots: u8) -> Option<u64> {
        let below = u64::from(slots).wrapping_add(1).wrapping_mul(A::WORD.bytes());
        self.get(cfa.wrapping_sub(below))
    }

    #[inline]
    fn sp(&self, at: u64) -> u64 {
        at
    }

    #[inline]
    fn slot_below(&self, at: u64) -> u64 {
        A::WORD.slot_below(at)
    }
}

/// A frame pointer this many slots above the stack pointer is left to the full
/// step, as a power of two.
const MAX_SLOTS_BITS: u32 = 32;

/// The highest CFA that is stepped from and to, of those on a stack that ends at
/// `stack_end`: an offset can be added to it.
#[inline]
pub(crate) fn highest_cfa(word: WordSize, stack_end: Option<u64>) -> u64 {
    // Room for `MAX_SLOTS_BITS` and the offset of a row.
    let highest = word.max_value().min(u64::MAX << (MAX_SLOTS_BITS + 4));
    stack_end.map_or(highest, |end| end.min(highest))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::addr::VirtAddr;
    use crate::memory::SliceMemory;
    use crate::no_regs::Toy;

    #[test]
    fn the_slot_just_below_the_end_of_the_stack_is_read_and_the_one_above_is_not() {
        let bytes = [1_u64, 2, 3, 4].map(u64::to_le_bytes);
        let (start, stack_end) = (0x1000, 0x1018);
        let (mut words, base) = StackSlice::new(start, &bytes, start, stack_end).unwrap();
        let ends = [2, 3, 4].map(|slots| words.above(base, slots));
        assert_eq!(ends.map(|end| words.return_address(end)), [Some(2), Some(3), None]);

        let mem = &mut SliceMemory::new(VirtAddr::new(start), bytes.as_flattened());
        let mut addresses = Addresses { arch: &Toy, mem, stack_end };
        let ends = [2, 3, 4].map(|slots| addresses.above(start, slots));
        assert_eq!(ends.map(|end| addresses.return_address(end)), [Some(2), Some(3), None]);
    }

    #[test]
    fn a_frame_record_is_two_words_on_the_stack_at_the_stack_pointer_or_above() {
        let bytes = [1_u64, 2, 3, 4].map(u64::to_le_bytes);
        let (start, stack_end) = (0x1000, 0x1020);
        let (mut words, base) = StackSlice::new(start, &bytes, start + 8, stack_end).unwrap();
        let mem = &mut SliceMemory::new(VirtAddr::new(start), bytes.as_flattened());
        let mut addresses = Addresses { arch: &Toy, mem, stack_end };
        for (fp, record) in [
            (0x1000, None),
            (0x1008, Some((0x1018, [2, 3]))),
            (0x100c, None),
            (0x1010, Some((0x1020, [3, 4]))),
            (0x1018, None),
        ] {
            let found = words.frame_record(base, fp).map(|(cfa, record)| (words.sp(cfa), record));
            assert_eq!(found, record, "{fp:#x}");
            assert_eq!(addresses.frame_record(start + 8, fp), record, "{fp:#x}");
        }
    }

    #[test]
    fn words_that_others_may_write_to_are_those_of_a_copy() {
        let bytes = [1_u64, 2, 3, 4].map(u64::to_le_bytes);
        let shared = [1, 2, 3, 4].map(|word: u64| AtomicU64::new(word.to_le()));
        let (start, stack_end) = (0x1000, 0x1018);
        let (mut copy, at) = StackSlice::new(start, &bytes, start, stack_end).unwrap();
        let (mut words, same) = StackSlice::new(start, &shared, start, stack_end).unwrap();
        assert_eq!(at, same);
        for fp in [0x1000, 0x1008, 0x1010, 0x1018] {
            assert_eq!(words.frame_record(at, fp), copy.frame_record(at, fp), "{fp:#x}");
        }
        for slots in 1..5 {
            let cfa = copy.above(at, slots);
            assert_eq!(words.return_address(cfa), copy.return_address(cfa), "{slots}");
        }
    }

    #[test]
    fn steps_end_below_the_stacks_end_and_where_an_offset_can_still_be_added() {
        assert_eq!(highest_cfa(WordSize::Eight, None), 0xffff_fff0_0000_0000);
        assert_eq!(highest_cfa(WordSize::Four, None), 0xffff_ffff);
        assert_eq!(highest_cfa(WordSize::Eight, Some(0x7000)), 0x7000);
        assert_eq!(highest_cfa(WordSize::Eight, Some(u64::MAX)), 0xffff_fff0_0000_0000);
    }
}
