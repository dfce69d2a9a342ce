//! The number of a sample and a recording, for `unwind explain`: text and JSON in bounds of output,
//! memory and time.

use std::time::{Duration, Instant};

use test_support::CountingAllocator;

use crate::perf_data::worth;

/// Bytes of output for each byte of input, and for any input.
const PER_BYTE: usize = 512;
const FIXED: usize = 4 << 20;

/// Bytes of memory that any input may take: the tables of this machine's files among them.
const OWN_MEMORY: u64 = 64 << 20;

/// What any input may take, also on a busy machine, and each byte of it.
const OWN_TIME: Duration = Duration::from_secs(10);
const TIME_PER_BYTE: Duration = Duration::from_micros(200);

pub(crate) fn run(data: &[u8]) {
    let Some((&number, recording)) = data.split_first() else { return };
    let (len, start) = (worth(recording), Instant::now());
    let (written, peak) =
        CountingAllocator::peak_of(|| unwind_cli::explain_sample(recording, number.into()));
    assert!(peak <= 512 * len as u64 + OWN_MEMORY, "{peak} bytes of memory for {len}");
    let written = written.unwrap_or(0);
    assert!(written <= PER_BYTE * len + FIXED, "{written} bytes of output for {len}");
    let allowed = OWN_TIME + TIME_PER_BYTE * u32::try_from(len).unwrap_or(u32::MAX);
    assert!(start.elapsed() < allowed, "{:?} for {len} bytes", start.elapsed());
}
