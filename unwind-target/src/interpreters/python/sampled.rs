//! CPython in a file, as who samples programs needs it: what is to be read of a thread at a sample, and the
//! calls that come of that.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use unwind_core::Memory;

use crate::elf::ElfFile;
use crate::interpreters::bounded_memory::{BoundedMemory, Doubt};
use crate::interpreters::join::join;
use crate::interpreters::python::code::{Code, CodeObjects, Types};
use crate::interpreters::python::offsets::Layout;
use crate::interpreters::python::snapshot::{Offsets, Snapshot, SnapshotMemory};
use crate::interpreters::python::threads::read_runs;
use crate::interpreters::python::version::{Version, version_in_path};
use crate::interpreters::python::{DATA, none_of};
use crate::interpreters::runs::ThreadRuns;
use crate::interpreters::sampled::{
    CheckOf, FileMemory, Others, Piece, SampledCalls, SampledRun, UnreadInterpreter,
};
use crate::stack::frame::Frame;
use crate::symbols::data::{data_named, functions_named};

/// How many bytes are read of a program for the code objects of a sample.
const BYTES: u64 = 8 << 20;

/// CPython in a file. Addresses are those of the file.
#[derive(Clone, Debug)]
pub struct SampledPython {
    layout: Layout,
    /// Which words a snapshot is to have.
    pub offsets: Offsets,
    /// `_PyRuntime`.
    pub runtime: u64,
    types: Types,
    /// The evaluator's code.
    evaluator: Range<u64>,
    /// The code whose frames a snapshot is to have: that, or all if the evaluator may be many functions.
    pub code: Range<u64>,
}

impl SampledPython {
    /// That of a file, if it has one.
    ///
    /// # Errors
    ///
    /// [`UnreadInterpreter`] if its calls cannot be read.
    pub fn of(file: &ElfFile) -> Result<Option<Self>, UnreadInterpreter> {
        const EVALUATOR: [&[u8]; 1] = [b"_PyEval_EvalFrameDefault"];
        let found = data_named(file, &DATA).ok().zip(functions_named(file, &EVALUATOR).ok());
        let Some(([runtime, version, code, text], [Some((start, len))])) = found else {
            return Ok(None);
        };
        let unread = |interpreter| move |doubt| UnreadInterpreter { interpreter, doubt };
        let mut memory = FileMemory { file };
        let mut memory = BoundedMemory::new(&mut memory);
        let version = match version {
            Some(addr) => memory.word(addr, 0).map(Version::of_number),
            None => file.path().as_deref().and_then(version_in_path).ok_or(Doubt::NoVersion),
        };
        let version = version.map_err(unread("CPython".to_owned()))?;
        // The oldest versions have it in parts.
        let layout = runtime.ok_or(Doubt::Version).and_then(|runtime| {
            let layout = Layout::of(version, runtime, &mut memory)?;
            let offsets = Offsets::of(&layout).ok_or(Doubt::Version)?;
            Ok((runtime, layout, offsets))
        });
        let (runtime, layout, offsets) = layout.map_err(unread(format!("CPython {version}")))?;
        let evaluator = start..start.saturating_add(len);
        let types = Types { code, text };
        let code = match version.minor {
            0..14 => evaluator.clone(),
            14.. => 0..u64::MAX,
        };
        Ok(Some(Self { layout, offsets, runtime, types, evaluator, code }))
    }
}

/// The code objects of a program that samples were in.
#[derive(Debug)]
pub struct SampledCode {
    python: Arc<SampledPython>,
    /// What the addresses of the file are moved by.
    bias: u64,
    codes: HashMap<u64, Arc<Code>>,
    checks: HashMap<u64, u64>,
    /// About how many bytes all of them take.
    size: usize,
}

impl SampledCode {
    #[must_use]
    pub fn new(python: Arc<SampledPython>, bias: u64) -> Self {
        Self { python, bias, codes: HashMap::new(), checks: HashMap::new(), size: 0 }
    }

    /// About how many bytes it takes: code objects are kept that were read, but for those in whose place there are others.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size.saturating_add(size_of::<Self>())
    }

    /// The calls of a stack. `is_whole` says that its native part is. The memory of the program as it is now is for
    /// code objects that were not met before; one that is gone has no name. `check_of` makes the check of a piece of
    /// the words that tell one from another.
    pub fn calls<M: Memory>(
        &mut self,
        snapshot: &Snapshot,
        is_whole: bool,
        memory: impl Fn() -> Option<M>,
        check_of: CheckOf,
    ) -> SampledCalls {
        self.learn(snapshot, memory, check_of);
        let python = Arc::clone(&self.python);
        let mut words = SnapshotMemory::new(snapshot, python.offsets);
        let mut words = BoundedMemory::new(&mut words);
        let known = std::mem::take(&mut self.codes);
        let types = Types { code: None, text: None };
        let mut codes = CodeObjects::with(&python.layout, types, known);
        let runs = read_runs(snapshot.thread, python.layout.chain, &mut codes, &mut words);
        self.codes = codes.into_known();
        joined((snapshot, self.bias), &python.evaluator, is_whole, &runs)
    }

    /// Reads code objects that were not met before.
    fn learn<M: Memory>(
        &mut self,
        snapshot: &Snapshot,
        memory: impl Fn() -> Option<M>,
        check_of: CheckOf,
    ) {
        const TAG: u64 = 3;
        let addr_of = |piece: &Piece| piece.words[1] & !TAG;
        let is_new = |piece: &&Piece| {
            piece.check != 0 && self.checks.get(&addr_of(piece)) != Some(&piece.check)
        };
        let new: Vec<_> = snapshot.calls.iter().filter(is_new).collect();
        let mut memory = if new.is_empty() { None } else { memory() };
        let mut memory = memory.as_mut().map(|memory| BoundedMemory::of_bytes(memory, BYTES));
        for piece in new {
            let addr = addr_of(piece);
            let read = memory.as_mut().map(|memory| self.read(addr, piece, memory, check_of));
            // What was too much for this sample is read at a later one.
            if !matches!(read, Some(Err(Doubt::TooMuch))) {
                self.checks.insert(addr, piece.check);
            }
            let code = read.and_then(Result::ok).flatten().unwrap_or(Code::unknown());
            self.size = self.size.saturating_add(code.size());
            self.codes.insert(addr, Arc::new(code));
        }
    }

    /// Reads a code object, if it is the one that was there at the sample.
    fn read<M: Memory>(
        &self,
        addr: u64,
        piece: &Piece,
        memory: &mut BoundedMemory<'_, M>,
        check_of: CheckOf,
    ) -> Result<Option<Code>, Doubt> {
        let Offsets { identity, identity_words, hash, .. } = self.python.offsets;
        let is_it = |memory: &mut BoundedMemory<'_, M>| {
            let mut words = [0; 5];
            for (word, offset) in words.iter_mut().take(4).zip((u64::from(identity)..).step_by(8)) {
                *word = memory.word(addr, offset)?;
            }
            let [_, name, _, last, sum] = &mut words;
            if identity_words < 4 {
                *last = 0;
            }
            *sum = memory.word(*name, hash.into())?;
            Ok(check_of(&words) == piece.check)
        };
        let moved = |addr: Option<u64>| Some(addr?.wrapping_add(self.bias));
        let Types { code, text } = self.python.types;
        let types = Types { code: moved(code), text: moved(text) };
        if !is_it(memory)? {
            return Ok(None);
        }
        let code = CodeObjects::new(&self.python.layout, types).read(addr, memory)?;
        Ok(is_it(memory)?.then_some(code))
    }
}

/// Puts runs at the evaluators' frames: between two of these there are frames of something else.
fn joined(
    (snapshot, bias): (&Snapshot, u64),
    evaluator: &Range<u64>,
    is_whole: bool,
    runs: &ThreadRuns,
) -> SampledCalls {
    let mut frames = Vec::with_capacity(snapshot.evaluators.len().saturating_mul(2));
    let mut places = Vec::new();
    for piece in &snapshot.evaluators {
        let [place, addr, ..] = piece.words;
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        if frames.is_empty() && place != 0 {
            frames.push(other(0));
        }
        let mut frame = other(piece.at);
        frame.symbol.function =
            evaluator.contains(&addr).then(|| "_PyEval_EvalFrameDefault".into());
        frame.symbol.object = Some("python".into());
        let pc = addr.wrapping_add(bias);
        let run = SampledRun {
            place,
            pc,
            cfa: piece.check,
            calls: Vec::new(),
            others: Others::None,
            code: None,
        };
        places.push((frames.len(), run));
        frames.push(frame);
        frames.push(other(piece.check));
    }
    let read = none_of(String::new());
    let found = join(&mut frames, is_whole, &read, Some(runs));
    let of_frame = |(at, run): (usize, SampledRun)| {
        let calls = std::mem::take(&mut frames.get_mut(at)?.interpreted);
        (!calls.is_empty()).then_some(SampledRun { calls, ..run })
    };
    let placed: Vec<_> = places.into_iter().filter_map(of_frame).collect();
    let all = runs.runs.iter().filter(|run| !run.frames.is_empty()).count();
    let is_joined = found.is_none_or(|found| found.complete) && placed.len() == all;
    SampledCalls { runs: placed, is_complete: snapshot.is_whole && is_joined }
}

/// A frame that is none of the evaluator.
fn other(sp: u64) -> Frame {
    Frame { sp, ..Frame::default() }
}

#[cfg(test)]
mod tests {
    use unwind_core::{ReadError, VirtAddr};

    use super::*;
    use crate::interpreters::sampled::Piece;

    /// Words that are made of a number, most of them places in a snapshot.
    struct Words(u64);

    impl Words {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            let places = [0, 0x1000, 0x2000, 0x7010, 0x7040, 0x7110, 0x7140, 0x7180];
            let chosen = usize::try_from(self.0 >> 60).unwrap();
            places.get(chosen).copied().unwrap_or(self.0)
        }

        /// Changes a word.
        fn damage(&mut self, snapshot: &mut Snapshot) {
            let Snapshot { first, evaluators, records, calls, .. } = snapshot;
            let pieces = evaluators.iter_mut().chain(records).chain(calls);
            let words = pieces.flat_map(|piece| {
                [&mut piece.at, &mut piece.check].into_iter().chain(&mut piece.words)
            });
            let mut words: Vec<_> = std::iter::once(first).chain(words).collect();
            let at = usize::try_from(self.0 >> 8).unwrap().checked_rem(words.len()).unwrap();
            *words[at] = self.next();
        }
    }

    struct Anything(Words);

    impl Memory for Anything {
        fn read(&mut self, _: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
            for chunk in buf.chunks_mut(8) {
                let word = self.0.next().to_le_bytes();
                chunk.iter_mut().zip(word).for_each(|(byte, word)| *byte = word);
            }
            Ok(())
        }
    }

    struct Nothing;

    impl Memory for Nothing {
        fn read(&mut self, _: VirtAddr, _: &mut [u8]) -> Result<(), ReadError> {
            Err(ReadError::Invalid)
        }
    }

    /// Two evaluators, each of which executes a call, with C between.
    fn two_calls(minor: u8) -> Snapshot {
        let piece = |at, words| Piece { at, check: 0, words };
        let frame = |at, check, place| Piece { at, check, words: [place, 0, 0, 0] };
        let call =
            |at, previous, mark| Piece { at, check: 7, words: [previous, 0x6000, 0x6100, mark] };
        let (entry, owner) = (1 << 32, 3 << 48);
        let (first, records, calls) = match minor {
            9 | 10 => (0x1000, vec![], vec![call(0x1000, 0x2000, 0), call(0x2000, 0, 0)]),
            11 => (
                0x7040,
                vec![
                    piece(0x7040, [0x7140, 0x1000, 0, 0]),
                    piece(0x7140, [0x7190, 0x2000, 0, 0]),
                    piece(0x7190, [0; 4]),
                ],
                vec![call(0x1000, 0x2000, entry), call(0x2000, 0, entry)],
            ),
            _ => (
                0x7040,
                vec![piece(0x7040, [0x7140, 0x1000, 0, 0]), piece(0x7140, [0x7190, 0x2000, 0, 0])],
                vec![
                    call(0x1000, 0x7010, 0),
                    piece(0x7010, [0x2000, 0, 0, owner]),
                    call(0x2000, 0x7110, 0),
                    piece(0x7110, [0, 0, 0, owner]),
                ],
            ),
        };
        let evaluators = vec![frame(0x7000, 0x7080, 1), frame(0x7100, 0x7180, 3)];
        Snapshot { thread: 0x8000, first, evaluators, records, calls, is_whole: true }
    }

    fn python(minor: u8) -> SampledPython {
        let mut nothing = Anything(Words(1));
        let version = Version { major: 3, minor };
        let layout = Layout::of(version, 0, &mut BoundedMemory::new(&mut nothing)).unwrap();
        let (types, offsets) = (Types { code: None, text: None }, Offsets::of(&layout).unwrap());
        SampledPython {
            layout,
            offsets,
            runtime: 0,
            types,
            evaluator: 0..u64::MAX,
            code: 0..u64::MAX,
        }
    }

    #[test]
    fn whatever_a_snapshot_has_the_reading_ends_and_calls_without_a_frame_are_not_complete() {
        for minor in 9..=12 {
            let mut code = SampledCode::new(Arc::new(python(minor)), 0);
            for seed in 1..=10_000 {
                let mut words = Words(seed);
                let mut snapshot = two_calls(minor);
                let damage = seed % 4;
                (0..damage).for_each(|_| words.damage(&mut snapshot));
                let calls = code.calls(&snapshot, true, || Some(Nothing), |_| 7);
                let (placed, is_complete) = (calls.runs.len(), calls.is_complete);
                match damage {
                    0 => assert_eq!((placed, is_complete), (2, true), "3.{minor}: {calls:?}"),
                    _ => assert!(placed <= 2 && (!is_complete || placed > 0), "{seed} {calls:?}"),
                }
            }
        }
    }

    #[test]
    fn calls_of_a_stack_without_an_evaluator_are_in_doubt() {
        for minor in 9..=12 {
            let mut code = SampledCode::new(Arc::new(python(minor)), 0);
            let snapshot = Snapshot { evaluators: Vec::new(), ..two_calls(minor) };
            let calls = code.calls(&snapshot, true, || Some(Nothing), |_| 7);
            assert_eq!((calls.runs.len(), calls.is_complete), (0, false), "3.{minor}");
        }
    }

    #[test]
    fn calls_stand_at_parts_of_the_evaluator_that_are_elsewhere_if_they_have_something_there() {
        for minor in [11, 12] {
            let mut code = SampledCode::new(Arc::new(python(minor)), 0);
            let mut snapshot = two_calls(minor);
            for frame in &mut snapshot.evaluators {
                frame.words[1] = u64::MAX;
            }
            let calls = code.calls(&snapshot, true, || Some(Nothing), |_| 7);
            assert_eq!((calls.runs.len(), calls.is_complete), (2, true), "3.{minor}");
            // Between the frames of the file.
            snapshot.evaluators[1].at = 0x7180;
            let calls = code.calls(&snapshot, true, || Some(Nothing), |_| 7);
            assert_eq!((calls.runs.len(), calls.is_complete), (1, false), "3.{minor}");
        }
    }

    #[test]
    fn code_that_is_no_longer_what_it_was_has_no_name() {
        let mut code = SampledCode::new(Arc::new(python(12)), 0);
        let calls = code.calls(&two_calls(12), true, || Some(Nothing), |_| 0);
        let places: Vec<_> = calls.runs.iter().map(|run| run.place).collect();
        assert_eq!((places, calls.is_complete), (vec![1, 3], true));
        let [call] = calls.runs[0].calls.as_slice() else { panic!("{calls:?}") };
        assert_eq!(call.function, None);
    }
}
