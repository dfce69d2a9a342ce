//! The sections that `unwind record` adds to a recording, a zero between them: its ledger, and how
//! frames were found. Text, memory and time in proportion.

use std::time::{Duration, Instant};

use test_support::CountingAllocator;

use crate::entry_points;

/// Bytes of memory and of text for each byte of input, and for any input.
const PER_BYTE: u64 = 64;
const FIXED: u64 = 64 << 10;

/// Frames of a sample that are looked at.
const FRAMES: usize = 1 << 10;

/// What any input may take, also on a busy machine.
const TIME: Duration = Duration::from_secs(10);

pub(crate) fn run(data: &[u8]) {
    let at = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
    let (ledger, found_frames) = data.split_at(at);
    let found_frames = found_frames.get(1..).unwrap_or_default();
    let (len, start) = (data.len(), Instant::now());
    let ((text, frames), peak) =
        CountingAllocator::peak_of(|| entry_points::recorded_sections_len(ledger, found_frames));
    let allowed = PER_BYTE * len as u64 + FIXED;
    assert!(peak <= allowed, "{peak} bytes of memory for {len}");
    assert!(text as u64 <= allowed, "{text} bytes of text for {len}");
    assert!(frames <= FRAMES * len, "{frames} frames for {len} bytes");
    assert!(start.elapsed() < TIME, "{:?} for {len} bytes", start.elapsed());
}
