//! Any instruction bytes around a pc: a row where the code is understood, and
//! where it runs straight to its return, the one that running it comes to.

use unwind_core::{
    Arch, BaseReg, CfaRule, FrameContext, FramePc, Memory, Origin, ReadError, RegRule, Row,
    RowSource, VirtAddr,
};
use unwind_x86::{Ia32, Ia32Regs, InstructionAnalysis, X86_64, X86_64Regs};

use crate::input::Input;

const CODE: u64 = 0x40_1000;

/// Code around a pc, of which no more may be read than is said to be.
struct Code<'a> {
    bytes: &'a [u8],
    pc: u64,
    reads: u32,
}

impl Memory for Code<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.reads += 1;
        let end = addr.get() + buf.len() as u64;
        assert!(addr.get() + 16 >= self.pc && end <= self.pc + 32, "bounded reads");
        let at = addr.get().checked_sub(CODE).and_then(|at| usize::try_from(at).ok());
        let bytes = at.and_then(|at| self.bytes.get(at..)?.get(..buf.len()));
        buf.copy_from_slice(bytes.ok_or(ReadError::Invalid)?);
        Ok(())
    }
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (at, narrow) = (usize::from(input.u8() % 24), input.bool());
    let bytes = input.rest();
    let pc = CODE + at as u64;
    let ahead = bytes.get(at..).unwrap_or_default();
    let ahead = &ahead[..ahead.len().min(32)];
    let (row, word) = if narrow {
        (ask::<Ia32>(&Ia32Regs::new(0, 0, 0), pc, bytes), 4)
    } else {
        (ask::<X86_64>(&X86_64Regs::new(0, 0, 0), pc, bytes), 8)
    };
    let Some(row) = row else { return };
    assert_eq!(row.origin(), Origin::Instructions);
    assert!(!row.is_signal() && !row.is_outermost() && !row.is_context_only());
    if let Some((expected, _)) = returns(ahead, word) {
        assert_eq!((row.cfa(), row.ra()), (expected, RegRule::Offset(-word)), "{ahead:02x?}");
    }
}

fn ask<A: Arch>(regs: &A::Regs, pc: u64, bytes: &[u8]) -> Option<Row>
where
    InstructionAnalysis: RowSource<A, Error = core::convert::Infallible>,
{
    let addr = VirtAddr::new(pc);
    let mut code = Code { bytes, pc, reads: 0 };
    let mut row = |pc| {
        let frame = FrameContext::new(pc, 0, None, Some(regs));
        InstructionAnalysis.row(&frame, &mut code).unwrap()
    };
    assert_eq!(row(FramePc::Return(addr)), None);
    let row = row(FramePc::Exact(addr));
    assert!(code.reads <= 64, "{} reads", code.reads);
    row
}

/// Where the CFA is, if the code is nothing but pops, `leave`, additions to the
/// stack pointer and a return; and the lowest that the stack pointer comes to.
pub(crate) fn returns(mut code: &[u8], word: i32) -> Option<(CfaRule, i32)> {
    let wide = word == 8;
    let (mut base, mut offset, mut lowest) = (BaseReg::Sp, 0_i32, 0);
    loop {
        lowest = lowest.min(offset);
        let rest = code.strip_prefix(&[0x48]).filter(|_| wide);
        code = match (code, rest) {
            ([0xc3, ..], _) => {
                let cfa = CfaRule::Register(base, offset.checked_add(word)?);
                return Some((cfa, lowest));
            }
            // pop rax to rdi, but rsp; rbp only as the last before the return.
            ([0x58..=0x5b | 0x5e..=0x5f, rest @ ..], _) => {
                offset = offset.checked_add(word)?;
                rest
            }
            ([0x5d, 0xc3, ..], _) => {
                offset = offset.checked_add(word)?;
                &code[1..]
            }
            ([0x41, 0x58..=0x5f, rest @ ..], _) if wide => {
                offset = offset.checked_add(word)?;
                rest
            }
            ([0xc9, 0xc3, ..], _) => {
                (base, offset) = (BaseReg::Fp, word);
                &code[1..]
            }
            (_, Some([0x83, 0xc4, n, rest @ ..])) => {
                offset = offset.checked_add((*n as i8).into())?;
                rest
            }
            ([0x83, 0xc4, n, rest @ ..], _) if !wide => {
                offset = offset.checked_add((*n as i8).into())?;
                rest
            }
            _ => return None,
        };
    }
}
