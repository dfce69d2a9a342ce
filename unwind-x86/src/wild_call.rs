//! Calls through pointers that lead to no code.

use unwind_core::{
    Arch, BaseReg, CfaRule, FrameContext, Memory, Origin, RegRule, RegisterRules, Registers,
    ReturnAddresses, Row, RowSource, VirtAddr, WordSize,
};

use crate::call::{follows_call, indirect_calls};
use crate::code::Window;
use crate::register_number::dwarf_register;

/// The rows of a source that reads instructions, for frames in code, and the rows of frames that were interrupted
/// where there is none, as in a program that has called a null pointer: the word at the stack pointer is the return
/// address, if a call comes before it.
///
/// Nothing was executed since the call, so its operand, a register or memory, still is where the frame
/// stands, and the stack pointer is one word below a multiple of 16, as both ABIs have it after a call. Both together prove
/// the row. Otherwise it is a [guess](Row::is_guess): a function that was called may have jumped or returned there.
/// In code that does not align its stack such a `ret` can look like a call; of 32-bit code, where that is usual, the word
/// below the stack pointer, which a `ret` has read, must not be the pc either.
///
/// `code` says where there is code. What the source would read elsewhere are data, which prove nothing.
///
/// ```
/// use unwind_core::{ReturnAddresses, SliceMemory, VirtAddr, Walker};
/// use unwind_x86::{InstructionAnalysis, WildCalls, X86_64, X86_64Regs};
///
/// struct Code;
/// impl ReturnAddresses for Code {
///     fn is_code(&mut self, call: VirtAddr) -> bool {
///         (0x1000..0x1010).contains(&call.get())
///     }
/// }
///
/// // `call *%rax`, which 0x1002 follows, and a stack with that return address.
/// let mut bytes = [0; 0x40];
/// bytes[..2].copy_from_slice(&[0xff, 0xd0]);
/// bytes[0x28..0x30].copy_from_slice(&0x1002_u64.to_le_bytes());
/// let mut memory = SliceMemory::new(VirtAddr::new(0x1000), &bytes);
///
/// let mut registers = [0; 16];
/// registers[7] = 0x1028; // rsp; rax is zero, and so is the pc
/// let rows = WildCalls::new(X86_64::FOUR_LEVEL, Code, InstructionAnalysis);
/// let mut walker = Walker::new(X86_64::FOUR_LEVEL, rows);
/// let mut frames = walker.frames(X86_64Regs::from_all(0, registers), &mut memory);
/// let caller = frames.nth(1).unwrap();
/// assert_eq!(caller.pc.addr(), VirtAddr::new(0x1002));
/// assert!(!caller.provenance.is_after_gap());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct WildCalls<A, C, S> {
    arch: A,
    code: C,
    source: S,
}

impl<A: Arch, C: ReturnAddresses, S> WildCalls<A, C, S> {
    /// The rows of `source`, and those of frames at addresses that have no code.
    #[must_use]
    pub const fn new(arch: A, code: C, source: S) -> Self {
        Self { arch, code, source }
    }

    /// Whether a frame was interrupted where there is no code.
    fn is_wild(&mut self, frame: &FrameContext<'_, A::Regs>) -> bool {
        frame.is_interrupted() && !self.code.is_code(frame.lookup_addr())
    }

    fn row_of<M: Memory>(&mut self, frame: &FrameContext<'_, A::Regs>, mem: &mut M) -> Option<Row> {
        let arch = &self.arch;
        let pc = frame.lookup_addr();
        let (registers, sp) = (frame.registers()?, frame.sp());
        let ra = mem.read_word(arch.stack_addr(sp), A::WORD).ok()?;
        let ra = arch.code_addr(ra)?;
        if !self.code.is_code(ra.checked_sub(1)?) || !follows_call(ra, mem)? {
            return None;
        }
        let size = i32::try_from(A::WORD.bytes()).unwrap_or(8);
        let (cfa, ra_at) =
            (CfaRule::Register(BaseReg::Sp, size), RegRule::Offset(size.wrapping_neg()));
        let row = Row::new(cfa, ra_at, RegRule::SameValue).with_origin(Origin::Instructions);
        let sp_before = A::WORD.offset(sp, size)?;
        let below = A::WORD.offset(sp, size.wrapping_neg());
        let mut is_left_by_ret = || {
            let below = below.map(|below| mem.read_word(arch.stack_addr(below), A::WORD));
            !matches!(below, Some(Ok(word)) if arch.code_addr(word) != Some(pc))
        };
        let may_have_returned =
            sp_before % 16 != 0 || A::WORD == WordSize::Four && is_left_by_ret();
        let call = IndirectCall { arch, registers, sp_before, ra };
        let is_proved = !may_have_returned && call.leads_to(pc, mem);
        Some(if is_proved { row } else { row.with_guess() })
    }
}

impl<A: Arch, C: ReturnAddresses, S: RowSource<A>> RowSource<A> for WildCalls<A, C, S> {
    type Error = S::Error;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, S::Error> {
        match self.is_wild(frame) {
            true => Ok(self.row_of(frame, mem)),
            false => self.source.row(frame, mem),
        }
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<RegisterRules>, S::Error> {
        if self.is_wild(frame) { Ok(None) } else { self.source.register_rules(frame, mem) }
    }

    fn generation(&self) -> u64 {
        self.source.generation()
    }
}

/// A call by a register or by memory that was just executed.
struct IndirectCall<'a, A: Arch> {
    arch: &'a A,
    registers: &'a A::Regs,
    /// The stack pointer before it.
    sp_before: u64,
    /// Where it returns to.
    ra: VirtAddr,
}

/// The longest such call with its prefix, in bytes.
const LONGEST: usize = 8;

impl<A: Arch> IndirectCall<'_, A> {
    /// Whether the instruction before the return address, if it is such a call, leads there.
    fn leads_to<M: Memory>(&self, pc: VirtAddr, mem: &mut M) -> bool {
        let code = Window::<LONGEST>::before(self.ra, mem);
        indirect_calls(code.bytes()).any(|(before, modrm, rest)| {
            // The byte before may be a prefix, or the end of another instruction.
            let prefix = before.last().copied().filter(|byte| byte & 0xf0 == 0x40);
            let prefix = prefix.filter(|_| A::WORD == WordSize::Eight);
            [Some(0), prefix].into_iter().flatten().any(|rex| {
                let target = self.target((rex, modrm), rest, mem);
                target.is_some_and(|target| self.arch.code_addr(target) == Some(pc))
            })
        })
    }

    /// What the operand has of an instruction with these bytes after its opcode.
    fn target<M: Memory>(&self, (rex, modrm): (u8, u8), rest: &[u8], mem: &mut M) -> Option<u64> {
        let (mode, rm) = (modrm >> 6, modrm & 7);
        let (with_base, with_index) = ((rex & 1) << 3, (rex & 2) << 2);
        if mode == 3 {
            return self.register(rm | with_base);
        }
        let (base, index, displacement) = match (rm, rest) {
            (4, &[sib, ref displacement @ ..]) => {
                let index = Some(sib >> 3 & 7 | with_index).filter(|&index| index != 4);
                let base = Some(sib & 7).filter(|&base| mode != 0 || base != 5);
                (base, index.map(|index| (index, sib >> 6)), displacement)
            }
            (4, []) => return None,
            (5, displacement) if mode == 0 => (None, None, displacement),
            (rm, displacement) => (Some(rm), None, displacement),
        };
        let is_relative = mode == 0 && rm == 5 && A::WORD == WordSize::Eight;
        let displacement = match (mode, base, displacement) {
            (0, Some(_), []) => 0,
            (1, _, &[byte]) => i32::from(i8::from_le_bytes([byte])),
            (0, None, bytes) | (2, _, bytes) => i32::from_le_bytes(bytes.try_into().ok()?),
            _ => return None,
        };
        let base = match base {
            Some(number) => self.register(number | with_base)?,
            None if is_relative => self.ra.get(),
            None => 0,
        };
        let index = match index {
            Some((number, scale)) => self.register(number)?.wrapping_shl(scale.into()),
            None => 0,
        };
        let at = base.wrapping_add(index).wrapping_add_signed(displacement.into());
        let at = if A::WORD == WordSize::Four { at & u64::from(u32::MAX) } else { at };
        mem.read_word(self.arch.stack_addr(at), A::WORD).ok()
    }

    /// The value of a register at the call, by its number in instructions.
    fn register(&self, number: u8) -> Option<u64> {
        match number {
            4 => Some(self.sp_before),
            _ => self.registers.get(dwarf_register(A::WORD, number >= 8, number)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use core::convert::Infallible;

    use unwind_core::{FramePc, SliceMemory};

    use super::*;
    use crate::instruction_analysis::InstructionAnalysis;
    use crate::x86_64::{X86_64, X86_64Regs};

    struct Code;

    impl ReturnAddresses for Code {
        fn is_code(&mut self, call: VirtAddr) -> bool {
            (0x1000..0x1100).contains(&call.get())
        }
    }

    const PC: u64 = 0x123_4560;
    /// As after a call.
    const SP: u64 = 0x2048;

    /// The row of a frame at `pc` whose return address follows `call`. Of the registers in the order of the DWARF
    /// numbers, of which the seventh is the stack pointer, and of words at addresses above 0x2000.
    fn row(call: &[u8], registers: [u64; 16], words: &[(u64, u64)]) -> Option<Row> {
        row_at(PC, call, registers, words)
    }

    fn row_at(pc: u64, call: &[u8], registers: [u64; 16], words: &[(u64, u64)]) -> Option<Row> {
        let mut bytes = [0x90; 0x1200];
        let (ra, sp) = (0x1080_u64, registers[7]);
        bytes[0x80 - call.len()..0x80].copy_from_slice(call);
        for &(at, word) in [(sp, ra), (sp - 8, 0x77)].iter().chain(words) {
            let at = usize::try_from(at - 0x1000).unwrap();
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let mut mem = SliceMemory::new(VirtAddr::new(0x1000), &bytes);
        let registers = X86_64Regs::from_all(pc, registers);
        let pc = FramePc::Exact(VirtAddr::new(pc));
        let frame = FrameContext::new(pc, sp, registers.fp(), Some(&registers));
        let row: Result<_, Infallible> = RowSource::<X86_64>::row(
            &mut WildCalls::new(X86_64::FIVE_LEVEL, Code, InstructionAnalysis),
            &frame,
            &mut mem,
        );
        row.unwrap()
    }

    fn with(number: usize, value: u64) -> [u64; 16] {
        let mut registers = [0x55; 16];
        registers[7] = SP;
        registers[number] = value;
        registers
    }

    fn is_proved(row: Option<Row>) -> bool {
        let row = row.unwrap();
        assert_eq!((row.cfa(), row.ra()), (CfaRule::Register(BaseReg::Sp, 8), RegRule::Offset(-8)));
        !row.is_guess()
    }

    #[test]
    fn a_call_that_leads_to_no_code_is_proved_by_its_operand() {
        let pointer: &[(u64, u64)] = &[(0x2100, PC)];
        // As GNU as writes them; the number of a register is DWARF's.
        for (call, (register, value), words) in [
            (&[0xff, 0xd0][..], (0, PC), &[][..]),             // call *%rax
            (&[0xff, 0xd1], (2, PC), &[]),                     // call *%rcx
            (&[0xff, 0xd2], (1, PC), &[]),                     // call *%rdx
            (&[0xff, 0xd6], (4, PC), &[]),                     // call *%rsi
            (&[0x41, 0xff, 0xd3], (11, PC), &[]),              // call *%r11
            (&[0x3e, 0xff, 0xd7], (5, PC), &[]),               // notrack call *%rdi
            (&[0xff, 0x10], (0, 0x2100), pointer),             // call *(%rax)
            (&[0xff, 0x55, 0xf8], (6, 0x2108), pointer),       // call *-8(%rbp)
            (&[0xff, 0x93, 0, 1, 0, 0], (3, 0x2000), pointer), // call *256(%rbx)
            (&[0x41, 0xff, 0x54, 0x24, 8], (12, 0x20f8), pointer), // call *8(%r12)
            (&[0xff, 0x14, 0xc5, 0, 0x20, 0, 0], (0, 0x20), pointer), // call *0x2000(,%rax,8)
            (&[0xff, 0x15, 0x80, 0x10, 0, 0], (0, 0), pointer), // call *0x1080(%rip)
            (&[0xff, 0x54, 0x24, 8], (0, 0), &[(SP + 16, PC)]), // call *8(%rsp), before the push
        ] {
            assert!(is_proved(row(call, with(register, value), words)), "{call:x?}");
            // What leads elsewhere may have been another function, which has jumped there.
            assert!(!is_proved(row(call, with(register, value + 1), &[])), "{call:x?}");
        }
        // call *-8(%rax,%r12,8)
        let mut registers = with(12, 0x20);
        registers[0] = 0x2008;
        assert!(is_proved(row(&[0x42, 0xff, 0x54, 0xe0, 0xf8], registers, pointer)));
        // call f; call *%rax with another register.
        assert!(!is_proved(row(&[0xe8, 1, 2, 3, 4], with(0, PC), &[])));
        assert!(!is_proved(row(&[0xff, 0xd0], with(1, PC), &[])));
    }

    #[test]
    fn a_return_to_no_code_and_a_frame_in_code_are_no_calls() {
        let call: &[u8] = &[0xff, 0xd0];
        assert!(is_proved(row(call, with(0, PC), &[(SP - 8, PC)])), "what is left below is chance");
        // A jump of a function that has its frame, or a ret.
        let mut elsewhere = with(0, PC);
        elsewhere[7] = SP - 8;
        assert!(!is_proved(row(call, elsewhere, &[])), "no call leaves the stack so");
        assert!(row(&[0x90; 8], with(0, PC), &[]).is_none(), "no call comes before");
        assert!(row(call, with(0, PC), &[(SP, 0x3000)]).is_none(), "that leads to no code");
        // What is data where the pc is may look like pop; ret, and proves nothing.
        let data: &[(u64, u64)] = &[(0x2100, 0xc358), (SP + 8, 0x1081)];
        let at_data = with(0, 0x2100);
        assert!(is_proved(row_at(0x2100, call, at_data, data)));
        assert!(row_at(0x2100, &[0x90; 8], at_data, data).is_none());
        let registers = X86_64Regs::from_all(0x1010, with(0, 0x1010));
        let mut mem = SliceMemory::new(VirtAddr::new(SP), &[0x80, 0x10, 0, 0, 0, 0, 0, 0]);
        for pc in [FramePc::Exact(VirtAddr::new(0x1010)), FramePc::Return(VirtAddr::new(PC))] {
            let frame = FrameContext::new(pc, SP, None, Some(&registers));
            let found: Result<_, Infallible> = RowSource::<X86_64>::row(
                &mut WildCalls::new(X86_64::FIVE_LEVEL, Code, InstructionAnalysis),
                &frame,
                &mut mem,
            );
            assert!(found.unwrap().is_none(), "{pc:?}");
        }
    }
}
