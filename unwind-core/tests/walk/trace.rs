//! Walks that are kept.

use unwind_core::{End, Row, UnwindCache, VirtAddr, Walker};

use crate::toy::{
    BadTable, START, Script, Stack, Toy, all_with_frame_pointers, locals, three_frames,
};

#[test]
fn a_trace_holds_what_the_frames_said_and_forgets_the_walk_before() {
    let (regs, mut stack) = three_frames();
    let mut walker = Walker::new(Toy, all_with_frame_pointers());
    let mut trace = UnwindCache::<8, BadTable>::new();
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
    let mut small = UnwindCache::<2, BadTable>::new();
    walker.trace(regs, &mut stack, &mut small);
    assert!(small.pcs().map(VirtAddr::get).eq([0x1010, 0x2010]));
    assert_eq!(small.end(), Some(End::Full));
    assert!(!small.is_complete(), "a truncated stack never looks complete");
    let mut exact = UnwindCache::<3, BadTable>::new();
    walker.trace(regs, &mut stack, &mut exact);
    assert_eq!((exact.len(), exact.end()), (3, Some(End::ZeroReturnAddress)));
}

#[test]
fn the_text_of_a_frame_says_who_found_it_and_how_sure_that_is() {
    let stack = Stack::new([(0x8000, 0x2010)]);
    let script = Script::new([(0x1000, locals(0)), (0x2000, Row::outermost())]);
    let (mut walker, mut stack) = (Walker::new(Toy, script), stack);
    let texts: Vec<_> =
        walker.frames(START, &mut stack).map(|frame| format!("{:?}", frame.provenance)).collect();
    let sure = "after_failure: false, behind_trampoline: false, after_gap: false, \
                fp_assumed: false";
    let expected = [
        format!("Provenance {{ origin: Registers, exact: true, {sure} }}"),
        format!("Provenance {{ origin: Table, exact: false, {sure} }}"),
    ];
    assert_eq!(texts, expected);
}
