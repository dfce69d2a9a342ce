//! Linux's ORC tables: for each range of the kernel's code, where the frame's caller is.
//!
//! | type | what |
//! |---|---|
//! | [`OrcTable`] | a table in place: sections of a `vmlinux`, or the guest's memory |
//! | [`OrcEntry`] | one entry, decoded |
//! | [`OrcLayout`] | which bits of an entry mean what, by the kernel's version |
//! | [`OrcRows`] | a source of rows that leads out of interrupts, to user code too |

mod entry;
mod error;
mod rows;
mod table;

pub use entry::{OrcBase, OrcEntry, OrcKind, OrcLayout};
pub use error::OrcError;
pub use rows::OrcRows;
pub use table::OrcTable;
