//! The `perf_event` side of deferred unwinding.
//!
//! [`record`] encodes and decodes what is in a ring buffer and in `perf.data`;
//! `merge` joins samples with the stacks that come later, and needs the
//! feature `alloc`.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "alloc")]
extern crate alloc;

#[cfg(feature = "alloc")]
pub mod merge;
pub mod record;

pub mod aux_trace;
mod errno;
mod sync;
pub mod task_data;

pub use errno::Errno;
