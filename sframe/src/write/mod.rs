//! Writing tables: functions and their rows become the bytes of a section.

pub(crate) mod builder;
pub(crate) mod encode;
pub(crate) mod function;
mod layout;
pub(crate) mod lost;
mod merge;
mod run;
#[cfg(all(test, feature = "cfi"))]
mod work_bounds;
pub(crate) mod work_counter;
