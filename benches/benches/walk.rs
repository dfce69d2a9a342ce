//! Walks of captured stacks, beside other unwinders.

#![allow(missing_docs, clippy::unwrap_used, reason = "criterion makes the functions")]

use std::hint::black_box;

use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use unwind_benches::contestant::{CALL_FRAMES, RIVALS, UNWIND};
use unwind_benches::corpus::Corpus;
use unwind_benches::known::KNOWN;
use unwind_benches::{Contestant, Report, Unwinder};

/// Fails unless this workspace's frames are the reference's for all snapshots, and
/// those of the rivals for nearly all: else they did other work. What is measured is
/// the frames walked, so a rival may end one walk in five early: rows alone do not
/// lead out of a PLT or of code without a table. A plain loop over frame pointers is
/// measured for what it is.
fn check(corpus: &Corpus) {
    let report = Report::between(corpus, &[UNWIND, CALL_FRAMES], RIVALS);
    report.assert_known(KNOWN);
    for (name, count) in &report.counts {
        let other = count.differing.saturating_add(count.falsely_complete);
        assert!(other <= report.stacks / 20, "{name}: {report}");
        assert!(count.short <= (report.stacks / 5).max(1), "{name}: {report}");
    }
}

/// Takes part with `pass`, which walks `frames` frames.
fn measure(
    group: &mut BenchmarkGroup<'_, WallTime>,
    corpus: &Corpus,
    mut pass: impl FnMut(&mut dyn Unwinder),
) {
    for contestant in Contestant::compared() {
        let mut unwinder = contestant.open(corpus);
        let frames: usize = corpus.snapshots.iter().map(|s| unwinder.walk(s)).sum();
        group.throughput(Throughput::Elements(frames.try_into().unwrap()));
        group.bench_function(BenchmarkId::new(contestant.name, &corpus.name), |b| {
            b.iter(|| pass(&mut *unwinder));
        });
    }
}

fn walk(c: &mut Criterion) {
    const HOT_ROUNDS: usize = 10;
    for path in Corpus::paths() {
        let corpus = Corpus::open(&path);
        check(&corpus);
        let mut group = c.benchmark_group("walk/hot x10");
        measure(&mut group, &corpus, |unwinder| {
            for snapshot in &corpus.snapshots {
                for _ in 0..HOT_ROUNDS {
                    black_box(unwinder.walk(black_box(snapshot)));
                }
            }
        });
        group.finish();
        let mut group = c.benchmark_group("walk/replay");
        measure(&mut group, &corpus, |unwinder| {
            for snapshot in &corpus.snapshots {
                black_box(unwinder.walk(black_box(snapshot)));
            }
        });
        group.finish();
        let mut group = c.benchmark_group("walk/cold");
        measure(&mut group, &corpus, |unwinder| {
            for snapshot in &corpus.snapshots {
                unwinder.forget();
                black_box(unwinder.walk(black_box(snapshot)));
            }
        });
        group.finish();
    }
}

criterion_group!(benches, walk);
criterion_main!(benches);
