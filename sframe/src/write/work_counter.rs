//! How much is done to write a table, counted for the tests that bound it.

#[cfg(all(test, feature = "cfi"))]
pub(crate) use unwind_cfi::work_counter::{count, steps};

/// Notes steps that were taken, each of which takes bounded time. Only tests
/// count them.
#[cfg(not(all(test, feature = "cfi")))]
#[inline(always)]
pub(crate) fn steps(_: usize) {}
