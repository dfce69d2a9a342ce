//! The parts of a table as the specification names them: header, functions, rows.

pub(crate) mod bytes;
pub(crate) mod fde;
pub(crate) mod flags;
pub(crate) mod flex;
pub(crate) mod fre;
pub(crate) mod header;
