//! Whether two names lead to one file.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Whether both paths lead to one file, also by links. What cannot be looked at is not the
/// same as anything.
pub(crate) fn is_same_file(one: &Path, other: &Path) -> bool {
    matches!((id(one), id(other)), (Ok(one), Ok(other)) if one == other)
}

/// Whether a path leads to the file, pipe or terminal that standard output goes to.
pub(crate) fn is_standard_output(path: &Path) -> bool {
    let output = io::stdout().as_fd().try_clone_to_owned().map(File::from);
    let output = output.and_then(|output| output.metadata());
    matches!((id(path), output), (Ok(one), Ok(other)) if one == (other.dev(), other.ino()))
}

/// The device and the number on it.
fn id(path: &Path) -> io::Result<(u64, u64)> {
    path.metadata().map(|file| (file.dev(), file.ino()))
}
