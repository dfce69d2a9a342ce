//! The CPU's counter of user instructions, simulated by the trap after each: QEMU has none.
//!
//! When it has counted as many as its period says, its NMI comes with the next instruction.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::cpu::CPUS;
use crate::each_cpu::EachCpu;
use crate::{cpu, options};

struct Counter {
    /// Instructions up to the next overflow.
    left: AtomicU64,
    overflowed: AtomicBool,
    counted: AtomicU64,
}

static COUNTERS: EachCpu<Counter> = EachCpu(
    [const {
        Counter {
            left: AtomicU64::new(1),
            overflowed: AtomicBool::new(false),
            counted: AtomicU64::new(0),
        }
    }; CPUS],
);

static ON: AtomicBool = AtomicBool::new(false);

/// Lets all counters count, or none.
pub(crate) fn switch(on: bool) {
    ON.store(on, Ordering::Relaxed);
}

/// Whether user code is counted.
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// An instruction of user code is done.
pub(crate) fn count() {
    let counter = COUNTERS.own();
    let counted = counter.counted.fetch_add(1, Ordering::Relaxed);
    let left = counter.left.load(Ordering::Relaxed) - 1;
    if left != 0 {
        return counter.left.store(left, Ordering::Relaxed);
    }
    // Not always the same: loops have periods, too.
    let period = options::get().period;
    let spread = counted.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    counter.left.store(period + spread % period.max(1), Ordering::Relaxed);
    counter.overflowed.store(true, Ordering::Relaxed);
    cpu::set_nmi_due();
}

/// Whether it is the counter that an NMI is about. In NMIs.
pub(crate) fn take_overflow() -> bool {
    COUNTERS.own().overflowed.swap(false, Ordering::Relaxed)
}

/// How many instructions were counted in all.
pub(crate) fn counted() -> u64 {
    COUNTERS.iter().map(|counter| counter.counted.load(Ordering::Relaxed)).sum()
}
