//! User stacks that an engine hands out later than their samples, in the words of a deferred call chain.
//!
//! Beside addresses the kernel's record has nothing. An engine that walks stacks by tables says more: why
//! there are no more frames, or that the stack is yet to be walked. Such words are between the engine and
//! the walks; no file has them.

use unwind_perf::record::Endian;

use crate::recording::end_name::name_of_end;

/// A user stack, as an engine hands it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToldStack<'a> {
    /// Its frames, the innermost first, and why there are no more if it is not complete.
    Walked(&'a [u64], Option<&'static str>),
    /// The same of a stack with frames of an interpreter's evaluator, and what these execute.
    Calling(ToldCalls<'a>, &'a [u64], Option<&'static str>),
    /// A sample with registers and a copy of the stack: its bytes, in words.
    Copied(&'a [u64]),
}

/// Calls of an interpreter, in words: for each frame that executes some its place and how many, then the number of
/// the code and the line of each, the innermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToldCalls<'a> {
    words: &'a [u64],
    /// Each is at its frame, and none is missing.
    pub(crate) is_complete: bool,
}

impl<'a> ToldCalls<'a> {
    /// The place of each frame, and its calls.
    pub(crate) fn runs(
        &self,
    ) -> impl Iterator<Item = (u32, impl Iterator<Item = (u32, u32)> + 'a)> {
        let mut rest = self.words;
        std::iter::from_fn(move || {
            let (&head, after) = rest.split_first()?;
            let (place, count) = halves(head);
            let (calls, after) = after.split_at_checked(usize::try_from(count).ok()?)?;
            rest = after;
            Some((place, calls.iter().map(|&call| halves(call))))
        })
    }
}

/// A word of two numbers.
pub(crate) fn word_of(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn halves(word: u64) -> (u32, u32) {
    let half = |word: u64| u32::try_from(word & 0xffff_ffff).unwrap_or(0);
    (half(word >> 32), half(word))
}

/// The first word of each kind, in the low byte of which a reason is, and in the next one the code of an end. No address
/// of user code has these bits.
const WALKED: u64 = 0xeb1d_0000_0000_0000;
const COPIED: u64 = 0xeb1d_0001_0000_0000;
/// The next word has how many words of calls come first, and whether they are complete.
const CALLING: u64 = 0xeb1d_0002_0000_0000;
const REASON: u64 = 0xffff;

/// Why a stack is not complete that an engine has walked.
pub(crate) const REASONS: [&str; 9] = [
    "frame-limit",
    "stack-not-resident",
    "executed-another",
    "thread-ended",
    "no-room",
    "no-row",
    "no-memory",
    "gap",
    "table-awaited",
];

impl<'a> ToldStack<'a> {
    /// The stack in the words of a chain. `None` if they are of another kind, such as the kernel's.
    pub(crate) fn of(words: &'a [u64]) -> Option<Self> {
        let (&first, rest) = words.split_first()?;
        let [reason, end, ..] = first.to_le_bytes();
        let reason = usize::from(reason).checked_sub(1);
        let reason = reason.and_then(|at| REASONS.get(at).copied());
        let reason = reason.or_else(|| (end != 0).then(|| name_of_end(end)));
        match first & !REASON {
            WALKED => Some(Self::Walked(rest, reason)),
            CALLING => {
                let (&head, rest) = rest.split_first()?;
                let (is_complete, count) = halves(head);
                let (words, pcs) = rest.split_at_checked(usize::try_from(count).ok()?)?;
                let calls = ToldCalls { words, is_complete: is_complete != 0 };
                Some(Self::Calling(calls, pcs, reason))
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

    /// The first words of one with calls, and these.
    pub(crate) fn calling(reason: Option<&str>, calls: &[u64], is_complete: bool) -> Vec<u64> {
        let count = u32::try_from(calls.len()).unwrap_or(u32::MAX);
        let first = Self::walked(reason) & REASON | CALLING;
        let heads = [first, word_of(is_complete.into(), count)];
        heads.into_iter().chain(calls.iter().copied()).collect()
    }

    /// The first word of a stack whose walk ended by this [code](unwind_core::End::code), not at the outermost frame.
    pub(crate) const fn ended(code: u8) -> u64 {
        WALKED | u64::from_le_bytes([0, code, 0, 0, 0, 0, 0, 0])
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
        let calls = [word_of(3, 2), word_of(7, 10), word_of(8, 0), word_of(9, 1), word_of(7, 11)];
        for is_complete in [true, false] {
            let mut words = ToldStack::calling(Some("no-row"), &calls, is_complete);
            words.push(0x1000);
            let told = ToldStack::of(&words);
            let Some(ToldStack::Calling(calls, [0x1000], Some("no-row"))) = told else {
                panic!("{told:?}")
            };
            assert_eq!(calls.is_complete, is_complete);
            let runs: Vec<_> =
                calls.runs().map(|(place, calls)| (place, calls.collect::<Vec<_>>())).collect();
            assert_eq!(runs, [(3, vec![(7, 10), (8, 0)]), (9, vec![(7, 11)])]);
            // More than there is.
            assert_eq!(ToldStack::of(&words[..4]), None);
        }
        let words = [ToldStack::ended(37), 0x1000];
        let walked = ToldStack::Walked(&words[1..], Some("non-canonical"));
        assert_eq!(ToldStack::of(&words), Some(walked));
        let words = ToldStack::copied(&[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(ToldStack::of(&words), Some(ToldStack::Copied(&words[1..])));
        assert_eq!(ToldStack::bytes(&words[1..]), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(ToldStack::of(&[0x1000]), None);
        assert_eq!(ToldStack::of(&[]), None);
    }
}
