//! `unwind script` and `unwind merge` over recordings that Linux 7.2 and its
//! `perf` wrote, and over damaged ones.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::panic,
    clippy::std_instead_of_alloc,
    clippy::std_instead_of_core,
    reason = "tests"
)]

mod branches;
mod damage;
mod files;
mod forms;
mod here;
mod hostile_names;
mod listing;
mod memory;
mod merge;
mod script;
mod walk;
