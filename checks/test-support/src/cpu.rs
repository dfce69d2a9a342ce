//! Made-up CPUs, without a format or an instruction set.

use core::convert::Infallible;

use unwind_core::{
    Arch, CfaRule, DwarfReg, FrameContext, Memory, RegRule, Registers, Row, RowSource, WordSize,
};

/// The registers that every walk asks for, and one more.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "as in Registers")]
pub struct Regs {
    pub pc: u64,
    pub sp: u64,
    pub fp: Option<u64>,
    /// The value of [`R3`].
    pub r3: Option<u64>,
}

/// A register without a role.
pub const R3: DwarfReg = DwarfReg(3);

impl Regs {
    /// [`R3`] holds what the stack pointer does.
    #[must_use]
    pub const fn new(pc: u64, sp: u64, fp: Option<u64>) -> Self {
        Self { pc, sp, fp, r3: Some(sp) }
    }
}

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
        self.r3.filter(|_| reg == R3)
    }
}

/// A CPU with words of 8 bytes, of which nothing else is special.
#[derive(Clone, Copy, Debug)]
pub struct Cpu64;

impl Arch for Cpu64 {
    type Regs = Regs;
    const WORD: WordSize = WordSize::Eight;
}

/// A CPU with words of 4 bytes, of which nothing else is special.
#[derive(Clone, Copy, Debug)]
pub struct Cpu32;

impl Arch for Cpu32 {
    type Regs = Regs;
    const WORD: WordSize = WordSize::Four;
}

/// A CPU in a mode whose stacks cannot be walked.
#[derive(Clone, Copy, Debug)]
pub struct Unwalkable;

impl Arch for Unwalkable {
    type Regs = Regs;
    const WORD: WordSize = WordSize::Four;

    fn is_walkable(&self) -> bool {
        false
    }
}

/// All functions keep a frame pointer.
#[derive(Clone, Copy, Debug)]
pub struct FramePointers;

impl<A: Arch> RowSource<A> for FramePointers {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let word = i32::try_from(A::WORD.bytes()).unwrap();
        let (ra, fp) = (RegRule::Offset(-word), RegRule::Offset(-2 * word));
        Ok(Some(Row::new(CfaRule::fp(2 * word), ra, fp)))
    }
}
