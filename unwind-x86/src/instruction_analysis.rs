//! The sampled frame where it has no frame pointer yet, or no longer.
//!
//! A walk by frame pointers loses the caller of a function that was stopped
//! before its frame was set up or after it was torn down: the frame pointer is
//! then the caller's. The few instructions that compilers use there tell.

mod exit;

use core::convert::Infallible;

use unwind_core::{
    Arch, BaseReg, CfaRule, DwarfReg, FrameContext, FramePc, Memory, Origin, RegRule, Row,
    RowSource, VirtAddr, WordSize,
};

use self::exit::{Exit, Start};
use crate::code::Window;
use crate::ia32::Ia32;
use crate::linkage::linkage_row;
use crate::register_number::dwarf_register;
use crate::x86_64::X86_64;

/// A source of rows for a pc at a function's entry or exit, read off the
/// instructions there. It knows
///
/// * at the entry: `endbr`, `push rbp`, `mov rbp, rsp`, a `sub rsp` that begins
///   a function, and how a function realigns its stack;
/// * at the exit: runs of `pop`, `add rsp`, `lea rsp, [reg+n]`, `mov rsp, rbp`
///   and `leave` up to a `ret` or a tail call;
/// * linkage tables, for which not every linker writes call frame information;
/// * in 32-bit code, the functions that return their own return address;
///
/// and the 32-bit forms. Everywhere else it has no row, and neither has it for
/// a return address. Code is only looked at, never run past a branch, so a
/// row costs two small reads and a bounded number of steps.
///
/// Instructions that lead to a `ret` prove their row, and so do a whole `push rbp; mov
/// rbp, rsp` where a function may start, a realignment and a linkage table's entry. The
/// other forms stand at an entry or an exit nearly always, but may stand elsewhere:
/// their rows are a [guess](Row::is_guess).
#[derive(Clone, Copy, Debug, Default)]
pub struct InstructionAnalysis;

impl RowSource<X86_64> for InstructionAnalysis {
    type Error = Infallible;

    #[inline]
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, <X86_64 as Arch>::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(row(WordSize::Eight, frame.pc(), mem))
    }
}

impl RowSource<Ia32> for InstructionAnalysis {
    type Error = Infallible;

    #[inline]
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, <Ia32 as Arch>::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(row(WordSize::Four, frame.pc(), mem))
    }
}

#[inline(never)]
fn row<M: Memory>(word: WordSize, pc: FramePc, mem: &mut M) -> Option<Row> {
    let FramePc::Exact(pc) = pc else { return None };
    let ahead = Window::<32>::after(pc, mem);
    let preceding = Window::<16>::before(pc, mem);
    row_of_code(word, pc, ahead.bytes(), preceding.bytes())
}

/// The row for a pc with these instruction bytes from it on and before it.
#[inline(never)]
pub(crate) fn row_of_code(
    word: WordSize,
    pc: VirtAddr,
    ahead: &[u8],
    preceding: &[u8],
) -> Option<Row> {
    let code = Code { word, ahead };
    let row = linkage_row(word, pc, ahead, preceding).or_else(|| code.realigning(preceding));
    let row = row.or_else(|| code.entry(pc, preceding)).or_else(|| code.own_address());
    let row = row.or_else(|| code.exit(preceding))?;
    Some(row.with_origin(Origin::Instructions))
}

#[derive(Clone, Copy)]
struct Code<'a> {
    word: WordSize,
    ahead: &'a [u8],
}

const PUSH_FP: u8 = 0x55;
const POP_FP: u8 = 0x5d;
const LEAVE: u8 = 0xc9;

impl Code<'_> {
    /// The slot size as an offset.
    const fn slot(&self) -> i32 {
        match self.word {
            WordSize::Four => 4,
            WordSize::Eight => 8,
        }
    }

    /// The return address is `pushed` slots above the stack pointer, and so is
    /// the caller's frame pointer one below it if that was pushed.
    const fn row(&self, pushed: i32, fp: RegRule) -> Row {
        let slot = self.slot();
        let cfa = slot.wrapping_mul(pushed.wrapping_add(1));
        Row::new(CfaRule::sp(cfa), RegRule::Offset(slot.wrapping_neg()), fp)
    }

    #[inline(never)]
    fn entry(&self, pc: VirtAddr, preceding: &[u8]) -> Option<Row> {
        let at_entry = self.row(0, RegRule::SameValue);
        let may_start = Self::may_start(pc, preceding);
        let (endbr, rest) = self.skip_endbr();
        if endbr {
            // Where jumps land inside a function there is one, too.
            return Some(at_entry.with_guess());
        }
        if let Some(after_push) = rest.strip_prefix(&[PUSH_FP]) {
            let is_frame = self.is_mov_fp_sp(after_push);
            if is_frame && may_start {
                return Some(at_entry);
            }
            return (is_frame || may_start).then_some(at_entry.with_guess());
        }
        if self.is_mov_fp_sp(rest) {
            let saved = self.slot().wrapping_mul(-2);
            let row = self.row(1, RegRule::Offset(saved));
            let is_entry = preceding.strip_suffix(&[PUSH_FP]).is_some_and(|before| {
                Self::may_start(VirtAddr::new(pc.get().wrapping_sub(1)), before)
            });
            return Some(if is_entry { row } else { row.with_guess() });
        }
        (self.is_sub_sp(rest) && may_start).then_some(at_entry.with_guess())
    }

    /// By which 32-bit code finds its own address: functions that return it in a register. Not
    /// every compiler writes call frame information for them.
    ///
    /// ```text
    ///     mov ebx, [esp]; ret
    /// ```
    fn own_address(&self) -> Option<Row> {
        match (self.word, self.ahead) {
            // Neither into the stack pointer nor into the frame pointer.
            (WordSize::Four, [0x8b, 0x04 | 0x0c | 0x14 | 0x1c | 0x34 | 0x3c, 0x24, 0xc3, ..]) => {
                Some(self.row(0, RegRule::SameValue))
            }
            _ => None,
        }
    }

    /// How functions realign their stack: another register takes the CFA, the
    /// stack pointer is rounded down, and below it comes a copy of the return
    /// address before the frame pointer is saved as ever.
    ///
    /// ```text
    ///     lea r10, [rsp+8]; and rsp, -64; push [r10-8]; push rbp; mov rbp, rsp
    /// ```
    #[inline(never)]
    fn realigning(&self, preceding: &[u8]) -> Option<Row> {
        let after_lea = self.after_lea_of_cfa(self.ahead);
        if after_lea.is_some_and(|after_lea| self.is_and_sp(after_lea)) {
            return Some(self.row(0, RegRule::SameValue));
        }
        if self.is_and_sp(self.ahead) {
            let lea = preceding.get(preceding.len().checked_sub(self.lea_len())?..)?;
            return self.after_lea_of_cfa(lea).map(|_| self.row(0, RegRule::SameValue));
        }
        if let Some(reg) = self.push_of_ra(self.ahead) {
            return self
                .ends_with_and_sp(preceding)
                .then(|| self.row_from(reg, RegRule::SameValue));
        }
        let len = self.push_len();
        if self.ahead.first() == Some(&PUSH_FP) {
            let push = preceding.get(preceding.len().checked_sub(len)?..)?;
            return self.push_of_ra(push).map(|reg| self.row_from(reg, RegRule::SameValue));
        }
        if self.is_mov_fp_sp(self.ahead) {
            let push = preceding.strip_suffix(&[PUSH_FP])?;
            let push = push.get(push.len().checked_sub(len)?..)?;
            let saved = RegRule::AtRegister(BaseReg::Sp, 0);
            return self.push_of_ra(push).map(|reg| self.row_from(reg, saved));
        }
        None
    }

    /// The CFA is in a register.
    const fn row_from(&self, reg: DwarfReg, fp: RegRule) -> Row {
        let cfa = CfaRule::Register(BaseReg::Reg(reg), 0);
        Row::new(cfa, RegRule::Offset(self.slot().wrapping_neg()), fp)
    }

    /// What follows `lea reg, [rsp + slot]`.
    fn after_lea_of_cfa<'b>(&self, code: &'b [u8]) -> Option<&'b [u8]> {
        let (rex, code) = self.rex(code)?;
        match code {
            // Without the bits of other bases and indices.
            [0x8d, modrm, 0x24, n, rest @ ..]
                if rex & 3 == 0 && modrm & 0xc7 == 0x44 && i32::from(*n) == self.slot() =>
            {
                Some(rest)
            }
            _ => None,
        }
    }

    /// The length of that `lea`.
    const fn lea_len(&self) -> usize {
        match self.word {
            WordSize::Four => 4,
            WordSize::Eight => 5,
        }
    }

    /// `push [reg - slot]`: the register.
    fn push_of_ra(&self, code: &[u8]) -> Option<DwarfReg> {
        let (high, code) = match (self.word, code) {
            (WordSize::Eight, [0x41, rest @ ..]) => (true, rest),
            (_, code) => (false, code),
        };
        match code {
            // Neither with the stack pointer, which would be another encoding.
            [0xff, modrm @ (0x70..=0x73 | 0x75..=0x77), n, ..]
                if i32::from(i8::from_ne_bytes([*n])) == self.slot().wrapping_neg() =>
            {
                Some(self.register(high, *modrm))
            }
            _ => None,
        }
    }

    /// The length of that `push`, with the registers that compilers take.
    const fn push_len(&self) -> usize {
        match self.word {
            WordSize::Four => 3,
            WordSize::Eight => 4,
        }
    }

    /// `and rsp, n`.
    fn is_and_sp(&self, code: &[u8]) -> bool {
        matches!(self.wide(code), Some([0x83 | 0x81, 0xe4, ..]))
    }

    /// Whether `and rsp, n` comes last.
    fn ends_with_and_sp(&self, code: &[u8]) -> bool {
        let at = |len: usize| code.len().checked_sub(len).and_then(|at| code.get(at..));
        let prefix = self.lea_len().wrapping_sub(4);
        let is = |len: usize, op: u8| {
            at(len.wrapping_add(prefix))
                .and_then(|code| self.wide(code))
                .is_some_and(|code| code.starts_with(&[op, 0xe4]))
        };
        is(3, 0x83) || is(6, 0x81)
    }

    /// The bits of a REX prefix for operands of a whole word, which 32-bit code
    /// does not have, and what follows.
    fn rex<'b>(&self, code: &'b [u8]) -> Option<(u8, &'b [u8])> {
        match (self.word, code) {
            (WordSize::Four, code) => Some((0, code)),
            (WordSize::Eight, [rex @ 0x48..=0x4f, rest @ ..]) => Some((*rex, rest)),
            _ => None,
        }
    }

    /// A register by the low three bits of its number in an instruction.
    fn register(&self, is_high: bool, number: u8) -> DwarfReg {
        dwarf_register(self.word, is_high, number)
    }

    /// Whether a function may start at `pc`: it is aligned as functions are,
    /// or after a landing mark, a return or padding.
    fn may_start(pc: VirtAddr, preceding: &[u8]) -> bool {
        const RET: u8 = 0xc3;
        const INT3: u8 = 0xcc;
        const NOP: u8 = 0x90;
        pc.get() % 16 == 0
            || preceding.ends_with(&[0xf3, 0x0f, 0x1e, 0xfa])
            || preceding.ends_with(&[0xf3, 0x0f, 0x1e, 0xfb])
            || matches!(preceding.last(), Some(&(RET | INT3 | NOP)))
    }

    /// `endbr64` or `endbr32`, and what follows.
    fn skip_endbr(&self) -> (bool, &[u8]) {
        let last = match self.word {
            WordSize::Four => 0xfb,
            WordSize::Eight => 0xfa,
        };
        match self.ahead.strip_prefix(&[0xf3, 0x0f, 0x1e, last]) {
            Some(rest) => (true, rest),
            None => (false, self.ahead),
        }
    }

    /// The instruction after a REX.W prefix in 64-bit code, where moves of
    /// whole registers have one.
    fn wide<'b>(&self, code: &'b [u8]) -> Option<&'b [u8]> {
        match self.word {
            WordSize::Four => Some(code),
            WordSize::Eight => code.strip_prefix(&[0x48]),
        }
    }

    /// `mov rbp, rsp`, in either encoding.
    fn is_mov_fp_sp(&self, code: &[u8]) -> bool {
        matches!(self.wide(code), Some([0x89, 0xe5, ..] | [0x8b, 0xec, ..]))
    }

    /// `sub rsp, n`.
    fn is_sub_sp(&self, code: &[u8]) -> bool {
        matches!(self.wide(code), Some([0x83 | 0x81, 0xec, ..]))
    }

    /// Follows the instructions to the function's end, if that is all they do.
    #[inline(never)]
    fn exit(&self, preceding: &[u8]) -> Option<Row> {
        let is_torn_down = Self::ends_with_teardown(preceding);
        let mut exit = Exit::from(Start::Register(BaseReg::Sp), 0, None);
        let mut code = self.ahead;
        // The window holds at most 32 instructions; each pass takes one.
        loop {
            match *code {
                // ret; rep ret; bnd ret; ret n.
                [0xc3 | 0xc2, ..] | [0xf3 | 0xf2, 0xc3, ..] => return exit.row(self.slot()),
                // A jump out, once the frame is gone: rel32 or through a register
                // or memory.
                [0xe9, ..] | [0xff, 0x20..=0x27 | 0x60..=0x67 | 0xa0..=0xa7 | 0xe0..=0xe7, ..]
                    if exit.fp.is_some() || is_torn_down =>
                {
                    exit.is_guess = true;
                    return exit.row(self.slot());
                }
                _ => code = self.exit_step(&mut exit, code)?,
            }
        }
    }

    /// Whether `pop rbp` or `leave` comes last, and is not the operand byte of a
    /// move or a bitwise operation, which may be the same.
    fn ends_with_teardown(preceding: &[u8]) -> bool {
        match preceding {
            [.., 0x28 | 0x29 | 0x31 | 0x33 | 0x57 | 0x85 | 0x89 | 0x8b | 0xef, _] => false,
            [.., last] => matches!(*last, POP_FP | LEAVE),
            [] => false,
        }
    }

    /// Applies one instruction of an exit and returns what follows it.
    #[inline(never)]
    fn exit_step<'b>(&self, exit: &mut Exit, code: &'b [u8]) -> Option<&'b [u8]> {
        let slot = self.slot();
        match (self.word, code) {
            // pop r8 to r15.
            (WordSize::Eight, [0x41, op @ 0x58..=0x5f, rest @ ..]) => {
                exit.pop(self.register(true, *op), slot)?;
                return Some(rest);
            }
            (_, [POP_FP, rest @ ..]) => {
                exit.fp = Some((exit.base()?, exit.depth));
                exit.depth = exit.depth.checked_add(slot)?;
                return Some(rest);
            }
            // pop rsp.
            (_, [0x5c, ..]) => return None,
            // pop of any other register.
            (_, [op @ 0x58..=0x5f, rest @ ..]) => {
                exit.pop(self.register(false, *op), slot)?;
                return Some(rest);
            }
            (_, [LEAVE, rest @ ..]) => {
                *exit = Exit::from(exit.frame()?, slot, Some((BaseReg::Fp, 0)));
                return Some(rest);
            }
            // nop; vzeroupper.
            (_, [0x90, rest @ ..] | [0xc5, 0xf8, 0x77, rest @ ..]) => return Some(rest),
            _ => {}
        }
        if let Some(rest) = self.exit_lea(exit, code) {
            return Some(rest);
        }
        match self.wide(code)? {
            // add rsp, n.
            [0x83, 0xc4, n, rest @ ..] => {
                exit.depth = exit.depth.checked_add(i8::from_ne_bytes([*n]).into())?;
                Some(rest)
            }
            [0x81, 0xc4, n0, n1, n2, n3, rest @ ..] => {
                let n = i32::from_le_bytes([*n0, *n1, *n2, *n3]);
                exit.depth = exit.depth.checked_add(n)?;
                Some(rest)
            }
            // mov rsp, rbp.
            [0x89, 0xec, rest @ ..] | [0x8b, 0xe5, rest @ ..] => {
                *exit = Exit::from(exit.frame()?, 0, None);
                Some(rest)
            }
            _ => None,
        }
    }

    /// `lea rsp, [reg + n]`, and what follows.
    fn exit_lea<'b>(&self, exit: &mut Exit, code: &'b [u8]) -> Option<&'b [u8]> {
        let (rex, code) = self.rex(code)?;
        // With the other bit it is a lea of r12.
        if rex & 4 != 0 {
            return None;
        }
        let (modrm, n, rest) = match code {
            // The encodings with the stack pointer's number are longer.
            [0x8d, modrm @ (0x60..=0x63 | 0x65..=0x67), n, rest @ ..] => {
                (*modrm, i8::from_ne_bytes([*n]).into(), rest)
            }
            [0x8d, modrm @ (0xa0..=0xa3 | 0xa5..=0xa7), n0, n1, n2, n3, rest @ ..] => {
                (*modrm, i32::from_le_bytes([*n0, *n1, *n2, *n3]), rest)
            }
            _ => return None,
        };
        let is_high = rex & 1 != 0;
        if modrm & 7 == 5 && !is_high {
            *exit = Exit::from(exit.frame()?, n, None);
        } else {
            let start = exit.register(self.register(is_high, modrm))?;
            *exit = Exit::from(start, n, exit.fp);
        }
        Some(rest)
    }
}
