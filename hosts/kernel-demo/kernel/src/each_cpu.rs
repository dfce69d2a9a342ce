//! State of which each CPU has its own.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::cpu::{self, CPUS};

/// A value for each CPU.
pub(crate) struct EachCpu<T>(pub(crate) [T; CPUS]);

impl<T> EachCpu<T> {
    /// That of this CPU. What is kept of it over a sleep is another one's, perhaps.
    pub(crate) fn own(&self) -> &T {
        &self.0[cpu::number()]
    }

    /// That of another CPU.
    pub(crate) fn of(&self, cpu: usize) -> &T {
        &self.0[cpu]
    }

    /// Those of all CPUs, whether they are there or not.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }
}

static ONLINE: AtomicUsize = AtomicUsize::new(1);

/// How many CPUs run. Their numbers are below.
pub(crate) fn online() -> usize {
    ONLINE.load(Ordering::SeqCst)
}

/// Whether more than one runs: then the scenario is that of several CPUs.
pub(crate) fn are_several() -> bool {
    online() > 1
}

/// One more runs: that with the next number.
pub(crate) fn count_online() {
    ONLINE.fetch_add(1, Ordering::SeqCst);
}
