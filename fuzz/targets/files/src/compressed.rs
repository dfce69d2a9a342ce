//! A class, and any bytes as a compressed section: no more memory than the section
//! may expand to.

use test_support::CountingAllocator;
use unwind_target::elf::decompress;

/// What a decoder of zstd or zlib has for itself: windows, tables, a block.
const OWN: u64 = 20 << 20;

pub(crate) fn run(data: &[u8]) {
    let Some((&class, bytes)) = data.split_first() else { return };
    let len = u64::try_from(bytes.len()).unwrap();
    let (read, peak) = CountingAllocator::peak_of(|| decompress(class & 1 == 0, bytes).ok());
    // A vector that grows has up to three times its bytes for a moment.
    let allowed = (64 * len).max(64 << 10);
    assert!(peak <= 3 * allowed + OWN, "{peak} bytes of memory for {len}");
    if let Some(read) = read {
        assert!(read.len() as u64 <= allowed, "{} bytes out of {len}", read.len());
    }
}
