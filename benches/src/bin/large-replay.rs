//! Walks a corpus in time order with a cache of 4,096 rows, to count instructions by callgrind:
//! as `walk replay`, in a program of its own, so that the code of that stays as it is.
//!
//! ```text
//! large-replay ROUNDS FILE
//! ```
#![allow(clippy::unwrap_used, reason = "a measuring program stops at the first surprise")]

use std::hint::black_box;
use std::path::Path;

use unwind_benches::corpus::Corpus;
use unwind_benches::{LargeUnwind, Unwinder as _};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let rounds: usize = arguments.next().unwrap().parse().unwrap();
    let corpus = Corpus::open(Path::new(&arguments.next().unwrap()));
    let mut unwinder = LargeUnwind::new(&corpus);
    let snapshots = (0..rounds).flat_map(|_| &corpus.snapshots);
    let frames = snapshots.map(|snapshot| black_box(unwinder.walk(black_box(snapshot))));
    println!("{}", frames.sum::<usize>());
}
