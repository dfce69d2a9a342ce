//! Segments, the task state segment with its stacks, and the interrupt table.

use core::arch::asm;
use core::cell::UnsafeCell;

use unwind_x86::{DescriptorTable, DescriptorTables};

use crate::cpu::CPUS;
use crate::{cpu, painted};

/// The kernel's code segment.
const KERNEL_CODE: u16 = 0x08;
/// The kernel's data segment.
const KERNEL_DATA: u16 = 0x10;
/// Code of 32-bit tasks: 64-bit kernels run it in compatibility mode.
pub(crate) const USER_CODE_32: u64 = 0x1b;
/// Data of all tasks.
pub(crate) const USER_DATA: u64 = 0x23;
/// Code of 64-bit tasks.
pub(crate) const USER_CODE_64: u64 = 0x2b;

/// The sampling interrupt.
pub(crate) const VECTOR_NMI: u64 = 2;
/// The trap after a single step.
pub(crate) const VECTOR_DEBUG: u64 = 1;
/// A page fault.
pub(crate) const VECTOR_PAGE_FAULT: u64 = 14;
/// The timer tick.
pub(crate) const VECTOR_TIMER: u64 = 32;
/// The CPU's interrupt to itself, after an NMI that wants a delivery.
pub(crate) const VECTOR_RETURN_WORK: u64 = 33;
/// Another CPU has taken pages away: see memory/shootdown.rs.
pub(crate) const VECTOR_FLUSH: u64 = 34;
/// The local APIC's noise.
pub(crate) const VECTOR_SPURIOUS: u64 = 63;
/// `int 0x80`.
pub(crate) const VECTOR_INT80: u64 = 0x80;
/// The `syscall` instruction, which has no vector: entry.s gives it this one.
pub(crate) const VECTOR_SYSCALL: u64 = 0x81;

/// The interrupt stacks, numbered as the CPU does.
#[derive(Clone, Copy)]
enum InterruptStack {
    None = 0,
    Nmi = 1,
    DoubleFault = 2,
    Interrupt = 3,
    Debug = 4,
}

const STACK_SIZE: usize = 16 << 10;
/// Interrupt stacks of a CPU.
const STACKS_OF_CPU: usize = 4;

#[repr(C, align(16))]
struct Stacks([[u8; STACK_SIZE]; STACKS_OF_CPU * CPUS]);

/// Where the task states are in the table of segments.
const FIRST_TASK_STATE: usize = 6;
/// Entries of that table: a task state has two, and each CPU one.
const SEGMENTS: usize = FIRST_TASK_STATE + 2 * CPUS;

/// Memory that the CPU or entry.s writes; Rust code only takes its address.
#[repr(transparent)]
struct Hardware<T>(UnsafeCell<T>);

// SAFETY: no references to the content are made once interrupts are on.
unsafe impl<T> Sync for Hardware<T> {}

static STACKS: Hardware<Stacks> =
    Hardware(UnsafeCell::new(Stacks([[0; STACK_SIZE]; STACKS_OF_CPU * CPUS])));
static GDT: Hardware<[u64; SEGMENTS]> = Hardware(UnsafeCell::new({
    let mut table = [0; SEGMENTS];
    table[1] = 0x00af_9b00_0000_ffff; // kernel code, 64 bits
    table[2] = 0x00cf_9300_0000_ffff; // kernel data
    table[3] = 0x00cf_fb00_0000_ffff; // user code, 32 bits
    table[4] = 0x00cf_f300_0000_ffff; // user data
    table[5] = 0x00af_fb00_0000_ffff; // user code, 64 bits
    table
}));
static TSS: [Hardware<[u32; 26]>; CPUS] = [const { Hardware(UnsafeCell::new([0; 26])) }; CPUS];
static IDT: Hardware<[[u64; 2]; 256]> = Hardware(UnsafeCell::new([[0; 2]; 256]));

unsafe extern "C" {
    static vector_stubs: [[u8; 16]; 64];
    static int80_stub: u8;
    static syscall_stub: u8;
}

/// The operand of `lgdt` and `lidt`.
#[repr(C, packed)]
struct TableRegister {
    limit: u16,
    base: u64,
}

/// Fills all tables. Once, before other CPUs run and interrupts are on.
pub(crate) fn prepare() {
    // SAFETY: interrupts are off and this runs once: no other code has a
    // reference, and no CPU uses the table yet.
    let gdt = unsafe { &mut *GDT.0.get() };
    for (number, tss) in TSS.iter().enumerate() {
        // SAFETY: as above.
        let task_state = unsafe { &mut *tss.0.get() };
        let base = tss.0.get() as u64;
        let at = FIRST_TASK_STATE + 2 * number;
        gdt[at] = 103 | (base & 0xff_ffff) << 16 | 0x89 << 40 | (base >> 24 & 0xff) << 56;
        gdt[at + 1] = base >> 32;
        for stack in 1..=STACKS_OF_CPU {
            let top = stacks_of(number) + (stack * STACK_SIZE) as u64;
            set_word(task_state, 0x24 + (stack - 1) * 8, top);
        }
        // Without I/O permissions: the map is after the end.
        task_state[25] = 104 << 16;
    }
    // SAFETY: as above.
    let idt = unsafe { &mut *IDT.0.get() };

    let stub = |vector: u64| &raw const vector_stubs as u64 + 16 * vector;
    for (vector, entry) in (0..64).zip(idt.iter_mut()) {
        let stack = match vector {
            VECTOR_NMI => InterruptStack::Nmi,
            VECTOR_DEBUG => InterruptStack::Debug,
            8 => InterruptStack::DoubleFault,
            32.. => InterruptStack::Interrupt,
            _ => InterruptStack::None,
        };
        *entry = gate(stub(vector), stack, 0);
    }
    idt[0x80] = gate(&raw const int80_stub as u64, InterruptStack::None, 3);
}

/// Has this CPU use the tables, and gives it its number. Once on each, before interrupts
/// are on.
pub(crate) fn load(number: usize) {
    let task_state = (8 * (FIRST_TASK_STATE + 2 * number)) as u16;
    let limit = (8 * SEGMENTS - 1) as u16;
    let gdtr = TableRegister { limit, base: GDT.0.get() as u64 };
    let idtr = TableRegister { limit: 4095, base: IDT.0.get() as u64 };
    // SAFETY: the tables are static and complete, and their first entries are
    // those of the segments in use.
    unsafe {
        asm!(
            "lgdt [{gdtr}]",
            "lidt [{idtr}]",
            "mov ss, {kernel:x}",
            "mov ds, {user:x}",
            "mov es, {user:x}",
            "ltr {tss:x}",
            gdtr = in(reg) &raw const gdtr,
            idtr = in(reg) &raw const idtr,
            kernel = in(reg) KERNEL_DATA,
            // 32-bit tasks need a data segment there, and `iretq` keeps it.
            user = in(reg) USER_DATA,
            tss = in(reg) task_state,
        );
    }
    cpu::set_number(number);
    load_syscall_registers();
}

fn load_syscall_registers() {
    const STAR: u32 = 0xc000_0081;
    const LSTAR: u32 = 0xc000_0082;
    const FMASK: u32 = 0xc000_0084;
    // Cleared on entry: interrupts, single steps, direction, nested task.
    const CLEARED: u64 = 1 << 9 | 1 << 8 | 1 << 10 | 1 << 14;
    let entry = &raw const syscall_stub as u64;
    // SAFETY: selectors of the table above; the return half is not used.
    unsafe { cpu::write_msr(STAR, u64::from(KERNEL_CODE) << 32) }
    // SAFETY: the stub expects to be entered so.
    unsafe { cpu::write_msr(LSTAR, entry) }
    // SAFETY: flags that the stub does not want.
    unsafe { cpu::write_msr(FMASK, CLEARED) }
}

const fn gate(stub: u64, stack: InterruptStack, privilege: u64) -> [u64; 2] {
    let kind = 0x8e | privilege << 5;
    let low = stub & 0xffff
        | (KERNEL_CODE as u64) << 16
        | (stack as u64) << 32
        | kind << 40
        | (stub >> 16 & 0xffff) << 48;
    [low, stub >> 32]
}

fn set_word(table: &mut [u32; 26], at: usize, value: u64) {
    table[at / 4] = value as u32;
    table[at / 4 + 1] = (value >> 32) as u32;
}

/// Says where the stack of the running task begins: this CPU and entry.s take
/// it from here on the next entry from user mode.
pub(crate) fn set_kernel_stack(top: u64) {
    let tss = TSS[cpu::number()].0.get().cast::<u32>();
    for (word, value) in [(1, top as u32), (2, (top >> 32) as u32)] {
        let at = tss.wrapping_add(word);
        // SAFETY: inside the table; the CPU reads it on entries from user mode,
        // which this is not.
        unsafe { at.write_volatile(value) }
    }
    cpu::set_kernel_stack(top);
}

/// Where the interrupt stacks of a CPU begin.
fn stacks_of(cpu: usize) -> u64 {
    STACKS.0.get() as u64 + (cpu * STACKS_OF_CPU * STACK_SIZE) as u64
}

fn interrupt_stack(cpu: usize, number: InterruptStack) -> (u64, u64) {
    let start = stacks_of(cpu) + (number as u64 - 1) * STACK_SIZE as u64;
    (start, start + STACK_SIZE as u64)
}

/// Paints the stacks of NMIs, which are not in use.
pub(crate) fn paint_nmi_stacks() {
    for cpu in 0..CPUS {
        let (start, end) = interrupt_stack(cpu, InterruptStack::Nmi);
        // SAFETY: no NMI comes before sampling has started.
        unsafe { painted::paint(start, end) }
    }
}

/// The most that was used of an NMI's stack, in bytes.
pub(crate) fn most_nmi_stack_used() -> u64 {
    let used = |cpu| {
        let (start, end) = interrupt_stack(cpu, InterruptStack::Nmi);
        painted::used(start, end)
    };
    (0..CPUS).map(used).max().unwrap_or(0)
}

/// The interrupt stack that `addr` is in, as start and end.
pub(crate) fn interrupt_stack_of(addr: u64) -> Option<(u64, u64)> {
    let first = stacks_of(0);
    let number = addr.checked_sub(first)? / STACK_SIZE as u64;
    let start = first + number * STACK_SIZE as u64;
    (number < (STACKS_OF_CPU * CPUS) as u64).then_some((start, start + STACK_SIZE as u64))
}

/// Calls `f` with the tables that segment selectors choose from. There are no
/// local tables in this kernel.
pub(crate) fn with_tables<R>(f: impl FnOnce(DescriptorTables<'_>) -> R) -> R {
    let mut bytes = [0; 64];
    for (at, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let entry = GDT.0.get().cast::<u64>().wrapping_add(at);
        // SAFETY: inside the table, whose entries do not change any more but
        // for the busy bits of task states.
        let descriptor = unsafe { entry.read_volatile() };
        *word = descriptor.to_le_bytes();
    }
    f(DescriptorTables { gdt: DescriptorTable(&bytes), ldt: DescriptorTable(&[]) })
}
