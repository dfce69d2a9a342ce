//! The memory of a ring, which the other side accesses at the same time.

use super::error::RingError;
use crate::sync::{AtomicU64, Ordering};

/// Bytes of a word.
const WORD: u64 = 8;

/// A ring of words. Positions are in bytes and need not be inside the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingWords<'m> {
    words: &'m [AtomicU64],
}

impl<'m> RingWords<'m> {
    /// # Errors
    ///
    /// [`RingError::BadLength`] if the number of words is not a power of two.
    pub(super) const fn new(words: &'m [AtomicU64]) -> Result<Self, RingError> {
        if !words.len().is_power_of_two() {
            return Err(RingError::BadLength { words: words.len() });
        }
        Ok(Self { words })
    }

    /// Its length in bytes.
    pub(super) fn size(self) -> u64 {
        u64::try_from(self.words.len()).unwrap_or(u64::MAX).saturating_mul(WORD)
    }

    /// The index of the word that holds a position.
    fn index(self, at: u64) -> usize {
        let index = (at / WORD) & (self.size() / WORD).wrapping_sub(1);
        usize::try_from(index).unwrap_or(usize::MAX)
    }

    /// The word that holds a position.
    pub(super) fn load(self, at: u64) -> u64 {
        self.words.get(self.index(at)).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Writes the word that holds a position.
    pub(super) fn store(self, at: u64, value: u64) {
        if let Some(word) = self.words.get(self.index(at)) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Copies bytes from a position on, each word once. What `out` has more than the ring
    /// is left as it is.
    pub(super) fn copy(self, at: u64, out: &mut [u8]) {
        let skipped = usize::try_from(at % WORD).unwrap_or(0);
        let (head, rest) = match skipped {
            0 => (&mut [][..], out),
            _ => out.split_at_mut(out.len().min(size_of::<u64>().saturating_sub(skipped))),
        };
        if !head.is_empty() {
            let bytes = self.load(at).to_ne_bytes();
            head.iter_mut().zip(bytes.iter().skip(skipped)).for_each(|(to, &from)| *to = from);
        }
        let start = self.index(at.wrapping_add(u64::try_from(head.len()).unwrap_or(0)));
        let (before, after) = self.words.split_at_checked(start).unwrap_or_default();
        let first = rest.len().min(after.len().saturating_mul(size_of::<u64>()));
        let (now, later) = rest.split_at_mut(first);
        copy_words(after, now);
        copy_words(before, later);
    }
}

fn copy_words(words: &[AtomicU64], out: &mut [u8]) {
    let mut words = words.iter();
    let mut whole = out.chunks_exact_mut(size_of::<u64>());
    for (out, word) in whole.by_ref().zip(&mut words) {
        out.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    let rest = whole.into_remainder();
    if let Some(word) = words.next().filter(|_| !rest.is_empty()) {
        let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        rest.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn bytes_are_copied_from_any_position_and_around_the_end() {
        let bytes: Vec<u8> = (0..64).collect();
        let words: Vec<AtomicU64> = bytes
            .chunks(8)
            .map(|word| AtomicU64::new(u64::from_ne_bytes(word.try_into().unwrap())))
            .collect();
        let ring = RingWords::new(&words).unwrap();
        for at in [0, 3, 8, 61, 64, 127, u64::MAX - 6] {
            for len in 0..=56 {
                let mut out = [0xff; 64];
                ring.copy(at, &mut out[..len]);
                for (place, &byte) in (0_u64..).zip(&out[..len]) {
                    assert_eq!(u64::from(byte), at.wrapping_add(place) % 64, "{at} {len}");
                }
                assert!(out[len..].iter().all(|&byte| byte == 0xff), "{at} {len}");
            }
        }
    }

    #[test]
    fn a_length_that_is_no_power_of_two_is_refused() {
        let words: Vec<AtomicU64> = (0..9).map(AtomicU64::new).collect();
        for len in 0..=9 {
            let refused = RingWords::new(&words[..len]).is_err();
            assert_eq!(refused, ![1, 2, 4, 8].contains(&len), "{len}");
        }
    }
}
