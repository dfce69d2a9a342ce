//! Any bytes as a core file that is compressed by zstd: it stands for no more than a block of each
//! few bytes, and memory does not grow with that.

use std::time::{Duration, Instant};

use test_support::CountingAllocator;
use unwind_target::target::compressed_core::decompressed_len;

/// The most bytes that a block stands for, and the fewest that it takes.
const BLOCK: u64 = 128 << 10;
const BLOCK_BYTES: u64 = 4;

/// Bytes of memory that any input may take: twice the window that is allowed, and blocks.
const MEMORY: u64 = (256 << 20) + (8 << 20);

/// What any input may take, also on a busy machine, and each byte of it.
const OWN_TIME: Duration = Duration::from_secs(10);
const TIME_PER_BYTE: Duration = Duration::from_millis(2);

pub(crate) fn run(data: &[u8]) {
    let (len, start) = (data.len() as u64, Instant::now());
    let (written, peak) = CountingAllocator::peak_of(|| decompressed_len(data));
    assert!(peak <= MEMORY, "{peak} bytes of memory for {len}");
    let written = written.unwrap_or(0);
    assert!(written <= BLOCK * (len / BLOCK_BYTES + 1), "{written} bytes of {len}");
    let allowed = OWN_TIME + TIME_PER_BYTE * u32::try_from(len).unwrap_or(u32::MAX);
    assert!(start.elapsed() < allowed, "{:?} for {len} bytes", start.elapsed());
}
