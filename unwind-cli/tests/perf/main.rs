//! `unwind script` and `unwind merge` over recordings that Linux 7.2 and its
//! `perf` wrote, and over damaged ones.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod branches;
mod call_stacks;
mod damage;
mod files;
mod first_layout;
mod forms;
mod here;
mod hostile_names;
mod listing;
mod memory;
mod merge;
mod other_people;
mod script;
mod versions;
mod walk;
