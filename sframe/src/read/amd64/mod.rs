//! A faster reader for the most frequent form of a table: sorted, of 64-bit x86 code.

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "tests")]
mod differential;
pub(crate) mod rows;
pub(crate) mod table;
