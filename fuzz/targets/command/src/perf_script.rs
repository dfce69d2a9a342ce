//! What `perf script` prints for `unwind verify`: no more samples and addresses than it has lines,
//! memory in proportion.

use test_support::CountingAllocator;

use crate::entry_points;

/// Bytes of memory for each byte of input, and for any input.
const PER_BYTE: u64 = 32;
const FIXED: u64 = 64 << 10;

pub(crate) fn run(data: &[u8]) {
    let len = data.len();
    let lines = data.split(|&byte| byte == b'\n').count();
    let ((samples, addrs), peak) =
        CountingAllocator::peak_of(|| entry_points::read_perf_script(data));
    assert!(peak <= PER_BYTE * len as u64 + FIXED, "{peak} bytes of memory for {len}");
    // A line that is too long is read as several.
    assert!(samples + addrs <= lines + len / 4096, "{samples} samples, {addrs} addresses");
}
