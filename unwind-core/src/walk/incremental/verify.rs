//! Whether words of the stack are as they were.

use super::words::{StackWord, Words};
use crate::arch::Arch;
use crate::memory::Memory;
use crate::register::WordSize;

/// How many words are compared at a time.
const GROUP: usize = 4;

/// How many of the last words, which lie above `sp`, fast steps would read again with the
/// same values. Each is read once, the outermost first: of another stack that one mostly
/// differs, and then no frame before it leads on as it did.
#[inline]
pub(crate) fn verify<A: Arch, M: Memory>(kept: Words<'_>, sp: u64, arch: &A, mem: &mut M) -> usize {
    let mut count = 0;
    let linear = arch.stack_addr(sp);
    let stack = if A::WORD == WordSize::Eight { mem.words(linear) } else { None };
    if let Some((start, stack)) = stack {
        // Of the register, which may be an offset in a segment.
        let start = start.get().wrapping_sub(linear.get()).wrapping_add(sp);
        if start & 7 == 0 {
            count = verify_in_slice(kept.0, start >> 3, stack);
        }
    }
    if count == kept.len() {
        return count;
    }
    // A word that is not in the slice may be readable all the same.
    let left = kept.len().saturating_sub(count);
    count.wrapping_add(verify_by_reading(kept.first(left), arch, mem))
}

/// The same by words in a slice, whose first is at the slot `start`.
#[inline(never)]
fn verify_in_slice(kept: &[StackWord], start: u64, stack: &[[u8; 8]]) -> usize {
    // What differs, `None` if the word is not in the slice.
    let differ = |word: &StackWord| {
        let at = usize::try_from(word.slot.wrapping_sub(start)).unwrap_or(usize::MAX);
        Some(u64::from_le_bytes(*stack.get(at)?) ^ word.value)
    };
    // The words do not depend on each other, so one branch for a group is enough.
    let is_same = |group: &[StackWord]| {
        let [a, b, c, d] = group.first_chunk::<GROUP>()?;
        Some(differ(a)? | differ(b)? | differ(c)? | differ(d)?)
    };
    let groups = kept.rchunks_exact(GROUP);
    let count = groups.take_while(|group| is_same(group) == Some(0)).count();
    let count = count.wrapping_mul(GROUP);
    let rest = kept.get(..kept.len().saturating_sub(count)).unwrap_or_default();
    count.wrapping_add(rest.iter().rev().take_while(|word| differ(word) == Some(0)).count())
}

/// The same by reading word by word.
#[inline(never)]
fn verify_by_reading<A: Arch, M: Memory>(kept: Words<'_>, arch: &A, mem: &mut M) -> usize {
    let mut is_same = |word: &StackWord| {
        let addr = arch.stack_addr(word.addr(A::WORD));
        mem.read_word(addr, A::WORD) == Ok(word.value)
    };
    kept.0.iter().rev().take_while(|word| !word.tag.is_other() && is_same(word)).count()
}

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
    use crate::addr::VirtAddr;
    use crate::memory::SliceMemory;
    use crate::no_regs::Toy;
    use crate::origin::Origin;
    use crate::row::Row;
    use crate::rule::{CfaRule, RegRule};
    use crate::trace::Provenance;
    use crate::walk::fast::compact_row::CompactRow;
    use crate::walk::fast::fast_path::Caller;
    use crate::walk::incremental::words::FrameRecord;

    const START: u64 = 0x1000;
    /// How many words of the stack a frame takes, the last of which is the
    /// return address.
    const WORDS: usize = 4;
    /// In place of where the frame pointer is: another step led to the frame.
    const OTHER: u8 = 255;

    /// The words of frames to which steps of these kinds led, and their stack.
    fn stack(kinds: &[u8]) -> (Vec<StackWord>, Vec<u64>) {
        let stack: Vec<u64> = (0x40..).step_by(2).take(kinds.len() * WORDS).collect();
        let mut kept = Vec::new();
        for (number, &fp_slots) in kinds.iter().enumerate() {
            let ra_at = number * WORDS + WORDS - 1;
            let fp = stack[ra_at - usize::from(fp_slots).min(3)];
            let sp = START + 8 * u64::try_from(ra_at + 1).unwrap_or(0);
            let pc = VirtAddr::new(stack[ra_at]);
            if fp_slots == OTHER {
                let provenance = Provenance::of_row(Origin::Table, false);
                let frame = FrameRecord { pc: pc.get(), sp, fp, provenance };
                kept.extend(frame.placeholders(WordSize::Eight));
                continue;
            }
            let saved = match fp_slots {
                0 => RegRule::SameValue,
                slots => RegRule::Offset(-8 - 8 * i32::from(slots)),
            };
            let row = Row::new(CfaRule::sp(32), RegRule::Offset(-8), saved);
            let row = CompactRow::new(&row, WordSize::Eight).unwrap();
            let caller = Caller { pc, slot: WordSize::Eight.slot_below(sp), fp, row };
            kept.extend(StackWord::saved_fp(caller));
            kept.push(StackWord::return_address(caller));
        }
        (kept, stack)
    }

    /// How many words are as they were, by either way.
    fn verified(kept: &[StackWord], stack: &[u64]) -> [usize; 2] {
        let stack: Vec<[u8; 8]> = stack.iter().map(|word| word.to_le_bytes()).collect();
        let in_slice = verify_in_slice(kept, START >> 3, &stack);
        let mut mem = SliceMemory::new(VirtAddr::new(START), stack.as_flattened());
        [in_slice, verify_by_reading(Words(kept), &Toy, &mut mem)]
    }

    #[test]
    fn words_at_hand_tell_as_much_as_words_that_are_read() {
        const KINDS: [u8; 4] = [0, 1, 2, OTHER];
        for number in 0..4_usize.pow(5) {
            let kinds = [0, 2, 4, 6, 8].map(|bit| KINDS[number >> bit & 3]);
            let (kept, words) = stack(&kinds);
            // Of a frame to which another step led, the return address is above the other word.
            let is_of_step = |word: &&StackWord| !word.tag.is_other();
            let whole = kept.iter().rev().take_while(is_of_step).count();
            assert_eq!(verified(&kept, &words), [whole; 2], "{kinds:?}");
            // Where each word was read, in words of the stack.
            let places: Vec<_> =
                kept.iter().map(|word| word.slot.wrapping_sub(START >> 3)).collect();
            let after = |is_other: &dyn Fn(usize) -> bool| {
                let is_same = |place: &&u64| usize::try_from(**place).is_ok_and(|at| !is_other(at));
                places.iter().rev().take(whole).take_while(is_same).count()
            };
            for cut in 0..words.len() {
                let expected = after(&|at| at >= cut);
                assert_eq!(verified(&kept, &words[..cut]), [expected; 2], "{kinds:?}");
            }
            for one in 0..words.len() {
                // The same bit in another one, too, or in it alone: nothing makes
                // up for it.
                for other in one..words.len() {
                    let mut words = words.clone();
                    words[one] |= 1;
                    words[other] |= 1;
                    let expected = after(&|at| at == one || at == other);
                    let found = verified(&kept, &words);
                    assert_eq!(found, [expected; 2], "{kinds:?}, {one}, {other}");
                }
            }
        }
    }

    #[test]
    fn a_stack_at_another_address_is_another() {
        let (kept, words) = stack(&[0, 1, 2, 0, 1]);
        let bytes: Vec<[u8; 8]> = words.iter().map(|word| word.to_le_bytes()).collect();
        for (start, whole) in [(START, kept.len()), (START + 8, 0), (START - 8, 0), (START + 4, 0)]
        {
            let mut mem = SliceMemory::new(VirtAddr::new(start), bytes.as_flattened());
            assert_eq!(verify(Words(&kept), START, &Toy, &mut mem), whole, "{start:#x}");
        }
        assert_eq!(verify_in_slice(&kept, 0, &bytes), 0);
        assert_eq!(verify_in_slice(&kept, u64::MAX, &bytes), 0);
    }
}
