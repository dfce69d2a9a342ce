//! Why snapshots could not be taken.

use std::io;
use std::path::PathBuf;

use crate::untrusted::escaped;

/// Why snapshots could not be taken or kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum SnapshotError {
    /// The kernel does not let us sample.
    #[error("cannot sample by perf_event_open: {0}; run as root, or use --whole")]
    Open(#[source] io::Error),
    /// The memory that samples come through is not to be had.
    #[error("cannot map the buffer of samples: {0}")]
    Map(#[source] io::Error),
    /// The file cannot be written.
    #[error("cannot write {}: {error}", escaped(path))]
    Write {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// The program ran too shortly.
    #[error("the program ended, or slept, before a snapshot was taken")]
    None,
}

impl SnapshotError {
    /// The exit code, as `--help` documents it.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Open(error) | Self::Map(error) | Self::Write { error, .. } => {
                match error.kind() {
                    io::ErrorKind::NotFound => 3,
                    io::ErrorKind::PermissionDenied => 4,
                    _ => 1,
                }
            }
            Self::None => 6,
        }
    }
}
