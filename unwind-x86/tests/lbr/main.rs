//! The record of branches at context switches: each task finds its own, and
//! nobody finds another one's.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::panic,
    clippy::std_instead_of_core,
    unreachable_pub,
    reason = "tests"
)]

mod average;
mod hardware;
mod machine;
mod random;
mod switch;
