//! A faster reader for the most frequent form of a table: sorted, of 64-bit x86 code.

pub(crate) mod rows;
pub(crate) mod table;
