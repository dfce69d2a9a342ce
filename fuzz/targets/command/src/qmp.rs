//! What comes from the socket of a QEMU: messages, and texts of its monitor in them.

use test_support::CountingAllocator;

use crate::entry_points;

pub(crate) fn run(data: &[u8]) {
    let len = u64::try_from(data.len()).unwrap();
    let (read, peak) = CountingAllocator::peak_of(|| entry_points::read_qmp(data));
    assert!(read <= data.len(), "{read} of {len}");
    assert!(peak <= 64 * len + (64 << 10), "{peak} bytes of memory for {len}");
}
