//! The frames of the committed stacks, by each way to them.

#![cfg(test)]

use std::collections::HashSet;

use unwind_benches::comparison::Comparison;
use unwind_benches::contestant::{CALL_FRAMES, RIVALS, UNWIND};
use unwind_benches::corpus::Corpus;
use unwind_benches::depth;
use unwind_benches::known::KNOWN;
use unwind_benches::places;
use unwind_benches::timing::Effort;
use unwind_benches::{Contestant, Facade, Reference, Report, Rows, Unwind, Unwinder};
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
fn the_library_as_its_readme_sets_it_up_has_the_references_stacks() {
    for corpus in corpora() {
        let report = Report::between(&corpus, &[UNWIND, CALL_FRAMES], RIVALS);
        report.assert_known(KNOWN);
        for (name, count) in &report.counts[..2] {
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
fn l8_stacks_through_any_number_of_places_are_walked_to_their_ends() {
    let corpus = places::corpus(3_000);
    let mut unwinders: Vec<_> =
        [UNWIND, CALL_FRAMES].iter().map(|ours| ours.open(&corpus)).collect();
    unwinders.extend(RIVALS.iter().map(|rival| rival.open(&corpus)));
    let mut seen = HashSet::new();
    for snapshot in &corpus.snapshots {
        let stacks: Vec<_> = unwinders
            .iter_mut()
            .map(|unwinder| {
                unwinder.walk(snapshot);
                assert_ne!(unwinder.is_complete(), Some(false));
                unwinder.frames()
            })
            .collect();
        let (first, others) = stacks.split_first().unwrap();
        assert_eq!(first.len(), 33);
        assert!(others.iter().all(|stack| stack == first));
        seen.extend(first.iter().copied());
    }
    // Ten frames each: nearly all places are there, and the outermost one.
    assert!((2_990..=3_001).contains(&seen.len()), "{}", seen.len());
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

/// A walk that has one frame, as anyone may add one.
struct OneFrame(Vec<u64>);

impl Unwinder for OneFrame {
    fn walk(&mut self, snapshot: &Snapshot<'_>) -> usize {
        self.0 = vec![snapshot.rip];
        self.0.len()
    }

    fn frames(&self) -> Vec<u64> {
        self.0.clone()
    }
}

#[test]
fn s7_an_unwinder_that_is_added_is_compared_and_judged() {
    let corpora: Vec<_> = corpora().into_iter().filter(|one| one.name.starts_with("c-")).collect();
    if corpora.is_empty() {
        return;
    }
    let own = Contestant::new("one-frame", |_| Box::new(OneFrame(Vec::new())));
    let contestants = [&Contestant::compared(), &[own][..]].concat();
    let comparison = Comparison::new(&corpora, &contestants, Effort::ONCE);
    let right_of = |name: &str| {
        let line = comparison.lines.iter().find(|line| line.name == name).unwrap();
        line.results.iter().map(|result| result.right).collect::<Vec<_>>()
    };
    for name in ["unwind", "call-frames", "framehop"] {
        assert!(right_of(name).iter().all(|right| *right == 100.0), "{comparison}");
    }
    assert!(right_of("one-frame").iter().all(|right| *right == 0.0), "{comparison}");
    let report = Report::beside(&corpora[0], &[own]);
    let (name, count) = report.counts.last().unwrap();
    assert_eq!((*name, count.short), ("one-frame", report.stacks));
}
