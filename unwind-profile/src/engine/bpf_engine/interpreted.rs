//! Calls of interpreters: what the program has read of a thread becomes functions and lines, at the frames of
//! its stack.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use unwind_bpf::{Calls, Cookie, End, Interpreter, Pieces, Stack, identity_of};
use unwind_target::interpreters::python::{
    Piece, SampledCalls, SampledCode, SampledPython, Snapshot,
};
use unwind_target::target::memory::ProcessMemory;

use crate::recording::code_names::{CodeNames, InterpretedCode};
use crate::recording::told_stack::{ToldStack, word_of};

/// Calls that wait for their stack at most: it comes right after them, but for records of other CPUs.
const WAITING: usize = 1 << 8;

/// About how many bytes of the code of programs are kept; then it is read again.
const CODE: usize = 256 << 20;

/// The interpreters of the files that were looked at, by their place.
#[derive(Clone, Debug, Default)]
pub(super) struct Pythons(Arc<Mutex<Vec<Arc<SampledPython>>>>);

impl Pythons {
    /// Adds one. Returns its place.
    pub(super) fn add(&self, python: SampledPython) -> Option<u32> {
        let mut pythons = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = u32::try_from(pythons.len()).ok()?;
        pythons.push(Arc::new(python));
        Some(place)
    }

    fn get(&self, place: u32) -> Option<Arc<SampledPython>> {
        let pythons = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        usize::try_from(place).ok().and_then(|place| pythons.get(place)).cloned()
    }
}

/// What the program is to read of an interpreter.
pub(super) fn read_of(python: &SampledPython) -> Interpreter {
    let offsets = python.offsets;
    Interpreter {
        runtime: python.runtime,
        code: (python.code.start, python.code.end),
        first_interpreter: offsets.first_interpreter,
        next_interpreter: offsets.next_interpreter,
        first_thread: offsets.first_thread,
        next_thread: offsets.next_thread,
        thread_id: offsets.thread_id,
        first: offsets.first,
        records: offsets.records,
        record_innermost: offsets.record_innermost,
        record_previous: offsets.record_previous,
        call_bytes: offsets.call_bytes,
        previous: offsets.previous,
        call_code: offsets.code,
        place: offsets.place,
        mark: offsets.mark,
        entry: offsets.entry,
        identity: offsets.identity,
        identity_words: offsets.identity_words,
        hash: offsets.hash,
    }
}

/// A program: its process, its interpreter and where that is.
type Program = (u32, u32, u64);

/// Joins calls with stacks.
#[derive(Debug, Default)]
pub(super) struct Interpreted {
    pub(super) pythons: Pythons,
    pub(super) names: CodeNames,
    programs: HashMap<Program, SampledCode>,
    code_size: usize,
    waiting: VecDeque<(Cookie, Program, Snapshot)>,
}

impl Interpreted {
    /// Takes what was read for the stack that comes next.
    pub(super) fn take(&mut self, calls: &Calls<'_>) {
        if self.waiting.len() >= WAITING {
            self.waiting.pop_front();
        }
        let snapshot = Snapshot {
            thread: calls.thread,
            first: calls.first,
            evaluators: pieces(calls.evaluators),
            records: pieces(calls.records),
            calls: pieces(calls.calls),
            is_whole: calls.is_whole(),
        };
        let program = (calls.origin.process, calls.interpreter, calls.bias);
        self.waiting.push_back((calls.cookie, program, snapshot));
    }

    /// The first words of a stack with calls, if it has some.
    pub(super) fn words(&mut self, stack: &Stack<'_>, reason: Option<&str>) -> Option<Vec<u64>> {
        let at = self.waiting.iter().rposition(|(of, ..)| *of == stack.cookie)?;
        let (_, program, snapshot) = self.waiting.remove(at)?;
        let calls = self.calls(program, &snapshot, stack.end == End::Outermost).unwrap_or_default();
        let mut words = Vec::new();
        for (place, run) in &calls.runs {
            let narrow = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
            words.push(word_of(narrow(*place), narrow(run.len())));
            for call in run {
                let (function, file) = (call.function.clone(), call.file.clone());
                let number = self.names.number(InterpretedCode { function, file });
                words.push(word_of(number, call.line.unwrap_or(0)));
            }
        }
        Some(ToldStack::calling(reason, &words, calls.is_complete))
    }

    fn calls(
        &mut self,
        program: Program,
        snapshot: &Snapshot,
        is_whole: bool,
    ) -> Option<SampledCalls> {
        let (process, place, bias) = program;
        let python = self.pythons.get(place)?;
        if self.code_size > CODE {
            self.programs.clear();
            self.code_size = 0;
        }
        let before = self.programs.get(&program).map_or(0, SampledCode::size);
        let code = self.programs.entry(program).or_insert_with(|| SampledCode::new(python, bias));
        let memory = || ProcessMemory::open(i32::try_from(process).ok()?).ok();
        let calls = code.calls(snapshot, is_whole, memory, identity_of);
        let more = code.size().saturating_sub(before);
        self.code_size = self.code_size.saturating_add(more);
        Some(calls)
    }
}

fn pieces(pieces: Pieces<'_>) -> Vec<Piece> {
    let piece = |it: unwind_bpf::Piece| Piece { at: it.at, check: it.check, words: it.words };
    pieces.iter().map(piece).collect()
}
