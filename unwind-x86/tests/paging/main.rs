//! Page walks of every mode over tables laid out by hand.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::std_instead_of_alloc,
    unreachable_pub,
    reason = "tests"
)]

mod entries;
mod memory;
mod registers;
mod tables;
mod walk;
