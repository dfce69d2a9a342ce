//! What can be wrong with a file.

/// Why a file cannot be read. Offsets are in bytes from the file's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It does not start as such a file does.
    #[error("not a file of snapshots")]
    NotSnapshots,
    /// It has another version of the format.
    #[error("version {0} of the format is not known")]
    Version(u32),
    /// The file ends inside a record, or a record's body inside a field.
    #[error("{at:#x}: cut off")]
    Truncated {
        /// Where the record starts.
        at: usize,
    },
    /// A record refers to an image that is not before it.
    #[error("{at:#x}: there is no image {index}")]
    NoImage {
        /// Where the record starts.
        at: usize,
        /// The number it gives.
        index: u32,
    },
    /// A record refers to a space that is not before it.
    #[error("{at:#x}: there is no space {index}")]
    NoSpace {
        /// Where the record starts.
        at: usize,
        /// The number it gives.
        index: u32,
    },
    /// The ranges of a space are empty, overlap, or do not ascend.
    #[error("{at:#x}: the ranges of code do not ascend")]
    BadRange {
        /// Where the record starts.
        at: usize,
    },
}
