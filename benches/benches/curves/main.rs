//! Cost against size: one line each.
//!
//! ```text
//! cargo bench --package unwind-benches --bench curves [-- merge|lookup|rows|walk|spaces|walkers|request...]
//! ```

#![allow(
    missing_docs,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a measuring program stops at the first surprise"
)]

mod lookups;
mod merges;
mod programs;
mod requests;
mod rows;
mod spaces;
mod walks;

use std::time::Instant;

use unwind_benches::timing::{Effort, wants};

fn main() {
    let effort = Effort::of_arguments();
    // First, as its memory is that of the process.
    if wants("merge") {
        merges::measure(effort);
    }
    if wants("lookup") {
        lookups::measure(effort);
    }
    if wants("rows") {
        rows::measure(effort);
    }
    if wants("walk") {
        walks::measure(effort);
    }
    if wants("spaces") {
        spaces::processes(effort);
    }
    if wants("walkers") {
        spaces::walkers(effort);
    }
    if wants("request") {
        requests::measure(effort);
    }
}

/// The first of the sizes as a test, all of them as a bench.
fn sizes<T: Copy>(effort: Effort, sizes: &[T]) -> &[T] {
    if effort.is_test() { &sizes[..sizes.len().min(2)] } else { sizes }
}

/// A random number after another.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// What has passed, and reading the clock.
fn nanoseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e9
}
