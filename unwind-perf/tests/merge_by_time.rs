//! Samples and stacks without a cookie are joined by the order in which a thread has them.
#![cfg(test)]

use unwind_perf::merge::{CookiesByTime, Merger, Outcome, Policy, Timestamped};
use unwind_perf::record::{Task, UserPart};

const fn at(tid: u32, time: u64) -> Timestamped {
    Timestamped { task: Task { pid: 1, tid }, time }
}

#[test]
fn g8_a_stack_for_which_no_sample_waits_is_counted_as_unused() {
    let mut cookies = CookiesByTime::default();
    let mut merger = Merger::new(Policy::default());
    for (time, tid) in [(10, 7), (11, 8), (12, 7)] {
        merger.sample(at(tid, time), UserPart::Deferred(cookies.of_sample(tid)), time, 0);
    }
    // The number of thread 8 was given to another one.
    cookies.exit(8);
    for (time, tid) in [(20, 7), (21, 7), (22, 8), (23, 9)] {
        match cookies.of_stack(tid) {
            Some(cookie) => merger.deferred(at(tid, time), cookie, [u64::from(tid)]),
            None => merger.unused(),
        }
    }
    merger.finish();
    let merged = std::iter::from_fn(|| merger.pop()).map(|(sample, outcome)| match outcome {
        Outcome::Merged(merged) => (sample, Some(merged.stack.to_vec())),
        _ => (sample, None),
    });
    let mut merged: Vec<_> = merged.collect();
    merged.sort();
    assert_eq!(merged, [(10, Some(vec![7])), (11, None), (12, Some(vec![7]))]);
    let counts = merger.counts();
    assert_eq!((counts.records, counts.records_unused, counts.merged), (4, 3, 2));
}
