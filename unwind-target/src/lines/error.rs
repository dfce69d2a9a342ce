//! Why places are not known.

use crate::elf::error::ElfError;
use crate::lines::dwarf_error::DwarfError;
use crate::system_error::SystemError;

/// How many seconds of CPU time a process that reads DWARF has.
pub(super) const MOST_SECONDS: u64 = 10;

/// How much memory it has, in bytes.
pub(super) const MOST_MEMORY: u64 = 2 << 30;

/// Why places are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinesError {
    /// The file's headers are damaged.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// The other process cannot be started, or does not answer.
    #[error("cannot run the reader of DWARF: {0}")]
    Start(SystemError),
    /// It was at it for too long.
    #[error("its DWARF takes more than {} seconds to read", MOST_SECONDS)]
    TooLong,
    /// It has ended early: it lacked memory or room for its stack.
    #[error("its DWARF is damaged, or takes more than {} MiB to read", MOST_MEMORY >> 20)]
    TooLarge,
    /// The DWARF is damaged.
    #[error("its DWARF cannot be read: {0}")]
    Damaged(DwarfError),
}
