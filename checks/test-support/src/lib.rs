//! What tests of several crates work with.
//!
//! | module | what |
//! |---|---|
//! | [`cpu`] | made-up CPUs |
//! | [`interrupt`] | handlers that run before an atomic access, at each in turn |
//! | [`interruptible`] | the atomics of `core`, with such a point before each access |
//! | [`Compiler`], [`tool()`], [`perf_record`], [`skip`] | programs of the machine, and tests that need one |
//! | [`fuzz_targets!`], [`fuzz_target`] | what is called with inputs, and the inputs in `fuzz` |
//! | [`LbrHardware`] | a CPU that records its last branches |
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "what goes wrong shall end the test"
)]

mod counting_allocator;
pub mod cpu;
pub mod fuzz_target;
pub mod interrupt;
pub mod interruptible;
mod lbr_hardware;
mod limited_allocator;
mod messages;
mod sparse_memory;
mod tools;

pub use counting_allocator::CountingAllocator;
pub use fuzz_target::FuzzTarget;
pub use lbr_hardware::{LbrHardware, LbrKind};
pub use limited_allocator::LimitedAllocator;
pub use messages::check_messages;
pub use sparse_memory::SparseMemory;
pub use tools::{Compiler, perf_record, skip, tool};
