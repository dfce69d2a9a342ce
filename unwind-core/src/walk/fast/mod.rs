//! The fast walk: by rows in compact form, kept in a cache or the same for all frames.
//!
//! What it finds is what the plain walk finds. Where anything is out of the ordinary it
//! stops, and the plain walk takes that step. A walk gets here by the walker's cache alone.
//!
//! It is fast because the usual case costs one test where the rules ask for several: a frame
//! pointer's alignment and both its limits are one look at the high bits of a rotated difference, and
//! one bit marks the cached rows that need more than a step. A test holds both walks against each
//! other on random tables and stacks.
//!
//! A lookup is the deepest point of a walk, so a walk has no frame of its own on the host's stack
//! during one: the fast walk that lacks a row returns to its caller, which looks the row up and calls
//! it again. A source whose rows depend on the address alone (`RowSource::IS_BY_ADDR`) is asked
//! without returning, since it does not read the memory that the words of the stack are borrowed
//! from. That saves 170 instructions, and takes some 170 bytes of the host's stack.

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
