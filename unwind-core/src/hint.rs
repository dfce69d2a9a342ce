//! What the compiler is told of paths.

/// Says that the path which calls it is seldom taken, as `core::hint::cold_path` does
/// since Rust 1.95.
#[cold]
#[inline(always)]
pub(crate) const fn cold_path() {}
