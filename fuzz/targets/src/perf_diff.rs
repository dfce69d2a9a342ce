//! The length of a recording, the recording, and another one: their difference is written in each
//! format, and none of them is longer or takes more memory or time than both are worth.

use std::time::{Duration, Instant};

use test_support::CountingAllocator;

use crate::perf_data::worth;

/// Bytes of output for each byte of input, and for any input: the page has its program.
const PER_BYTE: usize = 256;
const FIXED: usize = 4 << 20;

/// Bytes of memory that any input may take: the tables of this machine's files among them.
const OWN_MEMORY: u64 = 48 << 20;

/// What any input may take, also on a busy machine, and each byte of it.
const OWN_TIME: Duration = Duration::from_secs(10);
const TIME_PER_BYTE: Duration = Duration::from_micros(200);

pub(crate) fn run(data: &[u8]) {
    let Some((&[low, high], rest)) = data.split_first_chunk() else { return };
    let split = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
    let (before, after) = rest.split_at(split);
    let (len, start) = (worth(before) + worth(after), Instant::now());
    let (written, peak) =
        CountingAllocator::peak_of(|| unwind_cli::compare_perf_data(before, after));
    assert!(peak <= 512 * len as u64 + OWN_MEMORY, "{peak} bytes of memory for {len}");
    for output in written.into_iter().flatten() {
        assert!(output <= PER_BYTE * len + FIXED, "{output} bytes of output for {len}");
    }
    let allowed = OWN_TIME + TIME_PER_BYTE * u32::try_from(len).unwrap_or(u32::MAX);
    assert!(start.elapsed() < allowed, "{:?} for {len} bytes", start.elapsed());
}
