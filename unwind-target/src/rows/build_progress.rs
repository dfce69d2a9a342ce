//! How far the making of a table is.

use std::fmt;
use std::path::Path;

/// Is told how far the table of a file is, which takes seconds for a large one.
pub trait BuildProgress: fmt::Debug {
    /// Of the file at this path, which has `len` bytes, `done` of `whole` bytes of call frame information
    /// are done.
    fn done(&self, path: &Path, len: u64, done: u64, whole: usize);

    /// The table is made, or cannot be.
    fn end(&self);
}

impl BuildProgress for () {
    fn done(&self, _: &Path, _: u64, _: u64, _: usize) {}

    fn end(&self) {}
}
