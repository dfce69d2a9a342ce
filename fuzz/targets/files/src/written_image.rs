//! Memory of an interpreter that is written over, and the bounds of what may come of it.

use std::time::{Duration, Instant};

use test_support::CountingAllocator;

/// What any input may take, also on a busy machine.
const TIME: Duration = Duration::from_secs(10);
/// Twice what is read of a program.
const MEMORY: u64 = 128 << 20;
/// Where the memory is.
pub(crate) const START: u64 = 0x5555_0000_0000;
pub(crate) const LEN: usize = 1 << 16;

/// Writes over an image, each ten bytes a place and a word, and calls `find` with what reads it, in bounds of time
/// and memory.
pub(crate) fn find_in<T>(
    mut image: Vec<u8>,
    writes: &[u8],
    find: impl FnOnce(&mut dyn FnMut(u64, &mut [u8]) -> bool) -> T,
) -> T {
    let (words, _) = writes.as_chunks::<10>();
    for &[low, high, word @ ..] in words {
        let at = usize::from(u16::from_le_bytes([low, high])).min(LEN - 8);
        image[at..at + 8].copy_from_slice(&word);
    }
    let mut read = |addr: u64, buf: &mut [u8]| {
        let at = addr.checked_sub(START).and_then(|at| usize::try_from(at).ok());
        let bytes = at.and_then(|at| image.get(at..)?.get(..buf.len()));
        bytes.map(|bytes| buf.copy_from_slice(bytes)).is_some()
    };
    let start = Instant::now();
    let (found, peak) = CountingAllocator::peak_of(|| find(&mut read));
    assert!(start.elapsed() < TIME, "{:?} for {} bytes", start.elapsed(), writes.len());
    assert!(peak <= MEMORY, "{peak} bytes of memory");
    found
}
