//! Frame pointers that a walk cannot recover: it goes without, until a row needs one.
use unwind_core::{
    BaseReg, CfaRule, DwarfReg, End, Frame, ReadError, RegRule, Row, RowCache, StepError, Trace,
    VirtAddr, Walker,
};

use crate::toy::{AlwaysFp, BadTable, FP, R3, Regs, START, Script, Stack, Toy, locals, pcs};

/// The frames and the end of a walk, which is the same by all ways of walking.
fn walk(script: &Script, regs: Regs, stack: &Stack) -> (Vec<Frame>, End<BadTable>) {
    let stack = &mut stack.clone();
    let mut walker = Walker::new(Toy, script.clone()).fallback(AlwaysFp);
    let mut walked = walker.frames(regs, stack);
    let frames: Vec<_> = walked.by_ref().collect();
    let (end, is_complete) = (walked.end().unwrap(), walked.is_complete());

    let last_addr = frames.last().unwrap().pc.lookup_addr();
    let end_in_trace = end.with_fault(last_addr);
    let mut cache = RowCache::<16>::new();
    let found = |frame: &Frame| (frame.pc, frame.provenance);
    for _ in 0..3 {
        let walker = Walker::new(Toy, script.clone()).cache(&mut cache);
        let mut walker = walker.fallback(AlwaysFp);
        let mut trace = Trace::<[_; 8]>::new();
        walker.trace(regs, stack, &mut trace);
        let traced = trace.frames().map(|frame| (frame.pc, frame.provenance));
        assert!(traced.eq(frames.iter().map(found)), "{trace:?}");
        assert_eq!((trace.end(), trace.is_complete()), (Some(end_in_trace), is_complete));
    }
    (frames, end)
}

/// The first function saves its frame pointer 0x1000 bytes above its frame, where the
/// stack that was captured has ended.
fn far_saved() -> Row {
    Row::new(CfaRule::sp(16), RegRule::Offset(-8), RegRule::Offset(0x1000))
}

const FAR: u64 = 0x9010;

fn two_frames() -> Stack {
    Stack::new([(0x8008, 0x2010), (0x8018, 0x3010), (0x8020, 0)])
}

#[test]
fn a1_a_frame_pointer_that_is_found_from_one_that_is_not_known_is_not_known_either() {
    let from_fp = |rule| Row::new(CfaRule::sp(16), RegRule::Offset(-8), rule);
    let regs = Regs { fp: None, ..START };
    for rule in [RegRule::Register(BaseReg::Fp, 8), RegRule::AtRegister(BaseReg::Fp, 0)] {
        let rows = [(0x1000, from_fp(rule)), (0x2000, locals(8)), (0x3000, Row::outermost())];
        let (frames, end) = walk(&Script::new(rows), regs, &two_frames());
        assert_eq!((pcs(&frames), end), (vec![0x1010, 0x2010, 0x3010], End::Outermost));
        let (frames, end) =
            walk(&Script::new([(0x1000, from_fp(rule)), (0x2000, FP)]), regs, &two_frames());
        let unknown = End::Step(StepError::UnknownRegister(BaseReg::Fp));
        assert_eq!((pcs(&frames), end), (vec![0x1010, 0x2010], unknown));
    }
}

#[test]
fn a1_a_frame_pointer_that_cannot_be_read_ends_no_walk_that_does_not_need_it() {
    let script =
        Script::new([(0x1000, far_saved()), (0x2000, locals(8)), (0x3000, Row::outermost())]);
    for absent in [false, true] {
        let mut stack = two_frames();
        if absent {
            stack.0.insert(FAR, None);
        }
        let (frames, end) = walk(&script, START, &stack);
        assert_eq!((pcs(&frames), end), (vec![0x1010, 0x2010, 0x3010], End::Outermost));
        assert!(frames.iter().all(|frame| !frame.provenance.is_after_failure()));
        assert!(frames.iter().all(|frame| !frame.provenance.is_fp_assumed()));
    }
}

#[test]
fn a1_a_row_that_needs_a_frame_pointer_which_could_not_be_read_ends_the_walk_with_that_reason() {
    let script = Script::new([(0x1000, far_saved()), (0x2000, locals(8)), (0x3000, FP)]);
    for (word, error) in [(None, ReadError::Invalid), (Some(()), ReadError::NotResident)] {
        let mut stack = two_frames();
        if word.is_some() {
            stack.0.insert(FAR, None);
        }
        let (frames, end) = walk(&script, START, &stack);
        assert_eq!(pcs(&frames), [0x1010, 0x2010, 0x3010]);
        let addr = VirtAddr::new(FAR);
        assert_eq!(end, End::Step(StepError::Unreadable { addr, error }));
        assert_eq!(end.is_retryable(), error == ReadError::NotResident);
    }
}

#[test]
fn a1_a_frame_pointer_whose_rule_cannot_be_followed_ends_no_walk_that_does_not_need_it() {
    // After a signal frame, and in the sampled one, register 3 is known; register 4 never.
    let unknown = DwarfReg(4);
    for (rule, reason) in [
        (RegRule::Undefined, StepError::UnknownRegister(BaseReg::Fp)),
        (
            RegRule::Register(BaseReg::Reg(unknown), 0),
            StepError::UnknownRegister(BaseReg::Reg(unknown)),
        ),
        (
            RegRule::AtRegister(BaseReg::Reg(unknown), 0),
            StepError::UnknownRegister(BaseReg::Reg(unknown)),
        ),
        (RegRule::ValOffset(i32::MIN), StepError::Overflow),
        (RegRule::AtRegister(BaseReg::Reg(R3), -8), StepError::Overflow),
    ] {
        let first = Row::new(CfaRule::sp(16), RegRule::Offset(-8), rule);
        let rows = |last| Script::new([(0x1000, first), (0x2000, locals(8)), (0x3000, last)]);
        let (frames, end) = walk(&rows(Row::outermost()), START, &two_frames());
        assert_eq!((frames.len(), end), (3, End::Outermost), "{rule:?}");
        let (frames, end) = walk(&rows(FP), START, &two_frames());
        assert_eq!((frames.len(), end), (3, End::Step(reason)), "{rule:?}");
    }
}

#[test]
fn a1_a_frame_pointer_that_is_saved_again_is_known_again() {
    // The second function saves what it got and sets up a frame of its own.
    let script = Script::new([
        (0x1000, far_saved()),
        (0x2000, Row::new(CfaRule::sp(16), RegRule::Offset(-8), RegRule::ValOffset(0x10))),
        (0x3000, FP),
        (0x4000, Row::outermost()),
    ]);
    let stack = Stack::new([(0x8008, 0x2010), (0x8018, 0x3010), (0x8030, 0), (0x8038, 0x4010)]);
    let (frames, end) = walk(&script, START, &stack);
    assert_eq!((pcs(&frames), end), (vec![0x1010, 0x2010, 0x3010, 0x4010], End::Outermost));
}

/// The row that compilers leave at the `ret` after `pop rbp`: the slot of the frame
/// pointer lies below the stack pointer. The caller keeps a frame pointer.
const AFTER_POP: Row = Row::new(CfaRule::sp(8), RegRule::Offset(-8), RegRule::Offset(-16));

fn at_return() -> (Script, Regs, Stack) {
    let script = Script::new([(0x1000, AFTER_POP), (0x2000, FP), (0x3000, Row::outermost())]);
    let stack = Stack::new([(0x8000, 0x2010), (0x8020, 0), (0x8028, 0x3010)]);
    (script, Regs { fp: Some(0x8020), ..START }, stack)
}

#[test]
fn a1_a_slot_below_the_stack_pointer_that_cannot_be_read_leaves_the_register_as_it_is() {
    let (script, regs, stack) = at_return();
    let absent = Stack(stack.0.iter().map(|(at, word)| (*at, *word)).collect());
    let absent = Stack(absent.0.into_iter().chain([(0x7ff8, None)]).collect());
    for stack in [stack, absent] {
        let (frames, end) = walk(&script, regs, &stack);
        assert_eq!((pcs(&frames), end), (vec![0x1010, 0x2010, 0x3010], End::Outermost));
        let assumed = frames.iter().map(|frame| frame.provenance.is_fp_assumed());
        assert!(assumed.eq([false, true, false]), "the caller's frame says it, and no other");
        assert!(frames.iter().all(|frame| !frame.provenance.is_after_gap()));
    }
}

#[test]
fn a1_a_slot_below_the_stack_pointer_is_read_within_the_red_zone_and_not_deeper() {
    // A leaf that saved its frame pointer there and then changed it.
    let (mut script, regs, stack) = at_return();
    let regs = Regs { fp: Some(0xdead), ..regs };
    for (depth, is_read) in [(8_u8, true), (32, true), (40, false)] {
        let row =
            Row::new(CfaRule::sp(8), RegRule::Offset(-8), RegRule::Offset(-8 - i32::from(depth)));
        script.0.insert(0x1000, Ok(row));
        let slot = 0x8000 - u64::from(depth);
        let stack = Stack(stack.0.clone().into_iter().chain([(slot, Some(0x8020))]).collect());
        let (frames, end) = walk(&script, regs, &stack);
        assert_eq!(frames[1].provenance.is_fp_assumed(), !is_read, "{depth}");
        assert_eq!(end == End::Outermost, is_read, "{depth}: {end:?}");
    }
}

#[test]
fn a1_a_slot_below_the_stack_pointer_counts_in_what_a_signal_interrupted_too() {
    let (mut script, regs, stack) = at_return();
    script.0.insert(0x5100, Ok(Row::signal_context()));
    script.0.insert(0x6000, Ok(locals(8)));
    let signal = [
        // The handler returns to the trampoline, above which the context is.
        (0x7008, Some(0x5160)),
        (0x7010, Some(regs.pc)),
        (0x7018, Some(regs.sp)),
        (0x7020, regs.fp),
        (0x7028, Some(0)),
    ];
    let stack = Stack(stack.0.into_iter().chain(signal).collect());
    let handler = Regs { pc: 0x6010, sp: 0x7000, fp: Some(1), r3: Some(0) };
    let (frames, end) = walk(&script, handler, &stack);
    let expected = vec![0x6010, 0x5160, 0x1010, 0x2010, 0x3010];
    assert_eq!((pcs(&frames), end), (expected, End::Outermost));
    assert!(frames[3].provenance.is_fp_assumed());
}

#[test]
fn a1_no_caller_is_skipped_where_the_callers_frame_pointer_is_the_register() {
    // By the fallback this walk led to 0x3010 at once, and was said to be complete.
    let (script, regs, stack) = at_return();
    let (frames, _) = walk(&script, regs, &stack);
    assert_eq!(pcs(&frames), [0x1010, 0x2010, 0x3010]);
    assert!(frames.iter().all(|frame| !frame.provenance.is_after_failure()));
}
