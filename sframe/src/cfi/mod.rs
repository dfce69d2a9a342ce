//! Tables from call frame information: `.eh_frame` and `.debug_frame`.
//!
//! `gimli` reads the scalars and the operations of expressions. Entries and
//! instructions are read here: of the rules for some 20 registers that gimli's
//! rows hold three matter, one bad entry must not end the section, and CIEs
//! that name the key of signed return addresses have to be understood.

mod convert;
mod entry;
mod expression;
mod lost;
mod rules;
mod run;

pub use convert::{CfiConverter, CfiReport};
pub use entry::CfiSection;
pub use lost::{CfiLost, CfiReason};

/// Bytes of a section, in the byte order of its ABI.
type Reader<'a> = gimli::EndianSlice<'a, gimli::RunTimeEndian>;
