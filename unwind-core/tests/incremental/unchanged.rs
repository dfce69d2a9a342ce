//! A stack that is as it was.

use core::convert::Infallible;

use unwind_core::{
    Coverage, End, FrameContext, IncrementalTrace, Memory, Row, RowCache, RowSource, SliceMemory,
    Trace, VirtAddr, Walker, WordSize,
};

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
fn an_end_at_a_word_is_known_by_a_look_at_that_word() {
    for is_lent in [false, true] {
        let mut stack = Stack { is_lent, ..Stack::of(&[PLAIN; 6]) };
        stack.words.truncate(6 * 4);
        let mut task = Task::new();
        // Unchanged, and where only the innermost frame is another one.
        for inner in [PLAIN, PLAIN + 1, PLAIN] {
            for last in [PLAIN + 5, 0, 0, PLAIN + 5, PLAIN + 5] {
                stack.set(STACK + 6 * FRAME - 8, last);
                task.walk(leaf(inner), &mut stack);
                let is_cut = matches!(task.last.end(), Some(End::Step(_)));
                assert_eq!(is_cut, last != 0, "{is_lent} {inner:#x} {last:#x}");
                assert!(is_cut || task.last.end() == Some(End::ZeroReturnAddress));
            }
            // What is cut off comes to be there.
            stack.words.extend([[0; 8]; 4]);
            task.walk(leaf(inner), &mut stack);
            assert_eq!(task.last.end(), Some(End::ZeroReturnAddress));
            stack.words.truncate(6 * 4);
        }
    }
}

/// The convention for a fallback.
struct FramePointers;

impl RowSource<Toy> for FramePointers {
    type Error = Infallible;
    const COVERAGE: Coverage = Coverage::FramePointer { is_guess: false };
    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(Some(Row::frame_pointer(WordSize::Eight)))
    }
}

#[test]
fn where_the_fallback_failed_too_what_it_read_is_looked_at() {
    // The stack is cut, and the frame pointer leads beyond.
    const ABOVE: u64 = STACK + 0x1000;
    let mut stack = Stack::of(&[PLAIN; 4]);
    stack.words.truncate(4 * 4);
    let low = SliceMemory::new(VirtAddr::new(STACK), stack.words.as_flattened());
    let record = [0, PLAIN + 5].map(u64::to_le_bytes);
    let high = SliceMemory::new(VirtAddr::new(ABOVE), record.as_flattened());
    let cut = [low];
    let whole = [low, high];
    let (mut cache, mut last) = (RowCache::<64>::new(), IncrementalTrace::<ROOM>::new());
    let mut walk = |fp, mut memory: &[SliceMemory<'_>]| {
        let regs = Regs { fp: Some(fp), ..leaf(PLAIN) };
        let mut walker = Walker::new(Toy, Functions::default()).fallback(FramePointers);
        let mut trace = Trace::<[_; ROOM]>::new();
        walker.trace(regs, &mut memory, &mut trace);
        let mut walker = walker.cache(&mut cache);
        walker.trace_incremental(regs, &mut memory, &mut last);
        assert!(
            last.frames().eq(trace.frames()) && last.end() == trace.end(),
            "{last:?} {trace:?}"
        );
        (last.len(), last.reused())
    };
    for _ in 0..2 {
        assert_eq!(walk(ABOVE, &cut).0, 5);
        assert_eq!(walk(ABOVE, &cut), (5, 4));
        assert_eq!(walk(ABOVE, &whole).0, 6);
    }
    // Without a frame pointer nothing is read.
    assert_eq!(walk(0, &cut).0, 5);
    assert_eq!(walk(0, &whole), (5, 4));
}

fn check_chain<const N: usize>() {
    // Records of a frame pointer and a return address, each at the one before.
    let record = |at: u64| [STACK + 16 * (at + 1), PLAIN + 0x10 * at + 5].map(u64::to_le_bytes);
    let records: Vec<_> = (0..10).flat_map(record).collect();
    let mut memory = SliceMemory::new(VirtAddr::new(STACK), records.as_flattened());
    let mut last = IncrementalTrace::<N>::new();
    for first in [0, 0, 1, 0, 6, 5, 3, 9, 2, 0] {
        let regs = Regs::new(PLAIN + first, STACK + 16 * first, Some(STACK + 16 * first));
        let mut trace = Trace::<[_; N]>::new();
        Walker::new(Toy, FramePointers).trace(regs, &mut memory, &mut trace);
        Walker::new(Toy, FramePointers).trace_incremental(regs, &mut memory, &mut last);
        assert!(last.frames().eq(trace.frames()), "{N}, {first}: {last:?} {trace:?}");
        assert_eq!(last.end(), trace.end(), "{N}, {first}");
    }
}

#[test]
fn a_chain_of_frame_pointers_is_walked_as_far_as_there_is_room() {
    check_chain::<1>();
    check_chain::<2>();
    check_chain::<3>();
    check_chain::<4>();
    check_chain::<7>();
    check_chain::<12>();
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
