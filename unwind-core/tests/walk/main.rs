//! Rules of the walk, on a made-up CPU with a scripted table.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod cached;
mod ends;
mod fallback;
mod gaps;
mod limits;
mod other_stack;
mod position;
mod recovery;
mod return_addresses;
mod rows_by_key;
mod rules;
mod signals;
mod toy;
mod trace;
mod unknown_fp;
