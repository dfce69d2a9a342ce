//! Each reader of the command over constructions that are meant to make it
//! slow, large or talkative, at one and four times some size.
//!
//! `cargo test --package unwind-cli --test resources -- --nocapture` prints the
//! table.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

#[path = "../support/mod.rs"]
mod support;

mod compressed;
mod core_file;
mod elf;
mod perf;
mod process;
mod qmp;
mod sframe;
