//! The text of `/proc/kallsyms`: no more functions and names than it has, memory in proportion.

use test_support::CountingAllocator;

use crate::entry_points;

/// Bytes of memory for each byte of input, and for any input.
const PER_BYTE: u64 = 64;
const FIXED: u64 = 64 << 10;

pub(crate) fn run(data: &[u8]) {
    let len = data.len();
    let ((functions, names), peak) =
        CountingAllocator::peak_of(|| entry_points::kernel_symbols_listed(data));
    assert!(peak <= PER_BYTE * len as u64 + FIXED, "{peak} bytes of memory for {len}");
    // The shortest line is `1 t ` with the end of the line before it.
    assert!(functions <= len / 5 + 1, "{functions} functions of {len} bytes");
    // Functions at one address are found by the first name of these.
    assert!(names <= len * functions, "{names} bytes of names of {len}");
}
