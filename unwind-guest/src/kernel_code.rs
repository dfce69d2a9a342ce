//! The CPU as the code of a Linux kernel sees it.

use unwind_core::{Arch, DwarfReg, Memory, ReturnAddresses, VirtAddr, WordSize};
use unwind_x86::{X86_64, X86_64Regs};

/// 64-bit code of Linux's kernel: without a red zone, since interrupts write to its stack, and
/// without signal frames. What it has interrupted is led to by rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinuxKernel(X86_64);

impl LinuxKernel {
    /// On a CPU with these addresses.
    #[must_use]
    pub const fn new(cpu: X86_64) -> Self {
        Self(cpu.without_red_zone())
    }
}

impl Arch for LinuxKernel {
    type Regs = X86_64Regs;
    const WORD: WordSize = WordSize::Eight;
    const SP: Option<DwarfReg> = X86_64::SP;
    const FP: Option<DwarfReg> = X86_64::FP;

    #[inline]
    fn code_addr(&self, pc: u64) -> Option<VirtAddr> {
        self.0.code_addr(pc)
    }

    #[inline]
    fn red_zone(&self) -> u64 {
        self.0.red_zone()
    }

    fn follows_call<M: Memory>(&self, pc: VirtAddr, mem: &mut M) -> Option<bool> {
        self.0.follows_call(pc, mem)
    }
}

/// Which half of the address space the code of a stack is in: the kernel's addresses are those with the
/// highest bit set. A return address in the other half is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressHalf {
    /// User code's.
    User,
    /// The kernel's.
    Kernel,
}

impl ReturnAddresses for AddressHalf {
    #[inline]
    fn is_code(&mut self, call: VirtAddr) -> bool {
        (call.get() >> 63 == 0) == (*self == Self::User)
    }

    #[inline]
    fn generation(&self) -> Option<u64> {
        Some(0)
    }
}
