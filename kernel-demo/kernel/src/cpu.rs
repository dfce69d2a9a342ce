//! The instructions that Rust has no words for.

use core::arch::asm;

/// Writes a byte to an I/O port.
///
/// # Safety
///
/// The device at that port must not be told to write to memory that is in use.
pub(crate) unsafe fn write_port(port: u16, value: u8) {
    // SAFETY: of the instruction itself, nothing; of the device, the caller's.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack)) }
}

/// Reads a byte from an I/O port.
pub(crate) fn read_port(port: u16) -> u8 {
    let value;
    // SAFETY: no device of this machine changes memory when it is read.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack)) }
    value
}

/// Ends the machine: QEMU exits with status `code << 1 | 1`.
pub(crate) fn exit_machine(code: u32) -> ! {
    // SAFETY: port 0xf4 is QEMU's exit device.
    unsafe { asm!("out dx, eax", in("dx") 0xf4_u16, in("eax") code, options(nomem, nostack)) }
    loop {
        wait_for_interrupt();
    }
}

/// Time stamp counter: the clock of this kernel.
pub(crate) fn clock() -> u64 {
    // SAFETY: the instruction reads a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Whether interrupts were on.
#[derive(Clone, Copy)]
pub(crate) struct Interrupts(bool);

const FLAG_INTERRUPTS: u64 = 1 << 9;

fn flags() -> u64 {
    let flags;
    // SAFETY: pushes and pops one word.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags, options(preserves_flags)) }
    flags
}

pub(crate) fn disable_interrupts() -> Interrupts {
    let were_on = flags() & FLAG_INTERRUPTS != 0;
    // SAFETY: what runs between here and `restore_interrupts` runs undisturbed.
    // Not `nomem`: memory accesses stay on their side of it.
    unsafe { asm!("cli", options(nostack)) }
    Interrupts(were_on)
}

pub(crate) fn restore_interrupts(interrupts: Interrupts) {
    if interrupts.0 {
        enable_interrupts();
    }
}

pub(crate) fn enable_interrupts() {
    // SAFETY: the interrupt table and the stacks are set up before the first
    // call. Not `nomem`: memory accesses stay on their side of it.
    unsafe { asm!("sti", options(nostack)) }
}

/// Stops until the next interrupt. They are on afterwards.
pub(crate) fn wait_for_interrupt() {
    // SAFETY: as `enable_interrupts`. Between the two nothing can come.
    unsafe { asm!("sti", "hlt", options(nostack)) }
}

/// The address that the last page fault was about.
pub(crate) fn fault_address() -> u64 {
    let addr;
    // SAFETY: reading cr2 has no effect.
    unsafe { asm!("mov {}, cr2", out(reg) addr, options(nomem, nostack, preserves_flags)) }
    addr
}

/// Selects the page tables whose root is at the physical address `root`.
///
/// # Safety
///
/// They must map the kernel as all others do.
pub(crate) unsafe fn set_page_tables(root: u64) {
    // SAFETY: the kernel stays mapped, says the caller. Not `nomem`: what user
    // addresses mean changes here.
    unsafe { asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) }
}

/// Forgets the translation of one page.
pub(crate) fn flush_page(addr: u64) {
    // SAFETY: a translation that is still right is found again.
    unsafe { asm!("invlpg [{}]", in(reg) addr, options(nostack, preserves_flags)) }
}

/// Writes a model-specific register.
///
/// # Safety
///
/// As its description in the CPU's manual says.
pub(crate) unsafe fn write_msr(register: u32, value: u64) {
    let (low, high) = (value as u32, (value >> 32) as u32);
    // SAFETY: the caller's.
    unsafe { asm!("wrmsr", in("ecx") register, in("eax") low, in("edx") high, options(nostack)) }
}
