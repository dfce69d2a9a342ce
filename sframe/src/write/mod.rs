//! Writing tables: functions and their rows become the bytes of a section.
//!
//! A row that a format cannot hold is lost alone, and named: it splits its function, and the range and
//! the reason go to the caller. So one odd function costs its own bytes, never a section.

pub(crate) mod builder;
pub(crate) mod encode;
pub(crate) mod function;
mod layout;
pub(crate) mod lost;
pub(crate) mod merge;
mod run;
#[cfg(all(test, feature = "cfi"))]
mod work_bounds;
pub(crate) mod work_counter;
