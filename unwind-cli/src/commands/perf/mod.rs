//! `unwind script` and `unwind merge`: recordings of `perf`.
//!
//! The data of a `perf.data` are read here and not by the crate
//! `linux-perf-data`, which hands records out through a sorter only: without
//! round marks it holds the whole file, and it takes sizes from the file for
//! allocations. It reads what is written here as a check.

pub(crate) mod address_spaces;
mod allowance;
mod branches;
pub(crate) mod build_ids;
pub(crate) mod call_stacks;
pub(crate) mod chosen_event;
mod decompress;
pub(crate) mod error;
pub(crate) mod event_desc;
mod event_name;
pub(crate) mod events;
pub(crate) mod fields;
pub(crate) mod files;
pub(crate) mod found_frames;
pub(crate) mod generated_code;
pub(crate) mod header;
pub(crate) mod held;
mod input;
mod json;
pub(crate) mod kernel;
mod merge;
pub(crate) mod merged_records;
mod moved_text;
pub(crate) mod names;
pub(crate) mod origin;
pub(crate) mod pipeline;
mod pmu_caps;
pub(crate) mod printed;
pub(crate) mod probed_returns;
pub(crate) mod ranges;
pub(crate) mod reader;
mod record_bytes;
pub(crate) mod recorded;
mod running_code;
mod script;
pub(crate) mod shown;
pub(crate) mod stack_end;
pub(crate) mod stream;
pub(crate) mod summary;
pub(crate) mod tally;
mod text;
mod text_proof;
pub(crate) mod threads;
pub(crate) mod tool_record;
pub(crate) mod walk;
pub(crate) mod walks;

/// How many bytes the records of a recording have together.
pub(crate) fn records_len(bytes: &[u8]) -> usize {
    let Ok(mut reader) = reader::PerfReader::from_bytes(bytes.to_vec()) else { return 0 };
    let mut len = 0_usize;
    while let Ok(true) = reader.read() {
        len = len.saturating_add(reader.record().map_or(0, |record| record.bytes().len()));
    }
    len
}

pub(crate) use merge::{MergeArgs, merged_len, run as run_merge};
pub(crate) use script::{ScriptArgs, printed_len, run as run_script};
