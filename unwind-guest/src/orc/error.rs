//! What is wrong with a table.

use core::convert::Infallible;
use core::fmt;

use unwind_core::{ReadError, TableError, VirtAddr};

use crate::orc::entry::{OrcBase, OrcEntry, OrcKind};

/// What is wrong with a table, or with the entry that a frame has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OrcError {
    /// A table in memory could not be read.
    Unreadable {
        /// Where.
        addr: VirtAddr,
        /// Why not.
        error: ReadError,
    },
    /// The sections of a file have not the same number of entries, or more than there can be.
    Size,
    /// The entry has a kind or a base that has no meaning for its frame.
    Entry(OrcEntry),
    /// The entry says that the kernel has saved registers, of which those here are neither its own nor a user's.
    NoRegisters(VirtAddr),
}

impl From<Infallible> for OrcError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Codes are 1 to 4 in the order of the variants.
impl TableError for OrcError {
    fn is_not_resident(&self) -> bool {
        matches!(self, Self::Unreadable { error: ReadError::NotResident, .. })
    }

    fn code(&self) -> u16 {
        match self {
            Self::Unreadable { .. } => 1,
            Self::Size => 2,
            Self::Entry(_) => 3,
            Self::NoRegisters(_) => 4,
        }
    }
}

impl fmt::Display for OrcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { addr, error } => write!(f, "the ORC table at {addr}: {error}"),
            Self::NoRegisters(addr) => write!(f, "what is at {addr} are no saved registers"),
            Self::Size => f.write_str("the ORC sections do not have the same number of entries"),
            Self::Entry(OrcEntry { kind: OrcKind::Unknown(kind), .. }) => {
                write!(f, "an ORC entry of unknown kind {kind}")
            }
            Self::Entry(OrcEntry { sp: OrcBase::Unknown(base), .. }) => {
                write!(f, "an ORC entry with unknown base {base}")
            }
            Self::Entry(entry) => {
                let OrcEntry { kind, sp, bp, .. } = entry;
                write!(f, "an ORC entry {kind:?} without meaning: sp by {sp:?}, bp by {bp:?}")
            }
        }
    }
}

impl core::error::Error for OrcError {}
