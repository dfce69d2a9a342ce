//! Words that are put in a place and taken out of it while others read them without waiting.
//!
//! A version says what a slot has. Who puts or takes changes it before and after, so that a
//! reader who finds the same one before and after it has read has words that belong together.

use super::sync::{AtomicU64, Ordering, fence};

/// Nothing.
const EMPTY: u64 = 0;
/// Someone puts words in, or takes them out.
const CHANGING: u64 = 1;
/// Words.
const FULL: u64 = 2;

/// The bits of a version that say what; the others count.
const WHAT: u64 = 3;
const NEXT: u64 = 4;

/// A place for `N` words.
pub(crate) struct Slot<const N: usize> {
    version: AtomicU64,
    words: [AtomicU64; N],
}

impl<const N: usize> Slot<N> {
    /// An empty one, if all are zero.
    pub(crate) const fn new(version: AtomicU64, words: [AtomicU64; N]) -> Self {
        Self { version, words }
    }

    /// Puts words in; the version, if it was empty.
    pub(crate) fn put(&self, words: [u64; N]) -> Option<u64> {
        let old = self.version.load(Ordering::Relaxed);
        if old & WHAT != EMPTY || !self.claim(old) {
            return None;
        }
        let version = old | FULL;
        self.change(words, version);
        Some(version)
    }

    /// Takes out what was put with this version; `false` if it has been taken already.
    pub(crate) fn take(&self, version: u64) -> bool {
        if version & WHAT != FULL || !self.claim(version) {
            return false;
        }
        self.change([0; N], (version & !WHAT).wrapping_add(NEXT) | EMPTY);
        true
    }

    /// The words, unless there are none or they change meanwhile.
    #[inline]
    pub(crate) fn read(&self) -> Option<[u64; N]> {
        let before = self.version.load(Ordering::Acquire);
        if before & WHAT != FULL {
            return None;
        }
        let words = self.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (self.version.load(Ordering::Relaxed) == before).then_some(words)
    }

    fn claim(&self, old: u64) -> bool {
        let new = old & !WHAT | CHANGING;
        let claimed = self.version.compare_exchange(old, new, Ordering::Acquire, Ordering::Relaxed);
        claimed.is_ok()
    }

    fn change(&self, words: [u64; N], version: u64) {
        // A reader that finds one of the words finds the version changing, too.
        fence(Ordering::Release);
        for (to, word) in self.words.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        self.version.store(version, Ordering::Release);
    }
}
