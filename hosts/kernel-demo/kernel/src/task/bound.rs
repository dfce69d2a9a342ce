//! What a task has of the events that are bound to it.

use core::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use unwind_perf::per_cpu::{CpuEvent, SwitchHold, TaskEvent};

use crate::cpu::CPUS;
use crate::exclusive::Exclusive;

/// The events that are bound to a task.
pub(crate) struct Bound {
    /// Those about it, one for each CPU; none if no one follows it.
    pub(crate) of_cpus: Exclusive<ArrayVec<CpuEvent, CPUS>>,
    pub(crate) is_followed: AtomicBool,
    /// Its own, and whether that is there.
    pub(crate) own: TaskEvent,
    pub(crate) has_own: AtomicBool,
    pub(crate) hold: SwitchHold,
    pub(crate) work_is_due: AtomicBool,
}

impl Bound {
    pub(crate) const fn new() -> Self {
        Self {
            of_cpus: Exclusive::new(ArrayVec::new_const()),
            is_followed: AtomicBool::new(false),
            own: TaskEvent::new(),
            has_own: AtomicBool::new(false),
            hold: SwitchHold::new(),
            work_is_due: AtomicBool::new(false),
        }
    }

    /// Whether a profiler follows the task.
    pub(crate) fn is_followed(&self) -> bool {
        self.is_followed.load(Ordering::Relaxed)
    }

    /// Whether it has an event of its own.
    pub(crate) fn has_own(&self) -> bool {
        self.has_own.load(Ordering::Relaxed)
    }

    /// Whether its own event has work before it goes back to user mode.
    pub(crate) fn work_is_due(&self) -> bool {
        self.work_is_due.load(Ordering::Relaxed)
    }
}
