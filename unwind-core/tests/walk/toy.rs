//! A made-up CPU, a stack in words, and a table that says what a test wants.

use std::collections::BTreeMap;
use std::convert::Infallible;

pub(crate) use test_support::cpu::{R3, Regs};
use unwind_core::{
    Arch, CfaRule, DwarfReg, End, Frame, FrameContext, Memory, Origin, ReadError, RegRule, Row,
    RowSource, StepError, TableError, VirtAddr, Walker, WordSize,
};

/// Code lies below 0x10000, and keeps data of its own in 32 bytes below the stack
/// pointer; a trampoline at 0x5160 keeps what it interrupted
/// in four words at the stack pointer.
pub(crate) struct Toy;

impl Arch for Toy {
    type Regs = Regs;
    const WORD: WordSize = WordSize::Eight;
    const SP: Option<DwarfReg> = Some(DwarfReg(7));
    const FP: Option<DwarfReg> = Some(DwarfReg(6));

    fn code_addr(&self, pc: u64) -> Option<VirtAddr> {
        (pc < 0x10000).then_some(VirtAddr::new(pc))
    }

    fn red_zone(&self) -> u64 {
        32
    }

    fn signal_context<M: Memory>(
        &self,
        pc: VirtAddr,
        sp: u64,
        mem: &mut M,
    ) -> Result<Option<Regs>, StepError> {
        if pc.get() != 0x5160 {
            return Ok(None);
        }
        let mut word = |at| {
            let addr = VirtAddr::new(sp + at);
            mem.read_u64(addr).map_err(|error| StepError::Unreadable { addr, error })
        };
        Ok(Some(Regs { pc: word(0)?, sp: word(8)?, fp: Some(word(16)?), r3: Some(word(24)?) }))
    }
}

/// Words by address; `None` is absent.
#[derive(Clone, Default)]
pub(crate) struct Stack(pub(crate) BTreeMap<u64, Option<u64>>);

impl Stack {
    pub(crate) fn new(words: impl IntoIterator<Item = (u64, u64)>) -> Self {
        Self(words.into_iter().map(|(at, word)| (at, Some(word))).collect())
    }
}

impl Memory for Stack {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        match self.0.get(&addr.get()) {
            Some(Some(word)) => {
                buf.copy_from_slice(&word.to_le_bytes());
                Ok(())
            }
            Some(None) => Err(ReadError::NotResident),
            None => Err(ReadError::Invalid),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum BadTable {
    Malformed,
    Absent,
}

impl From<Infallible> for BadTable {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl TableError for BadTable {
    fn is_not_resident(&self) -> bool {
        *self == Self::Absent
    }

    fn code(&self) -> u16 {
        match self {
            Self::Malformed => 1,
            Self::Absent => 2,
        }
    }
}

/// The end of a walk as a trace has it, where no table is at fault.
pub(crate) fn same_in_trace(end: End<BadTable>) -> End {
    assert!(!matches!(end, End::Table(_)));
    end.with_fault(VirtAddr::new(0))
}

/// Rows for ranges of 0x100 bytes of code, by their start.
#[derive(Clone, Default)]
pub(crate) struct Script(pub(crate) BTreeMap<u64, Result<Row, BadTable>>);

impl Script {
    pub(crate) fn new(rows: impl IntoIterator<Item = (u64, Row)>) -> Self {
        Self(rows.into_iter().map(|(start, row)| (start, Ok(row))).collect())
    }
}

impl RowSource<Toy> for Script {
    type Error = BadTable;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, BadTable> {
        self.0.get(&(frame.lookup_addr().get() & !0xff)).copied().transpose()
    }
}

/// The row of a function that keeps a frame pointer.
pub(crate) const FP: Row = Row::new(CfaRule::fp(16), RegRule::Offset(-8), RegRule::Offset(-16));

/// The row of a function with `n` bytes of locals.
pub(crate) const fn locals(n: i32) -> Row {
    Row::new(CfaRule::sp(n + 8), RegRule::Offset(-8), RegRule::SameValue)
}

pub(crate) struct AlwaysFp;

impl RowSource<Toy> for AlwaysFp {
    type Error = BadTable;

    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, BadTable> {
        Ok(Some(FP.with_origin(Origin::FramePointer)))
    }
}

/// A table that knows the three functions of [`three_frames`].
pub(crate) fn all_with_frame_pointers() -> Script {
    Script::new([(0x1000, FP), (0x2000, FP), (0x3000, FP)])
}

pub(crate) const START: Regs = Regs { pc: 0x1010, sp: 0x8000, fp: Some(0), r3: Some(0) };

pub(crate) fn pcs(frames: &[Frame]) -> Vec<u64> {
    frames.iter().map(|frame| frame.pc.addr().get()).collect()
}

/// The frames and the end of a walk by the script alone.
pub(crate) fn walk(script: Script, regs: Regs, stack: &Stack) -> (Vec<u64>, End<BadTable>) {
    let (mut walker, mut stack) = (Walker::new(Toy, script), stack.clone());
    let mut frames = walker.frames(regs, &mut stack);
    let seen: Vec<_> = frames.by_ref().collect();
    (pcs(&seen), frames.end().unwrap())
}

/// Three functions with frame pointers; what the table knows of them is the
/// test's choice.
pub(crate) fn three_frames() -> (Regs, Stack) {
    let stack = Stack::new([
        (0x8010, 0x8030),
        (0x8018, 0x2010),
        (0x8030, 0x8040),
        (0x8038, 0x3010),
        (0x8040, 0),
        (0x8048, 0),
    ]);
    (Regs { fp: Some(0x8010), ..START }, stack)
}
