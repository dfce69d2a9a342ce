//! The fast walk: by rows in compact form, kept in a cache or the same for all frames.
//!
//! What it finds is what the plain walk finds. Where anything is out of the ordinary it
//! stops, and the plain walk takes that step. A walk gets here by the walker's cache alone.

pub(crate) mod addresses;
#[cfg(all(test, not(loom)))]
mod cached_rows;
pub(crate) mod callers;
pub(in crate::walk) mod compact_row;
#[cfg(all(test, not(loom)))]
mod exhaustive;
pub(crate) mod fast_error;
pub(in crate::walk) mod fast_path;
mod fp_chain;
pub(crate) mod row_cache;
pub(crate) mod rows_by_key;
pub(in crate::walk) mod run;
pub(in crate::walk) mod stack;
