//! What a walk takes over from the one before, and what it does not.
#![cfg(not(loom))]
#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod changes;
mod conditions;
mod frames;
#[path = "../support/regs.rs"]
mod regs;
mod task;
mod unchanged;
