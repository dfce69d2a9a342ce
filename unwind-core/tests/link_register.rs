//! A CPU whose calls leave the return address in a register: it is there in the
//! first frame, and in one that a signal interrupted, where all are known.
#![cfg(not(loom))]

use core::convert::Infallible;

use test_support::cpu::{R3, Regs};
use unwind_core::{
    Arch, BaseReg, CfaRule, DwarfReg, End, FrameContext, Memory, RegRule, Row, RowSource,
    SliceMemory, StepError, VirtAddr, Walker, WordSize,
};

/// R3 is the link register.
struct Linked;

impl Arch for Linked {
    type Regs = Regs;
    const WORD: WordSize = WordSize::Eight;
    const RA: Option<DwarfReg> = Some(R3);
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

#[test]
fn a_leaf_returns_to_where_the_link_register_says() {
    let mut memory = SliceMemory::new(VirtAddr::new(0), &[]);
    let mut walker = Walker::new(Linked, Leaf);
    let mut frames =
        walker.frames(Regs { r3: Some(0x2004), ..Regs::new(0x1000, 0x8000, None) }, &mut memory);
    let pcs: Vec<u64> = frames.by_ref().map(|frame| frame.pc.addr().get()).collect();
    assert_eq!(pcs, [0x1000, 0x2004]);
    // A call has overwritten it since.
    assert_eq!(frames.end(), Some(End::Step(StepError::UnknownRegister(BaseReg::Reg(R3)))));
}
