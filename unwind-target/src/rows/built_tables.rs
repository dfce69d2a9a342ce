//! Rows of tables that are made of the call frame information of loaded files,
//! when a row of one is first asked for.

use std::fmt;
use std::path::Path;

use unwind_core::{FrameContext, Memory, Row, RowSource};
use unwind_x86::{X86_64, X86_64Regs};

use crate::loaded::module::Modules;

/// Is told how far the table of a file is, which takes seconds for a large one.
pub trait BuildProgress: fmt::Debug {
    /// Of the file at this path, which has `len` bytes, `done` of `whole` bytes of call frame information
    /// are done.
    fn done(&self, path: &Path, len: u64, done: u64, whole: usize);

    /// The table is made, or cannot be.
    fn end(&self);
}

impl BuildProgress for () {
    fn done(&self, _: &Path, _: u64, _: u64, _: usize) {}

    fn end(&self) {}
}

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
        let (path, len) = (&module.path, image.file.elf.byte_len());
        let built = image.built(|done, whole| self.progress.done(path, len, done, whole));
        self.progress.end();
        let Ok(Some(table)) = built else { return Ok(None) };
        table.row(addr, image.bias)
    }
}
