//! The bodies of the fuzz targets of `unwind-target`: plain functions of bytes, which panic
//! where an answer is wrong.
//!
//! libFuzzer calls them from `fuzz/fuzz_targets`; the test of this crate calls them with the
//! committed corpora.

mod compressed;
mod compressed_core;
mod debug_link;
mod elf;
mod jit_code;
mod jit_map;
mod proc_texts;
mod python_frames;
mod v8_frames;
mod written_image;

use test_support::CountingAllocator;

/// These targets have a limit of memory.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

test_support::fuzz_targets! {
    elf,
    compressed,
    proc_texts,
    jit_code,
    jit_map,
    debug_link,
    compressed_core,
    python_frames,
    v8_frames,
}
