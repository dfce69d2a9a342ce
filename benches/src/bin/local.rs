//! The time of a backtrace by `unwind-local` beside framehop's walk of the same stack, in the process
//! itself: the shortest of many rounds in turn.
//!
//! ```text
//! cargo run --profile bench --package unwind-benches --bin local
//! ```

use std::hint::black_box;
use std::time::Instant;

use unwind_benches::in_process::{own_code, walk_by_framehop};
use unwind_benches::own_stack::Ladder;
use unwind_benches::{Framehop, Unwinder as _};

const ROUNDS: usize = 200;
const WALKS: u32 = 500;

/// In nanoseconds.
fn time_of(mut walk: impl FnMut() -> usize) -> f64 {
    let start = Instant::now();
    for _ in 0..WALKS {
        black_box(walk());
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(WALKS)
}

fn main() {
    unwind_local::prepare();
    let Some(ladder) = Ladder::new(false) else {
        eprintln!("no C compiler");
        std::process::exit(1);
    };
    let code = own_code();
    println!("{:>8} {:>8} {:>12} {:>8}", "frames", "ours, ns", "framehop, ns", "ratio");
    for depth in [1, 5, 35, 295] {
        ladder.climb(depth, 0, |top| {
            let mut framehop = Framehop::new(&code);
            let mut list = [0; 1024];
            let ours = unwind_local::backtrace(&mut list);
            let count = walk_by_framehop(&mut framehop, &top);
            assert!(ours.is_complete, "{ours:?}");
            // Ours begins in this function, which the ladder has called.
            let mine: Vec<usize> = list.iter().take(ours.len).copied().collect();
            let theirs = framehop.frames();
            let shared = mine.iter().rev().zip(theirs.iter().rev());
            let same = shared.take_while(|(a, b)| u64::try_from(**a) == Ok(**b)).count();
            assert!(
                same.saturating_add(1) >= count && count <= mine.len(),
                "{count} frames, {same} of them ours"
            );
            let (mut best, mut best_framehop) = (f64::MAX, f64::MAX);
            for _ in 0..ROUNDS {
                best = best.min(time_of(|| unwind_local::backtrace(black_box(&mut list)).len));
                best_framehop =
                    best_framehop.min(time_of(|| walk_by_framehop(&mut framehop, &top)));
            }
            let frames = mine.len();
            println!("{frames:>8} {best:>8.0} {best_framehop:>12.0} {:>8.2}", best / best_framehop);
        });
    }
}
