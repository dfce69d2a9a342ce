//! Frames whose caller is on another stack.

use unwind_core::{
    Addend, BaseReg, CfaRule, End, FramePc, Origin, ReadError, RegRule, Row, RowCache, StepError,
    Trace, VirtAddr, Walker,
};

use crate::toy::{FP, R3, Regs, START, Script, Stack, Toy, locals, pcs, same_in_trace, walk};

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
fn a_trace_follows_and_sees_what_has_changed_on_either_stack() {
    let (script, mut stack) = switched(true);
    let mut cache = RowCache::<64>::new();
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
    }
}

#[test]
fn u2_a_cfa_is_a_word_that_was_saved_and_what_is_added_to_it() {
    // It has aligned its stack, and keeps the stack pointer of before.
    let saved = CfaRule::AtRegisterPlus(BaseReg::Sp, 16, Addend::new(8).unwrap());
    let aligned = Row::new(saved, RegRule::Offset(-8), RegRule::Offset(-16));
    let script = Script::new([
        (0x1000, locals(8)),
        (0x2000, aligned),
        (0x3000, FP),
        (0x4000, Row::outermost()),
    ]);
    let stack = Stack::new([
        (0x8008, 0x2010),
        (0x8020, 0x8070),
        (0x8068, 0x80f0),
        (0x8070, 0x3010),
        (0x80f0, 0),
        (0x80f8, 0x4010),
    ]);
    let (frames, end) = walk(script.clone(), START, &stack);
    assert_eq!((frames, end), (vec![0x1010, 0x2010, 0x3010, 0x4010], End::Outermost));
    let mut cache = RowCache::<64>::new();
    for _ in 0..3 {
        let mut trace = Trace::<[_; 16]>::default();
        let mut walker = Walker::new(Toy, script.clone()).cache(&mut cache);
        walker.trace(START, &mut stack.clone(), &mut trace);
        assert_eq!((trace.len(), trace.end()), (4, Some(End::Outermost)));
    }
    // What cannot be read, or does not rise, is told as of any other row.
    for (word, expected) in [
        (
            None,
            StepError::Unreadable { addr: VirtAddr::new(0x8020), error: ReadError::NotResident },
        ),
        (Some(0x8000), StepError::NoProgress { cfa: 0x8008, sp: 0x8010 }),
        (Some(0x8071), StepError::Misaligned { cfa: 0x8079 }),
        (Some(u64::MAX), StepError::Overflow),
    ] {
        let mut stack = stack.clone();
        stack.0.insert(0x8020, word);
        assert_eq!(walk(script.clone(), START, &stack).1, End::Step(expected));
    }
}

#[test]
fn u3_code_that_says_so_has_its_caller_on_a_lower_stack() {
    // As OCaml's functions that call on the system's stack: rules lead back, no context does.
    let loaded = CfaRule::AtRegisterPlus(BaseReg::Sp, 0, Addend::new(8).unwrap());
    for cfa in [loaded, CfaRule::fp(16), CfaRule::AtRegister(BaseReg::Sp, 8)] {
        let row = Row::new(cfa, RegRule::Offset(-8), RegRule::SameValue).with_signal();
        let script = Script::new([
            (0x1000, locals(8)),
            (0x2000, row),
            (0x3000, locals(0)),
            (0x4000, Row::outermost()),
        ]);
        let mut stack = Stack::new([
            (0x8008, 0x2010),
            (0x8010, 0x3008),
            (0x8018, 0x3010),
            (0x3008, 0x3020),
            (0x3010, 0x4020),
        ]);
        let start = Regs { fp: Some(0x3000), ..START };
        let mut walker = Walker::new(Toy, script);
        let mut frames = walker.frames(start, &mut stack);
        let seen: Vec<_> = frames.by_ref().collect();
        assert_eq!(pcs(&seen), [0x1010, 0x2010, 0x3020, 0x4020], "{cfa}");
        assert_eq!((seen[1].cfa, seen[2].pc.is_exact()), (Some(0x3010), true));
        assert!(frames.is_complete());
    }
}

#[test]
fn u3_a_ring_of_such_code_ends_with_the_limit() {
    let loaded = CfaRule::AtRegister(BaseReg::Sp, 0);
    let row = Row::new(loaded, RegRule::Offset(-8), RegRule::SameValue).with_signal();
    let script = Script::new([(0x1000, row)]);
    let stack = Stack::new([
        (0x8000, 0x3010),
        (0x3008, 0x1020),
        (0x3010, 0x8010),
        (0x8008, 0x1020),
        (0x8010, 0x3010),
    ]);
    let (frames, end) = walk(script, START, &stack);
    assert_eq!((frames.len(), end), (510, End::FrameLimit));
}

#[test]
fn u3_code_that_keeps_its_cfa_in_a_register_may_have_come_from_a_lower_stack() {
    // As OCaml's functions around a call that needs no more than the system's stack.
    let kept = CfaRule::Register(BaseReg::Reg(R3), 16);
    let row = Row::new(kept, RegRule::Offset(-8), RegRule::SameValue);
    for (row, follows) in [
        (row, true),
        (row.with_origin(Origin::CallFrames), true),
        (row.with_origin(Origin::Instructions), false),
        (locals(0), false),
    ] {
        let script = Script::new([(0x1000, row), (0x3000, locals(0)), (0x4000, Row::outermost())]);
        let stack = Stack::new([(0x3008, 0x3020), (0x3010, 0x4020)]);
        let start = Regs { r3: Some(0x3000), ..START };
        let (frames, end) = walk(script, start, &stack);
        if follows {
            assert_eq!((frames, end), (vec![0x1010, 0x3020, 0x4020], End::Outermost));
        } else {
            assert_eq!(frames, [0x1010], "{row}");
        }
    }
}
