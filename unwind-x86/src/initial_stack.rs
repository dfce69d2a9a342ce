//! The stack that Linux starts a process with, known by what lies on it.
//!
//! At its lowest address is the number of arguments, above that their addresses and a zero, those
//! of the environment and a zero, and the auxiliary vector: pairs of a type and a value, up to one
//! of type zero (System V ABI for x86-64, "Process Initialization"; for i386 the same in words of
//! four bytes). A program is entered with its stack pointer there. Start-up code without a row
//! that says so has call frame information as if it had been called: what it takes for its return
//! address is the number of arguments.

use unwind_core::{Memory, VirtAddr, WordSize};

/// The types of the auxiliary vector that each process has: its program headers and its entry.
const REQUIRED: [u64; 2] = [3, 9];

/// Types are small numbers.
const TYPES_END: u64 = 1024;

/// The most arguments, of which each process has one since Linux 5.18, and the most words in all.
const MOST_ARGUMENTS: u64 = 4096;
const MOST_WORDS: u32 = 4096;

/// The most zeros for variables that a program has taken out, with the one at the end.
const MOST_ZEROS: u32 = 64;

/// Whether the stack of a process begins at `slot`.
#[inline(never)]
pub(crate) fn is_initial_stack<M: Memory>(slot: VirtAddr, word: WordSize, mem: &mut M) -> bool {
    let mut words = Words { next: Some(slot), left: MOST_WORDS, word, mem };
    find_vector(&mut words, slot).is_some_and(|first| has_required(first, &mut words))
}

/// Passes the arguments and the environment, and returns the first type of the vector.
fn find_vector<M: Memory>(words: &mut Words<'_, M>, slot: VirtAddr) -> Option<u64> {
    // Where memory is all zeroes this ends at once.
    let arguments = words.read().filter(|count| *count != 0 && *count < MOST_ARGUMENTS)?;
    words.skip(arguments)?;
    if words.read()? != 0 {
        return None;
    }
    // A program may have taken variables out, so that there are zeros among the addresses. All of
    // them are of strings above.
    let mut zeros = MOST_ZEROS;
    loop {
        match words.read()? {
            0 => zeros = zeros.checked_sub(1)?,
            first if first < TYPES_END => return Some(first),
            address if address > slot.get() => {}
            _ => return None,
        }
    }
}

/// Whether the vector has the types that each process has. What comes after them is not looked at: a walk of start-up
/// code without a row asks for this each time.
fn has_required<M: Memory>(first: u64, words: &mut Words<'_, M>) -> bool {
    let mut missing = REQUIRED.map(Some);
    let mut next = Some(first);
    while let Some(kind) = next.filter(|kind| *kind != 0 && *kind < TYPES_END) {
        missing = missing.map(|it| it.filter(|required| *required != kind));
        if missing.iter().all(Option::is_none) {
            return true;
        }
        // After its value.
        next = words.skip(1).and_then(|()| words.read());
    }
    false
}

/// The words from an address on, of which a number is read at most.
struct Words<'m, M> {
    next: Option<VirtAddr>,
    left: u32,
    word: WordSize,
    mem: &'m mut M,
}

impl<M: Memory> Words<'_, M> {
    #[inline(never)]
    fn read(&mut self) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        let at = self.next?;
        self.next = at.checked_add(self.word.bytes());
        self.mem.read_word(at, self.word).ok()
    }

    fn skip(&mut self, count: u64) -> Option<()> {
        let bytes = count.checked_mul(self.word.bytes())?;
        self.next = self.next?.checked_add(bytes);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::arithmetic_side_effects, reason = "tests")]

    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;
    use unwind_core::SliceMemory;

    use super::*;

    const SLOT: u64 = 0x7000_0000;

    fn is_initial(words: &[u64], word: WordSize) -> bool {
        let bytes: Vec<u8> = match word {
            WordSize::Eight => words.iter().flat_map(|word| word.to_le_bytes()).collect(),
            WordSize::Four => {
                words.iter().flat_map(|&word| u32::try_from(word).unwrap().to_le_bytes()).collect()
            }
        };
        let mut mem = SliceMemory::new(VirtAddr::new(SLOT), &bytes);
        is_initial_stack(VirtAddr::new(SLOT), word, &mut mem)
    }

    /// Two arguments, one of which the program has cleared, three variables of the environment, of
    /// which the second was taken out, and a vector.
    const WHOLE: [u64; 17] = {
        let string = SLOT + 0x1000;
        let (phdr, entry) = (3, 9);
        [2, string, 0, 0, string, 0, string, 0, 33, 0x1000, phdr, 64, entry, 0x40_1000, 0, 0, 0]
    };

    #[test]
    fn u11_the_stack_of_a_process_that_starts_is_known_as_a_whole() {
        for word in [WordSize::Four, WordSize::Eight] {
            assert!(is_initial(&WHOLE, word));
            // Each of what makes it one.
            for (at, other) in
                [(0, 5000), (0, 3), (3, 1), (6, SLOT), (10, 4), (12, 10), (12, 3), (8, 1025)]
            {
                let mut words = WHOLE;
                words[at] = other;
                assert!(!is_initial(&words, word), "{at}: {other}");
            }
            // Up to the last type that is required.
            for len in 0..13 {
                assert!(!is_initial(&WHOLE[..len], word), "cut after {len}");
            }
        }
    }

    /// Memory with a word at the slot and another one everywhere else, and how often it was read.
    struct Filled {
        first: u64,
        rest: u64,
        reads: u32,
    }

    impl Memory for Filled {
        fn read(&mut self, at: VirtAddr, buf: &mut [u8]) -> Result<(), unwind_core::ReadError> {
            self.reads += 1;
            let word = if at.get() == SLOT { self.first } else { self.rest };
            buf.copy_from_slice(&word.to_le_bytes()[..buf.len()]);
            Ok(())
        }
    }

    /// Whether the stack of a process begins in such memory, and how many reads tell that.
    fn is_initial_in(first: u64, rest: u64) -> (bool, u32) {
        let mut mem = Filled { first, rest, reads: 0 };
        (is_initial_stack(VirtAddr::new(SLOT), WordSize::Eight, &mut mem), mem.reads)
    }

    /// A walk in a signal handler may take a system call for each read.
    #[test]
    fn u11_zeros_are_looked_at_in_few_reads() {
        assert_eq!(is_initial_in(0, 0), (false, 1));
        assert_eq!(is_initial_in(1, 0), (false, 3 + MOST_ZEROS));
        // Of two variables one was taken out.
        for more in [MOST_ZEROS - 2, MOST_ZEROS - 1] {
            let mut words = WHOLE.to_vec();
            words.splice(5..5, vec![0; more.try_into().unwrap()]);
            assert_eq!(is_initial(&words, WordSize::Eight), more < MOST_ZEROS - 1);
        }
    }

    proptest! {
        /// The stack of this process is looked at in a bounded number of reads, whatever is there.
        #[test]
        fn u11_any_words_are_looked_at_in_a_bounded_number_of_reads(word in any::<u64>()) {
            for word in [word, 0, 1, u64::MAX] {
                let (is_initial, reads) = is_initial_in(word, word);
                prop_assert!(!is_initial && reads <= MOST_WORDS);
            }
        }
    }
}
