//! Program headers.

use object::elf::ProgramType;

/// A program header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) kind: ProgramType,
    pub(crate) executable: bool,
    pub(crate) offset: u64,
    pub(crate) addr: u64,
    pub(crate) file_size: u64,
    pub(crate) memory_size: u64,
    pub(super) align: u64,
}
