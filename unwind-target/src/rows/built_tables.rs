//! Rows of tables that are made of the call frame information of loaded files,
//! when a row of one is first asked for.

use unwind_core::{FrameContext, Memory, Row, RowSource};
use unwind_x86::{X86_64, X86_64Regs};

use crate::loaded::module::Modules;
use crate::rows::build_progress::BuildProgress;

/// The tables that the files of a target would have.
#[derive(Clone, Copy)]
pub(crate) struct BuiltTables<'t> {
    modules: &'t Modules,
    progress: &'t dyn BuildProgress,
}

impl<'t> BuiltTables<'t> {
    pub(crate) const fn new(modules: &'t Modules, progress: &'t dyn BuildProgress) -> Self {
        Self { modules, progress }
    }
}

impl RowSource<X86_64> for BuiltTables<'_> {
    type Error = sframe::Error;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, sframe::Error> {
        let addr = frame.lookup_addr().get();
        let Some(module) = self.modules.find(addr) else { return Ok(None) };
        let Ok(image) = module.image() else { return Ok(None) };
        // Why there is none is told once the stacks are walked.
        let Ok(Some(table)) = image.built(&module.path, self.progress) else { return Ok(None) };
        table.row(addr, image.bias)
    }
}
