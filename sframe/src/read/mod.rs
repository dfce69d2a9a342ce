//! Lookups: from a pc to its row, in bytes that are borrowed or in the target's memory.

pub(crate) mod amd64;
pub(crate) mod bisect;
pub(crate) mod checkpoint;
pub(crate) mod index;
pub(crate) mod lookup;
pub(crate) mod remote;
pub(crate) mod rules;
pub(crate) mod scan;
pub(crate) mod section;
pub(crate) mod slice;
pub(crate) mod source;
pub(crate) mod table;
