//! The first stack: from mapped files, without a table, a cached row or a module known, to
//! a complete stack.

use std::hint::black_box;
use std::time::{Duration, Instant};

use unwind_benches::contestant::{CALL_FRAMES, UNWIND};
use unwind_benches::corpus::Corpus;
use unwind_benches::timing::Effort;
use unwind_benches::{Framehop, Unwinder};
use unwind_snapshot::Snapshot;

use super::{fact, line};

/// The most stacks of a program that are walked.
const STACKS: usize = 64;

/// More bytes than caches of the CPU have.
const SWEPT: usize = 64 << 20;

type First = fn(&Corpus, &Snapshot<'_>) -> Walked;

/// What comes of a first walk, with the unwinder: to take that down is no part of it.
type Walked = (usize, Box<dyn Unwinder>);

/// In the order of the times below.
const CONTESTANTS: [First; 3] = [
    |corpus, snapshot| walked(CALL_FRAMES.open(corpus), snapshot),
    |corpus, snapshot| walked(UNWIND.open(corpus), snapshot),
    |corpus, snapshot| walked(Box::new(Framehop::new(corpus)), snapshot),
];

fn walked(mut unwinder: Box<dyn Unwinder>, snapshot: &Snapshot<'_>) -> Walked {
    (unwinder.walk(snapshot), unwinder)
}

pub(crate) fn measure(corpus: &Corpus, effort: Effort) {
    let stacks = stacks(corpus);
    if stacks.is_empty() {
        return fact("first stack", &corpus.name, "no stack that all know to be complete");
    }
    let frames: usize = stacks.iter().map(|stack| CONTESTANTS[0](corpus, stack).0).sum();
    let text = format!("{} stacks, {} frames", stacks.len(), frames);
    fact("first stack", &corpus.name, &text);
    for (what, is_swept) in [("", false), (", cold CPU", true)] {
        let [call_frames, sframe, framehop] = race(corpus, &stacks, is_swept, effort);
        let name = format!("{}{what}", corpus.name);
        line("first stack, .eh_frame", &name, call_frames, "framehop", framehop);
        line("first stack, .sframe in the file", &name, sframe, "framehop", framehop);
    }
}

/// Stacks that all contestants know to be complete, with the same frames, from all of the
/// time.
fn stacks(corpus: &Corpus) -> Vec<&Snapshot<'static>> {
    let mut all: [Box<dyn Unwinder>; 3] =
        [CALL_FRAMES.open(corpus), UNWIND.open(corpus), Box::new(Framehop::new(corpus))];
    let mut is_same = |snapshot: &Snapshot<'_>| {
        let found = all.each_mut().map(|unwinder| {
            unwinder.walk(snapshot);
            (unwinder.frames(), unwinder.is_complete())
        });
        found[0].1 == Some(true) && found.iter().all(|other| *other == found[0])
    };
    let same: Vec<_> = corpus.snapshots.iter().filter(|snapshot| is_same(snapshot)).collect();
    let stride = same.len().div_ceil(STACKS).max(1);
    same.into_iter().step_by(stride).collect()
}

/// The shortest times of each stack in turn, nanoseconds a stack on average.
fn race(
    corpus: &Corpus,
    stacks: &[&Snapshot<'_>],
    is_swept: bool,
    effort: Effort,
) -> [f64; CONTESTANTS.len()] {
    const ROUNDS: usize = 15;
    let rounds = if effort.is_test() { 1 } else { ROUNDS };
    let mut shortest = vec![[Duration::MAX; CONTESTANTS.len()]; stacks.len()];
    let mut swept = vec![0_u8; if is_swept && !effort.is_test() { SWEPT } else { 0 }];
    for _ in 0..rounds {
        for (stack, shortest) in stacks.iter().zip(&mut shortest) {
            for (first, shortest) in CONTESTANTS.iter().zip(shortest) {
                // Whatever the caches have of the tables goes.
                black_box(&mut swept).iter_mut().step_by(64).for_each(|byte| *byte ^= 1);
                let start = Instant::now();
                let walked = first(black_box(corpus), black_box(stack));
                *shortest = start.elapsed().min(*shortest);
                drop(black_box(walked));
            }
        }
    }
    if effort.is_test() {
        return [f64::NAN; CONTESTANTS.len()];
    }
    let sum = |of: usize| shortest.iter().map(|times| times[of]).sum::<Duration>();
    std::array::from_fn(|of| sum(of).as_secs_f64() * 1e9 / stacks.len() as f64)
}
