//! Samples that get their user stacks later.

use unwind_perf::merge::{Merger, Outcome, Policy, Timestamped};
use unwind_perf::record::{Task, UserPart};

/// Samples of a kernel entry, which have one stack.
const SAMPLES: u64 = 4;
const THREADS: u64 = 64;

/// What Linux writes for a sample, in bytes: a sample with address, thread, time
/// and a chain of a marker and a cookie; and its part of the record that brings
/// the stack of 20 frames.
pub const BYTES_A_SAMPLE: u64 = 56 + (40 + 8 * 20) / SAMPLES;

/// Merges samples of 64 threads with stacks that come up to four samples later;
/// returns how many were merged.
///
/// # Panics
///
/// If a number does not fit.
#[must_use]
pub fn merge(samples: u64) -> u64 {
    const STACK: [u64; 20] = [0x40_1000; 20];
    let mut merged = 0;
    let mut merger = Merger::new(Policy::default());
    for number in 0..samples {
        let tid = u32::try_from(number % THREADS + 1).unwrap();
        let stamp = Timestamped { task: Task { pid: 1, tid }, time: number * 1000 };
        let cookie = number / THREADS / SAMPLES + 1;
        merger.sample(stamp, UserPart::Deferred(cookie), number, 0);
        if number / THREADS % SAMPLES == SAMPLES - 1 {
            merger.deferred(stamp, cookie, STACK);
        }
        merger.advance(stamp.time);
        merged += merged_of(&mut merger);
    }
    merger.finish();
    merged + merged_of(&mut merger)
}

/// Takes out the samples that have ended; how many of them have their stack.
fn merged_of(merger: &mut Merger<u64>) -> u64 {
    let mut merged = 0;
    while let Some((_, outcome)) = merger.pop() {
        merged += u64::from(matches!(outcome, Outcome::Merged(_)));
    }
    merged
}
