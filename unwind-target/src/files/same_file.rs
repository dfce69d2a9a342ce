//! Whether two names lead to one file.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Whether both paths lead to one file, also by links. What cannot be looked at is not the
/// same as anything.
#[must_use]
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    matches!((id(one), id(other)), (Ok(one), Ok(other)) if one == other)
}

/// Whether a path leads to the file, pipe or terminal that standard output goes to.
#[must_use]
pub fn is_standard_output(path: &Path) -> bool {
    standard_output_at(path).is_some()
}

/// Standard output, if a path leads to where it goes.
#[must_use]
pub fn standard_output_at(path: &Path) -> Option<File> {
    let output = File::from(io::stdout().as_fd().try_clone_to_owned().ok()?);
    let other = output.metadata().ok()?;
    (id(path).ok()? == (other.dev(), other.ino())).then_some(output)
}

/// The device and the number on it.
fn id(path: &Path) -> io::Result<(u64, u64)> {
    path.metadata().map(|file| (file.dev(), file.ino()))
}
