//! The frames of the committed stacks, by each way to them.

#![cfg(test)]

use unwind_benches::corpus::Corpus;
use unwind_benches::depth;
use unwind_benches::known::KNOWN;
use unwind_benches::{Facade, Reference, Report, Rows, Unwind, Unwinder};
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
fn l6_stacks_of_any_depth_are_had_and_walked_to_their_ends() {
    let corpora = corpora();
    let corpus = corpora.iter().find(|corpus| corpus.name == "c-nofp");
    let Some(corpus) = corpus else { return };
    for frames in [1, 2, 5, 10, 20, 100] {
        let stacks = depth::stacks(corpus, frames, 20);
        assert!(!stacks.is_empty(), "of {frames} frames");
        let mut unwinder = Facade::<512>::new(corpus, Rows::CallFrames);
        // By rows that are looked up, and by those that are kept.
        for stack in stacks.iter().flat_map(|stack| [stack, stack]) {
            assert_eq!(unwinder.walk(stack), frames);
            assert_eq!(unwinder.is_complete(), Some(true));
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
