//! Rows of a file's call frame information, read as a whole and with an index.

use object::{Endianness, elf};
use unwind_cfi::{CfiAbi, CfiError, CfiTable, Entries, FrameRules, IndexEntry};
use unwind_core::{FrameContext, Memory, RegisterRules, Registers, Row};

use crate::elf::ElfFile;
use crate::elf::error::{ElfError, Part};
use crate::rows::call_frames::{FrameSection, FrameSections};

/// The row of one frame, where what a file says of its code has no row of all frames. `found` is
/// what was found without the frame, and `rules` looks for more.
pub fn row_in_frame<R: Registers, M: Memory>(
    found: Result<Option<Row>, NoRowError>,
    frame: &FrameContext<'_, R>,
    mem: &mut M,
    rules: impl FnOnce() -> Option<FrameRules>,
) -> Option<Row> {
    let found = match found {
        Err(NoRowError::Elf(_)) => return None,
        Err(NoRowError::Cfi(_, error)) => Err(error),
        Ok(row) => Ok(row),
    };
    let rules = if FrameRules::may_say_more(&found) { rules() } else { None };
    match rules {
        Some(rules) => rules.row(frame, mem).ok(),
        None => found.ok().flatten(),
    }
}

/// Why a file has no row for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRowError {
    /// The information is not inside the file, or cannot be read.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// What it says of the address is malformed, or no row can say it.
    #[error("its {0} says what no row can: {1}")]
    Cfi(Part, CfiError),
}

/// The sections of a file, each as a whole and with an index.
#[derive(Debug)]
pub(crate) struct IndexedFrames {
    abi: CfiAbi,
    sections: FrameSections,
    indexes: Vec<Vec<IndexEntry>>,
}

impl IndexedFrames {
    /// Reads the sections of a file; `None` if it has none of code that is understood.
    ///
    /// # Errors
    ///
    /// [`ElfError`] if they are not inside the file.
    pub(crate) fn read(file: &ElfFile) -> Result<Option<Self>, ElfError> {
        let Some(abi) = cfi_abi(file) else { return Ok(None) };
        Ok(FrameSections::read(file)?.map(|sections| Self::new(sections, abi)))
    }

    fn new(sections: FrameSections, abi: CfiAbi) -> Self {
        let index = |section: &FrameSection| {
            let entries = Entries::new(sections.cfi(section, &sections.code), abi);
            let needed = unwind_cfi::index(entries, &mut []).err().map_or(0, |few| few.needed);
            let mut slots = vec![IndexEntry::default(); needed];
            // There are as many as it said.
            _ = unwind_cfi::index(entries, &mut slots);
            slots
        };
        let indexes = sections.list.iter().map(index).collect();
        Self { abi, sections, indexes }
    }

    /// Why one of two sections is not used.
    pub(crate) const fn unread(&self) -> Option<ElfError> {
        self.sections.unread
    }

    /// The row for a link-time address; `None` if nothing is said of that.
    ///
    /// # Errors
    ///
    /// [`NoRowError`] if what is said of it cannot be used.
    pub(crate) fn row(&self, addr: u64, only_debug_frame: bool) -> Result<Option<Row>, NoRowError> {
        for (part, table) in self.tables() {
            if only_debug_frame && part != Part::DebugFrame {
                continue;
            }
            let row = table.find_row(addr);
            if let Some(row) = row.map_err(|error| NoRowError::Cfi(part, error))? {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    /// The rules for a link-time address, where some are such that a row can say them in a frame
    /// alone.
    pub(crate) fn frame_rules(&self, addr: u64) -> Option<FrameRules> {
        self.tables().find_map(|(_, table)| table.find_frame_rules(addr).ok().flatten())
    }

    /// The rules of other registers for a link-time address, if there are any.
    pub(crate) fn register_rules(&self, addr: u64) -> Option<RegisterRules> {
        self.tables().find_map(|(_, table)| table.find_register_rules(addr).ok().flatten())
    }

    fn tables(&self) -> impl Iterator<Item = (Part, CfiTable<'_>)> {
        self.sections.list.iter().zip(&self.indexes).map(|(section, index)| {
            // The index has only what is about code.
            let cfi = self.sections.cfi(section, &[]);
            (section.part, CfiTable::with_index(cfi, self.abi, index))
        })
    }
}

/// The code of a file, if there is call frame information that is understood.
pub(crate) fn cfi_abi(file: &ElfFile) -> Option<CfiAbi> {
    match (file.machine, file.endian, file.is_64) {
        (elf::EM_X86_64, Endianness::Little, true) => Some(CfiAbi::X86_64),
        (elf::EM_386, Endianness::Little, false) => Some(CfiAbi::Ia32),
        _ => None,
    }
}
