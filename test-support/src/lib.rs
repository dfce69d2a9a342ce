//! What tests of several crates work with.
//!
//! | module | what |
//! |---|---|
//! | [`cpu`] | made-up CPUs |
//! | [`interrupt`] | handlers that run before an atomic access, at each in turn |
//! | [`interruptible`] | the atomics of `core`, with such a point before each access |
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "what goes wrong shall end the test"
)]

mod counting_allocator;
pub mod cpu;
pub mod interrupt;
pub mod interruptible;
mod limited_allocator;
mod sparse_memory;

pub use counting_allocator::CountingAllocator;
pub use limited_allocator::LimitedAllocator;
pub use sparse_memory::SparseMemory;
