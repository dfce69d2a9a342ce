//! Kernels that keep frame pointers.

use core::convert::Infallible;

use unwind_core::{BaseReg, FrameContext, Memory, Row, RowSource, WordSize};
use unwind_x86::X86_64Regs;

use crate::kernel_code::LinuxKernel;
use crate::kernel_rows::{Entry, KernelRows, Way};
use crate::saved_registers::{BELOW_FRAME, SavedRegisters};

/// The rows of a Linux kernel that was built to keep frame pointers
/// (`CONFIG_UNWINDER_FRAME_POINTER`), which its host declares.
///
/// Where registers are saved at the kernel's entry, such a kernel leaves their address plus one as the frame
/// pointer. So the walk comes out of interrupts, and to user code. A kernel without ORC tables that does not keep
/// frame pointers has neither: no frame after the first is right but by chance, so the default
/// [fallback](crate::GuestWalker) marks them.
#[derive(Clone, Copy, Debug)]
pub struct KernelFramePointers(Way);

impl KernelFramePointers {
    /// A source for one vCPU at a time.
    #[must_use]
    pub const fn new() -> Self {
        Self(Way::START)
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
        Ok(match frame.fp() {
            Some(fp) if fp & 1 != 0 => {
                let offset = BELOW_FRAME.wrapping_sub(1);
                let saved = SavedRegisters::all(fp.wrapping_add_signed(offset.into()));
                self.0.leave(saved, true, (BaseReg::Fp, offset), true, mem)
            }
            _ => Some(Row::frame_pointer(WordSize::Eight)),
        })
    }
}

impl KernelRows for KernelFramePointers {
    fn begin(&mut self) {
        self.0 = Way::START;
    }

    fn entry(&self) -> Entry {
        self.0.entry
    }
}
