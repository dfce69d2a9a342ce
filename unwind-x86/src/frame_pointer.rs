//! Code that keeps a frame pointer, or is supposed to.

use core::convert::Infallible;

use unwind_core::{Arch, Coverage, FrameContext, Memory, Row, RowSource};

/// A source that supposes that every function keeps a frame pointer.
///
/// A function that keeps none leaves its caller's in the register, and then this row
/// leads past that caller. So each row is a [guess](Row::is_guess): the frame that it
/// leads to is marked, and the stack does not count as complete. Where the host knows
/// that all code keeps frame pointers, it takes [`TrustedFramePointers`].
///
/// ```text
///                 64-bit      32-bit
///     return addr rbp + 8     ebp + 4     just below the CFA
///     caller's fp rbp         ebp
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct FramePointers;

/// A source that trusts every function to keep a frame pointer: the host declares that
/// the code was compiled so. Its rows are those of [`FramePointers`], and no guess. A return
/// address of zero is the end of such a stack in its last slot alone: say where that is by
/// [`Walker::stack_end`](unwind_core::Walker::stack_end).
///
/// Of a sampled function that is still setting up its frame, or has given it up, the
/// register is the caller's even so: put [`InstructionAnalysis`](crate::InstructionAnalysis) in front.
#[derive(Clone, Copy, Debug, Default)]
pub struct TrustedFramePointers;

impl<A: Arch> RowSource<A> for FramePointers {
    type Error = Infallible;
    const COVERAGE: Coverage = Coverage::FramePointer { is_guess: true };

    #[inline]
    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(Some(Row::frame_pointer(A::WORD).with_guess()))
    }
}

impl<A: Arch> RowSource<A> for TrustedFramePointers {
    type Error = Infallible;
    const COVERAGE: Coverage = Coverage::FramePointer { is_guess: false };

    #[inline]
    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(Some(Row::frame_pointer(A::WORD)))
    }
}
