//! The file that has the DWARF of a recorded one: that file itself, or what was stripped off it.

use unwind_target::elf::ElfFile;
use unwind_target::{DebugFiles, lines};

use crate::commands::perf::files::RecordedFile;

/// Where the DWARF of a file is.
#[derive(Debug)]
pub(crate) enum DwarfFile {
    /// In the file.
    Own,
    /// In another one.
    Apart(ElfFile),
}

impl DwarfFile {
    /// `None` if there is none, or the file is not the one that was recorded any more.
    pub(crate) fn of(file: &RecordedFile, debug_files: &DebugFiles) -> Option<Self> {
        let elf = file.elf().ok()?;
        if lines::are_in(elf).ok()? {
            return Some(Self::Own);
        }
        let stripped_off = debug_files.find(elf, Some(file.path()?)).ok().flatten()?;
        (lines::are_in(&stripped_off) == Ok(true)).then_some(Self::Apart(stripped_off))
    }

    /// The file with the DWARF of `file`.
    pub(crate) fn elf<'f>(&'f self, file: &'f RecordedFile) -> Option<&'f ElfFile> {
        match self {
            Self::Own => file.elf().ok(),
            Self::Apart(elf) => Some(elf),
        }
    }
}
