//! An incremental trace has the frames of a whole walk, and takes over what has stayed.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use std::hint::black_box;
use std::ops::ControlFlow;

use unwind_local::{IncrementalTrace, frames, prepare, trace_incremental};

type Last = IncrementalTrace<256>;

/// Walks incrementally, and compares with a whole walk. Returns how many frames were taken over.
#[inline(never)]
fn walk(last: &mut Last) -> usize {
    trace_incremental(last);
    let mut whole = Vec::new();
    let end = frames(|frame| {
        whole.push(frame.pc.addr());
        ControlFlow::Continue(())
    });
    assert_eq!(Some(last.end().unwrap().code()), end.map(|end| end.code()));
    assert!(last.is_complete(), "{last:?}");
    // This function is at another place in both.
    let found: Vec<_> = last.pcs().collect();
    assert_eq!(found[1..], whole[1..]);
    black_box(last.reused())
}

/// At each depth on the way back, with frames of a size that the number says.
#[inline(never)]
fn descend(depth: usize, number: usize, last: &mut Last, reused: &mut Vec<usize>) -> usize {
    let room = black_box([depth; 8]);
    let mut sum = room[number % 8];
    if depth > 0 {
        sum += descend(depth - 1, number + 1, last, reused);
    }
    for _ in 0..2 {
        reused.push(walk(last));
    }
    sum
}

#[test]
fn what_has_stayed_is_taken_over_and_all_frames_are_those_of_a_whole_walk() {
    prepare();
    let (mut last, mut reused) = (Last::new(), Vec::new());
    black_box(descend(50, 0, &mut last, &mut reused));
    assert_eq!(reused[0], 0, "the first one has none before it");
    // The second walk of each depth has the stack of the first.
    let least = (0..51).map(|depth| reused[2 * depth + 1] + depth).min().unwrap();
    assert!(least > 50, "{reused:?}");
    // So does a thread's that has told of another stack, once that is forgotten.
    last.clear();
    reused.clear();
    black_box(descend(3, 5, &mut last, &mut reused));
    assert_eq!(reused[0], 0);
}
