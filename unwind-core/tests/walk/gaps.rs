//! Marks where callers may be missing.
use unwind_core::{
    CallerFrame, CfaRule, End, Frame, Origin, RegRule, Row, RowCache, RowSource, Trace, Walker,
};

use crate::toy::{
    AlwaysFp, BadTable, FP, Regs, START, Script, Stack, Toy, all_with_frame_pointers, locals,
    three_frames,
};

/// The row of a frame pointer that may not be the frame's own.
const GUESS: Row = FP.with_origin(Origin::FramePointer).with_guess();

/// Which frames come after a gap, and whether the stack is complete, by all ways of
/// walking.
fn gaps<F>(script: &Script, fallback: F, regs: Regs, stack: &Stack) -> (Vec<bool>, bool)
where
    F: RowSource<Toy, Error = BadTable> + Clone,
{
    let stack = &mut stack.clone();
    let mut walker = Walker::new(Toy, script.clone()).fallback(fallback.clone());
    let mut walked = walker.frames(regs, stack);
    let frames: Vec<_> = walked.by_ref().collect();
    let is_complete = walked.is_complete();
    let found = |frame: &Frame| frame.provenance.is_after_gap();
    let gaps: Vec<_> = frames.iter().map(found).collect();

    // A frame at a time.
    let mut at = walker.frames(regs, stack).position();
    for is_gap in &gaps {
        let position = at.unwrap();
        assert_eq!(position.provenance().is_after_gap(), *is_gap);
        let mut frames = walker.resume(position, stack);
        frames.next();
        at = frames.position();
        assert_eq!(frames.is_complete(), is_complete && at.is_none());
    }
    assert!(at.is_none());

    let mut cache = RowCache::<16>::new();
    for _ in 0..3 {
        let walker = Walker::new(Toy, script.clone()).cache(&mut cache);
        let mut walker = walker.fallback(fallback.clone());
        // One frame or some at a time, in place.
        for room in 0..4 {
            let mut at = walker.frames(regs, stack).position().unwrap();
            let mut stepped = vec![at.provenance().is_after_gap()];
            loop {
                let mut callers = [CallerFrame::NONE; 3];
                let mut frames = walker.resume(at.lend(), stack);
                let count = frames.callers(&mut callers[..room]);
                let (place, end) = (frames.place(), frames.is_complete());
                let Some(place) = place else {
                    assert_eq!((&stepped, end), (&gaps, is_complete));
                    break;
                };
                at.move_to(place);
                let callers = callers[..count].iter().map(CallerFrame::frame);
                stepped.extend(callers.map(|frame| frame.provenance.is_after_gap()));
                if count == 0 {
                    stepped.push(at.provenance().is_after_gap());
                }
            }
        }
        let mut trace = Trace::<[_; 8]>::new();
        walker.trace(regs, stack, &mut trace);
        assert!(trace.frames().map(|frame| frame.provenance.is_after_gap()).eq(gaps.clone()));
        assert_eq!(trace.is_complete(), is_complete);
    }
    (gaps, is_complete)
}

fn with_last(script: Script, start: u64, row: Row) -> Script {
    Script(script.0.into_iter().chain([(start, Ok(row))]).collect())
}

#[test]
fn a3_a_guess_leaves_a_mark_and_no_stack_with_one_is_complete() {
    let (regs, stack) = three_frames();
    let whole = with_last(all_with_frame_pointers(), 0x3000, Row::outermost());
    assert_eq!(gaps(&whole, NoRow, regs, &stack), (vec![false; 3], true));
    for (start, marks) in [(0x1000, [false, true, false]), (0x2000, [false, false, true])] {
        let script = with_last(whole.clone(), start, GUESS);
        assert_eq!(gaps(&script, NoRow, regs, &stack), (marks.to_vec(), false));
        // The same row of a frame pointer that the host vouches for.
        let script = with_last(whole.clone(), start, FP.with_origin(Origin::FramePointer));
        assert_eq!(gaps(&script, NoRow, regs, &stack), (vec![false; 3], true));
    }
}

/// It may write over what it has saved of its caller only while it runs itself, or a function that it has called.
#[test]
fn a3_a_function_that_returns_to_a_handler_leaves_a_mark_where_what_it_saved_is_needed() {
    let row = FP.with_eh_return();
    assert!(row.is_eh_return() && !row.is_guess() && !FP.is_eh_return());
    assert!(row.to_string().ends_with("may return to a handler"), "{row}");
    let (regs, mut stack) = three_frames();
    let words = [(0x8040, 0x8050), (0x8048, 0x4010), (0x8050, 0), (0x8058, 0)];
    stack.0.extend(words.map(|(addr, word)| (addr, Some(word))));
    let rows = [(0x1000, FP), (0x2000, FP), (0x3000, FP), (0x4000, Row::outermost())];
    for (start, marks) in [
        (0x1000, [false, false, true, false]),
        (0x2000, [false, false, false, true]),
        (0x3000, [false; 4]),
    ] {
        let script = with_last(Script::new(rows), start, row);
        assert_eq!(gaps(&script, NoRow, regs, &stack), (marks.to_vec(), start == 0x3000));
    }
    // Callers that do without the frame pointer are found whatever it is, up to one that needs it.
    let by_sp = |size, fp| Row::new(CfaRule::sp(size), RegRule::Offset(-8), fp);
    let (second, third) = (by_sp(32, RegRule::SameValue), by_sp(16, RegRule::SameValue));
    stack.0.insert(0x8010, Some(0x8040));
    for (third, marks) in [(third, [false; 4]), (FP, [false, false, false, true])] {
        let rows = [(0x1000, row), (0x2000, second), (0x3000, third), (0x4000, Row::outermost())];
        let found = gaps(&Script::new(rows), NoRow, regs, &stack);
        assert_eq!(found, (marks.to_vec(), third != FP));
    }
    stack.0.insert(0x8010, Some(0x8030));
    // Another function that has saved it has restored it.
    let saves = by_sp(32, RegRule::Offset(-16));
    let rows = [(0x1000, row), (0x2000, saves), (0x3000, FP), (0x4000, Row::outermost())];
    assert_eq!(gaps(&Script::new(rows), NoRow, regs, &stack), (vec![false; 4], true));
    // What was not saved is as it was.
    let keeps = by_sp(32, RegRule::SameValue).with_eh_return();
    let rows = [(0x1000, keeps), (0x2000, FP), (0x3000, FP), (0x4000, Row::outermost())];
    let regs = Regs { fp: Some(0x8030), ..regs };
    assert_eq!(gaps(&Script::new(rows), NoRow, regs, &stack), (vec![false; 4], true));
}

#[test]
fn a3_a_fallback_that_guesses_leaves_a_mark() {
    let (regs, stack) = three_frames();
    let script = Script::new([(0x1000, FP), (0x3000, Row::outermost())]);
    let marks = vec![false, false, true];
    assert_eq!(gaps(&script, Fallback(GUESS), regs, &stack), (marks, false));
    let trusted = Fallback(FP.with_origin(Origin::FramePointer));
    assert_eq!(gaps(&script, trusted, regs, &stack), (vec![false; 3], true));
}

#[test]
fn a3_a_fallback_after_a_failure_leaves_a_mark_whatever_it_is() {
    let (regs, stack) = three_frames();
    let rows = [(0x1000, FP), (0x2000, locals(3)), (0x3000, Row::outermost())];
    let marks = (vec![false, false, true], false);
    let script = Script::new(rows);
    assert_eq!(gaps(&script, Fallback(FP), regs, &stack), marks);
    let mut malformed = script;
    malformed.0.insert(0x2000, Err(BadTable::Malformed));
    assert_eq!(gaps(&malformed, Fallback(FP), regs, &stack), marks);
}

#[test]
fn a3_a_guess_that_fails_says_nothing_against_a_fallback_that_the_host_vouches_for() {
    let (regs, stack) = three_frames();
    let rows = [(0x1000, FP), (0x2000, locals(3).with_guess()), (0x3000, Row::outermost())];
    let script = Script::new(rows);
    assert_eq!(gaps(&script, Fallback(FP), regs, &stack), (vec![false; 3], true));
    let marks = (vec![false, false, true], false);
    assert_eq!(gaps(&script, Fallback(GUESS), regs, &stack), marks);
}

#[test]
fn a3_what_a_signal_interrupted_is_marked_where_the_fallback_found_it_after_a_failure() {
    let stack = Stack::new([(0x8000, 0x2010), (0x8008, 0x9000), (0x8010, 0), (0x8018, 0)]);
    let script = Script::new([(0x5100, locals(3)), (0x2000, Row::outermost())]);
    let regs = Regs { pc: 0x5160, ..START };
    let signal = Fallback(Row::signal_context());
    assert_eq!(gaps(&script, signal, regs, &stack), (vec![false, true], false));
    let script = Script::new([(0x2000, Row::outermost())]);
    assert_eq!(gaps(&script, signal, regs, &stack), (vec![false, false], true));
}

#[test]
fn a3_an_end_alone_does_not_say_that_a_stack_is_complete() {
    let (regs, mut stack) = three_frames();
    let script = Script::new([(0x1000, GUESS), (0x2000, FP), (0x3000, Row::outermost())]);
    let mut walker = Walker::new(Toy, script).fallback(AlwaysFp);
    let mut frames = walker.frames(regs, &mut stack);
    assert!(!frames.is_complete(), "it is under way");
    assert_eq!(frames.by_ref().count(), 3);
    assert_eq!(frames.end(), Some(End::Outermost));
    assert!(!frames.is_complete());
}

/// A row for all code, if any.
#[derive(Clone, Copy)]
struct Fallback(Row);

#[derive(Clone, Copy)]
struct NoRow;

impl RowSource<Toy> for Fallback {
    type Error = BadTable;
    fn row<M: unwind_core::Memory>(
        &mut self,
        _: &unwind_core::FrameContext<'_, Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, BadTable> {
        Ok(Some(self.0))
    }
}

impl RowSource<Toy> for NoRow {
    type Error = BadTable;
    fn row<M: unwind_core::Memory>(
        &mut self,
        _: &unwind_core::FrameContext<'_, Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, BadTable> {
        Ok(None)
    }
}
