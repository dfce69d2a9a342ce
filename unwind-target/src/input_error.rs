//! Why a file that the user or a target names cannot be used.

use std::io;
use std::path::PathBuf;

use crate::elf::error::ElfError;
use crate::untrusted::escaped;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// It cannot be opened or read.
    #[error("cannot read {}: {error}", escaped(path))]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// It is not ELF, or is damaged.
    #[error("{}: {error}", escaped(path))]
    Elf {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        error: ElfError,
    },
}
