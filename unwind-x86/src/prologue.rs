//! The sampled frame where it has no frame pointer yet, or no longer.
//!
//! A walk by frame pointers loses the caller of a function that was stopped
//! before its frame was set up or after it was torn down: the frame pointer is
//! then the caller's. The few instructions that compilers use there tell.

use core::convert::Infallible;

use unwind_core::{
    Arch, CfaRule, FrameContext, FramePc, Memory, Origin, RegRule, Row, RowSource, VirtAddr,
    WordSize,
};

use crate::code::Window;
use crate::{Ia32, X86_64};

/// A source of rows for a pc at a function's entry or exit, read off the
/// instructions there. It knows
///
/// * at the entry: `endbr`, `push rbp`, `mov rbp, rsp` and a `sub rsp` that
///   begins a function;
/// * at the exit: runs of `pop`, `add rsp`, `lea rsp, [rbp-n]`, `mov rsp, rbp`
///   and `leave` up to a `ret` or a tail call;
///
/// and the 32-bit forms. Everywhere else it has no row, and neither has it for
/// a return address. Code is only looked at, never run past a branch, so a
/// row costs two small reads and a bounded number of steps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prologue;

impl RowSource<X86_64> for Prologue {
    type Error = Infallible;

    #[inline]
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, <X86_64 as Arch>::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(row(WordSize::Eight, frame.pc, mem))
    }
}

impl RowSource<Ia32> for Prologue {
    type Error = Infallible;

    #[inline]
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, <Ia32 as Arch>::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(row(WordSize::Four, frame.pc, mem))
    }
}

fn row<M: Memory>(word: WordSize, pc: FramePc, mem: &mut M) -> Option<Row> {
    let FramePc::Exact(pc) = pc else { return None };
    let ahead = Window::<32>::after(pc, mem);
    let behind = Window::<8>::before(pc, mem);
    row_of_code(word, pc, ahead.bytes(), behind.bytes())
}

/// The row for a pc with these instruction bytes from it on and before it.
pub(crate) fn row_of_code(
    word: WordSize,
    pc: VirtAddr,
    ahead: &[u8],
    behind: &[u8],
) -> Option<Row> {
    let code = Code { word, ahead };
    let row = code.entry(pc, behind).or_else(|| code.exit(behind))?;
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
        Row::new(CfaRule::sp(cfa), RegRule::AtCfa(slot.wrapping_neg()), fp)
    }

    fn entry(&self, pc: VirtAddr, behind: &[u8]) -> Option<Row> {
        let at_entry = self.row(0, RegRule::Same);
        let (endbr, rest) = self.skip_endbr();
        if endbr {
            return Some(at_entry);
        }
        if let Some(after_push) = rest.strip_prefix(&[PUSH_FP]) {
            let is_frame = self.is_mov_fp_sp(after_push);
            return (is_frame || Self::may_start(pc, behind)).then_some(at_entry);
        }
        if self.is_mov_fp_sp(rest) {
            let saved = self.slot().wrapping_mul(-2);
            return Some(self.row(1, RegRule::AtCfa(saved)));
        }
        (self.is_sub_sp(rest) && Self::may_start(pc, behind)).then_some(at_entry)
    }

    /// Whether a function may start at `pc`: it is aligned as functions are,
    /// or behind a landing mark, a return or padding.
    fn may_start(pc: VirtAddr, behind: &[u8]) -> bool {
        const RET: u8 = 0xc3;
        const INT3: u8 = 0xcc;
        const NOP: u8 = 0x90;
        pc.get().is_multiple_of(16)
            || behind.ends_with(&[0xf3, 0x0f, 0x1e, 0xfa])
            || behind.ends_with(&[0xf3, 0x0f, 0x1e, 0xfb])
            || matches!(behind.last(), Some(&(RET | INT3 | NOP)))
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

    /// The instruction behind a REX.W prefix in 64-bit code, where moves of
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
    fn exit(&self, behind: &[u8]) -> Option<Row> {
        let is_torn_down = matches!(behind.last(), Some(&(POP_FP | LEAVE)));
        let mut exit = Exit { base: Base::Sp, depth: 0, fp: None };
        let mut code = self.ahead;
        // The window holds at most 32 instructions; each pass takes one.
        loop {
            match *code {
                // ret; rep ret; bnd ret; ret n.
                [0xc3 | 0xc2, ..] | [0xf3 | 0xf2, 0xc3, ..] => return exit.row(self.slot()),
                // A jump out, once the frame is gone: rel8, rel32 or through a
                // register or memory.
                [0xeb | 0xe9, ..]
                | [0xff, 0x20..=0x27 | 0x60..=0x67 | 0xa0..=0xa7 | 0xe0..=0xe7, ..]
                    if exit.fp.is_some() || is_torn_down =>
                {
                    return exit.row(self.slot());
                }
                _ => code = self.exit_step(&mut exit, code)?,
            }
        }
    }

    /// Applies one instruction of an exit and returns what follows it.
    fn exit_step<'b>(&self, exit: &mut Exit, code: &'b [u8]) -> Option<&'b [u8]> {
        let slot = self.slot();
        if self.word == WordSize::Eight
            && let [0x41, 0x58..=0x5f, rest @ ..] = code
        {
            // pop r8 to r15.
            exit.depth = exit.depth.checked_add(slot)?;
            return Some(rest);
        }
        match code {
            [POP_FP, rest @ ..] => {
                exit.fp = Some(exit.depth);
                exit.depth = exit.depth.checked_add(slot)?;
                return Some(rest);
            }
            // pop rsp.
            [0x5c, ..] => return None,
            // pop of any other register.
            [0x58..=0x5f, rest @ ..] => {
                exit.depth = exit.depth.checked_add(slot)?;
                return Some(rest);
            }
            [LEAVE, rest @ ..] => {
                *exit = Exit { base: exit.frame_base()?, depth: slot, fp: Some(0) };
                return Some(rest);
            }
            // nop; vzeroupper.
            [0x90, rest @ ..] | [0xc5, 0xf8, 0x77, rest @ ..] => return Some(rest),
            _ => {}
        }
        match self.wide(code)? {
            // add rsp, n.
            [0x83, 0xc4, n, rest @ ..] => {
                exit.depth = exit.depth.checked_add(n.cast_signed().into())?;
                Some(rest)
            }
            [0x81, 0xc4, n0, n1, n2, n3, rest @ ..] => {
                let n = i32::from_le_bytes([*n0, *n1, *n2, *n3]);
                exit.depth = exit.depth.checked_add(n)?;
                Some(rest)
            }
            // lea rsp, [rbp + n].
            [0x8d, 0x65, n, rest @ ..] => {
                *exit = Exit { base: exit.frame_base()?, depth: n.cast_signed().into(), fp: None };
                Some(rest)
            }
            [0x8d, 0xa5, n0, n1, n2, n3, rest @ ..] => {
                let n = i32::from_le_bytes([*n0, *n1, *n2, *n3]);
                *exit = Exit { base: exit.frame_base()?, depth: n, fp: None };
                Some(rest)
            }
            // mov rsp, rbp.
            [0x89, 0xec, rest @ ..] | [0x8b, 0xe5, rest @ ..] => {
                *exit = Exit { base: exit.frame_base()?, depth: 0, fp: None };
                Some(rest)
            }
            _ => None,
        }
    }
}

/// How far the instructions of an exit have come.
#[derive(Clone, Copy)]
struct Exit {
    /// What the stack pointer is counted from.
    base: Base,
    /// The stack pointer less the base, in bytes.
    depth: i32,
    /// Where the caller's frame pointer was popped from, counted likewise.
    fp: Option<i32>,
}

#[derive(Clone, Copy)]
enum Base {
    Sp,
    Fp,
}

impl Exit {
    /// The frame pointer as a base: it is the frame's own until it is popped.
    const fn frame_base(&self) -> Option<Base> {
        if self.fp.is_none() { Some(Base::Fp) } else { None }
    }

    /// The row when the stack pointer is at the return address.
    fn row(self, slot: i32) -> Option<Row> {
        let cfa = self.depth.checked_add(slot)?;
        let fp = match self.fp {
            Some(at) => RegRule::AtCfa(at.checked_sub(cfa)?),
            None => RegRule::Same,
        };
        let cfa = match self.base {
            Base::Sp => CfaRule::sp(cfa),
            Base::Fp => CfaRule::fp(cfa),
        };
        Some(Row::new(cfa, RegRule::AtCfa(slot.checked_neg()?), fp))
    }
}
