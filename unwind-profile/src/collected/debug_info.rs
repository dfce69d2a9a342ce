//! Where the DWARF of recorded files is, and who reads it.

use unwind_target::elf::ElfFile;
use unwind_target::{DebugFiles, LineReader, lines};

use crate::mapped::recorded_file::RecordedFile;

/// Where debug information is looked for, and who reads it.
#[derive(Clone, Debug, Default)]
pub struct DebugInfo {
    /// Where what was stripped off files is looked for.
    pub files: DebugFiles,
    /// What reads lines and inlined functions.
    pub lines: LineReader,
}

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
    pub(crate) fn of(file: &RecordedFile, info: &DebugInfo) -> Option<Self> {
        let elf = file.elf().ok()?;
        if lines::are_in(elf).ok()? {
            return Some(Self::Own);
        }
        let stripped_off = info.files.find(elf, Some(file.path()?)).ok().flatten()?;
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
