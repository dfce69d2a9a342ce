//! Bounds that the caller sets.

use unwind_core::{End, StepError, Walker};

use crate::toy::{Toy, all_with_frame_pointers, three_frames};

#[test]
fn the_upper_bound_of_the_stack_is_honoured() {
    let (regs, stack) = three_frames();
    for (stack_end, count, end) in [
        (0x8050, 3, End::ZeroReturnAddress),
        (0x804f, 3, End::Step(StepError::BeyondStack { cfa: 0x8050 })),
        (0x803f, 2, End::Step(StepError::BeyondStack { cfa: 0x8040 })),
        (0x8000, 1, End::Step(StepError::BeyondStack { cfa: 0x8020 })),
    ] {
        let mut walker = Walker::new(Toy, all_with_frame_pointers()).stack_end(stack_end);
        let mut stack = stack.clone();
        let mut frames = walker.frames(regs, &mut stack);
        assert_eq!((frames.by_ref().count(), frames.end()), (count, Some(end)), "{stack_end:#x}");
    }
}

#[test]
fn a_walk_is_full_only_if_there_is_another_frame() {
    let (regs, stack) = three_frames();
    for (max, count, end) in [
        (0, 0, End::FrameLimit),
        (1, 1, End::FrameLimit),
        (2, 2, End::FrameLimit),
        (3, 3, End::ZeroReturnAddress),
        (4, 3, End::ZeroReturnAddress),
    ] {
        let mut walker = Walker::new(Toy, all_with_frame_pointers()).max_frames(max);
        let mut stack = stack.clone();
        let mut frames = walker.frames(regs, &mut stack);
        assert_eq!((frames.by_ref().count(), frames.end()), (count, Some(end)), "at most {max}");
        assert!(frames.next().is_none(), "the iterator stays at its end");
    }
}
