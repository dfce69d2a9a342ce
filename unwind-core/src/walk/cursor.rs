//! A frame that a walk has found.

use crate::addr::FramePc;
use crate::origin::Origin;
use crate::row::Row;
use crate::source::FrameContext;
use crate::trace::Provenance;
use crate::walk::step::FramePointer;

/// Where a walk stands: what is known of every frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    pub(super) pc: FramePc,
    pub(super) sp: u64,
    pub(super) fp: FramePointer,
    pub(super) provenance: Provenance,
    /// A frame pointer led to this frame or to one before it: the stack pointer
    /// is right only if that was one.
    pub(super) is_by_fp: bool,
    /// The frame before it was sampled or interrupted: all its registers were known.
    pub(super) has_called_innermost: bool,
}

impl Cursor {
    /// A frame of which nothing is known but where it returns to.
    pub(super) const fn at_return_address(pc: FramePc) -> Self {
        let provenance = Provenance::new(Origin::Registers, pc);
        let (is_by_fp, has_called_innermost) = (false, false);
        let fp = FramePointer::Undefined;
        Self { pc, sp: 0, fp, provenance, is_by_fp, has_called_innermost }
    }

    /// Whether a row that leads from here may lead past callers.
    #[inline]
    pub(super) const fn doubts(&self, row: &Row) -> bool {
        row.is_guess() || matches!(self.fp, FramePointer::Doubted(_)) && row.needs_fp()
    }

    /// Whether what the frame has saved of its caller's registers may have been written over.
    #[inline]
    pub(super) const fn may_be_overwritten(&self, row: &Row) -> bool {
        row.is_eh_return() && (self.pc.is_exact() || self.has_called_innermost)
    }

    /// What a source may look at.
    #[inline]
    pub(super) const fn context<'r, R>(&self, registers: Option<&'r R>) -> FrameContext<'r, R> {
        FrameContext::new(self.pc, self.sp, self.fp.value(), registers)
    }
}
