//! Puts the frames of an interpreter at the native frames of its evaluator.

use crate::interpreters::frame::Interpreted;
use crate::interpreters::runs::{ReadFrames, Run, ThreadRuns};
use crate::stack::frame::Frame;

/// Adds the frames of an interpreter to the native ones of a thread, each to the one that executes it. `None` if
/// the thread has neither frames of the interpreter nor of its evaluator. `is_whole` says that the native stack
/// ends where it should.
pub(crate) fn join(
    frames: &mut [Frame],
    is_whole: bool,
    read: &ReadFrames,
    of_thread: Option<&ThreadRuns>,
) -> Option<Interpreted> {
    let is_evaluator = |frame: &Frame| {
        let function = frame.symbol.function.as_ref();
        function.is_some_and(|function| (read.is_evaluator)(function.as_bytes()))
    };
    let evaluators: Vec<_> = frames.iter().map(is_evaluator).collect();
    let runs = of_thread.map_or(&[][..], |thread| &thread.runs);
    if runs.is_empty() && !evaluators.contains(&true) {
        return None;
    }
    let between = between_calls(frames, &evaluators, read);
    let places = match runs.iter().any(|run| run.anchor.is_some()) {
        true => by_anchors(frames, &evaluators, runs),
        false => by_count(&evaluators, between, runs, is_whole),
    };
    let doubt = read.doubt.or(of_thread.and_then(|thread| thread.doubt));
    let mut text = doubt.map(|doubt| doubt.to_string()).unwrap_or_default();
    let mut unplaced = Vec::new();
    let mut has_run = vec![false; frames.len()];
    let mut lost = 0_usize;
    for (run, place) in runs.iter().zip(places) {
        let place = place.filter(|&at| !has_run.get(at).copied().unwrap_or(true));
        match place.and_then(|at| Some((frames.get_mut(at)?, has_run.get_mut(at)?))) {
            Some((frame, has_run)) => {
                frame.interpreted.clone_from(&run.frames);
                *has_run = true;
            }
            None => {
                lost = lost.saturating_add(1);
                unplaced.extend_from_slice(&run.frames);
            }
        }
    }
    let idle = evaluators.iter().zip(&has_run).skip(between);
    let idle = idle.filter(|(is_evaluator, has_run)| **is_evaluator && !**has_run).count();
    let mut say = |count: usize, what: &str| {
        if count != 0 {
            let joint = if text.is_empty() { "" } else { "; " };
            text.push_str(&format!("{joint}{count} {what}"));
        }
    };
    say(idle, "native frames of the interpreter have none of its own");
    say(lost, "calls of the interpreter have no native frame");
    let (interpreter, complete) = (read.interpreter.clone(), text.is_empty());
    Some(Interpreted { interpreter, complete, text, unplaced })
}

/// How many innermost frames there are of an evaluator that may be about to begin or to end, when it
/// executes nothing of the interpreter: its own, or that and what it calls then.
fn between_calls(frames: &[Frame], evaluators: &[bool], read: &ReadFrames) -> usize {
    let function = frames.first().and_then(|frame| frame.symbol.function.as_ref());
    match evaluators {
        [true, ..] => 1,
        [false, true, ..] if function.is_some_and(|name| (read.is_at_end)(name.as_bytes())) => 2,
        _ => 0,
    }
}

/// The native frame that each run has an address in.
fn by_anchors(frames: &[Frame], evaluators: &[bool], runs: &[Run]) -> Vec<Option<usize>> {
    let object = |at: usize| frames.get(at).and_then(|frame| frame.symbol.object.as_ref());
    let known = evaluators.iter().position(|&is_evaluator| is_evaluator);
    // The evaluator may have parts that have no symbol.
    let is_evaluator = |at: usize| {
        evaluators.get(at).copied().unwrap_or(false)
            || known.is_none_or(|known| object(known) == object(at))
    };
    let mut first = 0_usize;
    let find = |run: &Run| {
        let anchor = run.anchor?;
        let holds = |pair: &[Frame]| match pair {
            [frame, caller] => (frame.sp..caller.sp).contains(&anchor),
            _ => false,
        };
        let rest = frames.get(first..)?;
        let found = rest.windows(2).position(holds).map(|skip| first.saturating_add(skip));
        // If one is nowhere, neither are those further out.
        first = found.unwrap_or(frames.len());
        found.filter(|&at| is_evaluator(at))
    };
    runs.iter().map(find).collect()
}

/// The evaluators in their order, if there are as many as runs, or if the stack is cut off.
fn by_count(
    evaluators: &[bool],
    between: usize,
    runs: &[Run],
    is_whole: bool,
) -> Vec<Option<usize>> {
    let all = evaluators.iter().enumerate().filter(|(_, is_evaluator)| **is_evaluator);
    let mut all: Vec<_> = all.map(|(at, _)| at).collect();
    if all.len() == runs.len().saturating_add(1) && all.first().is_some_and(|&at| at < between) {
        all.remove(0);
    }
    let is_exact = all.len() == runs.len() || (!is_whole && all.len() < runs.len());
    let mut all = all.into_iter();
    runs.iter().map(|_| all.next().filter(|_| is_exact)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::interpreters::frame::{CallKind, InterpretedFrame};

    const EVALUATOR: &str = "evaluator";

    fn native(functions: &[&str]) -> Vec<Frame> {
        let frame = |(function, at): (&&str, u64)| {
            let mut frame = Frame { sp: at, ..Frame::default() };
            frame.symbol.function = Some((*function).into());
            frame
        };
        functions.iter().zip((0x100..).step_by(0x100)).map(frame).collect()
    }

    fn run(anchor: Option<u64>, name: &str) -> Run {
        let function = Some(name.into());
        let frame = InterpretedFrame {
            language: "python",
            kind: CallKind::Interpreted,
            function,
            file: None,
            line: None,
            start: None,
            text: None,
        };
        Run { anchor, frames: vec![frame] }
    }

    /// What the frames are joined to: the calls of each, and those without a place.
    fn joined(frames: &[&str], is_whole: bool, runs: Vec<Run>) -> Option<(String, bool, usize)> {
        let read = ReadFrames {
            interpreter: "Test".into(),
            is_evaluator: |function| function == EVALUATOR.as_bytes(),
            is_at_end: |function| function == b"check",
            threads: HashMap::new(),
            doubt: None,
        };
        let mut frames = native(frames);
        let thread = ThreadRuns { runs, doubt: None };
        let found = join(&mut frames, is_whole, &read, Some(&thread))?;
        let calls = frames.iter().map(|frame| match frame.interpreted.first() {
            Some(call) => call.to_string(),
            None => "-".into(),
        });
        let calls: Vec<_> = calls.collect();
        Some((calls.join(" "), found.complete, found.unplaced.len()))
    }

    #[test]
    fn runs_stand_where_their_addresses_are_and_every_evaluator_has_one() {
        let frames = ["sleep", EVALUATOR, "sort", EVALUATOR, "main"];
        let runs = || vec![run(Some(0x2f0), "f"), run(Some(0x400), "g")];
        let (calls, complete, unplaced) = joined(&frames, true, runs()).unwrap();
        assert_eq!((&*calls, complete, unplaced), ("- f - g -", true, 0));
        // One has none.
        let (calls, complete, _) = joined(&frames, true, vec![run(Some(0x400), "g")]).unwrap();
        assert_eq!((&*calls, complete), ("- - - g -", false));
        // One is at a frame that is none of the evaluator, and two are at one.
        for other in [0x300, 0x410] {
            let runs = vec![run(Some(0x2f0), "f"), run(Some(0x400), "g"), run(Some(other), "h")];
            assert!(!joined(&frames, true, runs).unwrap().1);
        }
        // None is anywhere, and no evaluator is there.
        assert_eq!(joined(&["sleep", "main"], true, Vec::new()), None);
    }

    #[test]
    fn an_evaluator_that_begins_or_ends_needs_no_run() {
        for (frames, expected) in [
            (&[EVALUATOR, "sort", EVALUATOR, "main"][..], ("- - g -", true)),
            (&["check", EVALUATOR, "sort", EVALUATOR, "main"], ("- - - g -", true)),
        ] {
            let place = native(frames).iter().rev().nth(1).map(|frame| frame.sp);
            for anchor in [place, None] {
                let (calls, complete, _) = joined(frames, true, vec![run(anchor, "g")]).unwrap();
                assert_eq!((&*calls, complete), expected, "{anchor:?}");
            }
        }
        let (_, complete, _) =
            joined(&["sleep", EVALUATOR, "sort", EVALUATOR, "main"], true, vec![run(None, "g")])
                .unwrap();
        assert!(!complete);
    }

    #[test]
    fn runs_without_addresses_are_counted() {
        let runs = |names: &[&str]| names.iter().map(|name| run(None, name)).collect();
        let frames = ["sleep", EVALUATOR, "sort", EVALUATOR, "main"];
        let (calls, complete, _) = joined(&frames, true, runs(&["f", "g"])).unwrap();
        assert_eq!((&*calls, complete), ("- f - g -", true));
        let (calls, complete, unplaced) = joined(&frames, true, runs(&["f", "g", "h"])).unwrap();
        assert_eq!((&*calls, complete, unplaced), ("- - - - -", false, 3));
        // The rest of a stack that is cut off has its calls, too.
        let (calls, complete, unplaced) = joined(&frames, false, runs(&["f", "g", "h"])).unwrap();
        assert_eq!((&*calls, complete, unplaced), ("- f - g -", false, 1));
    }
}
