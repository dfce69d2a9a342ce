//! What a compiler tells of its code: the text of a `perf-PID.map`, a zero, and a `jit-PID.dump`.

use std::time::{Duration, Instant};

use test_support::CountingAllocator;
use unwind_target::jit::jit_dump::jit_functions;

/// Bytes of memory for each byte of input, and for any input.
const PER_BYTE: u64 = 256;
const FIXED: u64 = 1 << 20;

/// What any input may take, also on a busy machine.
const TIME: Duration = Duration::from_secs(10);

pub(crate) fn run(data: &[u8]) {
    let at = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
    let (map, dump) = data.split_at(at);
    let (len, start) = (data.len(), Instant::now());
    let dump = dump.get(1..).unwrap_or_default();
    let (functions, peak) = CountingAllocator::peak_of(|| jit_functions(map, dump));
    assert!(peak <= PER_BYTE * len as u64 + FIXED, "{peak} bytes of memory for {len}");
    // A line that is over another leaves two parts of that.
    assert!(functions <= 2 * len / 5 + len / 16 + 2, "{functions} functions of {len} bytes");
    assert!(start.elapsed() < TIME, "{:?} for {len} bytes", start.elapsed());
}
