//! The rows that a Linux kernel has of its own code.

use core::convert::Infallible;

use unwind_core::{FrameContext, Memory, Row, RowSource};
use unwind_x86::X86_64Regs;

use crate::frame_pointers::KernelFramePointers;
use crate::kernel_code::LinuxKernel;
use crate::kernel_rows::{Entry, KernelRows};
use crate::orc::{OrcError, OrcRows};

/// The rows of a Linux kernel, by what it was built to have for its own unwinder.
#[derive(Clone, Copy, Debug)]
pub enum LinuxRows<'a> {
    /// Of ORC tables.
    Orc(OrcRows<'a>),
    /// Of frame pointers.
    FramePointers(KernelFramePointers<'a>),
}

impl RowSource<LinuxKernel> for LinuxRows<'_> {
    type Error = OrcError;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, OrcError> {
        match self {
            Self::Orc(rows) => rows.row(frame, mem),
            Self::FramePointers(rows) => {
                let row: Result<_, Infallible> = rows.row(frame, mem);
                row.map_err(|never| match never {})
            }
        }
    }
}

impl KernelRows for LinuxRows<'_> {
    fn begin(&mut self) {
        match self {
            Self::Orc(rows) => rows.begin(),
            Self::FramePointers(rows) => rows.begin(),
        }
    }

    fn entry(&self) -> Entry {
        match self {
            Self::Orc(rows) => rows.entry(),
            Self::FramePointers(rows) => rows.entry(),
        }
    }
}
