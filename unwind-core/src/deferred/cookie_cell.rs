//! What a task keeps to make its cookies from.

use core::num::NonZeroU64;

use super::word::Version;
use super::{Cookie, CookieSource};
use crate::sync::{AtomicU64, Ordering, atomics, const_unless_loom};

/// The bits of a cookie in which a task counts the entries that have the same
/// number.
const ENTRIES: u64 = 0xffff;

/// The cookie of the entry that a task is in, or zero if its number is still to
/// be fetched.
///
/// Entries use the two cells in turn. Before an entry begins its cell gets the
/// cookie that follows the last one, or zero; from then on zero is the only
/// value that is replaced. Someone who still looks for the number of the entry
/// before the last one may find zero there and fill it; then this entry has
/// that number, which no other entry has. A time may be too early then, by
/// as much as that request was held up.
#[derive(Debug)]
pub(crate) struct CookieCell([AtomicU64; 2]);

impl CookieCell {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            Self(atomics![AtomicU64::new(0); 2])
        }
    }

    /// The cookie of the entry, if its number was fetched. Right if the task
    /// still is in the entry afterwards.
    #[inline]
    pub(crate) fn get(&self, entry: Version) -> Option<Cookie> {
        Cookie::new(self.of(entry).load(Ordering::Acquire))
    }

    /// The cookie of the entry, with the number `fresh` unless someone else has
    /// stored one first. Whoever gets it then exchanges the task's word,
    /// which orders this, and fails if the entry is over.
    #[inline]
    pub(crate) fn store(&self, entry: Version, fresh: NonZeroU64) -> Option<Cookie> {
        let (stored, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        match self.of(entry).compare_exchange(0, fresh.get(), stored, failed) {
            Ok(_) => Cookie::new(fresh.get()),
            Err(chosen) => Cookie::new(chosen),
        }
    }

    /// Makes the cell of the entry that comes next ready, before it begins.
    pub(crate) fn prepare<C: CookieSource>(&self, entry: Version, next: Version) {
        let cookie = self.get(entry);
        // Whoever still looks for the cookie of the entry before, in the same
        // cell, and finds this one, sees that that entry is over.
        self.of(next).store(cookie.map_or(0, Self::after::<C>), Ordering::Release);
    }

    /// The cookie that follows in the next entry, or zero if a number has to be
    /// fetched.
    const fn after<C: CookieSource>(cookie: Cookie) -> u64 {
        let next = cookie.get().wrapping_add(1);
        let same_number = next & ENTRIES != 0;
        if C::KEPT && same_number { next } else { 0 }
    }

    #[inline]
    fn of(&self, entry: Version) -> &AtomicU64 {
        let [even, odd] = &self.0;
        if entry.is_odd() { odd } else { even }
    }
}
