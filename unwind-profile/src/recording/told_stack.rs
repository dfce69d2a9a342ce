//! User stacks that an engine hands out later than their samples, in the words of a deferred call chain.
//!
//! Beside addresses the kernel's record has nothing. An engine that walks stacks by tables says more: why
//! there are no more frames, or that the stack is yet to be walked. Such words are between the engine and
//! the walks; no file has them.

use unwind_perf::record::Endian;

/// A user stack, as an engine hands it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToldStack<'a> {
    /// Its frames, the innermost first, and why there are no more if it is not complete.
    Walked(&'a [u64], Option<&'static str>),
    /// A sample with registers and a copy of the stack: its bytes, in words.
    Copied(&'a [u64]),
}

/// The first word of each kind, in the low byte of which a reason is. No address of user code has these bits.
const WALKED: u64 = 0xeb1d_0000_0000_0000;
const COPIED: u64 = 0xeb1d_0001_0000_0000;
const REASON: u64 = 0xff;

/// Why a stack is not complete that an engine has walked.
pub(crate) const REASONS: [&str; 6] =
    ["frame-limit", "stack-not-resident", "executed-another", "thread-ended", "no-room", "no-row"];

impl<'a> ToldStack<'a> {
    /// The stack in the words of a chain. `None` if they are of another kind, such as the kernel's.
    pub(crate) fn of(words: &'a [u64]) -> Option<Self> {
        let (&first, rest) = words.split_first()?;
        match first & !REASON {
            WALKED => {
                let reason = usize::try_from(first & REASON).ok()?.checked_sub(1);
                let reason = reason.and_then(|at| REASONS.get(at).copied());
                Some(Self::Walked(rest, reason))
            }
            COPIED => Some(Self::Copied(rest)),
            _ => None,
        }
    }

    /// The first word of a stack that was walked.
    pub(crate) fn walked(reason: Option<&str>) -> u64 {
        let place = reason.and_then(|reason| REASONS.iter().position(|&known| known == reason));
        let number = place.map_or(0, |place| place.saturating_add(1));
        WALKED | u64::try_from(number).unwrap_or(0)
    }

    /// The words of a copy: those of a sample, whose length is a multiple of eight.
    pub(crate) fn copied(sample: &[u8]) -> Vec<u64> {
        let (words, _) = sample.as_chunks();
        let words = words.iter().map(|&word| Endian::NATIVE.u64(word));
        std::iter::once(COPIED).chain(words).collect()
    }

    /// The bytes of a sample in words.
    pub(crate) fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|&word| Endian::NATIVE.bytes_of_u64(word)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_engine_says_of_a_stack_is_read_as_it_was_written() {
        for reason in REASONS.map(Some).into_iter().chain([None]) {
            let words = [ToldStack::walked(reason), 0x1000, 0x2000];
            assert_eq!(ToldStack::of(&words), Some(ToldStack::Walked(&words[1..], reason)));
        }
        let words = ToldStack::copied(&[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(ToldStack::of(&words), Some(ToldStack::Copied(&words[1..])));
        assert_eq!(ToldStack::bytes(&words[1..]), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(ToldStack::of(&[0x1000]), None);
        assert_eq!(ToldStack::of(&[]), None);
    }
}
