//! Why snapshots could not be taken.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use unwind_target::TargetError;

/// Why snapshots could not be taken or kept. Names are shown with escapes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The kernel does not let us sample.
    #[error("cannot sample by perf_event_open: {0}; run as root, or use --whole")]
    Open(#[source] io::Error),
    /// The memory that samples come through cannot be mapped.
    #[error("cannot map the buffer of samples: {0}")]
    Map(#[source] io::Error),
    /// A file cannot be read.
    #[error("cannot read {path:?}: {error}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write {path:?}: {error}")]
    Write {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// The command cannot be started or waited for.
    #[error("cannot start {command:?}: {error}")]
    Start {
        /// Which command.
        command: OsString,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// The process cannot be stopped.
    #[error(transparent)]
    Hold(#[from] TargetError),
    /// The program ran too shortly.
    #[error("the program ended, or slept, before a snapshot was taken")]
    Nothing,
}

impl Error {
    /// The exit code: those of `unwind --help`.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Open(error)
            | Self::Map(error)
            | Self::Read { error, .. }
            | Self::Write { error, .. }
            | Self::Start { error, .. } => match error.kind() {
                io::ErrorKind::NotFound => 3,
                io::ErrorKind::PermissionDenied => 4,
                _ => 1,
            },
            Self::Hold(error) => unwind_cli::exit_code_of_target(error),
            Self::Nothing => 6,
        }
    }
}
