//! Code without a table, walked along its frame pointers.

use std::convert::Infallible;

use unwind_core::{Arch, FrameContext, Memory, Row, RowSource};
use unwind_x86::{FramePointers, TrustedFramePointers};

/// A source of frame-pointer rows, which are a guess unless the user declares that all
/// code keeps frame pointers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FramePointerRows {
    /// `--trust-fp`.
    pub(crate) is_trusted: bool,
}

impl<A: Arch> RowSource<A> for FramePointerRows {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(Some(match self.is_trusted {
            true => TrustedFramePointers::row_of(A::WORD),
            false => FramePointers::row_of(A::WORD),
        }))
    }
}
