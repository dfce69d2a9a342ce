//! The instructions that Rust has no words for.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

/// How many CPUs there are at most.
pub(crate) const CPUS: usize = 8;

/// 512 bytes, as `fxsave64` writes them.
const EXTENDED_STATE_WORDS: usize = 64;

/// The block of a CPU, to which gs leads while the kernel runs. entry.s knows where
/// its fields are.
#[repr(C, align(16))]
struct Block {
    number: AtomicU64,
    /// Where the stack of the running task begins.
    kernel_stack_top: AtomicU64,
    /// The user's stack pointer, in the first instructions of a system call.
    user_rsp: AtomicU64,
    /// Whether an NMI is to come with the next user instruction.
    nmi_is_due: AtomicU64,
    /// The CPU, as its interrupt controller names the target of an interrupt.
    own_target: AtomicU64,
    _aligns: AtomicU64,
    /// Its x87 and SSE state, on the way out of the kernel. Code in entry.s alone uses it.
    extended_state: [AtomicU64; EXTENDED_STATE_WORDS],
}

static BLOCKS: [Block; CPUS] = [const {
    Block {
        number: AtomicU64::new(0),
        kernel_stack_top: AtomicU64::new(0),
        user_rsp: AtomicU64::new(0),
        nmi_is_due: AtomicU64::new(0),
        own_target: AtomicU64::new(0),
        _aligns: AtomicU64::new(0),
        extended_state: [const { AtomicU64::new(0) }; EXTENDED_STATE_WORDS],
    }
}; CPUS];

/// Gives this CPU its number, and its block. Once, before any code asks.
pub(crate) fn set_number(number: usize) {
    const GS_BASE: u32 = 0xc000_0101;
    let block = &BLOCKS[number];
    block.number.store(number as u64, Ordering::Relaxed);
    block.own_target.store((number as u64) << 24, Ordering::Relaxed);
    // SAFETY: the kernel reads its block there, and nothing else.
    unsafe { write_msr(GS_BASE, block as *const Block as u64) }
}

/// The number of this CPU. Any context; where the caller sleeps it may change.
pub(crate) fn number() -> usize {
    let number: usize;
    // SAFETY: gs leads to the block of this CPU, whose first field it is.
    unsafe { asm!("mov {}, gs:[0]", out(reg) number, options(nostack, preserves_flags, readonly)) }
    number
}

/// Says where the stack of the running task begins, for the next system call.
pub(crate) fn set_kernel_stack(top: u64) {
    BLOCKS[number()].kernel_stack_top.store(top, Ordering::Relaxed);
}

/// Has an NMI come with the next user instruction of this CPU.
pub(crate) fn set_nmi_due() {
    BLOCKS[number()].nmi_is_due.store(1, Ordering::Relaxed);
}

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

/// Forgets all translations of user addresses.
pub(crate) fn flush_all() {
    // SAFETY: a translation that is still right is found again. Not `nomem`: what user
    // addresses mean may change here.
    unsafe { asm!("mov {root}, cr3", "mov cr3, {root}", root = out(reg) _, options(nostack)) }
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
