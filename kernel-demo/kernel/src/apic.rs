//! Interrupt controllers: the timer tick, the sampling NMI, and interrupts of
//! the CPU to itself.

use crate::cpu;
use crate::descriptors::{VECTOR_RETURN_WORK, VECTOR_SPURIOUS, VECTOR_TIMER};

/// The local APIC, where the boot page tables put it.
const LOCAL: u64 = 0xffff_ffff_fee0_0000;
/// The I/O APIC.
const IO: u64 = 0xffff_ffff_fec0_0000;

/// Registers of the local APIC, by offset.
const END_OF_INTERRUPT: u64 = 0xb0;
const SPURIOUS: u64 = 0xf0;
const COMMAND: u64 = 0x300;
const COMMAND_TARGET: u64 = 0x310;
const TIMER: u64 = 0x320;
const TIMER_START: u64 = 0x380;
const TIMER_DIVIDER: u64 = 0x3e0;

const DELIVER_NMI: u32 = 4 << 8;
const ASSERT: u32 = 1 << 14;
const PERIODIC: u32 = 1 << 17;
const MASKED: u32 = 1 << 16;

fn write_local(register: u64, value: u32) {
    // SAFETY: a register of the local APIC; none of those written here makes it
    // write to memory.
    unsafe { ((LOCAL + register) as *mut u32).write_volatile(value) }
}

fn write_io(register: u32, value: u32) {
    // SAFETY: the I/O APIC's index register.
    unsafe { (IO as *mut u32).write_volatile(register) }
    // SAFETY: its data register.
    unsafe { ((IO + 0x10) as *mut u32).write_volatile(value) }
}

/// The I/O APIC's input that the interval timer is wired to.
const INTERVAL_TIMER_PIN: u32 = 2;

/// Starts the timer tick, with `clocks` bus clocks a tick.
pub(crate) fn start_tick(clocks: u32) {
    for port in [0x21, 0xa1] {
        // SAFETY: masks all inputs of the old interrupt controllers.
        unsafe { cpu::write_port(port, 0xff) }
    }
    write_local(SPURIOUS, 0x100 | VECTOR_SPURIOUS as u32);
    write_local(TIMER_DIVIDER, 0xb);
    write_local(TIMER, PERIODIC | VECTOR_TIMER as u32);
    write_local(TIMER_START, clocks);
}

/// Starts the sampling NMI: the interval timer by way of the I/O APIC, which
/// can deliver as NMI, so that also code with interrupts off is sampled. A
/// kernel with a PMU has the counter's interrupt delivered so.
pub(crate) fn start_sampling(hertz: u32) {
    const INPUT_HERTZ: u32 = 1_193_182;
    let divisor = (INPUT_HERTZ / hertz) as u16;
    write_io(0x10 + 2 * INTERVAL_TIMER_PIN + 1, 0);
    write_io(0x10 + 2 * INTERVAL_TIMER_PIN, DELIVER_NMI);
    let [low, high] = divisor.to_le_bytes();
    for (port, value) in [(0x43, 0x34), (0x40, low), (0x40, high)] {
        // SAFETY: channel 0 of the interval timer.
        unsafe { cpu::write_port(port, value) }
    }
}

/// Stops the sampling NMI.
pub(crate) fn stop_sampling() {
    write_io(0x10 + 2 * INTERVAL_TIMER_PIN, MASKED);
}

/// Sends this CPU an NMI.
pub(crate) fn send_nmi() {
    write_local(COMMAND_TARGET, 0);
    write_local(COMMAND, DELIVER_NMI | ASSERT);
}

/// Sends this CPU the interrupt that leads a task through its way out of the
/// kernel once more. Any context.
pub(crate) fn send_return_work() {
    const SELF: u32 = 1 << 18;
    write_local(COMMAND, SELF | ASSERT | VECTOR_RETURN_WORK as u32);
}

/// Ends the handling of an interrupt.
pub(crate) fn end_of_interrupt() {
    write_local(END_OF_INTERRUPT, 0);
}
