//! What a walk takes over from the one before, and what it does not.
#![cfg(not(loom))]
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod changes;
mod conditions;
mod frames;
mod task;
mod unchanged;
