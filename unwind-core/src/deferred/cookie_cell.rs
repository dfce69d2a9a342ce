//! What a task keeps to make its cookies from.

use core::num::NonZeroU64;

use super::word::Entry;
use super::{Cookie, CookieSource};
use crate::sync::{AtomicU64, Ordering, atomics, const_unless_loom};

/// The number that was fetched for the block of entries that a task is in, or
/// zero.
///
/// Blocks use the two cells in turn. A block begins with an empty cell: it is
/// emptied when the block before is entered, whose own cell is the other one.
/// Someone who still looks for the number of an earlier block finds an empty
/// cell and may fill it; then the next block but one has that number.
#[derive(Debug)]
pub(crate) struct CookieCell([AtomicU64; 2]);

impl CookieCell {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            Self(atomics![AtomicU64::new(0); 2])
        }
    }

    /// The cookie of `entry`, if its number was fetched.
    #[inline]
    pub(crate) fn get<C: CookieSource>(&self, entry: Entry) -> Option<Cookie> {
        let number = NonZeroU64::new(self.of::<C>(entry).load(Ordering::Acquire))?;
        Self::cookie::<C>(number.get(), entry)
    }

    /// The cookie of `entry`, in which someone has asked, so that its number
    /// was fetched. Right if the task still is in it afterwards.
    #[inline]
    pub(crate) fn get_fetched<C: CookieSource>(&self, entry: Entry) -> Option<Cookie> {
        Self::cookie::<C>(self.of::<C>(entry).load(Ordering::Acquire), entry)
    }

    /// The cookie of `entry`, with the number `fresh` unless someone else has
    /// stored one first.
    pub(crate) fn store<C: CookieSource>(&self, entry: Entry, fresh: NonZeroU64) -> Option<Cookie> {
        let (stored, failed) = (Ordering::AcqRel, Ordering::Acquire);
        let cell = self.of::<C>(entry);
        match cell.compare_exchange(0, fresh.get(), stored, failed) {
            Ok(_) => Self::cookie::<C>(fresh.get(), entry),
            Err(chosen) => Self::cookie::<C>(chosen, entry),
        }
    }

    /// Goes from one entry to the next.
    pub(crate) fn advance<C: CookieSource>(&self, entry: Entry, next: Entry) {
        let old = self.of::<C>(entry);
        if !core::ptr::eq(old, self.of::<C>(next)) {
            old.store(0, Ordering::Release);
        }
    }

    #[inline]
    fn of<C: CookieSource>(&self, entry: Entry) -> &AtomicU64 {
        let [first, second] = &self.0;
        let use_second = if C::KEPT { entry.is_upper() } else { entry.is_odd() };
        if use_second { second } else { first }
    }

    #[inline]
    fn cookie<C: CookieSource>(number: u64, entry: Entry) -> Option<Cookie> {
        Cookie::new(if C::KEPT { number | entry.number() } else { number })
    }
}
