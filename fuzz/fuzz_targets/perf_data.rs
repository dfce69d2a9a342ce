#![no_main]

use testdata::PeakAllocator;

#[global_allocator]
static ALLOCATOR: PeakAllocator = PeakAllocator;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let peak = PeakAllocator::peak_of(|| fuzz_targets::perf_data(data));
    // The text and the JSON are in memory, too.
    assert!(peak <= 256 * data.len() + (16 << 20), "{peak} bytes of memory for {}", data.len());
});
