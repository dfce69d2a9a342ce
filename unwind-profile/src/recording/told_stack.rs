//! User stacks that an engine hands out later than their samples, in the words of a deferred call chain.
//!
//! Beside addresses the kernel's record has nothing. An engine that walks stacks by tables says more: why
//! there are no more frames, or that the stack is yet to be walked. Such words are between the engine and
//! the walks; no file has them.

use unwind_perf::record::Endian;
use unwind_target::interpreters::sampled::Others;

use crate::recording::end_name::name_of_end;

/// A user stack, as an engine hands it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToldStack<'a> {
    /// Its frames, the innermost first, and why there are no more if it is not complete.
    Walked(&'a [u64], Option<&'static str>),
    /// The same of a stack with frames of an interpreter's evaluator, and what these execute.
    Calling(ToldCalls<'a>, &'a [u64], Option<&'static str>),
    /// A sample with registers and a copy of the stack: its bytes, in words. And the calls of frames that may be on it,
    /// if calls are read.
    Copied(&'a [u64], Option<ToldCalls<'a>>),
}

/// Calls of an interpreter, in words: for each frame that may execute some which that is, and how many, then the number
/// of the code and the line of each, the innermost first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ToldCalls<'a> {
    words: &'a [u64],
    /// Each is at its frame, and none is missing.
    pub(crate) is_complete: bool,
}

/// A frame that may execute calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToldFrame {
    /// Its place on the stack as that was walked where the calls were read.
    pub(crate) place: u32,
    pub(crate) pc: u64,
    pub(crate) cfa: u64,
    /// Whether there are other calls of it.
    pub(crate) others: Others,
    /// Where its code starts, and ends, if it is in no file; else zeros.
    pub(crate) code: [u64; 2],
}

impl<'a> ToldCalls<'a> {
    /// Those of these words, which may not be all.
    pub(crate) const fn of(words: &'a [u64]) -> Self {
        Self { words, is_complete: false }
    }

    /// Their words.
    pub(crate) const fn words(self) -> &'a [u64] {
        self.words
    }

    /// Above the count, what of others there may be.
    const INLINED: u32 = 1 << 30;
    const UNKNOWN: u32 = 1 << 31;

    /// Each frame, and its calls.
    pub(crate) fn runs(
        &self,
    ) -> impl Iterator<Item = (ToldFrame, impl ExactSizeIterator<Item = (u32, u32)> + 'a)> {
        let mut rest = self.words;
        std::iter::from_fn(move || {
            let (&[head, pc, cfa, start, end], after) = rest.split_first_chunk()?;
            let (place, count) = halves(head);
            let others = match (count & Self::UNKNOWN, count & Self::INLINED) {
                (0, 0) => Others::None,
                (0, _) => Others::Inlined,
                _ => Others::Unknown,
            };
            let count = usize::try_from(count & !(Self::UNKNOWN | Self::INLINED)).ok()?;
            let (calls, after) = after.split_at_checked(count)?;
            rest = after;
            let frame = ToldFrame { place, pc, cfa, others, code: [start, end] };
            Some((frame, calls.iter().map(|&call| halves(call))))
        })
    }

    /// The words of a frame, and of its calls.
    pub(crate) fn words_of(frame: ToldFrame, calls: &[(u32, u32)]) -> impl Iterator<Item = u64> {
        let flag = match frame.others {
            Others::None => 0,
            Others::Inlined => Self::INLINED,
            Others::Unknown => Self::UNKNOWN,
        };
        let count = u32::try_from(calls.len()).unwrap_or(0) | flag;
        let [start, end] = frame.code;
        let head = [word_of(frame.place, count), frame.pc, frame.cfa, start, end];
        head.into_iter().chain(calls.iter().map(|&(code, line)| word_of(code, line)))
    }
}

/// A word of two numbers.
fn word_of(high: u32, low: u32) -> u64 {
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
/// In place of a number of words: no calls are read.
const NO_CALLS: u64 = u64::MAX;

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
            COPIED => {
                let (&head, rest) = rest.split_first()?;
                if head == NO_CALLS {
                    return Some(Self::Copied(rest, None));
                }
                let (words, copy) = rest.split_at_checked(usize::try_from(head).ok()?)?;
                Some(Self::Copied(copy, Some(ToldCalls::of(words))))
            }
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

    /// The words of a copy: those of a sample, whose length is a multiple of eight, and the calls, if calls are read.
    pub(crate) fn copied(sample: &[u8], calls: Option<&[u64]>) -> Vec<u64> {
        let (words, _) = sample.as_chunks();
        let words = words.iter().map(|&word| Endian::NATIVE.u64(word));
        let count = calls.and_then(|calls| u64::try_from(calls.len()).ok());
        let heads = [COPIED, count.unwrap_or(NO_CALLS)];
        heads.into_iter().chain(calls.into_iter().flatten().copied()).chain(words).collect()
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
        let frame = |place, others| ToldFrame {
            place,
            pc: 0x1000,
            cfa: 0x2000,
            others,
            code: [0x900, 0x1100],
        };
        let expected = [
            (frame(3, Others::None), vec![(7, 10), (8, 0)]),
            (frame(9, Others::Inlined), vec![(7, 11)]),
            (frame(11, Others::Unknown), vec![]),
        ];
        let words = |(frame, calls): &(ToldFrame, Vec<_>)| -> Vec<u64> {
            ToldCalls::words_of(*frame, calls).collect()
        };
        let calls: Vec<u64> = expected.iter().flat_map(words).collect();
        for is_complete in [true, false] {
            let mut words = ToldStack::calling(Some("no-row"), &calls, is_complete);
            words.push(0x1000);
            let told = ToldStack::of(&words);
            let Some(ToldStack::Calling(calls, [0x1000], Some("no-row"))) = told else {
                panic!("{told:?}")
            };
            assert_eq!(calls.is_complete, is_complete);
            let runs: Vec<_> =
                calls.runs().map(|(frame, calls)| (frame, calls.collect::<Vec<_>>())).collect();
            assert_eq!(runs, expected);
            // More than there is.
            assert_eq!(ToldStack::of(&words[..4]), None);
        }
        let words = [ToldStack::ended(37), 0x1000];
        let walked = ToldStack::Walked(&words[1..], Some("non-canonical"));
        assert_eq!(ToldStack::of(&words), Some(walked));
        let words = ToldStack::copied(&[1, 2, 3, 4, 5, 6, 7, 8], Some(&calls));
        let told = ToldStack::of(&words);
        let Some(ToldStack::Copied(copy, of_copy)) = told else { panic!("{told:?}") };
        assert_eq!(of_copy.unwrap().runs().count(), 3);
        assert_eq!(ToldStack::bytes(copy), [1, 2, 3, 4, 5, 6, 7, 8]);
        let words = ToldStack::copied(&[1, 2, 3, 4, 5, 6, 7, 8], None);
        assert_eq!(ToldStack::of(&words), Some(ToldStack::Copied(copy, None)));
        assert_eq!(ToldStack::of(&[0x1000]), None);
        assert_eq!(ToldStack::of(&[]), None);
    }
}
