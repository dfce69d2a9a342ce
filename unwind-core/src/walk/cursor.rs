//! A frame that a walk has found.

use crate::addr::FramePc;
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
    /// Whether a row that leads from here may lead past callers.
    #[inline]
    pub(super) const fn doubts(&self, row: &Row) -> bool {
        let is_near = self.pc.is_exact() || self.has_called_innermost;
        row.is_guess() || row.is_eh_return() && is_near
    }

    /// What a source may look at.
    #[inline]
    pub(super) const fn context<'r, R>(&self, registers: Option<&'r R>) -> FrameContext<'r, R> {
        FrameContext::new(self.pc, self.sp, self.fp.value(), registers)
    }
}
