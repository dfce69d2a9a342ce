//! Sections of DWARF in memory.

use elsa::FrozenVec;
use gimli::{EndianSlice, RunTimeEndian};
use object::Endianness;

use crate::elf::ElfFile;
use crate::elf::error::{ElfError, Part};
use crate::elf::section::Section;

/// A section that is kept.
pub(super) type Bytes<'k> = EndianSlice<'k, RunTimeEndian>;

/// The sections that a lookup has read, for as long as it takes.
pub(super) struct Kept(FrozenVec<Vec<u8>>);

impl Kept {
    /// Nothing yet.
    pub(super) const fn new() -> Self {
        Self(FrozenVec::new())
    }

    /// Keeps a section.
    pub(super) fn keep(&self, section: Vec<u8>) -> &[u8] {
        self.0.push_get(section)
    }
}

/// The byte order of a file.
pub(super) const fn endian(file: &ElfFile) -> RunTimeEndian {
    match file.endian {
        Endianness::Little => RunTimeEndian::Little,
        Endianness::Big => RunTimeEndian::Big,
    }
}

/// The bytes of a section with this name, relocated in an object; none if there is no such section.
pub(super) fn bytes_of(
    file: &ElfFile,
    all: &[Section],
    name: Option<&str>,
) -> Result<Vec<u8>, ElfError> {
    let section = name.and_then(|name| all.iter().find(|it| it.name == name.as_bytes()));
    section.map_or(Ok(Vec::new()), |section| file.relocated_bytes(Part::Dwarf, section, all))
}
