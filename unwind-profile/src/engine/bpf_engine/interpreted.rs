//! Calls of interpreters: what the program has read of a thread becomes functions and lines, at the frames of
//! its stack.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::Read as _;
use std::sync::{Arc, Mutex, PoisonError};

use unwind_bpf::{CPython, Calls, Cookie, Interpreter, Pieces, V8, identity_of};
use unwind_target::InterpretedFrame;
use unwind_target::elf::ElfFile;
use unwind_target::interpreters::python::{SampledCode, SampledPython, Snapshot};
use unwind_target::interpreters::sampled::{
    Others, Piece, SampledCalls, SampledRun, UnreadInterpreter,
};
use unwind_target::interpreters::v8::{SampledFrames, SampledV8, asks_for_details};
use unwind_target::target::memory::ProcessMemory;

use crate::recording::code_names::{CodeNames, InterpretedCode, Language};
use crate::recording::told_stack::{ToldCalls, ToldFrame};

/// Calls that wait for their stack at most: it comes right after them, but for records of other CPUs.
const WAITING: usize = 1 << 8;

/// About how many bytes of the code of programs are kept; then it is read again.
const CODE: usize = 256 << 20;

/// An interpreter in a file.
#[derive(Clone, Debug)]
pub(super) enum Sampled {
    Python(Arc<SampledPython>),
    V8(Arc<SampledV8>),
}

impl Sampled {
    /// That of a file, if it has one whose calls can be read.
    pub(super) fn of(file: &ElfFile) -> Result<Option<Self>, UnreadInterpreter> {
        if let Some(python) = SampledPython::of(file)? {
            return Ok(Some(Self::Python(Arc::new(python))));
        }
        Ok(SampledV8::of(file)?.map(|v8| Self::V8(Arc::new(v8))))
    }

    /// What the program is to read of it.
    pub(super) fn read(&self) -> Interpreter {
        match self {
            Self::Python(python) => Interpreter::CPython(read_of_python(python)),
            Self::V8(v8) => Interpreter::V8(read_of_v8(v8)),
        }
    }
}

/// The interpreters of the files that were looked at, by their place.
#[derive(Clone, Debug, Default)]
pub(super) struct Interpreters(Arc<Mutex<Vec<Sampled>>>);

impl Interpreters {
    /// Adds one. Returns its place.
    pub(super) fn add(&self, interpreter: Sampled) -> Option<u32> {
        let mut interpreters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = u32::try_from(interpreters.len()).ok()?;
        interpreters.push(interpreter);
        Some(place)
    }

    fn get(&self, place: u32) -> Option<Sampled> {
        let interpreters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        usize::try_from(place).ok().and_then(|place| interpreters.get(place)).cloned()
    }
}

fn read_of_v8(v8: &SampledV8) -> V8 {
    let offsets = v8.offsets;
    V8 {
        builtins: (v8.builtins.start, v8.builtins.end),
        marker: offsets.marker,
        function: offsets.function,
        bytecode: offsets.bytecode,
        bytecode_offset: offsets.bytecode_offset,
        shared: offsets.shared,
        name: offsets.name,
        script: offsets.script,
        instance_type: offsets.instance_type,
        shared_type: offsets.shared_type,
        bytecode_type: offsets.bytecode_type,
    }
}

fn read_of_python(python: &SampledPython) -> CPython {
    let offsets = python.offsets;
    CPython {
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

/// What was read of it.
#[derive(Debug)]
enum Code {
    Python(SampledCode),
    V8(SampledFrames),
}

impl Code {
    fn size(&self) -> usize {
        match self {
            Self::Python(code) => code.size(),
            Self::V8(frames) => frames.size(),
        }
    }
}

/// Joins calls with stacks.
#[derive(Debug, Default)]
pub(super) struct Interpreted {
    pub(super) interpreters: Interpreters,
    pub(super) names: CodeNames,
    programs: HashMap<Program, Code>,
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

    /// The words of the calls of a stack with this cookie, if some were read, and whether these are all. `is_whole` says
    /// that its native part is. Those of the outermost frames are left out if there is no `room` for their words.
    pub(super) fn words(
        &mut self,
        cookie: Cookie,
        is_whole: bool,
        room: usize,
    ) -> Option<(Vec<u64>, bool)> {
        let at = self.waiting.iter().rposition(|(of, ..)| *of == cookie)?;
        let (_, program, snapshot) = self.waiting.remove(at)?;
        let calls = self.calls(program, &snapshot, is_whole).unwrap_or_default();
        let (mut words, mut is_complete) = (Vec::new(), calls.is_complete);
        for SampledRun { place, pc, cfa, calls, others, code } in calls.runs {
            let place = u32::try_from(place).unwrap_or(u32::MAX);
            let code = code.map_or([0, 0], |code| [code.start, code.end]);
            let frame = ToldFrame { place, pc, cfa, others, code };
            let inlined = (others == Others::Inlined)
                .then(|| (self.names.number(InterpretedCode::MAYBE_INLINED), 0));
            let calls = calls.into_iter().map(|call| self.numbered(call));
            let calls: Vec<_> = inlined.into_iter().chain(calls).collect();
            let before = words.len();
            words.extend(ToldCalls::words_of(frame, &calls));
            if words.len() > room {
                words.truncate(before);
                is_complete = false;
                break;
            }
        }
        Some((words, is_complete))
    }

    /// The number of the code of a call, and its line or 0.
    fn numbered(&self, call: InterpretedFrame) -> (u32, u32) {
        let language = Language::of(call.language).unwrap_or(Language::Python);
        let function = match (call.function, language, call.start) {
            (None, Language::JavaScript, Some(start)) => {
                Some(format!("<anonymous:{start}>").into())
            }
            (None, Language::JavaScript, None) => Some("<anonymous>".into()),
            (function, ..) => function,
        };
        let code = InterpretedCode { language, function, file: call.file };
        (self.names.number(code), call.line.unwrap_or(0))
    }

    fn calls(
        &mut self,
        program: Program,
        snapshot: &Snapshot,
        is_whole: bool,
    ) -> Option<SampledCalls> {
        let (process, place, bias) = program;
        let interpreter = self.interpreters.get(place)?;
        if self.code_size > CODE {
            self.programs.clear();
            self.code_size = 0;
        }
        let before = self.programs.get(&program).map_or(0, Code::size);
        let code = self.programs.entry(program).or_insert_with(|| match interpreter {
            Sampled::Python(python) => Code::Python(SampledCode::new(python, bias)),
            Sampled::V8(v8) => {
                Code::V8(SampledFrames::new(v8, asks_for_details(&arguments(process))))
            }
        });
        let memory = || ProcessMemory::open(i32::try_from(process).ok()?).ok();
        let calls = match code {
            Code::Python(code) => code.calls(snapshot, is_whole, memory, identity_of),
            Code::V8(frames) => {
                frames.calls(&snapshot.calls, snapshot.is_whole, memory, identity_of)
            }
        };
        let more = code.size().saturating_sub(before);
        self.code_size = self.code_size.saturating_add(more);
        Some(calls)
    }
}

/// The first arguments of a process; none if it has ended.
fn arguments(process: u32) -> Vec<u8> {
    /// More than options take. A program can have any number.
    const MOST: u64 = 64 << 10;
    let mut arguments = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{process}/cmdline")) {
        // What was read until then is of use.
        let _ = file.take(MOST).read_to_end(&mut arguments);
    }
    arguments
}

fn pieces(pieces: Pieces<'_>) -> Vec<Piece> {
    let piece = |it: unwind_bpf::Piece| Piece { at: it.at, check: it.check, words: it.words };
    pieces.iter().map(piece).collect()
}
