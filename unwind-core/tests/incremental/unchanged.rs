//! A stack that is as it was.

use unwind_core::{End, IncrementalTrace, Trace};

use crate::task::*;

#[test]
fn an_unchanged_stack_is_taken_over_but_for_the_sampled_frame() {
    for mut stack in [Stack::of(&MIXED), Stack::of(&MIXED).lent()] {
        let mut task = Task::new();
        assert_eq!(task.walk(leaf(PLAIN), &mut stack), 0);
        assert_eq!(task.walk(leaf(PLAIN), &mut stack), MIXED.len());
        assert_eq!(task.last.end(), Some(End::Outermost));
    }
}

#[test]
fn a_cache_is_asked_for_no_row_of_an_unchanged_stack() {
    for mut stack in [Stack::of(&MIXED), Stack::of(&MIXED).lent()] {
        let mut task = Task::new();
        task.walk(leaf(PLAIN), &mut stack);
        let before = task.cache.stats();
        for _ in 0..3 {
            task.walk(leaf(PLAIN), &mut stack);
            assert_eq!(task.cache.stats(), before);
        }
        // For that of another pc it is.
        task.walk(leaf(PLAIN + 1), &mut stack);
        assert_ne!(task.cache.stats(), before);
    }
}

#[test]
fn each_word_is_read_once_and_none_that_is_lent() {
    let mut stack = Stack::of(&MIXED);
    let mut task = Task::new();
    task.walk(leaf(PLAIN), &mut stack);
    let mut first = stack.reads.clone();
    task.walk(leaf(PLAIN), &mut stack);
    first.sort_unstable();
    stack.reads.sort_unstable();
    assert_eq!(stack.reads, first);
    let mut stack = stack.lent();
    task.walk(leaf(PLAIN), &mut stack);
    assert_eq!(stack.reads, []);
}

#[test]
fn an_end_is_found_again() {
    // At code that no source covers, and at a word that comes and goes.
    let mut stack = Stack::of(&[PLAIN, PLAIN, PLAIN, PLAIN, UNKNOWN]);
    let mut task = Task::new();
    task.walk(leaf(PLAIN), &mut stack);
    assert_eq!(task.last.end(), Some(End::NoRow));
    stack.set(STACK + 5 * FRAME - 8, PLAIN + 5);
    stack.absent = Some(STACK + 4 * FRAME - 8);
    for is_lent in [false, false, true, false] {
        stack.is_lent = is_lent;
        task.walk(leaf(PLAIN), &mut stack);
    }
    assert!(task.last.end().unwrap().is_retryable());
    stack.absent = None;
    assert_eq!(task.walk(leaf(PLAIN), &mut stack), 3);
    assert_eq!(task.last.end(), Some(End::ZeroReturnAddress));
}

#[test]
fn a_copy_is_the_walk_as_far_as_there_is_room() {
    let mut stack = Stack::of(&MIXED);
    let mut task = Task::new();
    let mut copy = Trace::<[_; 4]>::new();
    task.last.copy_to(&mut copy);
    assert_eq!((copy.len(), copy.end()), (0, None));
    task.walk(leaf(PLAIN), &mut stack);
    task.last.copy_to(&mut copy);
    assert!(copy.frames().eq(task.last.frames().take(4)));
    assert_eq!(copy.end(), Some(End::FrameLimit));
    assert!(task.last.is_complete());
}

#[test]
fn a_trace_that_has_never_been_walked_says_nothing() {
    let last = IncrementalTrace::<ROOM>::default();
    assert_eq!(format!("{last:?}"), "IncrementalTrace { frames: [], end: None, reused: 0 }");
}
