//! Code that keeps a frame pointer.

use core::convert::Infallible;

use unwind_core::{
    Arch, CfaRule, FrameContext, KeptRow, Memory, Origin, RegRule, Row, RowSource, ShortRow,
    VirtAddr, WordSize,
};

/// A source that trusts every function to keep a frame pointer.
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
        let row = match word {
            WordSize::Four => Row::new(CfaRule::fp(8), RegRule::AtCfa(-4), RegRule::AtCfa(-8)),
            WordSize::Eight => Row::new(CfaRule::fp(16), RegRule::AtCfa(-8), RegRule::AtCfa(-16)),
        };
        row.with_origin(Origin::FramePointer)
    }
}

impl<A: Arch> RowSource<A> for FramePointers {
    type Error = Infallible;
    const IS_CHAIN: bool = true;

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
