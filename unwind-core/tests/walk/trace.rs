//! Walks that are kept.
use unwind_core::{End, FramePc, Origin, Row, Trace, VirtAddr, Walker};

use crate::toy::{
    BadTable, FP, Regs, START, Script, Stack, Toy, all_with_frame_pointers, locals, three_frames,
};

#[test]
fn a_trace_holds_what_the_frames_said_and_forgets_the_walk_before() {
    let (regs, mut stack) = three_frames();
    let mut walker = Walker::new(Toy, all_with_frame_pointers());
    let mut trace = Trace::<[_; 8]>::new();
    assert!(trace.end().is_none() && trace.is_empty() && !trace.is_complete());
    for _ in 0..2 {
        walker.trace(regs, &mut stack, &mut trace);
        let frames: Vec<_> = walker.frames(regs, &mut stack).collect();
        let kept: Vec<_> = trace.frames().map(|frame| (frame.pc, frame.provenance)).collect();
        let seen: Vec<_> = frames.iter().map(|frame| (frame.pc, frame.provenance)).collect();
        assert_eq!(kept, seen);
        assert_eq!((trace.len(), trace.end()), (3, Some(End::ZeroReturnAddress)));
        assert!(trace.is_complete() && !trace.is_empty());
    }
    let mut small = Trace::<[_; 2]>::new();
    walker.trace(regs, &mut stack, &mut small);
    assert!(small.pcs().map(VirtAddr::get).eq([0x1010, 0x2010]));
    assert_eq!(small.end(), Some(End::FrameLimit));
    assert!(!small.is_complete(), "a truncated stack never looks complete");
    let mut exact = Trace::<[_; 3]>::new();
    walker.trace(regs, &mut stack, &mut exact);
    assert_eq!((exact.len(), exact.end()), (3, Some(End::ZeroReturnAddress)));
}

#[test]
fn a_trace_has_the_number_of_a_tables_error_and_the_address_that_the_table_was_asked_for() {
    let (regs, mut stack) = three_frames();
    for (error, code, is_not_resident) in
        [(BadTable::Malformed, 1, false), (BadTable::Absent, 2, true)]
    {
        let mut script = all_with_frame_pointers();
        script.0.insert(0x2000, Err(error));
        let mut walker = Walker::new(Toy, script);
        let mut frames = walker.frames(regs, &mut stack);
        let last = frames.by_ref().last().unwrap();
        assert_eq!(frames.end(), Some(End::Table(error)));
        let mut trace = Trace::<[_; 8]>::new();
        walker.trace(regs, &mut stack, &mut trace);
        let end = trace.end();
        let Some(End::Table(fault)) = end else { panic!("{end:?}") };
        assert_eq!((fault.addr, fault.code), (last.pc.lookup_addr(), code));
        assert_eq!(
            (fault.is_not_resident, end.unwrap().is_retryable()),
            (is_not_resident, is_not_resident)
        );
    }
}

#[test]
fn walks_into_traces_of_any_capacity_are_one_function() {
    let (regs, mut stack) = three_frames();
    let mut walker = Walker::new(Toy, all_with_frame_pointers());
    let (mut small, mut large) = (Trace::<[_; 1]>::new(), Trace::<[_; 100]>::new());
    let traces: [&mut Trace; 2] = [&mut small, &mut large];
    for trace in traces {
        walker.trace(regs, &mut stack, trace);
    }
    assert_eq!((small.len(), small.end()), (1, Some(End::FrameLimit)));
    assert_eq!((large.len(), large.end()), (3, Some(End::ZeroReturnAddress)));
}

#[test]
fn the_text_of_a_frame_says_who_found_it_and_how_sure_that_is() {
    let stack = Stack::new([(0x8000, 0x2010)]);
    let script = Script::new([(0x1000, locals(0)), (0x2000, Row::outermost())]);
    let (mut walker, mut stack) = (Walker::new(Toy, script), stack);
    let texts: Vec<_> =
        walker.frames(START, &mut stack).map(|frame| format!("{:?}", frame.provenance)).collect();
    let sure = "after_failure: false, after_trampoline: false, after_gap: false, \
                fp_assumed: false";
    let expected = [
        format!("Provenance {{ origin: Registers, exact: true, {sure} }}"),
        format!("Provenance {{ origin: Table, exact: false, {sure} }}"),
    ];
    assert_eq!(texts, expected);
}

#[test]
fn a_walk_that_begins_in_a_caller_asks_for_the_call_and_not_for_what_comes_after_it() {
    let (regs, mut stack) = three_frames();
    // The call is the last instruction of its function.
    let script = Script::new([(0x1000, FP), (0x2000, Row::outermost())]);
    let regs = Regs { pc: 0x1100, ..regs };
    let mut walker = Walker::new(Toy, script);
    let mut frames = walker.frames(regs, &mut stack);
    assert_eq!((frames.by_ref().count(), frames.end()), (1, Some(End::NoRow)));
    let mut frames = walker.frames(regs, &mut stack);
    frames.begin_in_caller();
    let found: Vec<_> =
        frames.by_ref().map(|frame| (frame.pc, frame.provenance.origin())).collect();
    let pcs = [0x1100, 0x2010].map(|pc| FramePc::Return(VirtAddr::new(pc)));
    assert_eq!(found, [(pcs[0], Origin::Registers), (pcs[1], Origin::Table)]);
    assert_eq!(frames.end(), Some(End::Outermost));
}

#[test]
fn a_walk_into_a_small_trace_continues_into_the_next_one() {
    let (regs, mut stack) = three_frames();
    let mut walker = Walker::new(Toy, all_with_frame_pointers());
    let whole: Vec<_> = walker.frames(regs, &mut stack).map(|frame| frame.pc.addr()).collect();
    let mut frames = walker.frames(regs, &mut stack);
    let mut small = Trace::<[_; 2]>::new();
    frames.trace(&mut small);
    assert_eq!((small.end(), frames.end()), (Some(End::FrameLimit), None));
    let first: Vec<_> = small.pcs().collect();
    frames.trace(&mut small);
    assert_eq!(small.end(), Some(End::ZeroReturnAddress));
    assert_eq!(first.into_iter().chain(small.pcs()).collect::<Vec<_>>(), whole);
}
