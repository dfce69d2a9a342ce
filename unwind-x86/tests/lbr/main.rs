//! The record of branches at context switches: each task finds its own, and
//! no one finds another one's.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, unreachable_pub, reason = "tests")]

mod average;
mod hardware;
mod machine;
mod random;
mod switch;
