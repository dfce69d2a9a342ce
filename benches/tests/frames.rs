//! The frames of the committed stacks, by each way to them.

#![cfg(test)]

use unwind_benches::corpus::Corpus;
use unwind_benches::known::KNOWN;
use unwind_benches::{Incremental, Reference, Report, Unwind, Unwinder};
use unwind_snapshot::Snapshot;

fn corpora() -> Vec<Corpus> {
    Corpus::paths().iter().map(|path| Corpus::open(path)).collect()
}

#[test]
fn a1_every_stack_is_the_references_and_what_is_not_certain_has_a_reason() {
    for corpus in corpora() {
        let report = Report::new(&corpus);
        report.assert_known(KNOWN);
        for (name, count) in &report.counts[..4] {
            assert_eq!(count.not_wrong(), report.stacks, "{name}: {report}");
        }
    }
}

#[test]
fn a_cache_changes_no_frame() {
    for corpus in corpora() {
        let mut warm = Unwind::new(&corpus);
        let mut cold = Unwind::new(&corpus);
        let mut result = |snapshot: &Snapshot<'_>| {
            cold.forget();
            assert_eq!(warm.walk(snapshot), cold.walk(snapshot), "{}", corpus.name);
            assert_eq!(warm.frames(), cold.frames(), "{}", corpus.name);
            assert_eq!(warm.is_complete(), cold.is_complete(), "{}", corpus.name);
        };
        for _ in 0..2 {
            corpus.snapshots.iter().for_each(&mut result);
        }
        assert!(warm.stats().hits > warm.stats().misses, "{}: {:?}", corpus.name, warm.stats());
    }
}

#[test]
fn going_on_from_the_last_walk_of_the_thread_changes_no_frame() {
    for corpus in corpora() {
        let mut whole = Unwind::new(&corpus);
        let mut incremental = Incremental::new(&corpus);
        let mut frames = 0;
        for snapshot in corpus.snapshots.iter().chain(&corpus.snapshots) {
            for _ in 0..2 {
                frames += whole.walk(snapshot);
                incremental.walk(snapshot);
                assert_eq!(whole.frames(), incremental.frames(), "{}", corpus.name);
                assert_eq!(whole.end(), incremental.end(), "{}", corpus.name);
            }
        }
        let reused = incremental.reused();
        assert!(reused > frames / 4, "{}: {reused} of {frames}", corpus.name);
    }
}

#[test]
fn a_frame_of_half_a_megabyte_is_kept_by_the_cache() {
    let corpora = corpora();
    let whole = corpora.iter().find(|corpus| corpus.name == "rustc-whole");
    let Some(corpus) = whole else { return };
    let large = corpus.snapshots.iter().filter(|snapshot| snapshot.stack.len() > 512 << 10);
    // The row of an epilogue that has taken the frame pointer from the stack is not
    // kept.
    let mut reference = Reference::new(corpus);
    let large: Vec<_> = large
        .filter(|snapshot| {
            reference.walk(snapshot);
            !reference.has_popped()
        })
        .collect();
    assert!(!large.is_empty(), "stacks with that frame");
    let mut unwind = Unwind::new(corpus);
    for snapshot in large {
        assert!(unwind.walk(snapshot) > 10);
    }
    assert_eq!(unwind.stats().unkept, 0);
}
