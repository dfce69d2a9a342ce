//! The numbers of registrations.

use crate::sync::{AtomicU64, Ordering, const_unless_loom, counter};

/// How many numbers an instance takes at a time.
const SERIES_BITS: u32 = 10;
/// An id has room for numbers up to here.
const END: u64 = 1 << 58;

counter! {
    /// How many series were taken, by all instances: the one thing that they
    /// share. It only tells numbers apart, and nothing is ordered by it.
    static SERIES: AtomicU64 = 0;
}

/// The numbers that an instance gives to registrations: they rise, and no other
/// instance has one of them.
///
/// An instance takes a series of 1,024 numbers with its first registration, and
/// another one when that is used up. There are 2⁴⁸ series: enough for nine years
/// of a million new instances a second.
pub(crate) struct Registrations {
    newest: AtomicU64,
    /// The first series, or zero before the first registration.
    instance: AtomicU64,
}

impl Registrations {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            // Whoever is the first to use it orders all others after itself.
            #[cfg(loom)]
            let _ = &*SERIES;
            Self { newest: AtomicU64::new(0), instance: AtomicU64::new(0) }
        }
    }

    /// The next number, or `None` if all are used up. Whoever sees it in
    /// [`newest`](Self::newest) sees what was done before.
    pub(crate) fn next(&self) -> Option<u64> {
        let mut series = None;
        let mut newest = self.newest.load(Ordering::Relaxed);
        loop {
            let number = match newest.wrapping_add(1) {
                next if newest != 0 && next >> SERIES_BITS == newest >> SERIES_BITS => next,
                // Others may have taken later series meanwhile, and used them up.
                _ => match series {
                    Some(number) if number > newest => number,
                    _ => *series.insert(self.take_series()),
                },
            };
            if number >= END || number <= newest {
                return None;
            }
            // An exchange, so that a thread that sees a later number sees this one's
            // past, too.
            let (taken, failed) = (Ordering::Release, Ordering::Relaxed);
            match self.newest.compare_exchange(newest, number, taken, failed) {
                Ok(_) => return Some(number),
                Err(now) => newest = now,
            }
        }
    }

    /// The newest number, or zero if there is none.
    #[inline]
    pub(crate) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// Tells the instance from others, from its first registration on: the
    /// first series that it took. Later series do not change it, so that the
    /// stack of an entry stays that entry's while clients register.
    pub(crate) fn instance(&self) -> InstanceId {
        InstanceId(self.instance.load(Ordering::Relaxed))
    }

    /// The first number of a series that no instance has.
    ///
    /// The exchange that publishes a number of the series also publishes which
    /// instance this is.
    fn take_series(&self) -> u64 {
        let series = SERIES.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        // Of two registrations that are the first, one names the instance.
        let _ = self.instance.compare_exchange(0, series, Ordering::Relaxed, Ordering::Relaxed);
        series.checked_mul(1 << SERIES_BITS).unwrap_or(END)
    }
}

/// One of all instances that have had a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct InstanceId(u64);

impl InstanceId {
    /// Of an instance that has had no client.
    pub(crate) const NONE: Self = Self(0);
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn b2_b10_the_numbers_of_two_instances_rise_and_are_never_the_same() {
        let instances = [Registrations::new(), Registrations::new()];
        let mut last = [0; 2];
        let mut names = [InstanceId(0); 2];
        for turn in 0..5_000 {
            for (instance, last) in instances.iter().zip(&mut last) {
                let number = instance.next().unwrap();
                assert!(number > *last && instance.newest() == number);
                *last = number;
            }
            if turn == 0 {
                names = instances.each_ref().map(Registrations::instance);
                assert_ne!(names[0], names[1]);
            }
            assert_eq!(instances.each_ref().map(Registrations::instance), names);
        }
    }

    #[test]
    fn an_instance_that_would_need_a_number_twice_gets_none() {
        let instance = Registrations::new();
        instance.newest.store(END - 2, Ordering::Relaxed);
        assert_eq!(instance.next(), Some(END - 1));
        // The last series is used up; there are lower ones, but none above.
        assert_eq!(instance.next(), None);
    }

    #[test]
    fn threads_that_meet_take_different_numbers() {
        for _ in 0..50 {
            let instance = Registrations::new();
            let numbers = std::thread::scope(|scope| {
                let take = || (0..2_000).map(|_| instance.next().unwrap()).collect::<Vec<_>>();
                let threads = [(); 3].map(|()| scope.spawn(take));
                threads.map(|thread| thread.join().unwrap())
            });
            let rises = |numbers: &Vec<u64>| numbers.is_sorted_by(|a, b| a < b);
            assert!(numbers.iter().all(rises));
            let mut all = numbers.concat();
            all.sort_unstable();
            assert!(rises(&all), "a number came twice");
        }
    }
}
