//! Why walks end.
use test_support::cpu::Unwalkable;
use unwind_core::{
    End, FrameContext, Memory, Origin, ReadError, Row, RowCache, RowSource, StepError, Trace,
    VirtAddr, Walker,
};

use crate::toy::{
    AlwaysFp, BadTable, FP, Regs, START, Script, Stack, Toy, locals, same_in_trace, three_frames,
    walk,
};

#[test]
fn an_outermost_row_ends_a_walk_and_adds_nothing() {
    let script = Script::new([(0x1000, locals(0)), (0x2000, Row::outermost())]);
    let stack = Stack::new([(0x8000, 0x2010)]);
    assert_eq!(walk(script, START, &stack), (vec![0x1010, 0x2010], End::Outermost));
    assert!(End::<BadTable>::Outermost.is_outermost());
}

#[test]
fn a_zero_return_address_ends_a_walk_and_is_no_frame() {
    let script = Script::new([(0x1000, locals(8))]);
    let stack = Stack::new([(0x8008, 0)]);
    assert_eq!(walk(script, START, &stack), (vec![0x1010], End::ZeroReturnAddress));
    assert!(End::<BadTable>::ZeroReturnAddress.is_outermost());
}

#[test]
fn a_pc_that_no_source_covers_ends_a_walk_and_is_its_last_frame() {
    let script = Script::new([(0x1000, locals(0))]);
    let stack = Stack::new([(0x8000, 0x9010)]);
    assert_eq!(walk(script, START, &stack), (vec![0x1010, 0x9010], End::NoRow));
}

#[test]
fn a_malformed_table_ends_a_walk_with_its_own_error() {
    let mut script = Script::new([(0x1000, locals(0))]);
    script.0.insert(0x2000, Err(BadTable::Malformed));
    let stack = Stack::new([(0x8000, 0x2010)]);
    let end = End::Table(BadTable::Malformed);
    assert_eq!(walk(script, START, &stack), (vec![0x1010, 0x2010], end));
}

#[test]
fn unreadable_memory_ends_a_walk_with_its_address_and_kind() {
    let script = Script::new([(0x1000, locals(0x10)), (0x2000, locals(0x20))]);
    let mut stack = Stack::new([(0x8010, 0x2010)]);
    let addr = VirtAddr::new(0x8038);
    for error in [ReadError::Invalid, ReadError::NotResident] {
        let end = End::Step(StepError::Unreadable { addr, error });
        assert_eq!(walk(script.clone(), START, &stack), (vec![0x1010, 0x2010], end));
        assert_eq!(end.is_retryable(), error == ReadError::NotResident);
        assert!(!end.is_outermost());
        stack.0.insert(0x8038, None);
    }
}

#[test]
fn a_return_address_where_no_code_can_be_ends_a_walk() {
    let script = Script::new([(0x1000, locals(0))]);
    let stack = Stack::new([(0x8000, 0x12345)]);
    let end = End::Step(StepError::NonCanonical { pc: 0x12345 });
    assert_eq!(walk(script.clone(), START, &stack), (vec![0x1010], end));
    let lost = Regs { pc: 0x12345, ..START };
    assert_eq!(walk(script, lost, &stack), (vec![], end), "also of the sample itself");
}

#[test]
fn a_looped_frame_pointer_ends_a_walk() {
    let script = Script::new([(0x1000, FP)]);
    // The frame at 0x8010 points back at the one at 0x8000.
    let stack =
        Stack::new([(0x8000, 0x8010), (0x8008, 0x1020), (0x8010, 0x8000), (0x8018, 0x1030)]);
    let end = End::Step(StepError::FramePointerBelowStack { fp: 0x8000, sp: 0x8020 });
    let regs = Regs { fp: Some(0x8000), ..START };
    assert_eq!(walk(script, regs, &stack), (vec![0x1010, 0x1020, 0x1030], end));
}

#[test]
fn a_zero_frame_pointer_is_not_taken_for_a_complete_stack() {
    let script = Script::new([(0x1000, FP)]);
    let stack = Stack::new([(0x8000, 0), (0x8008, 0x1020)]);
    let (frames, end) = walk(script, Regs { fp: Some(0x8000), ..START }, &stack);
    assert_eq!((frames, end), (vec![0x1010, 0x1020], End::Step(StepError::ZeroFramePointer)));
    assert!(!end.is_outermost());
}

#[test]
fn a_zero_that_a_stray_frame_pointer_finds_completes_no_stack() {
    let (regs, mut stack) = three_frames();
    stack.0.extend([(0x8030, Some(0x9000)), (0x9000, Some(0)), (0x9008, Some(0))]);
    let mut walker = Walker::new(Toy, AlwaysFp);
    let mut frames = walker.frames(regs, &mut stack);
    assert_eq!(frames.by_ref().count(), 3);
    let end = frames.end().unwrap();
    assert_eq!(end, End::Step(StepError::ZeroReturnAddress { cfa: 0x9010 }));
    assert!(!end.is_outermost());
}

#[test]
fn a_zero_at_a_stack_pointer_that_a_frame_pointer_gave_completes_no_stack() {
    let (regs, mut stack) = three_frames();
    stack.0.extend([(0x8030, Some(0x8048)), (0x8048, Some(0)), (0x8050, Some(0))]);
    for (row, end) in [
        (locals(8), End::Step(StepError::ZeroReturnAddress { cfa: 0x8050 })),
        (FP, End::ZeroReturnAddress),
    ] {
        let mut walker = Walker::new(Toy, Script::new([(0x3000, row)])).fallback(AlwaysFp);
        let mut frames = walker.frames(regs, &mut stack);
        assert_eq!((frames.by_ref().count(), frames.end()), (3, Some(end)), "{row:?}");
    }
}

#[test]
fn a_zero_in_the_last_slot_of_a_stack_completes_it_where_no_guess_led_there() {
    let (regs, mut stack) = three_frames();
    stack.0.extend([(0x8030, Some(0x9000)), (0x9000, Some(0)), (0x9008, Some(0))]);
    let by_fp = FP.with_origin(Origin::FramePointer);
    let elsewhere = End::Step(StepError::ZeroReturnAddress { cfa: 0x9010 });
    for (row, stack_end, end) in [
        (by_fp, 0x9010, End::ZeroReturnAddress),
        (by_fp, 0x9018, elsewhere),
        (by_fp.with_guess(), 0x9010, elsewhere),
    ] {
        let script = Script::new([(0x1000, FP), (0x2000, FP), (0x3000, row)]);
        let mut cache = RowCache::<16>::new();
        for _ in 0..2 {
            let mut walker = Walker::new(Toy, script.clone()).cache(&mut cache);
            walker = walker.stack_end(stack_end);
            let mut frames = walker.frames(regs, &mut stack);
            assert_eq!((frames.by_ref().count(), frames.end()), (3, Some(end)), "{row:?}");
            let mut trace = Trace::<[_; 8]>::new();
            walker.trace(regs, &mut stack, &mut trace);
            assert_eq!((trace.len(), trace.end()), (3, Some(same_in_trace(end))), "{row:?}");
        }
    }
}

impl RowSource<Unwalkable> for AlwaysFp {
    type Error = BadTable;
    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, BadTable> {
        panic!("no row is asked for")
    }
}

#[test]
fn a_mode_that_cannot_be_walked_has_no_frames_and_says_so() {
    let mut walker = Walker::new(Unwalkable, AlwaysFp);
    let mut stack = Stack::default();
    let mut frames = walker.frames(START, &mut stack);
    assert!(frames.next().is_none());
    assert_eq!(frames.end(), Some(End::NotWalkable));
}

/// A zero is the return address of the second function, whose row says so, and these words are
/// above it.
fn above_a_zero(words: &[u64]) -> End<BadTable> {
    let script = Script::new([(0x1000, locals(8)), (0x2000, locals(8)), (0x3000, FP)]);
    let mut stack = Stack::new([(0x8008, 0x2010), (0x8010, 7), (0x8018, 0)]);
    let above = (0x8020..).step_by(8).zip(words).map(|(at, &word)| (at, Some(word)));
    stack.0.extend(above);
    let (pcs, end) = walk(script, START, &stack);
    assert_eq!(pcs, [0x1010, 0x2010]);
    end
}

#[test]
fn u1_a_zero_with_a_return_address_above_it_is_not_the_end_of_a_stack() {
    let beside = |pc| {
        let (cfa, pc) = (0x8020, VirtAddr::new(pc));
        End::Step(StepError::CallerBesideZero { cfa, pc })
    };
    assert_eq!(above_a_zero(&[0x3010]), beside(0x3010));
    assert!(!beside(0x3010).is_outermost());
    let mut words = [1; 80];
    words[63] = 0x2080;
    assert_eq!(above_a_zero(&words), beside(0x2080));
    // Further up than an ordinary frame.
    words.swap(63, 64);
    assert_eq!(above_a_zero(&words), End::ZeroReturnAddress);
    // Where memory is absent there may be one.
    let script = Script::new([(0x1000, locals(8)), (0x2000, locals(8)), (0x3000, FP)]);
    let mut stack = Stack::new([(0x8008, 0x2010), (0x8010, 7), (0x8018, 0), (0x8020, 1)]);
    stack.0.insert(0x8028, None);
    let (_, end) = walk(script, START, &stack);
    let (addr, error) = (VirtAddr::new(0x8028), ReadError::NotResident);
    assert_eq!(end, End::Step(StepError::Unreadable { addr, error }));
    // No code, code without a table, and nothing.
    for words in [&[0, 7, 0x8040, 0x1_3010][..], &[0x4010, 0x5010], &[]] {
        assert_eq!(above_a_zero(words), End::ZeroReturnAddress, "{words:x?}");
    }
}

#[test]
fn u1_a_zero_just_above_a_return_address_is_not_the_end_of_a_stack() {
    let end = |slots: i32, words: [u64; 4]| {
        let script = Script::new([(0x1000, locals(8 * slots)), (0x2000, locals(0))]);
        let stack = Stack::new((0x8000..).step_by(8).zip(words));
        walk(script, START, &stack).1
    };
    let pc = VirtAddr::new(0x2010);
    let beside = |cfa| End::Step(StepError::CallerBesideZero { cfa, pc });
    assert_eq!(end(1, [0x2010, 0, 0, 0]), beside(0x8010));
    assert_eq!(end(2, [7, 0x2010, 0, 0]), beside(0x8018));
    // What lies two words below may be of a function that has returned.
    assert_eq!(end(2, [0x2010, 7, 0, 0]), End::ZeroReturnAddress);
    // Below the stack pointer.
    let script = Script::new([(0x1000, locals(0))]);
    let stack = Stack::new([(0x7ff8, 0x1010), (0x8000, 0), (0x8008, 0)]);
    assert_eq!(walk(script, START, &stack).1, End::ZeroReturnAddress);
}

#[test]
fn u1_where_the_stack_ends_nothing_above_is_looked_at() {
    let script = || Script::new([(0x1000, locals(0)), (0x2000, locals(0))]);
    let mut stack = Stack::new([(0x8000, 0), (0x8008, 0x2010)]);
    for (stack_end, is_end) in [(None, false), (Some(0x8010), false), (Some(0x8008), true)] {
        let mut walker = Walker::new(Toy, script());
        if let Some(end) = stack_end {
            walker = walker.stack_end(end);
        }
        let mut frames = walker.frames(START, &mut stack);
        assert_eq!(frames.by_ref().count(), 1);
        assert_eq!(frames.is_complete(), is_end, "{stack_end:?}");
    }
}
