//! The registers of a made-up CPU: those that every walk asks for, and one more.

use unwind_core::{DwarfReg, Registers};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Regs {
    pub(crate) pc: u64,
    pub(crate) sp: u64,
    pub(crate) fp: Option<u64>,
}

/// Holds what the stack pointer does.
pub(crate) const R3: DwarfReg = DwarfReg(3);

impl Registers for Regs {
    fn pc(&self) -> u64 {
        self.pc
    }
    fn sp(&self) -> u64 {
        self.sp
    }
    fn fp(&self) -> Option<u64> {
        self.fp
    }
    fn get(&self, reg: DwarfReg) -> Option<u64> {
        (reg == R3).then_some(self.sp)
    }
}
