//! Code that keeps a frame pointer, or is supposed to.

use core::convert::Infallible;

use unwind_core::{
    Arch, CfaRule, FrameContext, KeptRow, Memory, Origin, RegRule, Row, RowSource, ShortRow,
    VirtAddr, WordSize,
};

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

impl FramePointers {
    /// The one row there is, for stack slots of this size.
    #[must_use]
    pub const fn row_of(word: WordSize) -> Row {
        TrustedFramePointers::row_of(word).with_guess()
    }
}

/// A source that trusts every function to keep a frame pointer: the host declares that
/// the code was compiled so. Its rows are those of [`FramePointers`], and no guess.
///
/// Of a sampled function that is still setting up its frame, or has given it up, the
/// register is the caller's even so: put [`Prologue`](crate::Prologue) in front.
#[derive(Clone, Copy, Debug, Default)]
pub struct TrustedFramePointers;

impl TrustedFramePointers {
    /// The one row there is, for stack slots of this size.
    #[must_use]
    pub const fn row_of(word: WordSize) -> Row {
        let row = match word {
            WordSize::Four => Row::new(CfaRule::fp(8), RegRule::Offset(-4), RegRule::Offset(-8)),
            WordSize::Eight => Row::new(CfaRule::fp(16), RegRule::Offset(-8), RegRule::Offset(-16)),
        };
        row.with_origin(Origin::FramePointer)
    }
}

impl<A: Arch> RowSource<A> for FramePointers {
    type Error = Infallible;
    const CHAIN: Option<ShortRow> = Some(ShortRow::FRAME_POINTER);

    #[inline]
    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(Some(Self::row_of(A::WORD)))
    }

    #[inline]
    fn quick(&mut self, _: VirtAddr, _: KeptRow) -> Option<KeptRow> {
        Some(KeptRow::new(ShortRow::FRAME_POINTER))
    }
}

impl<A: Arch> RowSource<A> for TrustedFramePointers {
    type Error = Infallible;
    const CHAIN: Option<ShortRow> = Some(ShortRow::TRUSTED_FRAME_POINTER);

    #[inline]
    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(Some(Self::row_of(A::WORD)))
    }

    #[inline]
    fn quick(&mut self, _: VirtAddr, _: KeptRow) -> Option<KeptRow> {
        Some(KeptRow::new(ShortRow::TRUSTED_FRAME_POINTER))
    }
}
