//! The time by the clocks of the kernel.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// What a clock says, in nanoseconds; `None` before its zero, or too long after it.
#[must_use]
pub fn nanoseconds(clock: ClockId) -> Option<u64> {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    let seconds = u64::try_from(tv_sec).ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(u64::try_from(tv_nsec).ok()?)
}
