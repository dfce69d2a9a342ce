//! The rules of deferred unwinding, one by one.
#![cfg(not(loom))]
#![cfg(test)]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    reason = "a test that goes wrong fails"
)]

mod cancellation;
mod cookie;
mod delivery;
mod host;
mod ids;
mod life_cycle;
mod lost;
mod renewal;
mod request;
mod sample_outcome;
#[path = "../support/sim.rs"]
mod sim;
mod walk;

const STACK: &[u64] = &[0x1000, 0x2000, 0x3000];
