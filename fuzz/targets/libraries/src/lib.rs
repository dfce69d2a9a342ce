//! The bodies of the fuzz targets of the `no_std` libraries: plain functions of bytes, which panic
//! where an answer is wrong.
//!
//! libFuzzer calls them from `fuzz/fuzz_targets`; the test of this crate calls them with the
//! committed corpora.

mod aux_gate;
mod cfi;
mod cfi_lookup;
mod compact_build;
mod compact_table;
mod deferred;
mod guest_linux;
mod guest_orc;
mod input;
mod instruction_analysis;
mod lbr_stitch;
mod merge;
mod paging;
mod per_cpu;
mod perf_records;
mod plain_table;
mod proven_frames;
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
#[path = "../../../../unwind-perf/tests/arena/mod.rs"]
#[expect(dead_code, reason = "a part of it is used here")]
mod arena;
#[path = "../../../../unwind-core/tests/support/deferred_world.rs"]
mod deferred_world;
#[path = "../../../../unwind-cfi/tests/gimli_frames/mod.rs"]
mod gimli_frames;
#[path = "../../../../sframe/tests/gimli_rows/mod.rs"]
mod gimli_rows;
#[path = "../../../../unwind-guest/tests/kernel/mod.rs"]
mod guest_kernel;
#[path = "../../../../unwind-x86/tests/paging_model/mod.rs"]
mod paging_model;
#[path = "../../../../unwind-core/tests/support/sim.rs"]
mod sim;

test_support::fuzz_targets! {
    sframe_section,
    sframe_structure,
    sframe_index,
    sframe_remote,
    sframe_validate,
    sframe_round_trip,
    compact_table,
    compact_build,
    cfi,
    cfi_lookup,
    walk_x86_64,
    walk_ia32,
    walk_cached,
    instruction_analysis,
    proven_frames,
    paging,
    guest_orc,
    guest_linux,
    segments,
    perf_records,
    merge,
    deferred,
    per_cpu,
    task_data,
    aux_gate,
    lbr_stitch,
}
