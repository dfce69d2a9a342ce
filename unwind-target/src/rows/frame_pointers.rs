//! Code without a table, walked along its frame pointers.

use std::convert::Infallible;

use unwind_core::{Arch, FrameContext, Memory, Row, RowSource};

/// A source of frame-pointer rows, which are a guess unless the user declares that all
/// code keeps frame pointers.
#[derive(Clone, Copy, Debug)]
pub struct FramePointerRows {
    /// `--trust-fp`.
    pub is_trusted: bool,
}

impl<A: Arch> RowSource<A> for FramePointerRows {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let row = Row::frame_pointer(A::WORD);
        Ok(Some(if self.is_trusted { row } else { row.with_guess() }))
    }
}
