//! The modules of an address space, and which of them has the table of a pc.
//!
//! Any number of walkers on as many CPUs borrow one map and its tables, which a walk only reads, and
//! each has a cache of its own: none writes a word that another one reads. One cache for all was
//! tried: a table of 512 rows that two threads read and write without a lock took 0.97 to 1.08 of the
//! time of a table for each. It could not have what an entry remembers of the caller, which walks
//! write all the time.

pub(crate) mod map;
pub(crate) mod shared;
