//! `unwind script` and `unwind merge`: recordings of `perf`.
//!
//! The data of a `perf.data` are read here and not by the crate
//! `linux-perf-data`, which hands records out through a sorter only: without
//! round marks it holds the whole file, and it takes sizes from the file for
//! allocations. It reads what is written here as a check.

mod error;
mod event_desc;
mod event_name;
mod events;
mod header;
mod json;
mod merge;
mod merged_records;
mod pipeline;
mod reader;
mod script;
mod summary;
mod text;
mod threads;

pub(crate) use error::{Fault, PerfError};
pub(crate) use merge::{MergeArgs, run as run_merge};
pub(crate) use script::{ScriptArgs, run as run_script};
