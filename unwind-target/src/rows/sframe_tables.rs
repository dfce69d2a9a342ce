//! Rows of the SFrame tables of loaded files, and what is wrong with those that were looked
//! at.

use std::collections::HashSet;

use sframe::Abi;
use unwind_core::{FrameContext, Memory, Row, RowSource, WordSize};
use unwind_x86::{X86_64, X86_64Regs};

use crate::elf::sframe_section::SframeSection;
use crate::loaded::loaded_file::LoadedImage;
use crate::loaded::module::Modules;
use crate::untrusted::escaped;

/// The SFrame tables of the files of a target, each read when a row of it is first asked
/// for.
#[derive(Clone, Copy, Debug)]
pub struct SframeTables<'t> {
    modules: &'t Modules,
}

impl<'t> SframeTables<'t> {
    #[must_use]
    pub const fn new(modules: &'t Modules) -> Self {
        Self { modules }
    }
}

impl RowSource<X86_64> for SframeTables<'_> {
    type Error = sframe::Error;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, sframe::Error> {
        let addr = frame.lookup_addr().get();
        let image = self.modules.find(addr).and_then(|module| module.image().ok());
        // A section of which nothing can be used is as if it were not there, but for a
        // warning.
        let Some(image) = image else { return Ok(None) };
        let row = match open_tables(image) {
            Ok(Some(section)) => section.row(image.bias, addr)?,
            Ok(None) | Err(_) => None,
        };
        let by_call_frames = || image.call_frame_row(addr, WordSize::Eight).ok().flatten();
        Ok(row.map(|row| with_mark(row, by_call_frames)))
    }
}

/// The row of an SFrame table with the mark that only call frame information has: that the function
/// may [return to where an exception is caught](Row::with_eh_return).
pub fn with_mark(row: Row, by_call_frames: impl FnOnce() -> Option<Row>) -> Row {
    let is_marked = by_call_frames().is_some_and(|row| row.is_eh_return());
    if is_marked { row.with_eh_return() } else { row }
}

/// The SFrame section of a file, if its first table is one of 64-bit code.
///
/// # Errors
///
/// What is wrong with that table's header.
fn open_tables(image: &LoadedImage) -> Result<Option<&SframeSection>, sframe::Error> {
    // Another warning says what is wrong with the file.
    let Ok(Some(section)) = image.sframe() else { return Ok(None) };
    let first = section.tables().tables().next().transpose()?;
    Ok(first.filter(|first| first.header().abi == Abi::Amd64Little).map(|_| section))
}

/// What is wrong with the tables of files, each told once.
#[derive(Debug, Default)]
pub struct TableWarnings {
    lines: Vec<String>,
    told: HashSet<String>,
}

impl TableWarnings {
    /// Adds what is wrong with what was read of these files so far.
    pub fn add(&mut self, modules: &Modules) {
        for module in modules.iter() {
            let Some(image) = module.image_so_far() else { continue };
            let path = escaped(&module.path);
            match image.sframe_so_far() {
                Some(Ok(Some(_))) => {
                    if let Err(error) = open_tables(image) {
                        self.warn(format!("{path}: .sframe is not used: {error}"));
                    }
                }
                Some(Err(error)) => self.warn(format!("{path}: {error}")),
                Some(Ok(None)) | None => {}
            }
            if let Some(index) = image.disorder() {
                self.warn(format!(
                    "{path}: entry {index} of .eh_frame_hdr is not in order: .eh_frame is read as a whole"
                ));
            }
            if let Some(error) = image.unread_call_frames() {
                self.warn(format!("{path}: its call frame information is not used: {error}"));
            }
            if let Some(Err(error)) = image.built_so_far() {
                self.warn(format!(
                    "{path}: no table is made of its call frame information: {error}"
                ));
            }
        }
    }

    /// The lines.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    fn warn(&mut self, line: String) {
        // A file may be loaded more than once.
        if self.told.insert(line.clone()) {
            self.lines.push(line);
        }
    }
}
