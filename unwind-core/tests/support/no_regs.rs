//! A CPU about whose registers nothing is asked: for tests of what lies between a
//! walk and its rows.

use unwind_core::{Arch, DwarfReg, Registers, WordSize};

#[derive(Clone, Copy, Debug)]
pub(crate) struct NoRegs;

impl Registers for NoRegs {
    fn pc(&self) -> u64 {
        0
    }
    fn sp(&self) -> u64 {
        0
    }
    fn fp(&self) -> Option<u64> {
        None
    }
    fn get(&self, _: DwarfReg) -> Option<u64> {
        None
    }
}

pub(crate) struct Toy;

impl Arch for Toy {
    type Regs = NoRegs;
    const WORD: WordSize = WordSize::Eight;
}
