//! Why a file that the user or a target names cannot be used.

use std::io;
use std::path::PathBuf;

use crate::elf::error::ElfError;
use crate::failure::{Failure, exit_code_of};
use crate::untrusted::escaped;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum InputError {
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

impl InputError {
    /// The exit code, as `--help` documents it.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Read { error, .. } => exit_code_of(error),
            Self::Elf { error: ElfError::Read { .. }, .. } => 1,
            Self::Elf { .. } => 5,
        }
    }
}

impl From<InputError> for Failure {
    fn from(error: InputError) -> Self {
        let exit_code = error.exit_code();
        Self::new(error, exit_code)
    }
}
