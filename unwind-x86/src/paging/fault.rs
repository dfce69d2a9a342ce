//! Why an address has no translation.

use core::fmt;

use unwind_core::{ReadError, VirtAddr};

use super::physical::PhysAddr;

/// The table that an entry is in, by the name of the tables of 4-level paging.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The page table: its entries are pages of 4 KiB.
    Pt,
    /// The page directory: large pages, of 2 MiB, or 4 MiB in 2-level paging.
    Pd,
    /// The page-directory-pointer table: huge pages of 1 GiB.
    Pdpt,
    /// The fourth level.
    Pml4,
    /// The fifth level.
    Pml5,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pt => "page table",
            Self::Pd => "page directory",
            Self::Pdpt => "page-directory-pointer table",
            Self::Pml4 => "pml4",
            Self::Pml5 => "pml5",
        })
    }
}

/// Why an address could not be translated, or its page not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The mode has no such linear address.
    NotLinear(VirtAddr),
    /// The entry is not present. The guest may make it so.
    NotPresent {
        /// The table that it is in.
        level: Level,
        /// Where it is.
        at: PhysAddr,
    },
    /// The entry has bits set that must be zero.
    Reserved {
        /// The table that it is in.
        level: Level,
        /// Where it is.
        at: PhysAddr,
        /// Those of its bits.
        bits: u64,
    },
    /// The entry keeps user code out.
    Supervisor {
        /// The table that it is in.
        level: Level,
        /// Where it is.
        at: PhysAddr,
    },
    /// The entry could not be read: its table is beyond memory, or the host
    /// does not have it in memory.
    Table {
        /// The table that it is in.
        level: Level,
        /// Where it is.
        at: PhysAddr,
        /// What the host says.
        error: ReadError,
    },
    /// The page itself could not be read.
    Page {
        /// Where the read began.
        at: PhysAddr,
        /// What the host says.
        error: ReadError,
    },
}

impl Fault {
    /// What a reader of memory is told: [`ReadError::NotResident`] where the
    /// page is absent and may come, [`ReadError::Supervisor`] where it is the
    /// kernel's and the read is on behalf of user code, [`ReadError::Invalid`]
    /// otherwise.
    #[must_use]
    pub const fn read_error(self) -> ReadError {
        match self {
            Self::NotPresent { .. } => ReadError::NotResident,
            Self::Table { error, .. } | Self::Page { error, .. } => error,
            Self::Supervisor { .. } => ReadError::Supervisor,
            Self::NotLinear(_) | Self::Reserved { .. } => ReadError::Invalid,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotLinear(addr) => write!(f, "{addr} is not a linear address"),
            Self::NotPresent { level, at } => write!(f, "{level} entry at {at} is not present"),
            Self::Reserved { level, at, bits } => {
                write!(f, "{level} entry at {at} has reserved bits {bits:#x}")
            }
            Self::Supervisor { level, at } => write!(f, "{level} entry at {at} is not for users"),
            Self::Table { level, at, error } => write!(f, "{level} entry at {at}: {error}"),
            Self::Page { at, error } => write!(f, "page at {at}: {error}"),
        }
    }
}

impl core::error::Error for Fault {}
