//! Time in which each CPU has passed a point where it is in the middle of nothing.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::cpu::CPUS;
use crate::each_cpu::{EachCpu, online};

static TICKS: EachCpu<AtomicU64> = EachCpu([const { AtomicU64::new(0) }; CPUS]);

/// A tick of this CPU: it has left all code that has interrupts off, and all NMIs.
pub(crate) fn tick() {
    TICKS.own().fetch_add(1, Ordering::SeqCst);
}

/// A moment.
pub(crate) struct Moment([u64; CPUS]);

impl Moment {
    pub(crate) fn now() -> Self {
        let mut ticks = [0; CPUS];
        for (at, own) in ticks.iter_mut().zip(TICKS.iter()) {
            *at = own.load(Ordering::SeqCst);
        }
        Self(ticks)
    }

    /// Whether all that any CPU did then with interrupts off, or in an NMI, is done.
    pub(crate) fn has_passed(&self) -> bool {
        let ticked = |(then, now): (&u64, &AtomicU64)| now.load(Ordering::SeqCst) != *then;
        self.0.iter().zip(TICKS.iter()).take(online()).all(ticked)
    }
}
