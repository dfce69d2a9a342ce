//! Work on a task whose queue a test sees.

use std::cell::Cell;

use unwind_core::deferred::{Cookie, Refusal, ScheduleError};
use unwind_perf::per_cpu::*;

/// The cookie of the task's entry.
pub(crate) const COOKIE: Cookie = Cookie::new(0x1_0001).unwrap();

/// Work of an event on its task.
#[derive(Default)]
pub(crate) struct Work {
    pub(crate) queued: Cell<u32>,
    pub(crate) unqueued: Cell<u32>,
    pub(crate) current: Cell<bool>,
    pub(crate) fails: Cell<bool>,
}

impl TaskWork for Work {
    fn cookie(&self) -> Result<Cookie, Refusal> {
        Ok(COOKIE)
    }

    fn queue(&self) -> Result<(), ScheduleError> {
        if self.fails.get() {
            return Err(ScheduleError);
        }
        self.queued.set(self.queued.get() + 1);
        Ok(())
    }

    fn unqueue(&self) {
        self.unqueued.set(self.unqueued.get() + 1);
    }

    fn is_current(&self) -> bool {
        self.current.get()
    }

    fn relax(&self) {
        std::thread::yield_now();
    }
}
