//! A CPU whose calls leave the return address in a register: it is there in the
//! first frame, and in one that a signal interrupted, where all are known.
#![cfg(not(loom))]

use core::convert::Infallible;

use unwind_core::{
    Arch, BaseReg, CfaRule, DwarfReg, End, FrameContext, Memory, ReadError, RegRule, Registers,
    Row, RowSource, StepError, VirtAddr, Walker, WordSize,
};

const LINK: DwarfReg = DwarfReg(30);

#[derive(Clone, Copy, Debug)]
struct Regs {
    pc: u64,
    link: u64,
}

impl Registers for Regs {
    fn pc(&self) -> u64 {
        self.pc
    }

    fn sp(&self) -> u64 {
        0x8000
    }

    fn fp(&self) -> Option<u64> {
        None
    }

    fn get(&self, register: DwarfReg) -> Option<u64> {
        (register == LINK).then_some(self.link)
    }
}

struct Linked;

impl Arch for Linked {
    type Regs = Regs;
    const WORD: WordSize = WordSize::Eight;
    const RA: Option<DwarfReg> = Some(LINK);
}

/// A leaf that has saved nothing, everywhere.
struct Leaf;

impl RowSource<Linked> for Leaf {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(Some(Row::new(CfaRule::sp(16), RegRule::SameValue, RegRule::SameValue)))
    }
}

struct Nothing;

impl Memory for Nothing {
    fn read(&mut self, _: VirtAddr, _: &mut [u8]) -> Result<(), ReadError> {
        Err(ReadError::Invalid)
    }
}

#[test]
fn a_leaf_returns_to_where_the_link_register_says() {
    let mut memory = Nothing;
    let mut walker = Walker::new(Linked, Leaf);
    let mut frames = walker.frames(Regs { pc: 0x1000, link: 0x2004 }, &mut memory);
    let pcs: Vec<u64> = frames.by_ref().map(|frame| frame.pc.addr().get()).collect();
    assert_eq!(pcs, [0x1000, 0x2004]);
    // A call has overwritten it since.
    assert_eq!(frames.end(), Some(End::Step(StepError::UnknownRegister(BaseReg::Reg(LINK)))));
}
