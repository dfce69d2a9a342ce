//! The bodies of the fuzz targets of the command: plain functions of bytes, which panic
//! where an answer is wrong.
//!
//! libFuzzer calls them from `fuzz/fuzz_targets`; the test of this crate calls them with the
//! committed corpora.

mod archive;
mod core_file;
mod entry_points;
mod explain_sample;
mod kernel_symbols;
mod perf_data;
mod perf_diff;
mod perf_report;
mod perf_script;
mod qmp;
mod recorded_sections;
mod recording_bounds;

use test_support::CountingAllocator;

/// These targets have a limit of memory.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

test_support::fuzz_targets! {
    core_file,
    qmp,
    perf_data,
    perf_report,
    kernel_symbols,
    perf_script,
    recorded_sections,
    perf_diff,
    explain_sample,
    archive,
}
