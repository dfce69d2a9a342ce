//! Room for events of one CPU.

use super::place::{Generation, Place};
use crate::sync::{AtomicU32, AtomicU64, Statistic, atomics, const_unless_loom};

/// Room for `EVENTS` events: those of one CPU, or more of them once its own list is full.
#[derive(Debug)]
#[repr(align(64))]
pub struct CpuList<const EVENTS: usize> {
    places: [Place; EVENTS],
    /// The generation of the event that was added last, to this list or one that
    /// continues it.
    pub(super) added: AtomicU64,
    /// The list that continues this one: one more than its index; zero for none.
    pub(super) next: AtomicU32,
    pub(super) no_event: Statistic,
    pub(super) output_failed: Statistic,
    pub(super) stale_requests: Statistic,
}

impl<const EVENTS: usize> CpuList<EVENTS> {
    const_unless_loom! {
        /// A list without events.
        #[must_use]
        pub fn new() -> Self {
            Self {
                places: atomics![Place::new(); EVENTS],
                added: AtomicU64::new(Generation::NONE.0),
                next: AtomicU32::new(0),
                no_event: Statistic::new(),
                output_failed: Statistic::new(),
                stale_requests: Statistic::new(),
            }
        }
    }

    pub(super) const fn places(&self) -> &[Place; EVENTS] {
        &self.places
    }
}

impl<const EVENTS: usize> Default for CpuList<EVENTS> {
    fn default() -> Self {
        Self::new()
    }
}
