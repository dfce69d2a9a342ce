//! How much output, memory and time the work on a recording may take.

use std::time::{Duration, Instant};

use test_support::CountingAllocator;

/// Bytes of output for any input: a page has its program.
const FIXED: usize = 4 << 20;

/// What any input may take, also on a busy machine, and each byte of it.
const OWN_TIME: Duration = Duration::from_secs(10);
const TIME_PER_BYTE: Duration = Duration::from_micros(200);

pub(crate) struct RecordingBounds {
    /// Bytes of output for each byte of input.
    pub(crate) per_byte: usize,
    /// Bytes of memory that any input may take: the tables of this machine's files among them.
    pub(crate) own_memory: u64,
}

impl RecordingBounds {
    /// Runs work on recordings that are worth `len` bytes, which returns the length of each output.
    pub(crate) fn check<O: IntoIterator<Item = usize>>(
        &self,
        len: usize,
        work: impl FnOnce() -> O,
    ) {
        let start = Instant::now();
        let (written, peak) = CountingAllocator::peak_of(work);
        assert!(peak <= 512 * len as u64 + self.own_memory, "{peak} bytes of memory for {len}");
        for output in written {
            assert!(output <= self.per_byte * len + FIXED, "{output} bytes of output for {len}");
        }
        let allowed = OWN_TIME + TIME_PER_BYTE * u32::try_from(len).unwrap_or(u32::MAX);
        assert!(start.elapsed() < allowed, "{:?} for {len} bytes", start.elapsed());
    }
}
