//! A program that calls made-up functions, and what its stack and code hold.

use core::convert::Infallible;

use unwind_core::{
    CfaRule, FrameContext, Memory, ReadError, Row, RowSource, SliceMemory, VirtAddr,
};
use unwind_x86::{X86_64, X86_64Regs};

use crate::kind::{Fp, Kind};

/// Where the stack ends, and the code begins: a page for each function, the outermost
/// first.
const STACK_END: u64 = 0x7fff_0000;
const CODE: u64 = 0x40_0000;
const PAGE: u64 = 0x1000;
/// Bytes of stack; those of signals are the largest part.
const STACK: usize = 0x1000;

/// A program that was stopped.
#[derive(Debug)]
pub(crate) struct Program {
    /// Outermost first; the first one is start-up code, with a table.
    kinds: Vec<Option<Kind>>,
    stack: Vec<u8>,
    code: Vec<u8>,
    rip: u64,
    rsp: u64,
    rbp: u64,
    /// The frames of the stack, innermost last.
    truth: Vec<u64>,
    /// Where return addresses are.
    return_slots: Vec<u64>,
    /// Whether variables hold addresses of code, or zeroes.
    has_addresses: bool,
}

/// What of a program's memory can be read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Captured {
    All,
    /// What lies below the stack pointer cannot.
    FromSp,
    /// Nor can the code.
    StackOnly,
}

impl Program {
    /// A program whose functions called each other in this order, innermost first.
    pub(crate) fn new(chain: &[Kind]) -> Self {
        Self::with_locals(chain, true)
    }

    /// The same, whose variables are zeroes, and not addresses of its code.
    pub(crate) fn with_zeroes(chain: &[Kind]) -> Self {
        Self::with_locals(chain, false)
    }

    fn with_locals(chain: &[Kind], has_addresses: bool) -> Self {
        let mut program = Self {
            kinds: vec![None],
            stack: vec![0; STACK],
            // hlt, which says nothing of any function.
            code: vec![0xf4; usize::try_from(PAGE).unwrap() * (chain.len() + 1)],
            rip: CODE + 0x10,
            rsp: STACK_END - 0x20,
            rbp: 0,
            truth: Vec::new(),
            return_slots: Vec::new(),
            has_addresses,
        };
        // The call of the first function.
        program.code[0x0b] = 0xe8;
        for (depth, &kind) in chain.iter().rev().enumerate() {
            let inner = chain.len() - depth - 1;
            let is_stopped = inner == 0 || chain[inner - 1] == Kind::Signal;
            program.enter(kind, is_stopped);
        }
        program.truth.push(program.rip);
        program
    }

    fn enter(&mut self, kind: Kind, is_stopped: bool) {
        let page = u64::try_from(self.kinds.len()).unwrap() * PAGE;
        let (bytes, at) = kind.code(is_stopped);
        let page_at = usize::try_from(page).unwrap();
        self.code[page_at..page_at + bytes.len()].copy_from_slice(bytes);
        self.kinds.push(Some(kind));
        // Where execution stood, and returns to.
        self.truth.push(self.rip);
        if kind == Kind::Signal {
            self.interrupt();
        } else {
            self.call(kind);
        }
        self.rip = CODE + page + at;
        // The handler is called with the trampoline as its return address; so the first
        // instruction there is where it returns to.
    }

    /// The kernel saves the registers below the red zone, for the trampoline.
    fn interrupt(&mut self) {
        let context = (self.rsp - 128 - 0x180) & !15;
        let gregs = context + 40;
        // r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip.
        self.put(gregs + 10 * 8, self.rbp);
        self.put(gregs + 15 * 8, self.rsp);
        self.put(gregs + 16 * 8, self.rip);
        self.rsp = context;
    }

    fn call(&mut self, kind: Kind) {
        let frame = kind.frame();
        self.push(self.rip);
        self.return_slots.push(self.rsp);
        // What `pop rbp` has read is still there.
        self.put(self.rsp - 8, self.rbp);
        if frame.is_fp_pushed {
            self.rsp -= 8;
        }
        match frame.fp {
            Fp::Callers => {}
            Fp::Own => self.rbp = self.rsp,
            // Two callers further out, or as far as there is one.
            Fp::Stray => {
                let outer = self.return_slots.len().saturating_sub(3);
                self.rbp = self.return_slots[outer] - 8;
            }
        }
        for slot in 0..frame.slots {
            // An outer return address, spilled as any other pointer: the last on top.
            let stray = self.truth[usize::try_from(slot).unwrap() % self.truth.len()];
            self.push(if self.has_addresses { stray } else { 0 });
        }
    }

    fn push(&mut self, word: u64) {
        self.rsp -= 8;
        self.put(self.rsp, word);
    }

    fn put(&mut self, at: u64, word: u64) {
        let at = STACK - usize::try_from(STACK_END - at).unwrap();
        self.stack[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// The frames, innermost first.
    pub(crate) fn truth(&self) -> Vec<u64> {
        self.truth.iter().rev().copied().collect()
    }

    pub(crate) const fn sp(&self) -> u64 {
        self.rsp
    }

    pub(crate) fn registers(&self) -> X86_64Regs {
        let mut gpr = [0; 16];
        (gpr[6], gpr[7]) = (self.rbp, self.rsp);
        X86_64Regs::from_all(self.rip, gpr)
    }

    pub(crate) fn memory(&self, what: Captured) -> ProgramMemory<'_> {
        let start = match what {
            Captured::All => STACK_END - u64::try_from(STACK).unwrap(),
            Captured::FromSp | Captured::StackOnly => self.rsp,
        };
        let kept = usize::try_from(STACK_END - start).unwrap();
        let code: &[u8] = if what == Captured::StackOnly { &[] } else { &self.code };
        ProgramMemory {
            stack: SliceMemory::new(VirtAddr::new(start), &self.stack[STACK - kept..]),
            code: SliceMemory::new(VirtAddr::new(CODE), code),
        }
    }
}

/// The memory of a program, as far as it was captured.
pub(crate) struct ProgramMemory<'p> {
    stack: SliceMemory<'p>,
    code: SliceMemory<'p>,
}

impl Memory for ProgramMemory<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.stack.read(addr, buf).or_else(|_| self.code.read(addr, buf))
    }
}

/// The tables of a program's functions.
#[derive(Clone, Copy)]
pub(crate) struct Tables<'p> {
    program: &'p Program,
    /// The function, from the outermost one on, whose CFA is wrong, and by how many bytes.
    wrong: Option<(usize, i32)>,
}

impl<'p> Tables<'p> {
    pub(crate) const fn new(program: &'p Program) -> Self {
        Self { program, wrong: None }
    }

    pub(crate) const fn wrong(self, function: usize, by: i32) -> Self {
        Self { wrong: Some((function, by)), ..self }
    }
}

impl RowSource<X86_64> for Tables<'_> {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let at = frame.lookup_addr().get().wrapping_sub(CODE);
        let function = usize::try_from(at / PAGE).unwrap_or(usize::MAX);
        let row = match self.program.kinds.get(function) {
            Some(None) => Some(Row::outermost()),
            // A table covers the function and not what stands before the next one.
            Some(Some(kind)) if at % PAGE < kind.code_len() => kind.row(),
            _ => None,
        };
        Ok(match (row, self.wrong) {
            (Some(row), Some((wrong, by))) if wrong == function => Some(moved(row, by)),
            _ => row,
        })
    }
}

/// A row whose CFA is this far from where it is.
fn moved(row: Row, by: i32) -> Row {
    match row.cfa() {
        CfaRule::Register(base, offset) => row.with_cfa(CfaRule::Register(base, offset + by)),
        CfaRule::AtRegister(..) | CfaRule::AtRegisterPlus(..) => row,
    }
}
