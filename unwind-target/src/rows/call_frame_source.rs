//! Rows straight from the call frame information of loaded files.

use std::convert::Infallible;

use unwind_core::{Arch, FrameContext, Memory, RegisterRules, Row, RowSource};

use crate::loaded::loaded_file::LoadedImage;
use crate::loaded::module::Modules;

/// The call frame information of the files of a target.
#[derive(Clone, Copy, Debug)]
pub struct CallFrameSource<'t> {
    modules: &'t Modules,
}

impl<'t> CallFrameSource<'t> {
    #[must_use]
    pub const fn new(modules: &'t Modules) -> Self {
        Self { modules }
    }

    fn image(self, addr: u64) -> Option<&'t LoadedImage> {
        self.modules.find(addr).and_then(|module| module.image().ok())
    }
}

impl<A: Arch> RowSource<A> for CallFrameSource<'_> {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let image = self.image(frame.lookup_addr().get());
        // Other ways may find the caller. Where none does, the report says why this one
        // has not.
        Ok(image.and_then(|image| image.call_frame_row_in::<A, M>(frame, mem)))
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<RegisterRules>, Infallible> {
        let addr = frame.lookup_addr().get();
        Ok(self.image(addr).and_then(|image| image.call_frame_register_rules(addr, A::WORD)))
    }
}
