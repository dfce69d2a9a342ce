//! Kernels that keep frame pointers.

use core::convert::Infallible;
use core::ops::Range;

use unwind_core::{
    BaseReg, CfaRule, FrameContext, Memory, Origin, RegRule, Row, RowSource, StepError, VirtAddr,
    WordSize,
};
use unwind_x86::{ProvenFrames, X86_64Regs};

use crate::kernel_code::LinuxKernel;
use crate::kernel_rows::{Entry, KernelRows, Way};
use crate::saved_registers::{BELOW_FRAME, SavedRegisters, Whose};

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
pub struct KernelFramePointers {
    way: Way,
    /// From, to.
    entry_code: (u64, u64),
}

impl KernelFramePointers {
    /// A source for one vCPU at a time.
    #[must_use]
    pub const fn new() -> Self {
        Self { way: Way::START, entry_code: (0, 0) }
    }

    /// The same of a kernel of which the code between `__entry_text_start` and `__entry_text_end` is here: that keeps
    /// no frame pointers, and has those of the code that it was entered from until it has saved all registers.
    #[must_use]
    pub const fn with_entry_code(mut self, code: Range<VirtAddr>) -> Self {
        self.entry_code = (code.start.get(), code.end.get());
        self
    }

    /// The row of the outermost frame, near whose stack pointer the registers of user code end the stack, or nobody's,
    /// as those of a thread of the kernel.
    fn end_of_stack<M: Memory>(&mut self, sp: u64, mem: &mut M) -> Result<Option<Row>, StepError> {
        let mut near = SavedRegisters::at_end_of_stack(sp);
        let there = near.clone().find(|saved| saved.addr().get() == sp);
        let entry = match (there, there.map(|saved| saved.whose(mem)).transpose()?) {
            (Some(saved), Some(Whose::Users)) => Some(Entry::User(saved)),
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

impl Default for KernelFramePointers {
    fn default() -> Self {
        Self::new()
    }
}

impl RowSource<LinuxKernel> for KernelFramePointers {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let Some(fp) = frame.fp() else { return Ok(Some(Row::needs_register(BaseReg::Fp))) };
        let (start, end) = self.entry_code;
        let is_entry = (start..end).contains(&frame.lookup_addr().get());
        let (sp, is_interrupted) = (frame.sp(), frame.is_interrupted());
        if is_interrupted && !is_entry {
            let proof = ProvenFrames::new(()).proof(WordSize::Eight, frame.pc(), mem);
            if let Some(row) = proof.and_then(|proof| proof.row(sp, Some(fp))) {
                return Ok(Some(row));
            }
        }
        // The frame pointer of user code, which may be any number, is in the other half of the addresses.
        let marked = (fp & 1 != 0 && fp >> 63 != 0).then(|| fp.wrapping_sub(1));
        if marked.is_some() {
            let offset = BELOW_FRAME.wrapping_sub(1);
            let saved = SavedRegisters::all(fp.wrapping_add_signed(offset.into()));
            // The function that the entry has save them makes the mark before it returns.
            if is_entry && saved.addr().get() == sp.wrapping_add(8) {
                let row = Row::new(CfaRule::sp(8), RegRule::Offset(-8), RegRule::SameValue);
                return Ok(Some(row.with_origin(Origin::FramePointer)));
            }
            let row = self.way.leave(saved, true, (BaseReg::Fp, offset), true, mem);
            if let Some(row) = row {
                return Ok(Some(row.with_origin(Origin::FramePointer)));
            }
        }
        // Without a mark: a system call, or the first code of a CPU.
        if let Some(sp) = marked.or((fp == 0 && !is_interrupted).then_some(sp)) {
            match self.end_of_stack(sp, mem) {
                Ok(None) => {}
                Ok(row) => return Ok(row),
                Err(StepError::Unreadable { addr, .. }) => {
                    return Ok(Some(Row::needs_memory(addr)));
                }
                Err(_) => return Ok(None),
            }
        }
        if is_entry {
            return Ok(None);
        }
        let row = Row::frame_pointer(WordSize::Eight);
        if is_interrupted {
            return Ok(Some(row.with_guess()));
        }
        // Whoever has changed to the stack of interrupts has a frame on the one before.
        Ok(match fp >= sp {
            true => Some(row),
            false => row.with_other_stack(fp.wrapping_add(16)),
        })
    }
}

impl KernelRows for KernelFramePointers {
    fn begin(&mut self) {
        self.way = Way::START;
    }

    fn entry(&self) -> Entry {
        self.way.entry
    }
}
