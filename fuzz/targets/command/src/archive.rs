//! Any bytes as an archive of objects, for `unwind sframe dump`: text and JSON of the tables of its
//! members, with memory and output in proportion.

use std::time::{Duration, Instant};

use test_support::CountingAllocator;

use crate::entry_points;

/// Bytes of memory and of output for each byte of input, and for any input: rows that functions
/// share are shown a bounded number of times.
const PER_BYTE: u64 = 1024;
const FIXED: u64 = 64 << 20;

/// What any input may take, also on a busy machine.
const TIME: Duration = Duration::from_secs(20);

pub(crate) fn run(data: &[u8]) {
    let (len, start) = (data.len() as u64, Instant::now());
    let (written, peak) = CountingAllocator::peak_of(|| entry_points::dump_archive(data));
    let allowed = PER_BYTE * len + FIXED;
    assert!(peak <= 2 * allowed, "{peak} bytes of memory for {len}");
    let written = written.unwrap_or(0) as u64;
    assert!(written <= allowed, "{written} bytes of output for {len}");
    assert!(start.elapsed() < TIME, "{:?} for {len} bytes", start.elapsed());
}
