//! Where a walk begins.

use unwind_core::Registers as _;

pub use super::machine::CallerRegisters;
use super::machine::{self, Registers};

/// Where a walk begins: a frame on this thread's stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    registers: Registers,
    /// These are the registers of a frame that has called.
    pub(crate) has_called: bool,
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
        Self { registers: CallerRegisters::here().registers(), has_called: false }
    }

    /// In a function that has called.
    ///
    /// # Safety
    ///
    /// The registers are those of a frame on this thread's stack.
    #[inline]
    pub(crate) unsafe fn of_caller(registers: &CallerRegisters) -> Self {
        Self { registers: registers.registers(), has_called: true }
    }

    /// What a signal interrupted.
    ///
    /// # Safety
    ///
    /// The context is the one that the kernel gave the handler in which this thread runs, or
    /// one with the registers of a frame on this thread's stack.
    pub(crate) unsafe fn of(context: &libc::ucontext_t) -> Self {
        Self { registers: machine::registers_of(context), has_called: false }
    }

    /// Where it is.
    pub(crate) fn pc(&self) -> StartPc {
        StartPc(self.registers.pc())
    }

    /// The stack pointer there.
    #[inline]
    pub(crate) fn sp(&self) -> u64 {
        self.registers.sp()
    }

    /// The registers there.
    pub(crate) const fn registers(&mut self) -> &mut Registers {
        &mut self.registers
    }

    /// The stack pointer of this place, whatever the walk begins at.
    #[inline(always)]
    pub(crate) fn stack_pointer() -> u64 {
        machine::stack_pointer()
    }
}

/// The same words as numbers of 64 bits.
#[cfg(target_pointer_width = "64")]
pub(crate) const fn words(out: &mut [usize]) -> &mut [u64] {
    const { assert!(size_of::<usize>() == size_of::<u64>()) };
    // SAFETY: of the same size and alignment, and any value is one of both.
    unsafe { core::slice::from_raw_parts_mut(out.as_mut_ptr().cast(), out.len()) }
}
