//! Which frames are the same, and which are asked for again.

use unwind_core::{BaseReg, End, StepError};

use crate::task::*;

#[test]
fn a_return_address_and_an_interrupted_pc_are_not_the_same() {
    let mut stack = Stack::of(&MIXED);
    let mut task = Task::new();
    task.walk(leaf(PLAIN), &mut stack);
    // As a return address, this one was looked up one byte before.
    let interrupted = Regs::new(PLAIN + 5, STACK + FRAME, Some(STACK + 16));
    task.walk(interrupted, &mut stack);
    assert_eq!(task.last.frames().next().map(|frame| frame.pc.is_exact()), Some(true));
    stack.set(STACK + FRAME - 8, SAVES_FP);
    task.walk(leaf(PLAIN), &mut stack);
    let interrupted = Regs::new(SAVES_FP, STACK + FRAME, Some(STACK + 16));
    assert!(task.walk(interrupted, &mut stack) < 8, "from the next frame on at the earliest");
}

#[test]
fn a_frame_with_another_frame_pointer_is_another() {
    let mut stack = Stack::of(&[PLAIN, PLAIN, BY_FP, PLAIN, START]);
    let mut task = Task::new();
    for fp in [STACK + 3 * FRAME + 16, 0, STACK + 3 * FRAME + 16, STACK + 4 * FRAME + 16] {
        task.walk(Regs { fp: Some(fp), ..leaf(PLAIN) }, &mut stack);
    }
}

#[test]
fn a_frame_pointer_that_is_not_known_is_none() {
    let mut stack = Stack::of(&[PLAIN, FORGETS_FP, PLAIN, BY_FP, START]);
    let mut task = Task::new();
    for _ in 0..3 {
        task.walk(leaf(PLAIN), &mut stack);
        assert_eq!(task.last.end(), Some(End::Step(StepError::UnknownRegister(BaseReg::Fp))));
    }
    // The same frame, with a frame pointer of zero.
    let inner = Regs::new(PLAIN + 5, STACK + 3 * FRAME, Some(0));
    task.walk(inner, &mut stack);
    let mut stack = Stack::of(&[PLAIN, SAVES_FP, PLAIN, BY_FP, START]);
    stack.set(STACK + 3 * FRAME - 24, 0);
    task.walk(leaf(PLAIN), &mut stack);
}

#[test]
fn a_frame_after_a_trampoline_is_asked_for_again() {
    let mut stack = Stack::of(&[PLAIN, PLAIN, BY_FP, PLAIN, PLAIN, START]);
    let mut task = Task::new();
    task.code.function = BY_FP;
    for expected in [0, 3, 3] {
        assert_eq!(task.walk(leaf(PLAIN), &mut stack), expected);
        let third = task.last.frames().nth(3).unwrap();
        assert!(third.provenance.is_after_trampoline());
    }
}

#[test]
fn signal_frames_and_rules_on_other_registers_are_stepped_from_again() {
    let mut stack = Stack::of(&[PLAIN, SIGNAL, PLAIN, PLAIN, PLAIN, START]);
    let at = STACK + 2 * FRAME;
    let interrupted = [PLAIN + 0x77, at + FRAME, 0x1234];
    for (addr, value) in (at..).step_by(8).zip(interrupted) {
        stack.set(addr, value);
    }
    let mut task = Task::new();
    task.walk(leaf(PLAIN), &mut stack);
    assert_eq!(task.last.len(), 7);
    // Those after the interrupted one.
    assert_eq!(task.walk(leaf(PLAIN), &mut stack), 3);
    // What was interrupted is another function's.
    stack.set(at, SAVES_FP + 0x77);
    task.walk(leaf(PLAIN), &mut stack);
    stack.set(at + 16, 0x4321);
    task.walk(leaf(PLAIN), &mut stack);

    let mut stack = Stack::of(&[PLAIN, ALIGNS, PLAIN, PLAIN, START]);
    let at = STACK + 2 * FRAME;
    stack.set(at, at + FRAME);
    let mut task = Task::new();
    task.walk(leaf(PLAIN), &mut stack);
    assert_eq!(task.walk(leaf(PLAIN), &mut stack), 2);
    // The frame is larger.
    stack.set(at, at + 2 * FRAME);
    task.walk(leaf(PLAIN), &mut stack);
    assert_eq!(task.last.len(), 5);
}

#[test]
fn a_zero_after_a_frame_pointer_is_no_end_of_the_stack() {
    let mut stack = Stack::of(&[SAVES_FP, BY_FP, PLAIN, PLAIN, PLAIN, PLAIN, PLAIN]);
    stack.set(STACK + 7 * FRAME - 8, 0);
    let mut task = Task::new();
    for _ in 0..3 {
        task.walk(leaf(PLAIN), &mut stack);
        assert!(matches!(task.last.end(), Some(End::Step(StepError::ZeroReturnAddress { .. }))));
    }
    let fp = Some(STACK + 3 * FRAME + 16);
    let inner = Regs { sp: STACK + 3 * FRAME, fp, ..leaf(PLAIN + 1) };
    task.walk(inner, &mut stack);
    assert_eq!(task.last.end(), Some(End::ZeroReturnAddress));
    assert_eq!(task.walk(leaf(PLAIN), &mut stack), 2);
    assert!(matches!(task.last.end(), Some(End::Step(StepError::ZeroReturnAddress { .. }))));

    // Also where that frame is taken over.
    let mut stack = Stack::of(&[PLAIN, SAVES_FP, BY_FP, PLAIN, PLAIN, PLAIN, PLAIN]);
    stack.set(STACK + 7 * FRAME - 8, 0);
    task.walk(leaf(PLAIN), &mut stack);
    stack.set(STACK + FRAME - 8, PLAIN + 0x99);
    assert_eq!(task.walk(leaf(PLAIN), &mut stack), 4);
    assert!(matches!(task.last.end(), Some(End::Step(StepError::ZeroReturnAddress { .. }))));
}

#[test]
fn after_a_signal_the_stack_may_be_a_lower_one() {
    // The handler's stack is above the interrupted one.
    let functions = [PLAIN, SAVES_FP, SAVES_FP, START, 0, 0, SAVES_FP, PLAIN, SIGNAL];
    for is_lent in [false, true] {
        let mut stack = Stack { is_lent, ..Stack::of(&functions) };
        let at = STACK + 9 * FRAME;
        for (addr, value) in (at..).step_by(8).zip([PLAIN + 0x77, STACK, 0x1234]) {
            stack.set(addr, value);
        }
        let mut task = Task::new();
        let sampled = Regs { sp: STACK + 6 * FRAME, ..leaf(PLAIN) };
        task.walk(sampled, &mut stack);
        assert_eq!((task.last.len(), task.last.end()), (9, Some(End::Outermost)));
        // Frames are met as the stack pointer rises.
        assert_eq!(task.walk(sampled, &mut stack), 0);
        for word in 0..12 * 4 {
            let before = stack.clone();
            stack.set(STACK + 8 * word, PLAIN + 0x99);
            task.walk(sampled, &mut stack);
            stack = before;
            task.walk(sampled, &mut stack);
            assert_eq!(task.walk(sampled, &mut stack), 0, "{word}");
        }
    }
}

#[test]
fn a_frame_pointer_of_the_sample_that_is_not_known_is_not_zero() {
    let mut stack = Stack::of(&[PLAIN, PLAIN, BY_FP, PLAIN, START]);
    let mut task = Task::new();
    let ends = [None, Some(0), None].map(|fp| {
        for _ in 0..2 {
            task.walk(Regs { fp, ..leaf(PLAIN) }, &mut stack);
        }
        task.last.end()
    });
    assert_eq!(ends[0], Some(End::Step(StepError::UnknownRegister(BaseReg::Fp))));
    assert_ne!(ends[1], ends[0]);
    // Where the frame pointer leads nowhere, nothing depends on it but what is kept.
    let mut stack = Stack::of(&[PLAIN, PLAIN, START]).lent();
    for fp in [None, Some(0), None, None, Some(0), Some(0)] {
        task.walk(Regs { fp, ..leaf(PLAIN) }, &mut stack);
    }
}

#[test]
fn a_stack_pointer_between_two_slots_is_met_by_no_frame() {
    let mut stack = Stack::of(&[PLAIN, PLAIN, START]);
    let mut task = Task::new();
    task.walk(leaf(PLAIN), &mut stack);
    for sp in [STACK + 4, STACK, 0, STACK + 4, STACK + 4, u64::MAX, 0, 1, STACK] {
        task.walk(Regs { sp, ..leaf(PLAIN) }, &mut stack);
    }
}
