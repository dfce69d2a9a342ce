//! What else than the stack a walk depends on.

use core::convert::Infallible;
use unwind_core::{
    Arch, CfaRule, End, FrameContext, IncrementalTrace, Memory, RegRule, ReturnAddresses, Row,
    RowCache, RowSource, StepError, Trace, Unchecked, VirtAddr, Walker, WordSize,
};

use crate::task::*;

#[test]
fn nothing_is_taken_over_when_modules_the_code_or_the_stack_changed() {
    for end in [PLAIN, START] {
        let mut stack = Stack::of(&[PLAIN, PLAIN, PLAIN, PLAIN, PLAIN, end]);
        nothing_is_taken_over_of(&mut stack);
    }
}

fn nothing_is_taken_over_of(stack: &mut Stack) {
    let mut task = Task::new();
    task.walk(leaf(PLAIN), stack);
    task.functions.generation = 1;
    assert_eq!(task.walk(leaf(PLAIN), stack), 0);
    assert_ne!(task.walk(leaf(PLAIN), stack), 0);

    task.code = Tracer { function: PLAIN, generation: Some(1), asked: 0 };
    assert_eq!(task.walk(leaf(PLAIN), stack), 0);
    task.code = Tracer { function: 0, generation: Some(2), asked: 0 };
    assert_eq!(task.walk(leaf(PLAIN), stack), 0);

    task.stack_end = STACK + 4 * FRAME;
    assert_eq!(task.walk(leaf(PLAIN), stack), 0);
    assert!(matches!(task.last.end(), Some(End::Step(StepError::BeyondStack { .. }))));
    assert!(!task.last.is_complete() && !task.last.is_empty());
    task.stack_end = u64::MAX / 2;
    assert_eq!(task.walk(leaf(PLAIN), stack), 0);

    task.last.clear();
    assert_eq!((task.last.len(), task.last.end(), task.last.is_empty()), (0, None, true));
    assert_eq!(task.walk(leaf(PLAIN), stack), 0);
}

#[test]
fn code_without_a_generation_is_asked_about_each_frame() {
    let mut stack = Stack::of(&[PLAIN, PLAIN, PLAIN, START]);
    let mut task = Task::new();
    task.code.generation = None;
    for _ in 0..3 {
        assert_eq!(task.walk(leaf(PLAIN), &mut stack), 0);
    }
}

#[test]
fn code_of_which_nothing_is_known_never_changes_and_other_code_may() {
    struct Tracee;
    impl ReturnAddresses for Tracee {}
    assert_eq!(Tracee.generation(), None);
    assert!(Unchecked.generation().is_some());
}

#[test]
fn limits_hold_whatever_was_there_before() {
    let mut stack = Stack::of(&[PLAIN; 14]).lent();
    let mut task = Task::new();
    for max_frames in [100, 5, 100, 1, 2, 0, 9, 10, 11, 100] {
        task.max_frames = max_frames;
        task.walk(leaf(PLAIN), &mut stack);
    }
    // Up to all frames there are, the last of which has no caller.
    let mut stack = Stack::of(&MIXED).lent();
    let mut task = Task::new();
    for max_frames in [100, 10, 9, 10, 10, 11, 8, 100] {
        task.max_frames = max_frames;
        task.walk(leaf(PLAIN), &mut stack);
    }
}

/// A CPU that may be in a mode whose stacks cannot be walked.
#[derive(Clone, Copy)]
struct Mode {
    is_walkable: bool,
}

impl Arch for Mode {
    type Regs = Regs;
    const WORD: WordSize = WordSize::Eight;
    fn is_walkable(&self) -> bool {
        self.is_walkable
    }
    fn signal_context<M: Memory>(
        &self,
        _: VirtAddr,
        _: u64,
        _: &mut M,
    ) -> Result<Option<Regs>, StepError> {
        Ok(None)
    }
}

/// One slot of locals in each function.
struct Plain;

impl RowSource<Mode> for Plain {
    type Error = Infallible;
    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(Some(Row::new(CfaRule::sp(32), RegRule::Offset(-8), RegRule::SameValue)))
    }
}

#[test]
fn nothing_is_taken_over_in_a_mode_whose_stacks_cannot_be_walked() {
    let mut stack = Stack::of(&[PLAIN; 4]).lent();
    let mut cache = RowCache::<16>::new();
    let mut last = IncrementalTrace::<ROOM>::new();
    for (is_walkable, frames) in [(true, 5), (false, 0), (true, 5), (true, 5)] {
        let mut walker = Walker::new(Mode { is_walkable }, Plain).cache(&mut cache);
        walker.trace_incremental(leaf(PLAIN), &mut stack, &mut last);
        assert_eq!(last.len(), frames, "{:?}", last.end());
    }
    assert!(last.reused() > 0);
}

#[test]
fn more_frames_than_there_is_room_for_are_found_as_by_a_walk() {
    // Frames of one word, of two, and of either.
    for functions in [[PLAIN; 4], [SAVES_FP; 4], [PLAIN, SAVES_FP, SAVES_FP, PLAIN]] {
        let mut stack = Stack::of(functions.repeat(10).as_slice()).lent();
        stack.set(STACK + 40 * FRAME - 8, START + 5);
        let mut task = Task::new();
        for depth in [0, 0, 1, 0, 5, 3, 20, 24, 25, 26, 23, 0, 30, 22, 24, 24, 23, 22, 40, 8] {
            let sp = STACK + depth * FRAME;
            for pc in [PLAIN + 0x300 + depth, SAVES_FP + 0x300, SAVES_FP + 0x300] {
                task.walk(Regs::new(pc, sp, Some(0)), &mut stack);
            }
        }
    }
}

#[test]
fn a_frame_that_was_there_before_is_added_only_if_there_is_room() {
    let functions: [u64; 24] = core::array::from_fn(|at| if at == 15 { ALIGNS } else { PLAIN });
    let mut stack = Stack::of(&functions).lent();
    let mut task = Task::new();
    task.walk(Regs { sp: STACK + 10 * FRAME, ..leaf(PLAIN) }, &mut stack);
    // Up to the frame after the last one that there is room for, all are others.
    for number in 0..15 {
        let function = if number == 14 { ALIGNS } else { PLAIN };
        stack.set(STACK + (number + 1) * FRAME - 8, function + 0x77);
    }
    task.walk(leaf(PLAIN + 0x100), &mut stack);
    assert_eq!((task.last.len(), task.last.end()), (ROOM, Some(End::FrameLimit)));
}

#[test]
fn a_walk_that_begins_elsewhere_has_room_for_as_many_frames() {
    for function in [PLAIN, SAVES_FP, BY_FP, ALIGNS, FORGETS_FP] {
        let mut stack = Stack::of(&[function; 24]);
        for first in [8, 7, 5, 9, 0, 1, 20, 3] {
            for is_lent in [false, true] {
                stack.is_lent = is_lent;
                let mut task = Task::new();
                for start in [first, first + 1, first, 0, 4] {
                    let sp = STACK + FRAME * start;
                    let regs = Regs::new(function + start, sp, Some(sp + 16));
                    task.walk(regs, &mut stack);
                }
            }
        }
    }
}

/// The same functions, and whether registers were given for each lookup.
struct Watched<'a>(&'a mut Vec<bool>);

impl RowSource<Toy> for Watched<'_> {
    type Error = Infallible;
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        self.0.push(frame.registers().is_some());
        Functions::default().row(frame, mem)
    }
}

#[test]
fn registers_are_given_for_the_lookup_of_the_sampled_frame_alone() {
    let stack = Stack::of(&[SAVES_FP, PLAIN + 0x100, PLAIN + 0x200, START]);
    for mut stack in [stack.clone(), stack.lent()] {
        let (mut traced, mut retraced) = (Vec::new(), Vec::new());
        let (mut cache, mut other_cache) = (RowCache::<16>::new(), RowCache::<16>::new());
        let mut trace = Trace::<[_; ROOM]>::new();
        let mut last = IncrementalTrace::<ROOM>::new();
        Walker::new(Toy, Watched(&mut traced)).cache(&mut cache).trace(
            leaf(PLAIN),
            &mut stack,
            &mut trace,
        );
        Walker::new(Toy, Watched(&mut retraced)).cache(&mut other_cache).trace_incremental(
            leaf(PLAIN),
            &mut stack,
            &mut last,
        );
        assert_eq!((trace.len(), last.len()), (5, 5));
        for given in [traced, retraced] {
            // A row that took a look at them is not kept, and not looked up again either.
            assert_eq!(given, [true, false, false, false, false]);
        }
    }
}
