//! A merge, against the size of its input.

use std::fs;
use std::time::Instant;

use unwind_benches::merging::{BYTES_A_SAMPLE, merge};
use unwind_benches::timing::Effort;

use crate::{nanoseconds, sizes};

pub(crate) fn measure(effort: Effort) {
    println!("merge of samples with later stacks");
    println!("{:>10} {:>12} {:>12} {:>16}", "MB", "samples", "ns a sample", "peak memory, KB");
    for &megabytes in sizes(effort, &[1_u64, 10, 100, 1000]) {
        // Whole kernel entries of all threads.
        let samples = ((megabytes << 20) / BYTES_A_SAMPLE).next_multiple_of(256);
        // From here on the peak is counted anew.
        fs::write("/proc/self/clear_refs", "5").unwrap();
        let start = Instant::now();
        assert_eq!(merge(samples), samples, "each has its stack");
        let time = nanoseconds(start) / samples as f64;
        let peak = peak_memory_kb();
        println!("{megabytes:>10} {samples:>12} {time:>12.0} {peak:>16}");
    }
}

/// The most memory that this process has had at a time.
fn peak_memory_kb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim_end_matches("kB").trim().parse().unwrap()
}
