//! Walks that are left and continued.
use unwind_core::{
    CallerFrame, End, Position, RowCache, SliceMemory, Trace, TraceFrame, VirtAddr, Walker,
};

use crate::toy::{Regs, Toy, all_with_frame_pointers, three_frames};

#[test]
fn a_walk_continues_from_each_of_its_frames_as_if_it_had_not_been_left() {
    let (regs, mut stack) = three_frames();
    let mut walker = Walker::new(Toy, all_with_frame_pointers());
    let whole: Vec<_> = walker.frames(regs, &mut stack).collect();
    for left in 0..whole.len() {
        let mut frames = walker.frames(regs, &mut stack);
        assert_eq!(frames.by_ref().take(left).count(), left);
        let mut position = frames.position().expect("a frame that has not come");
        let next = &whole[left];
        assert_eq!((position.pc(), position.sp()), (next.pc, next.sp));
        assert_eq!(position.provenance(), next.provenance);
        assert_eq!(position.frame(), TraceFrame::from(*next));
        assert!(format!("{position:?}").contains("pc"), "{position:?}");
        for _ in 0..2 {
            // The registers are lent: whoever keeps the position has them afterwards.
            let mut frames = walker.resume(position.lend(), &mut stack);
            let rest: Vec<_> = frames.by_ref().collect();
            assert_eq!((&rest[..], frames.end()), (&whole[left..], Some(End::ZeroReturnAddress)));
        }
        let rest: Vec<_> = walker.resume(position, &mut stack).collect();
        assert_eq!(rest, whole[left..]);
    }
    let mut frames = walker.frames(regs, &mut stack);
    assert_eq!(frames.by_ref().count(), whole.len());
    assert!(frames.position().is_none(), "no frame is left");
}

#[test]
fn a_position_goes_from_frame_to_frame_with_its_registers_where_they_are() {
    let (regs, mut stack) = three_frames();
    let whole: Vec<_> =
        Walker::new(Toy, all_with_frame_pointers()).frames(regs, &mut stack).collect();
    let mut cache = RowCache::<16>::new();
    // Rows are looked up, then in the cache.
    for _ in 0..3 {
        let mut walker = Walker::new(Toy, all_with_frame_pointers()).cache(&mut cache);
        let mut position = walker.frames(regs, &mut stack).position().unwrap();
        for frame in &whole {
            assert_eq!(position.frame(), TraceFrame::from(*frame));
            assert_eq!(position.sp(), frame.sp);
            let mut frames = walker.resume(position.lend(), &mut stack);
            frames.callers(&mut [CallerFrame::NONE]);
            assert_eq!(frames.place().is_none(), frames.end().is_some());
            if let Some(place) = frames.place() {
                assert!(format!("{place:?}").contains("pc"), "{place:?}");
                position.move_to(place);
            } else {
                assert_eq!(frames.end(), Some(End::ZeroReturnAddress));
                assert_eq!(frame, whole.last().unwrap());
            }
        }
        // No frame comes after the last one.
        let mut frames = walker.frames(regs, &mut stack);
        assert_eq!(frames.by_ref().count(), whole.len());
        frames.callers(&mut [CallerFrame::NONE]);
        assert!(frames.place().is_none() && frames.end().is_some());
    }
}

#[test]
fn a_continued_walk_that_may_have_no_frame_says_that_there_are_more() {
    let (regs, mut stack) = three_frames();
    let mut walker = Walker::new(Toy, all_with_frame_pointers());
    let mut frames = walker.frames(regs, &mut stack);
    frames.next();
    let position: Position<Regs> = frames.position().unwrap();
    let mut walker = Walker::new(Toy, all_with_frame_pointers()).max_frames(0);
    let mut frames = walker.resume(position, &mut stack);
    assert_eq!((frames.next(), frames.end()), (None, Some(End::FrameLimit)));
}

#[test]
fn a_walk_without_a_frame_begins_in_no_caller() {
    let (regs, mut stack) = three_frames();
    let mut walker = Walker::new(Toy, all_with_frame_pointers()).max_frames(0);
    let mut frames = walker.frames(regs, &mut stack);
    frames.begin_in_caller();
    assert_eq!((frames.next(), frames.end()), (None, Some(End::FrameLimit)));
}

#[test]
fn the_frames_of_a_trace_are_shown_as_frames() {
    let (regs, mut stack) = three_frames();
    let mut trace = Trace::<[_; 8]>::new();
    Walker::new(Toy, all_with_frame_pointers()).trace(regs, &mut stack, &mut trace);
    let shown = format!("{trace:?}");
    for frame in trace.frames() {
        assert!(shown.contains(&format!("{frame:?}")), "{shown}");
    }
    // Bytes that are not there show as such.
    let mut nothing = SliceMemory::new(VirtAddr::new(0), &[]);
    Walker::new(Toy, all_with_frame_pointers()).trace(regs, &mut nothing, &mut trace);
    assert_eq!(trace.len(), 1);
}
