//! Walks of captured stacks.

use std::hint::black_box;

use unwind_benches::contestant::UNWIND;
use unwind_benches::corpus::Corpus;
use unwind_benches::known::KNOWN;
use unwind_benches::timing::Effort;
use unwind_benches::{Facade, Framehop, Report, Rows, Unwind, Unwinder};
use unwind_snapshot::Snapshot;

use super::{fact, line};

pub(crate) fn measure(corpus: &Corpus, effort: Effort) {
    frames(corpus);
    cached_rows(corpus);
    replay(corpus, effort);
    hot(corpus, effort);
}

/// How many stacks are the reference's; and that those of a walker with a cache are the plain walk's.
fn frames(corpus: &Corpus) {
    let report = Report::new(corpus);
    report.assert_known(KNOWN);
    let (mut unwind, plain) = (Unwind::new(corpus), Unwind::new(corpus));
    let mut differing = 0;
    for snapshot in &corpus.snapshots {
        unwind.walk(snapshot);
        let (frames, is_complete) = plain.walk_plainly(snapshot);
        differing +=
            usize::from(frames != unwind.frames() || is_complete != unwind.is_complete().unwrap());
    }
    assert_eq!(differing, 0, "{}", corpus.name);
    let (_, count) = report.counts[0];
    let text = format!(
        "{} of {} stacks the reference's, {} as far as it leads, {differing} not the plain walk's",
        count.same, report.stacks, count.unjudged
    );
    fact("frames", &corpus.name, &text);
}

/// How many lookups the caches answer in one pass, from empty.
fn cached_rows(corpus: &Corpus) {
    let mut unwind = Facade::<4096>::new(corpus, Rows::Sframe);
    let mut framehop = Framehop::new(corpus);
    for snapshot in &corpus.snapshots {
        unwind.walk(snapshot);
        framehop.walk(snapshot);
    }
    let rate = |hits: u64, misses: u64| 100.0 * hits as f64 / (hits + misses) as f64;
    let stats = unwind.stats();
    let ours = rate(stats.hits, stats.misses);
    let (hits, misses) = framehop.hits_and_misses();
    let theirs = rate(hits, misses);
    fact("cache hits", &corpus.name, &format!("{ours:.1} %, framehop {theirs:.1} %"));
}

/// All snapshots in time order, caches kept.
fn replay(corpus: &Corpus, effort: Effort) {
    let (mut unwind, mut framehop) = (UNWIND.open(corpus), Framehop::new(corpus));
    let [ours, theirs] = race(&in_time(corpus), [&mut *unwind, &mut framehop], effort);
    line("replay", &corpus.name, ours, "framehop", theirs);
}

/// One snapshot after another, each again and again.
fn hot(corpus: &Corpus, effort: Effort) {
    const ROUNDS: usize = 20;
    let (mut unwind, mut framehop) = (UNWIND.open(corpus), Framehop::new(corpus));
    let from = corpus.snapshots.len().saturating_sub(20) / 2;
    let some = corpus.snapshots.iter().skip(from).take(20);
    let parts: Vec<_> = some.map(|snapshot| vec![snapshot; ROUNDS]).collect();
    let [ours, theirs] = race(&parts, [&mut *unwind, &mut framehop], effort);
    line("hot", &corpus.name, ours, "framehop", theirs);
}

/// All snapshots in time order, in parts that take well below a millisecond.
fn in_time(corpus: &Corpus) -> Vec<Vec<&Snapshot<'static>>> {
    corpus.snapshots.chunks(16).map(|part| part.iter().collect()).collect()
}

/// The time a frame of each of two unwinders, which walk part after part.
fn race(
    parts: &[Vec<&Snapshot<'_>>],
    unwinders: [&mut dyn Unwinder; 2],
    effort: Effort,
) -> [f64; 2] {
    let walk = |unwinder: &mut dyn Unwinder, part: &[&Snapshot<'_>]| {
        part.iter().map(|snapshot| black_box(unwinder.walk(black_box(snapshot)))).sum::<usize>()
    };
    let [first, second] = unwinders;
    let frames = [&mut *first, &mut *second]
        .map(|unwinder| parts.iter().map(|part| walk(unwinder, part)).sum::<usize>());
    let times = effort.race_in_parts(
        parts.len(),
        &mut [&mut |at| _ = walk(first, &parts[at]), &mut |at| _ = walk(second, &parts[at])],
    );
    [times[0] / frames[0] as f64, times[1] / frames[1] as f64]
}
