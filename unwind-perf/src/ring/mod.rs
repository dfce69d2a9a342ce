//! The ring of records that a kernel fills and a tool empties, and its AUX area.
//!
//! | type | what | whose |
//! |---|---|---|
//! | [`MmapPage`] | the first page of the mapping (`perf_event_mmap_page`) | both |
//! | [`RingReader`] | records, the oldest first | a tool's |
//! | [`RingRecord`] | one of them that is not copied yet | a tool's |
//! | [`OverwriteReader`] | the newest records of a ring that is written backwards | a tool's |
//! | [`AuxReader`] | bytes of the AUX area | a tool's |
//! | [`CpuRing`] | writes records; an NMI may interrupt it and write, too | a kernel's |
//!
//! The memory is lent as words that are accessed one by one as atomics, since the other side
//! writes while this one reads. Records begin and end at whole words; they are copied out,
//! each word of them once, so that what a reader checks is what it uses. Mapping the memory
//! is the host's.
//!
//! # Positions
//!
//! A ring of `size` bytes is a window on a stream of bytes: position `p` is at `p % size`.
//! The writer publishes up to where it has written (`data_head`), the reader up to where it
//! has read (`data_tail`). Both only grow, and wrap at 2^64. A ring that overwrites is
//! written from the end to the front: its head falls, so that the newest record is at the
//! head and older ones follow it.
//!
//! # Contexts
//!
//! Nothing here waits, allocates or loops without bound: a call takes time in proportion to
//! one record. A [`CpuRing`] may be called in any context of its CPU, also in one that
//! interrupts a call; the readers belong to one thread each.
//!
//! # Untrusted input
//!
//! The other side of a ring may write anything at any time. No position or size makes a call
//! panic or touch other memory than that which was lent; what cannot be is a [`RingError`].

mod aux_reader;
mod clock;
mod cpu_ring;
mod error;
mod mmap_page;
#[cfg(all(test, not(loom)))]
mod nmi_model;
mod overwrite;
mod reader;
mod ring_record;
mod words;

pub use aux_reader::AuxReader;
pub use clock::Clock;
pub use cpu_ring::{CpuRing, Direction, Written};
pub use error::RingError;
pub use mmap_page::MmapPage;
pub use overwrite::{OverwriteReader, Snapshot};
pub use reader::RingReader;
pub use ring_record::RingRecord;
