//! The registers of this place, and of a signal's context.

use core::arch::asm;

use unwind_core::{DwarfReg, Registers as _};
use unwind_x86::X86_64Regs;

/// Where a walk begins: a frame on this thread's stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start(X86_64Regs);

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
        let others = [(3, rbx), (12, r12), (13, r13), (14, r14), (15, r15)];
        let registers = X86_64Regs::new(rip, rsp, rbp);
        Self(
            others.into_iter().fold(registers, |registers, (number, value)| {
                registers.with(DwarfReg(number), value)
            }),
        )
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
        Self(X86_64Regs::from_all(saved(libc::REG_RIP), BY_NUMBER.map(saved)))
    }

    /// Where it is.
    pub(crate) fn pc(&self) -> StartPc {
        StartPc(self.0.pc())
    }

    /// The registers there.
    pub(crate) const fn registers(&mut self) -> &mut X86_64Regs {
        &mut self.0
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
