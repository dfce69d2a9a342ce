//! The modules of an address space, and which of them has the table of a pc.

pub(crate) mod map;
pub(crate) mod shared;
