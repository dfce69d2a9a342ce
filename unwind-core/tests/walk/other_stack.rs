//! Frames whose caller is on another stack.

use unwind_core::{
    End, FramePc, IncrementalTrace, Origin, Row, RowCache, StepError, Trace, VirtAddr, Walker,
};

use crate::toy::{FP, START, Script, Stack, Toy, locals, pcs, same_in_trace, walk};

/// Code at 0x2000, which a function at 0x1000 was called by, has changed to this stack from the
/// one at 0x3000.
fn switched(keeps_fp: bool) -> (Script, Stack) {
    let switch = Row::other_stack(0x3010, -8, keeps_fp);
    let script = Script::new([
        (0x1000, locals(8)),
        (0x2000, switch.with_origin(Origin::Instructions)),
        (0x3000, locals(0)),
        (0x4000, Row::outermost()),
    ]);
    let stack = Stack::new([(0x8008, 0x2010), (0x3008, 0x3020), (0x3010, 0x4020)]);
    (script, stack)
}

#[test]
fn a_walk_follows_a_row_to_a_lower_stack() {
    let (script, mut stack) = switched(true);
    let mut walker = Walker::new(Toy, script);
    let mut frames = walker.frames(START, &mut stack);
    let seen: Vec<_> = frames.by_ref().collect();
    assert_eq!(pcs(&seen), [0x1010, 0x2010, 0x3020, 0x4020]);
    assert!(frames.is_complete());
    assert_eq!((seen[1].sp, seen[1].cfa), (0x8010, Some(0x3010)));
    assert_eq!(seen[2].pc, FramePc::Return(VirtAddr::new(0x3020)));
    assert_eq!(seen[2].provenance.origin(), Origin::Instructions);
}

#[test]
fn a_cfa_on_another_stack_keeps_the_other_rules() {
    let (mut script, stack) = switched(true);
    let mut end = |cfa| {
        script.0.insert(0x2000, Ok(Row::other_stack(cfa, -8, true)));
        walk(script.clone(), START, &stack)
    };
    assert_eq!(end(0x3011).1, End::Step(StepError::Misaligned { cfa: 0x3011 }));
    assert!(matches!(end(0x5010).1, End::Step(StepError::Unreadable { .. })));
    let (script, mut stack) = switched(true);
    let mut walker = Walker::new(Toy, script).stack_end(0x3000);
    let frames = walker.frames(START, &mut stack).count();
    assert_eq!(frames, 1, "the first CFA lies beyond the stack");
}

#[test]
fn a_ring_of_stacks_ends_with_the_limit() {
    let (mut script, mut stack) = switched(true);
    script.0.insert(0x3000, Ok(Row::other_stack(0x8010, -8, true)));
    stack.0.insert(0x3008, Some(0x3020));
    let (frames, end) = walk(script, START, &stack);
    assert_eq!(end, End::FrameLimit);
    assert_eq!(frames.len(), 510);
}

#[test]
fn the_frame_pointer_of_another_stack_is_known_only_where_the_row_keeps_it() {
    for (keeps_fp, expected) in [
        (true, End::Step(StepError::FramePointerBelowStack { fp: 1, sp: 0x3010 })),
        (false, End::Step(StepError::UnknownRegister(unwind_core::BaseReg::Fp))),
    ] {
        let (mut script, stack) = switched(keeps_fp);
        script.0.insert(0x3000, Ok(FP));
        let start = test_support::cpu::Regs { fp: Some(1), ..START };
        assert_eq!(walk(script, start, &stack).1, expected);
    }
}

#[test]
fn traces_of_both_kinds_follow_and_see_what_has_changed_on_either_stack() {
    let (script, mut stack) = switched(true);
    let mut cache = RowCache::<64>::new();
    let mut last = IncrementalTrace::<16>::new();
    for (at, word) in [
        (0x8008, 0x2010),
        (0x3008, 0x3030),
        (0x3010, 0x4030),
        (0x8008, 0x2020),
        (0x3008, 0x3020),
        (0x3008, 0x3020),
    ] {
        stack.0.insert(at, Some(word));
        let (expected, end) = walk(script.clone(), START, &stack);
        let mut trace = Trace::<[_; 16]>::default();
        let mut walker = Walker::new(Toy, script.clone()).cache(&mut cache);
        walker.trace(START, &mut stack, &mut trace);
        assert_eq!(trace.frames().map(|frame| frame.pc.addr().get()).collect::<Vec<_>>(), expected);
        assert_eq!(trace.end(), Some(same_in_trace(end)));
        walker.trace_incremental(START, &mut stack, &mut last);
        assert_eq!(last.frames().map(|frame| frame.pc.addr().get()).collect::<Vec<_>>(), expected);
        assert_eq!(last.end(), Some(same_in_trace(end)));
    }
}
