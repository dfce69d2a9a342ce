//! Counts that no decision depends on.

use core::sync::atomic::{AtomicU64, Ordering};

/// A count that no decision depends on, so no model has to see its accesses.
#[derive(Debug)]
pub struct Statistic(AtomicU64);

impl Statistic {
    /// Zero.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Counts one more.
    pub fn count(&self) {
        self.add(1);
    }

    /// Counts `number` more.
    pub fn add(&self, number: u64) {
        #[cfg(all(test, not(loom)))]
        test_support::interrupt::count_exchange();
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    /// Counts one more by a load and a store: what another thread counts at the same
    /// time may be lost.
    pub fn count_without_exchange(&self) {
        self.0.store(self.get().wrapping_add(1), Ordering::Relaxed);
    }

    /// The count.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Default for Statistic {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_of_counting_adds_to_the_same_number() {
        let statistic = Statistic::default();
        statistic.count();
        statistic.add(5);
        statistic.count_without_exchange();
        assert_eq!(statistic.get(), 7);
    }
}
