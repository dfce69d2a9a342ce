//! Walks of captured stacks.

use std::hint::black_box;

use unwind_benches::corpus::Corpus;
use unwind_benches::timing::Effort;
use unwind_benches::{Framehop, Gimli, Unwind, Unwinder, compare};

use super::{fact, line};

pub(crate) fn measure(corpus: &Corpus, effort: Effort) {
    frames(corpus);
    rows_at_hand(corpus);
    replay(corpus, effort);
    hot(corpus, effort);
}

/// How many stacks are those of gimli's rows, and of the plain walk.
fn frames(corpus: &Corpus) {
    let mut reference = Gimli::reference(corpus);
    let (mut unwind, plain) = (Unwind::new(corpus), Unwind::new(corpus));
    let (mut same, mut differing) = (0, 0);
    for snapshot in &corpus.snapshots {
        reference.walk(snapshot);
        unwind.walk(snapshot);
        same += usize::from(compare(&reference, &unwind).is_none());
        let (frames, is_complete) = plain.walk_plainly(snapshot);
        differing +=
            usize::from(frames != unwind.frames() || is_complete != unwind.is_complete().unwrap());
    }
    let count = corpus.snapshots.len();
    assert_eq!((same, differing), (count, 0), "{}", corpus.name);
    let text =
        format!("{same} of {count} stacks those of gimli's rows, {differing} not the plain walk's");
    fact("frames", &corpus.name, &text);
}

/// How many lookups the caches answer in one pass, from empty.
fn rows_at_hand(corpus: &Corpus) {
    let (mut unwind, mut framehop) = (Unwind::new(corpus), Framehop::new(corpus));
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
    let (mut unwind, mut framehop) = (Unwind::new(corpus), Framehop::new(corpus));
    let pass = |unwinder: &mut dyn Unwinder| {
        corpus.snapshots.iter().map(|snapshot| black_box(unwinder.walk(snapshot))).sum()
    };
    contest("replay", corpus, [&mut unwind, &mut framehop], pass, effort);
}

/// One snapshot after another, each again and again.
fn hot(corpus: &Corpus, effort: Effort) {
    const ROUNDS: usize = 20;
    let (mut unwind, mut framehop) = (Unwind::new(corpus), Framehop::new(corpus));
    let from = corpus.snapshots.len().saturating_sub(20) / 2;
    let some: Vec<_> = corpus.snapshots.iter().skip(from).take(20).collect();
    let pass = |unwinder: &mut dyn Unwinder| {
        let again = some.iter().flat_map(|snapshot| std::iter::repeat_n(snapshot, ROUNDS));
        again.map(|snapshot| black_box(unwinder.walk(black_box(snapshot)))).sum()
    };
    contest("hot", corpus, [&mut unwind, &mut framehop], pass, effort);
}

fn contest(
    what: &str,
    corpus: &Corpus,
    [unwind, framehop]: [&mut dyn Unwinder; 2],
    pass: impl Fn(&mut dyn Unwinder) -> usize,
    effort: Effort,
) {
    let frames: [usize; 2] = [pass(unwind), pass(framehop)];
    let (ours, theirs) = effort.duel(|| _ = pass(unwind), || _ = pass(framehop));
    let [ours, theirs] = [ours / frames[0] as f64, theirs / frames[1] as f64];
    line(what, &corpus.name, ours, "framehop", theirs);
}
