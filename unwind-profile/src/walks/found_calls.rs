//! The calls of interpreters in the stacks of samples: a part of the [section](super::found_frames) that says
//! how frames were found, since samples have addresses alone.
//!
//! Most samples share most of their calls, so these are a tree: a sample has the place of its innermost call.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unwind_target::Untrusted;

use crate::recording::code_names::{InterpretedCall, InterpretedCode, Language};
use crate::walks::walked_stack::WalkedStack;

/// How many calls are kept in the tree, and of how many samples: with these, all names and what there is of other
/// frames the section stays below 64 MiB, which a reader allows.
pub(super) const MAX_CALLS: usize = 1 << 18;
pub(super) const MAX_SAMPLES: usize = 1 << 21;
/// How many bytes names take in JSON.
pub(super) const MAX_NAMES: usize = 8 << 20;
/// How many calls a stack has at most.
const MAX_DEPTH: usize = 1 << 10;

/// A call: that of its caller plus one, its code, its line, and which native frame executes it, counted from
/// the outermost.
type Call = (u32, u32, u32, u32);

/// The calls of all samples, as the section has them in JSON.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct FoundCalls {
    /// The language, the function and the file of each code; `null` where that is not known.
    codes: Vec<(String, Option<String>, Option<String>)>,
    calls: Vec<Call>,
    /// For each sample, in the order of the file, the place of its innermost call plus one, or 0.
    samples: Vec<u32>,
    #[serde(skip)]
    read: Vec<Arc<InterpretedCode>>,
}

impl FoundCalls {
    /// Makes the names ready after reading.
    pub(crate) fn prepare(&mut self) {
        let code = |(language, function, file): &(String, Option<String>, Option<String>)| {
            let text = |text: &Option<String>| text.as_deref().map(Untrusted::of_shown);
            let language = Language::of(language).unwrap_or(Language::Python);
            Arc::new(InterpretedCode { language, function: text(function), file: text(file) })
        };
        self.read = self.codes.iter().map(code).collect();
    }

    /// The same of a file that has the samples in this order, by their places here.
    pub(super) fn in_order(self, order: &[u64]) -> Self {
        Self { samples: places_in_order(&self.samples, order, MAX_SAMPLES), ..self }
    }

    /// The calls of a sample that has `frames` native frames: the place of the frame that executes each, from the
    /// innermost on, and the call.
    #[must_use]
    pub fn of_sample(&self, number: u64, frames: usize) -> Vec<(usize, InterpretedCall)> {
        let sample = usize::try_from(number).ok().and_then(|number| self.samples.get(number));
        let mut next = sample.copied().unwrap_or(0);
        let mut found = Vec::new();
        while found.len() < MAX_DEPTH
            && let Some(at) = usize::try_from(next).ok().and_then(|next| next.checked_sub(1))
            && let Some(&(caller, code, line, outer)) = self.calls.get(at)
        {
            let code = usize::try_from(code).ok().and_then(|code| self.read.get(code));
            let place = usize::try_from(outer).ok();
            let place = place.and_then(|outer| frames.checked_sub(outer)?.checked_sub(1));
            if let (Some(code), Some(place)) = (code, place) {
                found.push((place, InterpretedCall { code: Arc::clone(code), line }));
            }
            // Callers come first.
            if caller >= next {
                break;
            }
            next = caller;
        }
        found
    }
}

/// What samples have, in another order of these: of the first `most`.
pub(super) fn places_in_order(places: &[u32], order: &[u64], most: usize) -> Vec<u32> {
    let place = |&number: &u64| {
        let place = usize::try_from(number).ok().and_then(|number| places.get(number));
        place.copied().unwrap_or(0)
    };
    order.iter().take(most).map(place).collect()
}

/// Collects the calls of samples, while these are written.
#[derive(Debug, Default)]
pub(crate) struct FoundCallsBuilder {
    found: FoundCalls,
    codes: HashMap<Arc<InterpretedCode>, u32>,
    calls: HashMap<Call, u32>,
    names: usize,
}

impl FoundCallsBuilder {
    /// Takes the stack of the sample of this number, or of a later one than those before. Returns whether there is
    /// room for all of its calls; if not it has none.
    #[must_use]
    pub(crate) fn take(&mut self, number: usize, walked: &WalkedStack) -> bool {
        if walked.calls.is_empty() {
            return true;
        }
        let count =
            walked.calls.iter().fold(0, |sum: usize, (_, run)| sum.saturating_add(run.len()));
        if number >= MAX_SAMPLES || count > MAX_DEPTH {
            return false;
        }
        let mut caller = 0;
        for (place, run) in walked.calls.iter().rev() {
            let outer = walked.frames.len().checked_sub(*place).and_then(|it| it.checked_sub(1));
            let Some(outer) = outer.and_then(|outer| u32::try_from(outer).ok()) else { continue };
            for call in run.iter().rev() {
                let Some(next) = self.call(caller, call, outer) else { return false };
                caller = next;
            }
        }
        self.found.samples.resize(number, 0);
        self.found.samples.push(caller);
        true
    }

    /// The place of a call plus one, if there is room.
    fn call(&mut self, caller: u32, call: &InterpretedCall, outer: u32) -> Option<u32> {
        let call = (caller, self.code(&call.code)?, call.line, outer);
        if let Some(&place) = self.calls.get(&call) {
            return Some(place);
        }
        let place = self.found.calls.len().checked_add(1).filter(|&place| place <= MAX_CALLS)?;
        let place = u32::try_from(place).ok()?;
        self.found.calls.push(call);
        self.calls.insert(call, place);
        Some(place)
    }

    fn code(&mut self, code: &Arc<InterpretedCode>) -> Option<u32> {
        if let Some(&place) = self.codes.get(code) {
            return Some(place);
        }
        let text = |name: &Option<Untrusted>| name.as_ref().map(|name| name.escaped().to_string());
        let (function, file) = (text(&code.function), text(&code.file));
        // A character may take six bytes.
        let len =
            |text: &Option<String>| serde_json::to_string(text).map_or(MAX_NAMES, |it| it.len());
        self.names = self.names.saturating_add(len(&function)).saturating_add(len(&file));
        let place = u32::try_from(self.found.codes.len()).ok()?;
        if self.names > MAX_NAMES {
            return None;
        }
        self.found.codes.push((code.language.name().to_owned(), function, file));
        self.codes.insert(Arc::clone(code), place);
        Some(place)
    }

    /// The part of the section; `None` if there were no calls.
    pub(crate) fn finish(self) -> Option<FoundCalls> {
        (!self.found.calls.is_empty()).then_some(self.found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, line: u32) -> InterpretedCall {
        let (language, file) = (Language::JavaScript, Some("a.js".into()));
        let code = InterpretedCode { language, function: Some(name.into()), file };
        InterpretedCall { code: Arc::new(code), line }
    }

    #[test]
    fn each_sample_has_its_calls_at_their_frames() {
        let mut builder = FoundCallsBuilder::default();
        let stack = |frames: usize, calls: Vec<(usize, Vec<InterpretedCall>)>| {
            let pcs = vec![0x1000; frames];
            WalkedStack { calls, ..WalkedStack::told(&pcs, None) }
        };
        let outer = || vec![call("main", 7), call("<module>", 9)];
        let first = vec![(1, vec![call("key\\ \u{1b}[31m", 3)]), (3, outer())];
        assert!(builder.take(0, &stack(5, first.clone())));
        assert!(builder.take(1, &stack(5, Vec::new())));
        // Another leaf under the same callers, one frame deeper.
        let second = vec![(4, outer())];
        assert!(builder.take(2, &stack(6, second.clone())));
        let text = serde_json::to_vec(&builder.finish().unwrap()).unwrap();
        let mut found: FoundCalls = serde_json::from_slice(&text).unwrap();
        found.prepare();
        assert_eq!((found.calls.len(), found.codes.len()), (3, 3));
        let flat = |runs: Vec<(usize, Vec<InterpretedCall>)>| -> Vec<_> {
            let of_run = |(at, run): (usize, Vec<_>)| run.into_iter().map(move |it| (at, it));
            runs.into_iter().flat_map(of_run).collect()
        };
        assert_eq!(found.of_sample(0, 5), flat(first));
        assert_eq!(found.of_sample(1, 5), []);
        assert_eq!(found.of_sample(2, 6), flat(second));
        assert_eq!(found.of_sample(3, 6), []);
    }

    #[test]
    fn calls_without_room_are_told_and_leave_no_part_of_a_stack() {
        let mut builder = FoundCallsBuilder::default();
        let stack = |name: &str, line| WalkedStack {
            calls: vec![(0, vec![call(name, line)])],
            ..WalkedStack::told(&[0x1000], None)
        };
        assert!(builder.take(0, &stack("f", 1)));
        builder.found.calls.resize(MAX_CALLS, (0, 0, 0, 0));
        assert!(!builder.take(1, &stack("f", 2)));
        // One that is there already has room, and a stack without calls needs none.
        assert!(builder.take(2, &stack("f", 1)));
        assert!(builder.take(3, &WalkedStack::told(&[0x1000], None)));
        assert!(!builder.take(MAX_SAMPLES, &stack("f", 1)));
        builder.names = MAX_NAMES;
        assert!(!builder.take(4, &stack("g", 1)));
        assert_eq!(builder.finish().unwrap().samples, [1, 0, 1]);
    }

    #[test]
    fn a_tree_that_lies_ends() {
        let text = br#"{"codes":[["python","f",null]],"calls":[[1,0,1,0],[9,0,1,0],[1,9,1,0]],
            "samples":[1,2,3,4,4294967295]}"#;
        let mut found: FoundCalls = serde_json::from_slice(text).unwrap();
        found.prepare();
        let counts: Vec<_> = (0..6).map(|number| found.of_sample(number, 3).len()).collect();
        assert_eq!(counts, [1, 1, 1, 0, 0, 0]);
        // Of fewer frames than are said.
        assert_eq!(found.of_sample(0, 0), []);
    }
}
