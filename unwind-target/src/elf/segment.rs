//! Program headers.

use object::elf::ProgramType;

/// A program header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub kind: ProgramType,
    pub readable: bool,
    pub executable: bool,
    pub offset: u64,
    pub addr: u64,
    /// Where it is in a machine's memory, in the dump of one.
    pub physical_addr: u64,
    pub file_size: u64,
    pub memory_size: u64,
    pub(super) align: u64,
}
