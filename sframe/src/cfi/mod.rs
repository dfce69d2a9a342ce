//! Tables from call frame information: `.eh_frame` and `.debug_frame`.
//!
//! `gimli` reads the scalars and the operations of expressions. Entries and
//! instructions are read here: of the rules for some 20 registers that gimli's
//! rows hold three matter, one bad entry must not end the section, and CIEs
//! that name the key of signed return addresses have to be understood.

pub(crate) mod convert;
pub(crate) mod entry;
mod execute;
mod expression;
pub(crate) mod lost;
mod reader;
mod rules;
