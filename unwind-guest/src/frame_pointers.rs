//! Kernels that keep frame pointers.

use core::convert::Infallible;
use core::ops::Range;

use unwind_core::{
    BaseReg, CfaRule, FrameContext, Memory, Origin, RegRule, Row, RowSource, StepError, VirtAddr,
    WordSize,
};
use unwind_x86::{FunctionBounds, ProvenFrames, X86_64Regs};

use crate::kernel_code::LinuxKernel;
use crate::kernel_rows::{Entry, KernelRows, Way};
use crate::linux::Kallsyms;
use crate::saved_registers::{BELOW_FRAME, STACK, SavedRegisters, Whose};

/// The rows of a Linux kernel that was built to keep frame pointers
/// (`CONFIG_UNWINDER_FRAME_POINTER`), as those of many micro-VMs are:
/// [`GuestLinux::rows`](crate::linux::GuestLinux::rows) tells one.
///
/// Where registers are saved at the kernel's entry, such a kernel leaves their address plus one as the frame
/// pointer, and a system call leaves zero below the registers that end the task's stack. So the walk comes out of
/// interrupts, and to user code. An interrupted function's frame may not be there yet, or no longer: its row is what
/// its [instructions prove](ProvenFrames), or else a [guess](Row::is_guess).
///
/// A kernel without ORC tables that does not keep frame pointers has neither: no frame after the first is right but by
/// chance, so the default [fallback](crate::GuestWalker) marks them.
#[derive(Clone, Copy, Debug)]
pub struct KernelFramePointers<'a> {
    way: Way,
    code: Option<&'a KernelCode>,
    symbols: Option<&'a Kallsyms>,
}

/// The code of a kernel that keeps frame pointers, of which some has none.
#[derive(Clone, Debug, Default)]
pub struct KernelCode {
    /// All of the kernel, without modules. Outside of it are BPF programs and trampolines of tracers, whose frames lead
    /// past the function that they trace to its caller.
    pub image: Range<VirtAddr>,
    /// From `__entry_text_start` to `__entry_text_end`. It keeps no frame pointers: until it has saved all registers,
    /// the frame pointer is the interrupted code's.
    pub entry: Range<VirtAddr>,
    /// From `__indirect_thunk_start` to `__indirect_thunk_end`: calls and returns by a changed return address.
    pub thunks: Range<VirtAddr>,
    /// Where tracers of returns have functions return to (`return_to_handler`, `arch_rethook_trampoline`), zero for
    /// none: the caller's address is elsewhere, then.
    pub traced_returns: [VirtAddr; 4],
}

impl<'a> KernelFramePointers<'a> {
    /// A source for one vCPU at a time, of a kernel of which nothing is known but that it keeps frame pointers. Frames
    /// that are lost in code that has none are not marked.
    #[must_use]
    pub const fn new() -> Self {
        Self { way: Way::START, code: None, symbols: None }
    }

    /// The same of a kernel whose code is there.
    #[must_use]
    pub const fn with_code(mut self, code: &'a KernelCode) -> Self {
        self.code = Some(code);
        self
    }

    /// The same with symbols, which tell where the functions begin and end that are interrupted.
    #[must_use]
    pub const fn with_symbols(mut self, symbols: &'a Kallsyms) -> Self {
        self.symbols = Some(symbols);
        self
    }

    /// What the instructions of an interrupted function prove.
    fn proven<M: Memory>(&self, frame: &FrameContext<'_, X86_64Regs>, mem: &mut M) -> Option<Row> {
        let addr = frame.lookup_addr();
        let symbol = self.symbols.and_then(|symbols| symbols.find_at(addr, mem).ok().flatten());
        let bounds = Function(symbol.map(|symbol| symbol.start..symbol.end));
        let proof = ProvenFrames::new(bounds).proof(WordSize::Eight, frame.pc(), mem)?;
        proof.row(frame.sp(), frame.fp())
    }

    /// The row of the outermost frame, near whose stack pointer the registers of user code end the stack, or nobody's,
    /// as those of a thread of the kernel.
    fn end_of_stack<M: Memory>(
        &mut self,
        sp: u64,
        is_entry: bool,
        mem: &mut M,
    ) -> Result<Option<Row>, StepError> {
        let mut near = SavedRegisters::at_end_of_stack(sp);
        let there = near.clone().find(|saved| saved.addr().get() == sp);
        let entry = match (there, there.map(|saved| saved.whose(mem)).transpose()?) {
            (Some(saved), Some(Whose::Users)) => Some(Entry::User(saved)),
            // Where 32-bit code enters, some are zero at first.
            _ if is_entry => None,
            (Some(saved), _) if saved.are_empty(mem)? => Some(Entry::KernelThread),
            (Some(_), _) => None,
            // A CPU begins some words below.
            (None, _) => {
                let is_thread =
                    near.try_fold(false, |is, saved| Ok(is || saved.are_empty(mem)?))?;
                is_thread.then_some(Entry::KernelThread)
            }
        };
        self.way.entry = entry.unwrap_or(self.way.entry);
        Ok(entry.map(|_| Row::outermost()))
    }
}

/// The function that is looked at.
struct Function(Option<Range<VirtAddr>>);

impl FunctionBounds for Function {
    fn find(&self, addr: VirtAddr) -> Option<Range<VirtAddr>> {
        self.0.clone().filter(|range| range.contains(&addr))
    }
}

impl Default for KernelFramePointers<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl RowSource<LinuxKernel> for KernelFramePointers<'_> {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let Some(fp) = frame.fp() else { return Ok(Some(Row::needs_register(BaseReg::Fp))) };
        let (addr, sp, is_interrupted) = (frame.lookup_addr(), frame.sp(), frame.is_interrupted());
        let is_in = |range: fn(&KernelCode) -> &Range<VirtAddr>| {
            self.code.map(|code| range(code).contains(&addr))
        };
        let is_entry = is_in(|code| &code.entry) == Some(true);
        let is_traced = is_in(|code| &code.image) == Some(false)
            || self.code.is_some_and(|code| code.traced_returns.contains(&frame.pc().addr()));
        let sure = |row: Row| if is_traced { row.with_guess() } else { row };
        if is_interrupted && !is_entry && is_in(|code| &code.thunks) != Some(true) {
            if let Some(row) = self.proven(frame, mem) {
                return Ok(Some(sure(row)));
            }
        }
        // The frame pointer of user code, which may be any number, and that of other code are not believed in the entry,
        // where the registers are: above the stack pointer, or some of them below it again.
        let marked = (fp & 1 != 0 && fp >> 63 != 0).then(|| fp.wrapping_sub(1));
        let marked = marked.filter(|at| !is_entry || at.wrapping_sub(sp).wrapping_add(40) <= 56);
        if marked.is_some() {
            let offset = BELOW_FRAME.wrapping_sub(1);
            let saved = SavedRegisters::all(fp.wrapping_add_signed(offset.into()));
            // The function that the entry has save them makes the mark before it returns.
            if is_entry && saved.addr().get() == sp.wrapping_add(8) {
                let row = Row::new(CfaRule::sp(8), RegRule::Offset(-8), RegRule::SameValue);
                return Ok(Some(row.with_origin(Origin::FramePointer)));
            }
            // A function that has no frame yet has the mark of the entry, which has called it.
            if is_interrupted && !is_entry {
                return Ok(None);
            }
            let row = self.way.leave(saved, true, (BaseReg::Fp, offset), true, mem);
            if let Some(row) = row {
                return Ok(Some(row.with_origin(Origin::FramePointer)));
            }
        }
        // Without a mark: a system call, or the first code of a CPU.
        if let Some(sp) = marked.or((fp == 0 && !is_interrupted).then_some(sp)) {
            match self.end_of_stack(sp, is_entry, mem) {
                Ok(None) => {}
                Ok(row) => return Ok(row),
                Err(StepError::Unreadable { addr, .. }) => {
                    return Ok(Some(Row::needs_memory(addr)));
                }
                Err(_) => return Ok(None),
            }
        }
        // Whoever has changed to the stack of interrupts has a frame on the one before.
        let is_other_stack = fp < sp;
        if is_entry || fp >> 63 == 0 || is_other_stack && (fp ^ sp) < STACK {
            return Ok(None);
        }
        let row = Row::frame_pointer(WordSize::Eight);
        if is_interrupted {
            return Ok(Some(row.with_guess()));
        }
        Ok(match is_other_stack {
            false => Some(sure(row)),
            true => row.with_other_stack(fp.wrapping_add(16)).map(sure),
        })
    }
}

impl KernelRows for KernelFramePointers<'_> {
    fn begin(&mut self) {
        self.way = Way::START;
    }

    fn entry(&self) -> Entry {
        self.way.entry
    }
}
