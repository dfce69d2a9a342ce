//! How far the instructions at the end of a function take its frame down.

use unwind_core::{BaseReg, CfaRule, DwarfReg, RegRule, Row};

/// How far the instructions of an exit have come.
#[derive(Clone, Copy)]
pub(super) struct Exit {
    pub(super) start: Start,
    /// The stack pointer less the start, in bytes.
    pub(super) depth: i32,
    /// Where the caller's frame pointer was popped from.
    pub(super) fp: Option<(BaseReg, i32)>,
    /// Where each register was popped from, counted from the start.
    pub(super) popped: [i32; 16],
    /// A bit for each register that was.
    pub(super) is_popped: u16,
    /// It ends with a jump, which may be one inside the function.
    pub(super) is_guess: bool,
}

/// What the stack pointer is counted from.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Start {
    /// A register as it is at the pc.
    Register(BaseReg),
    /// The word in memory at a register plus an offset in bytes.
    Word(BaseReg, i32),
}

impl Exit {
    pub(super) const fn from(start: Start, depth: i32, fp: Option<(BaseReg, i32)>) -> Self {
        Self { start, depth, fp, popped: [0; 16], is_popped: 0, is_guess: false }
    }

    /// The register that addresses are counted from, if that is what it is.
    pub(super) const fn base(&self) -> Option<BaseReg> {
        match self.start {
            Start::Register(base) => Some(base),
            Start::Word(..) => None,
        }
    }

    /// The frame pointer as a start: it is the frame's own until it is popped.
    pub(super) const fn frame(&self) -> Option<Start> {
        if self.fp.is_none() { Some(Start::Register(BaseReg::Fp)) } else { None }
    }

    /// A register as a start: the word that was popped into it, if one was.
    pub(super) fn register(&self, reg: DwarfReg) -> Option<Start> {
        let bit = 1_u16.checked_shl(reg.0.into()).unwrap_or(0);
        if self.is_popped & bit == 0 {
            return Some(Start::Register(BaseReg::Reg(reg)));
        }
        let from = self.popped.get(usize::from(reg.0))?;
        Some(Start::Word(self.base()?, *from))
    }

    pub(super) fn pop(&mut self, reg: DwarfReg, slot: i32) -> Option<()> {
        *self.popped.get_mut(usize::from(reg.0))? = self.depth;
        self.is_popped |= 1_u16.wrapping_shl(reg.0.into());
        self.depth = self.depth.checked_add(slot)?;
        Some(())
    }

    /// The row when the stack pointer is at the return address.
    pub(super) fn row(self, slot: i32) -> Option<Row> {
        let depth = self.depth.checked_add(slot)?;
        let cfa = match self.start {
            Start::Register(base) => CfaRule::Register(base, depth),
            Start::Word(base, from) if depth == 0 => CfaRule::AtRegister(base, from),
            Start::Word(..) => return None,
        };
        let fp = match self.fp {
            Some((base, at)) if self.start == Start::Register(base) => {
                RegRule::Offset(at.checked_sub(depth)?)
            }
            Some((base, at)) => RegRule::AtRegister(base, at),
            None => RegRule::SameValue,
        };
        let row = Row::new(cfa, RegRule::Offset(slot.checked_neg()?), fp);
        Some(if self.is_guess { row.with_guess() } else { row })
    }
}
