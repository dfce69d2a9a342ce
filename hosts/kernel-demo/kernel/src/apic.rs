//! Interrupt controllers: the timer tick, the sampling NMI, and interrupts of
//! the CPU to itself.

use crate::cpu;
use crate::descriptors::{VECTOR_FLUSH, VECTOR_RETURN_WORK, VECTOR_SPURIOUS, VECTOR_TIMER};

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
const DELIVER_INIT: u32 = 5 << 8;
const DELIVER_START: u32 = 6 << 8;
const PENDING: u32 = 1 << 12;
const ASSERT: u32 = 1 << 14;
const PERIODIC: u32 = 1 << 17;
const MASKED: u32 = 1 << 16;

fn write_local(register: u64, value: u32) {
    // SAFETY: a register of the local APIC; none of those written here makes it
    // write to memory.
    unsafe { ((LOCAL + register) as *mut u32).write_volatile(value) }
}

fn read_local(register: u64) -> u32 {
    // SAFETY: a register of the local APIC, which does not change when it is read.
    unsafe { ((LOCAL + register) as *const u32).read_volatile() }
}

fn write_io(register: u32, value: u32) {
    // SAFETY: the I/O APIC's index register.
    unsafe { (IO as *mut u32).write_volatile(register) }
    // SAFETY: its data register.
    unsafe { ((IO + 0x10) as *mut u32).write_volatile(value) }
}

/// The target of an interrupt that goes to each CPU.
const ALL: u8 = 0xff;

/// The I/O APIC's input that the interval timer is wired to.
const INTERVAL_TIMER_PIN: u32 = 2;

/// Masks the old interrupt controllers. Once.
pub(crate) fn prepare() {
    for port in [0x21, 0xa1] {
        // SAFETY: masks all inputs of the old interrupt controllers.
        unsafe { cpu::write_port(port, 0xff) }
    }
}

/// Lets this CPU's interrupts in.
pub(crate) fn enable() {
    write_local(SPURIOUS, 0x100 | VECTOR_SPURIOUS as u32);
}

/// Starts this CPU's timer tick, with `clocks` bus clocks a tick.
pub(crate) fn start_tick(clocks: u32) {
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
    // To all CPUs; if there is one, to that.
    write_io(0x10 + 2 * INTERVAL_TIMER_PIN + 1, u32::from(ALL) << 24);
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
    send(cpu::number(), DELIVER_NMI);
}

/// Has another CPU look at what has changed in memory.
pub(crate) fn send_flush(to: usize) {
    send(to, VECTOR_FLUSH as u32);
}

/// Starts another CPU, in real mode, at the first byte of a page.
pub(crate) fn start_cpu(number: usize, page: u8) {
    send(number, DELIVER_INIT);
    wait_a_moment();
    for _ in 0..2 {
        send(number, DELIVER_START | u32::from(page));
        wait_a_moment();
    }
}

/// What a CPU needs to come out of its reset.
fn wait_a_moment() {
    let start = cpu::clock();
    while cpu::clock().wrapping_sub(start) < 1_000_000 {
        core::hint::spin_loop();
    }
}

/// Sends an interrupt. Two registers are written, between which none but an NMI may come.
fn send(to: usize, what: u32) {
    let interrupts = cpu::disable_interrupts();
    while read_local(COMMAND) & PENDING != 0 {
        core::hint::spin_loop();
    }
    write_local(COMMAND_TARGET, (to as u32) << 24);
    write_local(COMMAND, what | ASSERT);
    cpu::restore_interrupts(interrupts);
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
