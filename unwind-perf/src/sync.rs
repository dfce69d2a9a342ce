//! The atomics of the crate: those of `unwind-core`, in its unit tests those that an NMI of
//! a model can interrupt before each access.

pub(crate) use unwind_core::sync::{Ordering, Statistic, atomics, const_unless_loom, counter};

#[cfg(any(loom, not(test)))]
pub(crate) use unwind_core::sync::{AtomicU32, AtomicU64, fence};

#[cfg(all(test, not(loom)))]
pub(crate) use test_support::interruptible::{AtomicU32, AtomicU64, fence};
