//! Rows straight from the call frame information of loaded files.

use std::convert::Infallible;

use unwind_core::{Arch, FrameContext, Memory, Row, RowSource};

use crate::module::Modules;

/// The call frame information of the files of a target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallFrameSource<'t> {
    modules: &'t Modules,
}

impl<'t> CallFrameSource<'t> {
    pub(crate) const fn new(modules: &'t Modules) -> Self {
        Self { modules }
    }
}

impl<A: Arch> RowSource<A> for CallFrameSource<'_> {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let addr = frame.lookup_addr().get();
        let image = self.modules.find(addr).and_then(|module| module.image.as_ref().ok());
        // Other ways may find the caller. Where none does, the report says why this one
        // has not.
        Ok(image.and_then(|image| image.call_frame_row(addr, A::WORD).ok().flatten()))
    }
}
