//! A walked stack: its frames, the calls of interpreters that these execute, and why there may be others.

use std::collections::HashMap;

use unwind_core::{FramePc, Provenance};
use unwind_target::interpreters::python::is_evaluator;
use unwind_target::interpreters::sampled::Others;

use crate::mapped::address_spaces::Space;
use crate::mapped::generated_code::{V8Code, V8Returns};
use crate::recording::code_names::{CodeNames, InterpretedCall, InterpretedCode};
use crate::recording::told_stack::ToldCalls;
use crate::walks::call_stacks::{CallStack, FrameSource, JoinedCall};
use crate::walks::found_by::FoundBy;
use crate::walks::stack_end::STACK_COPY_TOO_SHORT;

/// A walked stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalkedStack {
    /// Innermost first.
    pub frames: Vec<WalkedFrame>,
    /// Why there are no more frames, if the last one is not known to be the outermost. To be
    /// shown as it is: the names in it are escaped.
    pub cut: Option<String>,
    /// The same in a word, which stays the same in later versions; empty where there is
    /// nothing to say.
    pub(crate) end: &'static str,
    /// The calls that frames of an interpreter's evaluator execute, by their places, the innermost first.
    pub calls: Vec<(usize, Vec<InterpretedCall>)>,
}

/// Why stacks are not complete whose calls of an interpreter may not be all there, or at their frames.
pub(crate) const IN_DOUBT: &str = "interpreted-calls";

/// A frame of a walked stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkedFrame {
    /// The pc: of the first frame the sampled one, of others where they continue.
    pub pc: u64,
    /// The last byte of the call, or the pc itself where that was not a call.
    pub call: u64,
    /// Callers may be missing before this one.
    pub after_gap: bool,
    /// From where it is known, if that was joined with calls that the CPU recorded.
    pub source: Option<FrameSource>,
    /// How the walk found it, if it did.
    pub(crate) found: Option<FoundBy>,
}

impl WalkedStack {
    /// Joins the frames with the calls that the CPU recorded.
    pub(crate) fn join(&mut self, calls: &CallStack) {
        let pcs: Vec<u64> = self.frames.iter().map(|frame| frame.pc).collect();
        let joined = |frame: JoinedCall| {
            let walked = frame.walked.and_then(|at| self.frames.get(at));
            let found =
                |walked: &WalkedFrame| WalkedFrame { source: Some(frame.source), ..*walked };
            walked.map_or(
                WalkedFrame {
                    pc: frame.pc,
                    call: frame.call,
                    after_gap: false,
                    source: Some(frame.source),
                    found: None,
                },
                found,
            )
        };
        self.frames = calls.joined(&pcs).into_iter().map(joined).collect();
        self.calls.clear();
    }

    /// One that an engine has walked by tables: its addresses, and why there are no more if it is not
    /// complete.
    pub(crate) fn told(pcs: &[u64], incomplete: Option<&'static str>) -> Self {
        let frames = pcs.iter().enumerate().map(|(at, &pc)| WalkedFrame::told(pc, at == 0));
        let cut = incomplete.map(|reason| format!("walked in the kernel: {reason}"));
        let (frames, end) = (frames.collect(), incomplete.unwrap_or(""));
        Self { frames, cut, end, calls: Vec::new() }
    }

    /// The same with calls of an interpreter.
    pub(crate) fn with_calls(mut self, told: ToldCalls<'_>, names: &CodeNames) -> Self {
        let call = |(number, line): (u32, u32)| InterpretedCall { code: names.code(number), line };
        let mut lacks_calls = !told.is_complete;
        for (frame, calls) in told.runs().filter(|(_, calls)| calls.len() != 0) {
            lacks_calls |= frame.others == Others::Unknown;
            let place = usize::try_from(frame.place).unwrap_or(usize::MAX);
            self.calls.push((place, calls.map(call).collect()));
        }
        if lacks_calls { self.lacking_calls() } else { self }
    }

    /// The same with calls of frames in V8's code, which were read where the stack was copied: what is known of a frame
    /// by its CFA and pc is told of it, and the stack is complete if that is so of all in such code.
    pub(crate) fn with_calls_of_v8(
        mut self,
        cfas: &[Option<u64>],
        told: ToldCalls<'_>,
        (names, space): (&CodeNames, &Space),
    ) -> Self {
        let call = |(number, line): (u32, u32)| InterpretedCall { code: names.code(number), line };
        let mut runs: HashMap<_, _> =
            told.runs().map(|(frame, calls)| ((frame.cfa, frame.pc), (frame, calls))).collect();
        let code = V8Returns { space };
        if code.is_moved() {
            return self;
        }
        let mut lacks_calls = false;
        // Further in than a gap calls may be missing as frames may be, which is told there.
        let gap = self.frames.iter().position(|frame| frame.after_gap).unwrap_or(0);
        for (place, frame) in self.frames.iter().enumerate() {
            let cfa = cfas.get(place).copied().flatten();
            let run = cfa.and_then(|cfa| runs.remove(&(cfa, frame.pc)));
            match run {
                Some((told, calls)) => {
                    lacks_calls |= place >= gap && told.others == Others::Unknown;
                    if calls.len() != 0 {
                        self.calls.push((place, calls.map(call).collect()));
                    }
                }
                // A builtin function that has not called anything executes itself.
                None => match code.calls_are_read_at(frame.call) {
                    Some(V8Code::Builtin) if place == 0 => {}
                    Some(_) if place >= gap => lacks_calls = true,
                    Some(_) | None => {}
                },
            }
        }
        if lacks_calls { self.lacking_calls() } else { self }
    }

    /// Whether an interpreter's evaluator may have a frame: a part of it may have no name.
    pub(crate) fn may_have_evaluator(&self, space: &Space) -> bool {
        let is_it =
            |frame: &WalkedFrame| {
                let range = space.find(frame.call)?;
                let file = Some(&range.file).filter(|file| file.has_python())?;
                let function = file.function(range.link_time(frame.call)?);
                Some(function.is_none_or(|(_, aliases)| {
                    aliases.iter().any(|alias| is_evaluator(&alias.name))
                }))
            };
        self.frames.iter().any(|frame| is_it(frame).unwrap_or(false))
    }

    /// The same where calls of an interpreter may be missing.
    pub(crate) fn lacking_calls(mut self) -> Self {
        // Calls that are missing elsewhere than at a gap are not told by that.
        if self.cut.is_none() {
            self.cut = Some("calls of an interpreter are in doubt".to_owned());
            self.end = IN_DOUBT;
        }
        self
    }

    /// Whether a call may be one of the functions that are inlined in it, which is said at its place.
    pub(crate) fn has_call_of_several(&self) -> bool {
        let mut calls = self.calls.iter().flat_map(|(_, calls)| calls);
        calls.any(|call| *call.code == InterpretedCode::MAYBE_INLINED)
    }

    /// Whether no frame is missing.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.incomplete().is_none()
    }

    /// Whether the stack is deeper than its copy.
    pub(crate) fn is_cut_by_copy(&self) -> bool {
        self.cut.is_some() && self.end == STACK_COPY_TOO_SHORT
    }

    /// Why frames may be missing, in a word.
    #[must_use]
    pub fn incomplete(&self) -> Option<&'static str> {
        match self.cut {
            Some(_) => Some(self.end),
            None => self.frames.iter().any(|frame| frame.after_gap).then_some("gap"),
        }
    }
}

impl WalkedFrame {
    /// One that an engine has found by tables, or where the sample was taken.
    fn told(pc: u64, is_sampled: bool) -> Self {
        let found = if is_sampled { FoundBy::Sampled } else { FoundBy::CallFrames };
        // Which are calls it does not say, and nearly all are.
        let call = if is_sampled { pc } else { pc.saturating_sub(1) };
        Self { pc, call, after_gap: false, source: None, found: Some(found) }
    }

    /// How it was found.
    pub(crate) fn found_by(&self) -> FoundBy {
        match (self.source, self.found) {
            (None, _) if self.after_gap => FoundBy::Guess,
            (Some(source), None) => FoundBy::of_source(source),
            (_, Some(found)) => found,
            (None, None) => FoundBy::Unchecked,
        }
    }

    /// The address for lists: the pc, or that of the call which the CPU recorded.
    #[must_use]
    pub const fn listed(&self) -> u64 {
        match self.source {
            None | Some(FrameSource::Sampled | FrameSource::Walk) => self.pc,
            Some(_) => self.call,
        }
    }

    pub(crate) fn new(pc: FramePc, provenance: Provenance) -> Self {
        Self {
            pc: pc.addr().get(),
            call: pc.lookup_addr().get(),
            after_gap: provenance.is_after_gap(),
            source: None,
            found: Some(FoundBy::of_provenance(provenance)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::told_stack::ToldFrame;

    #[test]
    fn calls_of_v8_stand_at_the_frames_with_their_cfas_and_pcs_and_what_is_not_known_is_told() {
        let told = |cfa, pc, others| {
            let frame = ToldFrame { place: 9, pc, cfa, others, code: [0, 0] };
            ToldCalls::words_of(frame, &[(0, 7)]).collect::<Vec<u64>>()
        };
        let (pcs, cfas) = ([0x1000, 0x2000, 0x3000], [Some(0x7010), None, Some(0x7030)].to_vec());
        let found = |runs: &[Vec<u64>]| {
            let (words, names) = (runs.concat(), CodeNames::default());
            let stack = WalkedStack::told(&pcs, None);
            let setup = (&names, &Space::default());
            let stack = stack.with_calls_of_v8(&cfas, ToldCalls::of(&words), setup);
            let places: Vec<_> = stack.calls.iter().map(|(place, _)| *place).collect();
            (places, stack.incomplete())
        };
        let outer = told(0x7030, 0x3000, Others::None);
        assert_eq!(found(&[told(0x7010, 0x1000, Others::None), outer.clone()]), (vec![0, 2], None));
        // At another CFA, and with another pc.
        let others = [told(0x7020, 0x2000, Others::None), told(0x7010, 0x1001, Others::None)];
        assert_eq!(found(&[&others[..], &[outer]].concat()), (vec![2], None));
        let inlined = told(0x7010, 0x1000, Others::Inlined);
        assert_eq!(found(std::slice::from_ref(&inlined)), (vec![0], None));
        let unknown = told(0x7030, 0x3000, Others::Unknown);
        assert_eq!(found(&[inlined, unknown.clone()]), (vec![0, 2], Some(IN_DOUBT)));
        // Calls that are missing further out than a gap are told, others are by the gap.
        let with_gap = |run: &[u64]| {
            let mut stack = WalkedStack::told(&pcs, None);
            stack.frames[2].after_gap = true;
            let setup = (&CodeNames::default(), &Space::default());
            stack.with_calls_of_v8(&cfas, ToldCalls::of(run), setup).incomplete()
        };
        assert_eq!(with_gap(&unknown), Some(IN_DOUBT));
        assert_eq!(with_gap(&told(0x7010, 0x1000, Others::Unknown)), Some("gap"));
    }
}
