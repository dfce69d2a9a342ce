//! The `perf_event` side of deferred unwinding: what a kernel needs around
//! [`unwind_core`] to be a profiler's source of stacks, and what a tool needs
//! to read what such a kernel wrote.
//!
//! | module | what | whose |
//! |---|---|---|
//! | [`record`] | records of the ring buffer and of `perf.data`: encoded and decoded | both |
//! | [`ring`] | the ring that a kernel fills and a tool empties, and its AUX area | both |
//! | `merge` | samples and the stacks that came later, joined (feature `alloc`) | a tool's |
//! | [`event_attr`] | what a program asks for when it opens an event, and whether it may | a kernel's |
//! | [`per_cpu`] | which events get the stack that a task delivers | a kernel's |
//! | [`task_data`] | data that a PMU keeps for each task while a profiler runs | a kernel's |
//! | [`aux_trace`] | tracing hardware that other events pause and resume | a kernel's |
//!
//! The modules do not need each other. Each says from which contexts its calls
//! may come and which of them wait; none of those that a sample makes does.
//! Errors have the number that Linux gives back ([`Errno`]). `examples/host` has a small system
//! around the kernel's parts.
//!
//! # Memory
//!
//! Without features nothing is allocated: what is kept lies in blocks that the
//! host places. The feature `alloc` brings `merge`, and a registry whose number
//! of CPUs is known only when it is made.
//!
//! # Untrusted input
//!
//! Records come from files and from other machines. No input makes a call
//! panic, loop for ever or allocate by a number that the input holds.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "alloc")]
extern crate alloc;

pub mod aux_trace;
mod errno;
pub mod event_attr;
mod instance;
#[cfg(feature = "alloc")]
pub mod merge;
pub mod per_cpu;
pub mod record;
pub mod ring;
mod sync;
pub mod task_data;

pub use errno::Errno;
