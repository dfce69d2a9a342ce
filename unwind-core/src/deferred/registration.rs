//! The numbers of registrations.

use crate::sync::Statistic;
use crate::sync::{AtomicU64, Ordering, const_unless_loom};

/// How many numbers an instance takes at a time.
const SERIES_BITS: u32 = 10;
/// An id has room for numbers up to here.
const END: u64 = 1 << 58;

/// How many series were taken, by all instances: the one thing that they
/// share. It only tells numbers apart, and nothing is ordered by it.
static SERIES: Statistic = Statistic::new(0);

/// The numbers that an instance gives to registrations: they rise, and no other
/// instance has one of them.
///
/// An instance takes a series of 1,024 numbers with its first registration, and
/// another one when that is used up. There are 2⁴⁸ series: enough for nine years
/// of a million new instances a second.
pub(crate) struct Registrations(AtomicU64);

impl Registrations {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            Self(AtomicU64::new(0))
        }
    }

    /// The next number, or `None` if all are used up. Whoever sees it in
    /// [`newest`](Self::newest) sees what was done before.
    pub(crate) fn next(&self) -> Option<u64> {
        let mut series = None;
        let mut newest = self.0.load(Ordering::Relaxed);
        loop {
            let number = match newest.wrapping_add(1) {
                next if newest != 0 && next >> SERIES_BITS == newest >> SERIES_BITS => next,
                _ => *series.get_or_insert_with(take_series),
            };
            if number >= END {
                return None;
            }
            // An exchange, so that whoever sees a later number sees this one's
            // past, too.
            let (taken, failed) = (Ordering::Release, Ordering::Relaxed);
            match self.0.compare_exchange(newest, number, taken, failed) {
                Ok(_) => return Some(number),
                Err(now) => newest = now,
            }
        }
    }

    /// The newest number, or zero if there is none.
    #[inline]
    pub(crate) fn newest(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Tells the instance from others: the series that it is at. It gets
    /// another one after 1,024 registrations, which no instance had before.
    pub(crate) fn series(&self) -> Series {
        Series(self.0.load(Ordering::Relaxed) >> SERIES_BITS)
    }
}

/// The first number of a series that nobody has.
fn take_series() -> u64 {
    let taken = SERIES.fetch_add(1, Ordering::Relaxed);
    taken.saturating_add(1).checked_mul(1 << SERIES_BITS).unwrap_or(END)
}

/// A series of numbers, of one instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Series(u64);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn b2_b10_the_numbers_of_two_instances_rise_and_are_never_the_same() {
        let instances = [Registrations::new(), Registrations::new()];
        let mut last = [0; 2];
        for _ in 0..5_000 {
            for (instance, last) in instances.iter().zip(&mut last) {
                let number = instance.next().unwrap();
                assert!(number > *last && instance.newest() == number);
                *last = number;
            }
            let [one, other] = &instances;
            assert_ne!(one.series(), other.series());
        }
    }

    #[test]
    fn an_instance_that_would_need_a_number_twice_gets_none() {
        let instance = Registrations(AtomicU64::new(END - 2));
        assert_eq!(instance.next(), Some(END - 1));
        // The last series is used up; there are lower ones, but none above.
        assert_ne!(instance.next(), Some(END));
    }
}
