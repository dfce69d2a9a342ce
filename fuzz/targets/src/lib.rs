//! The bodies of the fuzz targets: plain functions of bytes, which panic where
//! an answer is wrong.
//!
//! libFuzzer calls them from `fuzz/fuzz_targets`; the test of this crate calls
//! them with the committed corpora.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::panic,
    unreachable_pub,
    missing_debug_implementations,
    reason = "a wrong answer shall end the run"
)]

mod archive;
mod aux_gate;
mod cfi;
mod cfi_lookup;
mod compressed;
mod compressed_core;
mod core_file;
pub mod corpora;
mod debug_link;
mod deferred;
mod elf;
mod explain_sample;
mod input;
mod instruction_analysis;
mod jit_code;
mod jit_map;
mod kernel_symbols;
mod lbr_stitch;
mod merge;
mod paging;
mod per_cpu;
mod perf_data;
mod perf_diff;
mod perf_records;
mod perf_report;
mod perf_script;
mod plain_table;
mod proc_texts;
mod proven_frames;
mod qmp;
mod recorded_sections;
mod recording_bounds;
mod segments;
mod sframe_index;
mod sframe_remote;
mod sframe_round_trip;
mod sframe_section;
mod sframe_structure;
mod sframe_validate;
mod target_memory;
mod task_data;
mod walk;
mod walk_cached;
mod walk_ia32;
mod walk_x86_64;

// Models that the crates' own tests use, too.
#[path = "../../../unwind-perf/tests/arena/mod.rs"]
#[expect(dead_code, reason = "a part of it is used here")]
mod arena;
#[path = "../../../unwind-core/tests/support/deferred_world.rs"]
mod deferred_world;
#[path = "../../../unwind-cfi/tests/gimli_frames/mod.rs"]
mod gimli_frames;
#[path = "../../../sframe/tests/gimli_rows/mod.rs"]
mod gimli_rows;
#[path = "../../../unwind-x86/tests/paging_model/mod.rs"]
mod paging_model;
#[path = "../../../unwind-core/tests/support/sim.rs"]
mod sim;

use test_support::CountingAllocator;

/// Targets that read for the command have a limit of memory.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of the target and of the directory of its corpus.
    pub name: &'static str,
    /// What is called with each input.
    pub body: fn(&[u8]),
}

macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        $(
            #[doc = concat!("The body of `", stringify!($name), "`.")]
            ///
            /// # Panics
            ///
            /// If an answer is wrong.
            pub fn $name(data: &[u8]) {
                $name::run(data);
            }
        )*

        /// All targets.
        pub const TARGETS: &[Target] =
            &[$(Target { name: stringify!($name), body: $name }),*];
    };
}

targets! {
    sframe_section,
    sframe_structure,
    sframe_index,
    sframe_remote,
    sframe_validate,
    sframe_round_trip,
    cfi,
    cfi_lookup,
    elf,
    compressed,
    core_file,
    proc_texts,
    qmp,
    walk_x86_64,
    walk_ia32,
    walk_cached,
    instruction_analysis,
    proven_frames,
    paging,
    segments,
    perf_data,
    perf_records,
    perf_report,
    merge,
    deferred,
    per_cpu,
    task_data,
    aux_gate,
    lbr_stitch,
    jit_code,
    jit_map,
    kernel_symbols,
    perf_script,
    debug_link,
    compressed_core,
    recorded_sections,
    perf_diff,
    explain_sample,
    archive,
}
