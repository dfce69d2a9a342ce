//! The registers of this place, and of a signal's context.

use core::arch::asm;
use core::slice;

use unwind_core::{DwarfReg, Registers as _};
use unwind_x86::X86_64Regs;

/// Where a walk begins: a frame on this thread's stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    registers: X86_64Regs,
    /// These are the registers of a frame that has called.
    pub(crate) has_called: bool,
}

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

/// Its address of code, which this thread runs or has interrupted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StartPc(u64);

impl StartPc {
    pub(crate) const fn get(self) -> u64 {
        self.0
    }
}

impl Start {
    /// This place in the code of the caller, with the registers that calls preserve.
    #[inline(always)]
    pub(crate) fn here() -> Self {
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
        Self::new(&CallerRegisters { rip, rsp, rbx, rbp, r12, r13, r14, r15 }, false)
    }

    /// In a function that has called.
    ///
    /// # Safety
    ///
    /// The registers are those of a frame on this thread's stack.
    #[inline]
    pub(crate) unsafe fn of_caller(registers: &CallerRegisters) -> Self {
        Self::new(registers, true)
    }

    #[inline]
    fn new(registers: &CallerRegisters, has_called: bool) -> Self {
        // One by one, as they were stored just before: a CPU waits for the stores otherwise.
        macro_rules! each {
            ($($name:ident),*) => { $(
                // SAFETY: a reference can be read.
                let $name = unsafe { (&raw const registers.$name).read_volatile() };
            )* };
        }
        each!(rip, rsp, rbx, rbp, r12, r13, r14, r15);
        let others = [(3, rbx), (12, r12), (13, r13), (14, r14), (15, r15)];
        let registers = X86_64Regs::new(rip, rsp, rbp);
        let registers = others
            .into_iter()
            .fold(registers, |registers, (number, value)| registers.with(DwarfReg(number), value));
        Self { registers, has_called }
    }

    /// What a signal interrupted.
    ///
    /// # Safety
    ///
    /// The context is the one that the kernel gave the handler in which this thread runs, or
    /// one with the registers of a frame on this thread's stack.
    pub(crate) unsafe fn of(context: &libc::ucontext_t) -> Self {
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
        let registers = X86_64Regs::from_all(saved(libc::REG_RIP), BY_NUMBER.map(saved));
        Self { registers, has_called: false }
    }

    /// Where it is.
    pub(crate) fn pc(&self) -> StartPc {
        StartPc(self.registers.pc())
    }

    /// The registers there.
    pub(crate) const fn registers(&mut self) -> &mut X86_64Regs {
        &mut self.registers
    }

    /// The stack pointer of this place, whatever the walk begins at.
    #[inline(always)]
    pub(crate) fn stack_pointer() -> u64 {
        let sp;
        // SAFETY: it touches no memory.
        unsafe { asm!("mov {}, rsp", out(reg) sp, options(nostack, nomem, preserves_flags)) };
        sp
    }
}

/// The same words as numbers of 64 bits.
pub(crate) const fn words(out: &mut [usize]) -> &mut [u64] {
    const { assert!(size_of::<usize>() == size_of::<u64>()) };
    // SAFETY: of the same size and alignment, and any value is one of both.
    unsafe { slice::from_raw_parts_mut(out.as_mut_ptr().cast(), out.len()) }
}
