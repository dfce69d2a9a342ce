//! Pages that are taken away while other CPUs may use them.
//!
//! A CPU keeps translations of addresses, and an NMI may be reading a page that its
//! tables led to. Both end where the CPU takes an interrupt. So each CPU is interrupted,
//! and a page is freed when all have answered.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::cpu::CPUS;
use crate::each_cpu::{EachCpu, online};
use crate::options::Protection;
use crate::{apic, cpu};

/// The number of the last flush that a CPU was asked for, and of that which it has made.
struct Flushes {
    asked: AtomicU64,
    made: AtomicU64,
}

static FLUSHES: EachCpu<Flushes> =
    EachCpu([const { Flushes { asked: AtomicU64::new(0), made: AtomicU64::new(0) } }; CPUS]);

/// How often another CPU had to be waited for.
pub(crate) static WAITS: AtomicU64 = AtomicU64::new(0);

/// When this returns, no CPU has a translation from before it was called, and no NMI runs
/// that did then. Not in NMIs.
pub(crate) fn flush_everywhere() {
    static LAST: AtomicU64 = AtomicU64::new(0);
    cpu::flush_all();
    if !Protection::Shootdown.is_on() {
        return;
    }
    let number = LAST.fetch_add(1, Ordering::SeqCst) + 1;
    let own = cpu::number();
    let others = (0..online()).filter(|&other| other != own);
    for other in others.clone() {
        FLUSHES.of(other).asked.fetch_max(number, Ordering::SeqCst);
        apic::send_flush(other);
    }
    for other in others {
        WAITS.fetch_add(1, Ordering::Relaxed);
        while FLUSHES.of(other).made.load(Ordering::Acquire) < number {
            // It may wait for this CPU, with interrupts off.
            answer();
            core::hint::spin_loop();
        }
    }
}

/// Makes the flushes that other CPUs have asked this one for. Not in NMIs.
pub(crate) fn answer() {
    let flushes = FLUSHES.own();
    let asked = flushes.asked.load(Ordering::SeqCst);
    if flushes.made.load(Ordering::Relaxed) < asked {
        cpu::flush_all();
        flushes.made.fetch_max(asked, Ordering::Release);
    }
}
