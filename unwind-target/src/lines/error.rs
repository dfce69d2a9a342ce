//! Why places are not known.

use std::process::ExitStatus;
use std::time::Duration;

use crate::elf::error::ElfError;
use crate::lines::dwarf_error::DwarfError;
use crate::system_error::SystemError;

/// How many seconds of CPU time a process that reads DWARF has.
pub(super) const MOST_SECONDS: u64 = 10;

/// How much memory it has, in bytes.
pub(super) const MOST_MEMORY: u64 = 2 << 30;

/// How long it may run: longer than its CPU time, since others run beside it.
pub(super) const MOST_TIME: Duration = Duration::from_secs(100);

/// Why places are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinesError {
    /// The file's headers are damaged.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// The other process cannot be started.
    #[error("cannot run the reader of DWARF: {0}")]
    Start(SystemError),
    /// It has ended by itself, without saying all that it was asked for.
    #[error("the reader of DWARF ended without an answer: {0}")]
    Failed(ExitStatus),
    /// It was ended, as it neither answered nor ended.
    #[error("the reader of DWARF has not answered in {} seconds", MOST_TIME.as_secs())]
    Late,
    /// It took too much CPU time.
    #[error("its DWARF takes more than {} seconds to read", MOST_SECONDS)]
    TooLong,
    /// It has ended early: it lacked memory or room for its stack.
    #[error("its DWARF is damaged, or takes more than {} MiB to read", MOST_MEMORY >> 20)]
    TooLarge,
    /// The DWARF is damaged.
    #[error("its DWARF cannot be read: {0}")]
    Damaged(DwarfError),
}
