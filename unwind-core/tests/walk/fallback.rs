//! Frames that the table does not lead on from.

use unwind_core::{CfaRule, End, Frame, Origin, RegRule, Row, StepError, Walker};

use crate::toy::{
    AlwaysFp, BadTable, FP, START, Script, Stack, Toy, locals, pcs, three_frames, walk,
};

fn walk_with_fallback(script: Script) -> (Vec<Frame>, End<BadTable>, u32) {
    let (regs, mut stack) = three_frames();
    let mut walker = Walker::new(Toy, script).fallback(AlwaysFp);
    let mut frames = walker.frames(regs, &mut stack);
    let seen: Vec<_> = frames.by_ref().collect();
    (seen, frames.end().unwrap(), frames.table_errors())
}

#[test]
fn a_missing_row_continues_by_the_fallback_and_the_frame_says_so() {
    let script = Script::new([(0x1000, FP), (0x3000, FP)]);
    let (frames, end, errors) = walk_with_fallback(script);
    assert_eq!(
        (pcs(&frames), end, errors),
        (vec![0x1010, 0x2010, 0x3010], End::ZeroReturnAddress, 0)
    );
    let origins: Vec<_> = frames.iter().map(|frame| frame.provenance.origin()).collect();
    assert_eq!(origins, [Origin::Registers, Origin::Table, Origin::FramePointer]);
    assert!(frames.iter().all(|frame| !frame.provenance.is_after_failure()));
}

#[test]
fn a_malformed_row_continues_by_the_fallback_and_is_counted() {
    let mut script = Script::new([(0x1000, FP), (0x3000, FP)]);
    script.0.insert(0x2000, Err(BadTable::Malformed));
    let (frames, end, errors) = walk_with_fallback(script);
    assert_eq!(
        (pcs(&frames), end, errors),
        (vec![0x1010, 0x2010, 0x3010], End::ZeroReturnAddress, 1)
    );
    assert!(frames[2].provenance.is_after_failure() && !frames[1].provenance.is_after_failure());
}

#[test]
fn a_row_that_cannot_be_applied_continues_by_the_fallback() {
    let script = Script::new([(0x1000, FP), (0x2000, locals(3)), (0x3000, FP)]);
    let (frames, end, errors) = walk_with_fallback(script);
    assert_eq!(
        (pcs(&frames), end, errors),
        (vec![0x1010, 0x2010, 0x3010], End::ZeroReturnAddress, 0)
    );
    assert!(frames[2].provenance.is_after_failure());
    assert_eq!(frames[2].provenance.origin(), Origin::FramePointer);
}

#[test]
fn absent_memory_is_not_papered_over_by_the_fallback() {
    let mut script = Script::new([(0x1000, FP), (0x3000, FP)]);
    script.0.insert(0x2000, Err(BadTable::Absent));
    let (frames, end, errors) = walk_with_fallback(script);
    assert_eq!(
        (pcs(&frames), end, errors),
        (vec![0x1010, 0x2010], End::Table(BadTable::Absent), 0)
    );
    assert!(end.is_retryable());

    let (regs, mut stack) = three_frames();
    stack.0.insert(0x8100, None);
    let script = Script::new([(0x1000, locals(0x100))]);
    let mut walker = Walker::new(Toy, script).fallback(AlwaysFp);
    let mut frames = walker.frames(regs, &mut stack);
    assert_eq!(frames.by_ref().count(), 1);
    assert!(frames.end().unwrap().is_retryable());
}

#[test]
fn what_is_wrong_with_the_row_is_the_end_if_the_fallback_fails_too() {
    for (row, end) in [
        (Ok(locals(3)), End::Step(StepError::Misaligned { cfa: 0x800b })),
        (Err(BadTable::Malformed), End::Table(BadTable::Malformed)),
    ] {
        let mut walker = Walker::new(Toy, Script([(0x1000, row)].into())).fallback(AlwaysFp);
        let mut stack = Stack::default();
        let mut frames = walker.frames(START, &mut stack);
        assert_eq!(frames.by_ref().count(), 1);
        assert_eq!(frames.end(), Some(end));
    }
}

#[test]
fn absent_memory_that_the_fallback_meets_is_the_end_whatever_the_table_says() {
    let (regs, mut stack) = three_frames();
    stack.0.insert(0x8018, None);
    for rows in [Script::default(), Script([(0x1000, Err(BadTable::Malformed))].into())] {
        let mut walker = Walker::new(Toy, rows).fallback(AlwaysFp);
        let mut frames = walker.frames(regs, &mut stack);
        assert_eq!(frames.by_ref().count(), 1);
        let end = frames.end().unwrap();
        assert!(matches!(end, End::Step(_)) && end.is_retryable(), "{end:?}");
    }
}

#[test]
fn what_is_wrong_with_the_fallback_is_the_end_where_the_table_has_no_row() {
    let mut walker = Walker::new(Toy, Script::default()).fallback(AlwaysFp);
    let mut stack = Stack::default();
    let mut frames = walker.frames(START, &mut stack);
    assert_eq!(frames.by_ref().count(), 1);
    let end = frames.end().unwrap();
    assert!(matches!(end, End::Step(_)) && !end.is_retryable(), "{end:?}");
}

#[test]
fn nothing_is_committed_when_a_step_fails() {
    // The first rule of the row can be applied, the last one that a step needs cannot.
    let bad = Row::new(CfaRule::sp(0x20), RegRule::Offset(0x1000), RegRule::SameValue);
    let (regs, stack) = three_frames();
    let stack = Stack(stack.0.into_iter().chain([(0x8020 - 8, Some(0x2010))]).collect());
    let mut walker = Walker::new(Toy, Script::new([(0x1000, bad)])).fallback(AlwaysFp);
    let mut mem = stack.clone();
    let frames: Vec<_> = walker.frames(regs, &mut mem).collect();
    // The fallback saw the registers of the first frame, not half of the
    // second's.
    assert_eq!(pcs(&frames), [0x1010, 0x2010, 0x3010]);
    let (frames, end) = walk(Script::new([(0x1000, bad)]), regs, &stack);
    assert_eq!(frames, [0x1010]);
    assert!(matches!(end, End::Step(StepError::Unreadable { .. })));
}

#[test]
fn a_fallback_that_fails_is_the_reason_only_where_no_table_had_one() {
    let broken = Script([(0x1000, Err(BadTable::Malformed))].into());
    let of = |rows: Script| {
        let mut walker = Walker::new(Toy, rows).fallback(broken.clone());
        let mut stack = Stack::default();
        let mut frames = walker.frames(START, &mut stack);
        // There are more.
        assert_eq!(frames.end(), None);
        assert!(format!("{frames:?}").starts_with("Frames"));
        assert_eq!(frames.by_ref().count(), 1);
        frames.end().unwrap()
    };
    assert_eq!(of(Script::default()), End::Table(BadTable::Malformed));
    let backwards = Row::new(CfaRule::sp(-8), RegRule::Offset(-8), RegRule::SameValue);
    let expected = StepError::NoProgress { cfa: 0x7ff8, sp: 0x8000 };
    assert_eq!(of(Script::new([(0x1000, backwards)])), End::Step(expected));
}
