//! Writing tables: functions and their rows become the bytes of a section.

pub(crate) mod builder;
mod encode;
pub(crate) mod function;
mod layout;
pub(crate) mod lost;
mod merge;
pub(crate) mod work_counter;
