//! 64-bit x86.

use core::arch::{asm, global_asm};

use unwind_cfi::CfiAbi;
use unwind_core::DwarfReg;
use unwind_x86::{X86_64, X86_64Regs};

use crate::raw::thread::ThreadWords;

pub(crate) type Machine = X86_64;
pub(crate) type Registers = X86_64Regs;

/// The code of this program.
pub(crate) const MACHINE: Machine = X86_64::FOUR_LEVEL;
pub(crate) const CFI_ABI: CfiAbi = CfiAbi::X86_64;

/// Rows of tables, as they are.
pub(crate) type TableRows<S> = S;

/// These rows of a source.
pub(crate) const fn table_rows<S>(source: S) -> TableRows<S> {
    source
}

pub(crate) const SFRAME_ABI: Option<sframe::Abi> = Some(sframe::Abi::Amd64Little);

/// What a signal trampoline of the C library does: `mov rax, 15; syscall`.
pub(crate) const TRAMPOLINE: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

/// The registers of a function that has called another one, as they will be when that returns.
/// [`call_with_registers`](crate::call_with_registers) makes them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CallerRegisters {
    rip: u64,
    rsp: u64,
    rbx: u64,
    rbp: u64,
    r12: u64,
    r13: u64,
    r14: u64,
    r15: u64,
}

/// The body of a naked function with three arguments: it calls another one with these and, as
/// the fourth, the [`CallerRegisters`](crate::CallerRegisters) of its caller. So a backtrace
/// begins in that without a frame in between.
#[macro_export]
macro_rules! call_with_registers {
    ($function:path) => {
        ::core::arch::naked_asm!(
            ".cfi_startproc",
            "push r15",
            ".cfi_adjust_cfa_offset 8",
            "push r14",
            ".cfi_adjust_cfa_offset 8",
            "push r13",
            ".cfi_adjust_cfa_offset 8",
            "push r12",
            ".cfi_adjust_cfa_offset 8",
            "push rbp",
            ".cfi_adjust_cfa_offset 8",
            "push rbx",
            ".cfi_adjust_cfa_offset 8",
            // The caller's stack pointer, and its return address.
            "lea rcx, [rsp + 56]",
            "push rcx",
            ".cfi_adjust_cfa_offset 8",
            "push [rcx - 8]",
            ".cfi_adjust_cfa_offset 8",
            "mov rcx, rsp",
            "sub rsp, 8",
            ".cfi_adjust_cfa_offset 8",
            "call {function}",
            "add rsp, 72",
            ".cfi_adjust_cfa_offset -72",
            "ret",
            ".cfi_endproc",
            function = sym $function,
        )
    };
}

impl CallerRegisters {
    /// Those of this place in the function that calls this, for walks from there on while it has
    /// not returned.
    #[inline(always)]
    #[must_use]
    pub fn here() -> Self {
        let mut saved = [0_u64; 8];
        // SAFETY: it writes the eight words.
        unsafe {
            asm!(
                "mov [{saved}], rbx",
                "mov [{saved} + 8], rbp",
                "mov [{saved} + 16], r12",
                "mov [{saved} + 24], r13",
                "mov [{saved} + 32], r14",
                "mov [{saved} + 40], r15",
                "mov [{saved} + 48], rsp",
                "lea {pc}, [rip]",
                "mov [{saved} + 56], {pc}",
                saved = in(reg) saved.as_mut_ptr(),
                pc = out(reg) _,
                options(nostack, preserves_flags),
            );
        }
        let [rbx, rbp, r12, r13, r14, r15, rsp, rip] = saved;
        Self { rip, rsp, rbx, rbp, r12, r13, r14, r15 }
    }

    /// The same for a walk.
    #[inline]
    pub(crate) fn registers(&self) -> Registers {
        // One by one, as they were stored just before: a CPU waits for the stores otherwise.
        macro_rules! each {
            ($($name:ident),*) => { $(
                // SAFETY: a reference can be read.
                let $name = unsafe { (&raw const self.$name).read_volatile() };
            )* };
        }
        each!(rip, rsp, rbx, rbp, r12, r13, r14, r15);
        let others = [(3, rbx), (12, r12), (13, r13), (14, r14), (15, r15)];
        let registers = X86_64Regs::new(rip, rsp, rbp);
        others
            .into_iter()
            .fold(registers, |registers, (number, value)| registers.with(DwarfReg(number), value))
    }
}

/// The registers of a signal's context.
pub(crate) fn registers_of(context: &libc::ucontext_t) -> Registers {
    const BY_NUMBER: [i32; 16] = [
        libc::REG_RAX,
        libc::REG_RDX,
        libc::REG_RCX,
        libc::REG_RBX,
        libc::REG_RSI,
        libc::REG_RDI,
        libc::REG_RBP,
        libc::REG_RSP,
        libc::REG_R8,
        libc::REG_R9,
        libc::REG_R10,
        libc::REG_R11,
        libc::REG_R12,
        libc::REG_R13,
        libc::REG_R14,
        libc::REG_R15,
    ];
    let saved = |register: i32| {
        let at = usize::try_from(register).unwrap_or(usize::MAX);
        context.uc_mcontext.gregs.get(at).map_or(0, |value| value.cast_unsigned())
    };
    X86_64Regs::from_all(saved(libc::REG_RIP), BY_NUMBER.map(saved))
}

/// The stack pointer of this place.
#[inline(always)]
pub(crate) fn stack_pointer() -> u64 {
    let sp;
    // SAFETY: it touches no memory.
    unsafe { asm!("mov {}, rsp", out(reg) sp, options(nostack, nomem, preserves_flags)) };
    sp
}

// In the storage that a thread has from its start on, which nothing has to allocate: the
// model is that of libraries that are loaded with the program.
global_asm!(
    ".pushsection .tbss.unwind_local, \"awT\", @nobits",
    ".globl unwind_local_thread",
    ".hidden unwind_local_thread",
    ".type unwind_local_thread, @object",
    ".balign 8",
    "unwind_local_thread:",
    ".zero 32",
    ".size unwind_local_thread, 32",
    ".popsection",
);

/// The words of this thread.
#[inline]
pub(crate) fn thread_words() -> &'static ThreadWords {
    let words: *const ThreadWords;
    // SAFETY: the two instructions that the ABI has for such a variable.
    unsafe {
        asm!(
            "mov {words}, qword ptr fs:[0]",
            "add {words}, qword ptr [rip + unwind_local_thread@GOTTPOFF]",
            words = out(reg) words,
            options(nostack, pure, readonly),
        );
    }
    // SAFETY: they are there, zero or what was stored, for as long as the thread runs; the
    // reference does not leave it.
    unsafe { &*words }
}

/// The address of the thread's control block, which no other running thread has.
#[inline]
pub(crate) fn control_block() -> u64 {
    let block;
    // SAFETY: its first word is its address.
    unsafe {
        asm!("mov {}, qword ptr fs:[0]", out(reg) block, options(nostack, pure, readonly));
    }
    block
}

/// Calls the kernel, and returns what it returns.
///
/// # Safety
///
/// The call may read and write what the arguments say.
pub(crate) unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let result;
    // SAFETY: as the caller promises; the kernel changes no other registers.
    unsafe {
        asm!(
            "syscall",
            inout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

// Functions that not every C library has, so that programs link where there is none: zero is what
// the linker makes of them there.
//
// glibc's `_dl_find_object` takes no lock, allocates nothing and may be called at any point.
global_asm!(
    ".pushsection .text.unwind_local_find_object, \"ax\", @progbits",
    ".weak _dl_find_object",
    ".globl unwind_local_find_object",
    ".hidden unwind_local_find_object",
    ".type unwind_local_find_object, @function",
    "unwind_local_find_object:",
    ".cfi_startproc",
    "mov rax, qword ptr [rip + _dl_find_object@GOTPCREL]",
    "test rax, rax",
    "je 2f",
    "jmp rax",
    "2:",
    "mov eax, 1",
    "ret",
    ".cfi_endproc",
    ".size unwind_local_find_object, . - unwind_local_find_object",
    ".popsection",
    ".pushsection .text.unwind_local_is_glibc, \"ax\", @progbits",
    ".weak gnu_get_libc_version",
    ".globl unwind_local_is_glibc",
    ".hidden unwind_local_is_glibc",
    ".type unwind_local_is_glibc, @function",
    "unwind_local_is_glibc:",
    ".cfi_startproc",
    "mov rax, qword ptr [rip + _dl_find_object@GOTPCREL]",
    "or rax, qword ptr [rip + gnu_get_libc_version@GOTPCREL]",
    "setne al",
    "ret",
    ".cfi_endproc",
    ".size unwind_local_is_glibc, . - unwind_local_is_glibc",
    ".popsection",
    ".pushsection .text.unwind_local_loads_of_program, \"ax\", @progbits",
    ".weak _dl_load_adds",
    ".globl unwind_local_loads_of_program",
    ".hidden unwind_local_loads_of_program",
    ".type unwind_local_loads_of_program, @function",
    "unwind_local_loads_of_program:",
    ".cfi_startproc",
    "mov rax, qword ptr [rip + _dl_load_adds@GOTPCREL]",
    "ret",
    ".cfi_endproc",
    ".size unwind_local_loads_of_program, . - unwind_local_loads_of_program",
    ".popsection",
);
