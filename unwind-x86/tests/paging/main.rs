//! Page walks of every mode over tables laid out by hand.
#![cfg(test)]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    unreachable_pub,
    reason = "tests"
)]

mod entries;
mod memory;
mod registers;
mod tables;
mod walk;
