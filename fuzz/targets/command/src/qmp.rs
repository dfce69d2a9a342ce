//! What comes from the monitor of a guest: messages of QEMU, texts in them, packets of a stub for gdb.

use test_support::CountingAllocator;

use crate::entry_points;

pub(crate) fn run(data: &[u8]) {
    let len = u64::try_from(data.len()).unwrap();
    let (read, peak) = CountingAllocator::peak_of(|| entry_points::read_qmp(data));
    assert!(read <= data.len(), "{read} of {len}");
    let _ = entry_points::read_gdb(data);
    assert!(peak <= 64 * len + (64 << 10), "{peak} bytes of memory for {len}");
}
