//! `unwind script` and `unwind merge`: recordings of `perf`.
//!
//! The data of a `perf.data` are read here and not by the crate
//! `linux-perf-data`, which hands records out through a sorter only: without
//! round marks it holds the whole file, and it takes sizes from the file for
//! allocations. It reads what is written here as a check.

mod address_spaces;
mod allowance;
mod branches;
mod build_ids;
mod call_stacks;
pub(crate) mod error;
mod event_desc;
mod event_name;
mod events;
mod fields;
mod files;
mod header;
mod held;
mod input;
mod json;
mod kernel;
mod merge;
mod merged_records;
mod names;
mod pipeline;
mod pmu_caps;
mod ranges;
mod reader;
mod recorded;
mod script;
mod shown;
mod summary;
mod text;
mod threads;
mod walk;
mod walks;

pub(crate) use merge::{MergeArgs, merged_len, run as run_merge};
pub(crate) use script::{ScriptArgs, printed_len, run as run_script};
