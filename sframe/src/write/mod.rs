//! Writing tables: functions and their rows become the bytes of a section.

mod builder;
mod encode;
mod function;
mod layout;
mod lost;
mod merge;
pub(crate) mod work;

pub use builder::Builder;
pub use function::{Format, Function};
pub use lost::{Lost, LostReason, WriteError};
