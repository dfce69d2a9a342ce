//! What tests of several crates work with.
//!
//! | module | what |
//! |---|---|
//! | [`interrupt`] | handlers that run before an atomic access, at each in turn |
//! | [`interruptible`] | the atomics of `core`, with such a point before each access |
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "what goes wrong shall end the test"
)]

pub mod interrupt;
pub mod interruptible;
