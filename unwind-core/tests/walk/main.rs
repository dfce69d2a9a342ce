//! Rules of the walk, on a made-up CPU with a scripted table.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::std_instead_of_alloc,
    clippy::std_instead_of_core,
    reason = "tests"
)]

mod cached;
mod ends;
mod fallback;
mod gaps;
mod limits;
mod return_addresses;
mod rules;
mod signals;
mod toy;
mod trace;
mod unknown_fp;
