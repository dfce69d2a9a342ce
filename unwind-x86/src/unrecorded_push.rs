//! Code that has pushed something of which its call frame information says nothing.

use unwind_core::{
    BaseReg, CfaRule, FrameContext, FramePc, Memory, Origin, RegRule, RegisterRules, Row, RowKey,
    RowSource, VirtAddr,
};

use crate::code::Window;
use crate::ia32::{Ia32, Ia32Regs};
use crate::stack_check::{self, StackCheck};
use crate::x86_64::{X86_64, X86_64Regs};

/// The rows of another source, but where the instructions up to a `ret` prove that the return
/// address is further up the stack than the row says.
///
/// Functions that were written by hand, as glibc's 32-bit `memcpy`, may have call frame information
/// for their entry alone: by its rows the return address is the word at the stack pointer, also
/// after a register was pushed; or, after a `pop` that it tells of, below the stack pointer. In code
/// that was sampled and has such a row the instructions from the pc on are looked at. If they are nothing
/// but moves between registers and memory that is not on the stack, moves from memory, sums of
/// registers, copies of memory and `pop`, up to a `ret`, then this is where they get to, and the
/// word that the `ret` takes is the return address. All other rows are those of the other source.
///
/// In 64-bit code they are those of a [`StackCheck`]. The code of a frame that was interrupted is looked at alone, as that of the
/// callers of `caml_call_realloc_stack` is by OCaml's call frame information.
#[derive(Clone, Copy, Debug)]
pub struct UnrecordedPushes<S> {
    source: S,
}

/// Bytes of a slot.
const SLOT: i32 = 4;

/// How much code is looked at.
const CODE: usize = 96;

impl<S> UnrecordedPushes<S> {
    /// The rows of `source`, but for such code.
    #[must_use]
    pub const fn new(source: S) -> Self {
        Self { source }
    }
}

/// The row that the instructions prove, if `row` is that of an entry and they are no entry's, or has the
/// return address where there is none: below the stack pointer.
///
/// It is a function of its own so that the code is not on the stack while the row is looked up.
#[inline(never)]
fn proved<M: Memory>(row: &Row, frame: &FrameContext<'_, Ia32Regs>, mem: &mut M) -> Option<Row> {
    let CfaRule::Register(BaseReg::Sp, cfa) = row.cfa() else { return None };
    if cfa > SLOT || row.ra() != RegRule::Offset(-SLOT) || row.is_signal() {
        return None;
    }
    // The instructions at a return address are no proof: a call that does not return has none.
    let FramePc::Exact(pc) = frame.pc() else { return None };
    let code = Window::<CODE>::after(pc, mem);
    let way = Way::to_return(code.bytes())?;
    (way.depth > 0 || cfa < SLOT).then(|| way.row()).flatten()
}

impl<S: RowSource<Ia32>> RowSource<Ia32> for UnrecordedPushes<S> {
    type Error = S::Error;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, Ia32Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, S::Error> {
        let mut found = self.source.row(frame, mem);
        if let Ok(Some(row)) = &mut found {
            if let Some(real) = proved(row, frame, mem) {
                *row = real;
            }
        }
        found
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, Ia32Regs>,
        mem: &mut M,
    ) -> Result<Option<RegisterRules>, S::Error> {
        // Where the row is another one, the rules of the entry do not hold either.
        match self.source.row(frame, mem)? {
            Some(row) if proved(&row, frame, mem).is_some() => Ok(None),
            _ => self.source.register_rules(frame, mem),
        }
    }

    fn generation(&self) -> u64 {
        self.source.generation()
    }

    fn row_key(&self, addr: VirtAddr) -> Option<RowKey> {
        self.source.row_key(addr)
    }
}

/// The row of a frame that was interrupted in a check of the stack.
#[inline(never)]
fn in_check<S: RowSource<X86_64>, M: Memory>(
    source: &mut S,
    row: &Row,
    frame: &FrameContext<'_, X86_64Regs>,
    mem: &mut M,
) -> Option<Row> {
    let CfaRule::Register(BaseReg::Sp, _) = row.cfa() else { return None };
    // Of a frame that was interrupted it is the pc, whose code goes with it where rows are kept.
    let pc = frame.lookup_addr();
    let before = Window::<{ stack_check::LONGEST }>::before(pc, mem);
    let after = Window::<{ stack_check::LONGEST }>::after(pc, mem);
    let mut code = [0; stack_check::LONGEST.wrapping_mul(2)];
    let bytes = before.bytes().iter().chain(after.bytes());
    let len = bytes.clone().count();
    code.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    let start = pc.checked_sub(u64::try_from(before.bytes().len()).ok()?)?;
    let mut found = StackCheck::all(start.get(), code.get(..len)?);
    let check = found.find(|check| check.code.contains(&pc.get()))?;
    let to = FramePc::Exact(VirtAddr::new(check.start));
    let at_start = FrameContext::new(to, frame.sp(), frame.fp(), frame.registers());
    let mut rows = check.rows(&source.row(&at_start, mem).ok()??)?.into_iter();
    rows.find(|(code, _)| code.contains(&pc.get())).map(|(_, row)| row)
}

impl<S: RowSource<X86_64>> RowSource<X86_64> for UnrecordedPushes<S> {
    type Error = S::Error;

    #[inline]
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, S::Error> {
        let mut found = self.source.row(frame, mem);
        if frame.is_interrupted() {
            if let Ok(Some(row)) = &mut found {
                if let Some(real) = in_check(&mut self.source, row, frame, mem) {
                    *row = real;
                }
            }
        }
        found
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<RegisterRules>, S::Error> {
        self.source.register_rules(frame, mem)
    }

    fn generation(&self) -> u64 {
        self.source.generation()
    }

    fn row_key(&self, addr: VirtAddr) -> Option<RowKey> {
        self.source.row_key(addr)
    }
}

/// How far instructions have taken the stack pointer.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    /// The stack pointer less what it was, in bytes.
    depth: i32,
    /// Where the caller's frame pointer was popped from, by the same measure.
    fp: Option<i32>,
}

/// The registers that lead to the caller, by their numbers in instructions.
const ESP: u8 = 4;
const EBP: u8 = 5;

const fn is_free(reg: u8) -> bool {
    reg & 7 != ESP && reg & 7 != EBP
}

impl Way {
    /// Follows instructions to their `ret`; `None` if anything else is among them.
    fn to_return(code: &[u8]) -> Option<Self> {
        let mut way = Self::default();
        let mut code = code;
        // Each pass takes an instruction, of which there are no more than bytes.
        loop {
            match code {
                [0xc3 | 0xc2, ..] => return Some(way),
                _ => code = way.step(code)?,
            }
        }
    }

    /// Takes one instruction and returns what follows it.
    fn step<'c>(&mut self, code: &'c [u8]) -> Option<&'c [u8]> {
        let (&op, rest) = code.split_first()?;
        match (op, rest) {
            // pop.
            (0x58..=0x5f, _) if op & 7 != ESP => {
                if op & 7 == EBP {
                    self.fp = Some(self.depth);
                }
                self.depth = self.depth.checked_add(SLOT)?;
                Some(rest)
            }
            // nop; cld; std; movs and stos of bytes and words.
            (0x90 | 0xfc | 0xfd | 0xa4 | 0xa5 | 0xaa | 0xab, _) => Some(rest),
            // The same repeated, or of halves of words.
            (0xf2 | 0xf3 | 0x66, [0xa4 | 0xa5 | 0xaa | 0xab, rest @ ..]) => Some(rest),
            // mov of half a word to memory.
            (0x66, [0x89, rest @ ..]) => after_store(rest),
            // Vectors and zero-extending moves.
            (0x0f, [0xb6 | 0xb7, rest @ ..]) => {
                is_free(rest.first()?.wrapping_shr(3)).then(|| after_operand(rest)).flatten()
            }
            // movq from memory: with another prefix it is one to a register or memory.
            (0xf3, [0x0f, 0x7e, rest @ ..]) => after_operand(rest),
            (0x0f, _) => after_vector(rest),
            (0x66 | 0xf2 | 0xf3, [0x0f, rest @ ..]) => after_vector(rest),
            // inc, dec.
            (0x40..=0x4f, _) if is_free(op) => Some(rest),
            // Sums of registers into that of the last three bits, or of those before.
            (0x01 | 0x09 | 0x21 | 0x29 | 0x31 | 0x89, [modrm @ 0xc0..=0xff, rest @ ..]) => {
                is_free(*modrm).then_some(rest)
            }
            (0x03 | 0x0b | 0x23 | 0x2b | 0x33, [modrm @ 0xc0..=0xff, rest @ ..]) => {
                is_free(modrm.wrapping_shr(3)).then_some(rest)
            }
            // cmp, test.
            (0x39 | 0x3b | 0x85, [0xc0..=0xff, rest @ ..]) => Some(rest),
            // mov to memory.
            (0x88 | 0x89, _) => after_store(rest),
            // mov and lea into a register.
            (0x8b | 0x8d, [modrm, ..]) => {
                is_free(modrm.wrapping_shr(3)).then(|| after_operand(rest)).flatten()
            }
            // Sums with a number; shifts.
            (0x83 | 0xc1, [modrm @ 0xc0..=0xff, _, rest @ ..])
            | (0xd1 | 0xd3, [modrm @ 0xc0..=0xff, rest @ ..]) => is_free(*modrm).then_some(rest),
            _ => None,
        }
    }

    /// The row of a frame that is this far from its `ret`.
    fn row(self) -> Option<Row> {
        let cfa = self.depth.checked_add(SLOT)?;
        let fp = match self.fp {
            Some(at) => RegRule::Offset(at.checked_sub(cfa)?),
            None => RegRule::SameValue,
        };
        let cfa = CfaRule::Register(BaseReg::Sp, cfa);
        Some(Row::new(cfa, RegRule::Offset(-SLOT), fp).with_origin(Origin::Instructions))
    }
}

/// What follows a move of a vector, after its prefixes, and its operand.
fn after_vector(code: &[u8]) -> Option<&[u8]> {
    match code {
        // movups, movaps, movdqa, movdqu, lddqu into a register.
        [0x10 | 0x28 | 0x6f | 0xf0, rest @ ..] => after_operand(rest),
        // The same to memory.
        [0x11 | 0x29 | 0x7f | 0xd6, rest @ ..] => after_store(rest),
        // palignr.
        [0x3a, 0x0f, rest @ ..] => after_operand(rest)?.get(1..),
        _ => None,
    }
}

/// What follows an operand in memory that is written to, unless that may be a word of the frame.
fn after_store(code: &[u8]) -> Option<&[u8]> {
    let base = match *code.first()? {
        0xc0.. => return None,
        modrm if modrm & 7 == ESP => *code.get(1)?,
        modrm => modrm,
    };
    is_free(base).then(|| after_operand(code)).flatten()
}

/// What follows an operand in a register or in memory.
fn after_operand(code: &[u8]) -> Option<&[u8]> {
    let (&modrm, rest) = code.split_first()?;
    let (mode, reg) = (modrm.wrapping_shr(6), modrm & 7);
    let (base, rest) = match (mode, reg) {
        (3, _) => return Some(rest),
        // A byte for the base and an index.
        (_, 4) => rest.split_first().map(|(sib, rest)| (sib & 7, rest))?,
        _ => (reg, rest),
    };
    match (mode, base) {
        (1, _) => rest.get(1..),
        (2, _) | (0, 5) => rest.get(4..),
        _ => Some(rest),
    }
}
