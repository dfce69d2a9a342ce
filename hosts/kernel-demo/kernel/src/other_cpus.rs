//! The start of the other CPUs.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::cpu::CPUS;
use crate::each_cpu::{count_online, online};
use crate::task::{schedule, state};
use crate::{apic, conductor, descriptors, memory};

/// The page at which they start: boot.s knows it too.
const TRAMPOLINE: u8 = 8;

/// The stack of the CPU that starts next, for boot.s.
#[unsafe(no_mangle)]
static next_cpu_stack: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" {
    static trampoline_start: [u8; 0];
    static trampoline_end: [u8; 0];
}

/// Starts CPUs until there are `count`, one after the other.
pub(crate) fn start(count: usize) {
    let (start, end) = (&raw const trampoline_start, &raw const trampoline_end);
    // SAFETY: boot.s has its code between these two.
    let code = unsafe { core::slice::from_raw_parts(start.cast(), end as usize - start as usize) };
    memory::write_low_page(TRAMPOLINE, code);
    for number in 1..count.min(CPUS) {
        next_cpu_stack.store(state::idle_stack(number), Ordering::SeqCst);
        apic::start_cpu(number, TRAMPOLINE);
        while online() == number {
            core::hint::spin_loop();
        }
    }
}

/// Called by boot.s on each of them.
#[unsafe(no_mangle)]
extern "C" fn next_cpu_main() -> ! {
    descriptors::load(online());
    apic::enable();
    count_online();
    apic::start_tick(conductor::TICK);
    schedule::start()
}
