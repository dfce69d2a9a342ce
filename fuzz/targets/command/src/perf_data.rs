//! Any bytes as a recording of perf: the command's reader with its text, its JSON and its
//! merge writes no more than the recording is worth, and takes no more memory.

use test_support::CountingAllocator;

use crate::entry_points;

/// Bytes of output for each byte of input, and for any input.
const PER_BYTE: usize = 200;
const FIXED: usize = 2 << 20;

/// Bytes of memory that any input may take: the buffers, and the output, which is kept.
const OWN_MEMORY: u64 = 16 << 20;

/// How many bytes a recording counts for: those of its records where they are compressed.
pub(crate) fn worth(data: &[u8]) -> usize {
    data.len().max(entry_points::records_len(data))
}

pub(crate) fn run(data: &[u8]) {
    let len = worth(data);
    let (written, peak) = CountingAllocator::peak_of(|| entry_points::read_perf_data(data));
    assert!(peak <= 256 * len as u64 + OWN_MEMORY, "{peak} bytes of memory for {len}");
    for output in written.into_iter().flatten() {
        assert!(output <= PER_BYTE * len + FIXED, "{output} bytes of output for {len}");
    }
}
