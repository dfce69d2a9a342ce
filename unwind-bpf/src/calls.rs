//! Calls of an interpreter, as the program reads what the interpreter has of a thread's.

use crate::head::{Cookie, End, Fields, Origin};

/// An interpreter whose calls are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpreter {
    /// Its calls are in a list of the thread.
    CPython(CPython),
    /// Its calls are native frames.
    V8(V8),
}

/// Where V8 has what the program reads. Slots of a frame are bytes below its frame pointer, all else offsets in
/// objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "their meaning is in bpf/v8.h, where they are used")]
pub struct V8 {
    pub builtins: (u64, u64),
    pub marker: u32,
    pub function: u32,
    pub bytecode: u32,
    pub bytecode_offset: u32,
    pub shared: u32,
    pub name: u32,
    pub script: u32,
    pub instance_type: u32,
    pub shared_type: u32,
    pub bytecode_type: u32,
}

/// Where CPython has what the program reads. Addresses are those of its file, all else offsets in
/// structures; what is not there is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "their meaning is in bpf/calls.h, where they are used")]
pub struct CPython {
    pub runtime: u64,
    pub code: (u64, u64),
    pub first_interpreter: u32,
    pub next_interpreter: u32,
    pub first_thread: u32,
    pub next_thread: u32,
    pub thread_id: u32,
    pub first: u32,
    pub records: u32,
    pub record_innermost: u32,
    pub record_previous: u32,
    pub call_bytes: u32,
    pub previous: u32,
    pub call_code: u32,
    pub place: u32,
    pub mark: u32,
    pub entry: u32,
    pub identity: u32,
    pub identity_words: u32,
    pub hash: u32,
}

impl Interpreter {
    /// Beside its place, where that is said of a file.
    const IS_V8: u32 = 1 << 31;

    /// What files with it, which has this place among all, say of it.
    pub(crate) const fn number(&self, place: u32) -> u32 {
        let kind = if matches!(self, Self::V8(_)) { Self::IS_V8 } else { 0 };
        place.saturating_add(1) | kind
    }

    /// As the program has it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let (words, python, v8) = match self {
            Self::CPython(it) => ([it.runtime, it.code.0, it.code.1], it.halves(), [0; 10]),
            Self::V8(it) => ([0, it.builtins.0, it.builtins.1], [0; 18], it.halves()),
        };
        let words = words.iter().flat_map(|word| word.to_ne_bytes());
        let halves = python.iter().chain(&v8).flat_map(|half| half.to_ne_bytes());
        words.chain(halves).collect()
    }
}

impl V8 {
    const fn halves(&self) -> [u32; 10] {
        [
            self.marker,
            self.function,
            self.bytecode,
            self.bytecode_offset,
            self.shared,
            self.name,
            self.script,
            self.instance_type,
            self.shared_type,
            self.bytecode_type,
        ]
    }
}

impl CPython {
    const fn halves(&self) -> [u32; 18] {
        [
            self.first_interpreter,
            self.next_interpreter,
            self.first_thread,
            self.next_thread,
            self.thread_id,
            self.first,
            self.records,
            self.record_innermost,
            self.record_previous,
            self.call_bytes,
            self.previous,
            self.call_code,
            self.place,
            self.mark,
            self.entry,
            self.identity,
            self.identity_words,
            self.hash,
        ]
    }
}

/// What an interpreter has of the thread whose stack with this cookie comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls<'a> {
    /// Of whom.
    pub origin: Origin,
    /// Of the stack that it belongs to.
    pub cookie: Cookie,
    /// The place that the interpreter was given with its [table](crate::Table).
    pub interpreter: u32,
    /// Where the interpreter has the thread.
    pub thread: u64,
    /// The word there that says where the innermost record or call is.
    pub first: u64,
    /// What the addresses of its file are moved by.
    pub bias: u64,
    /// The frames on the native stack that may be the evaluator's: the place of each in `words[0]`, its address in
    /// the file in `words[1]`, its stack pointer as `at` and its CFA as `check`.
    pub evaluators: Pieces<'a>,
    /// What the interpreter keeps of each evaluator, where it does: the one before, and the innermost call.
    pub records: Pieces<'a>,
    /// The calls, the innermost first: the one before, the code, where it is in that, and how it is marked. `check`
    /// tells its code from another one at the same place.
    pub calls: Pieces<'a>,
    /// Why there may be more, if that is not [`End::Other`] of 0.
    pub end: End,
}

impl<'a> Calls<'a> {
    pub(crate) fn read(
        (origin, cookie, end): (Origin, Cookie, End),
        count: usize,
        fields: &mut Fields<'a>,
    ) -> Option<Self> {
        let (thread, first, bias) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let interpreter = fields.u32()?;
        let evaluators = usize::try_from(fields.u32()?).ok()?;
        let records = usize::try_from(fields.u32()?).ok()?;
        let _unused = fields.u32()?;
        let calls = count.checked_sub(evaluators)?.checked_sub(records)?;
        let mut pieces = |count: usize| {
            let words = fields.words(count.checked_mul(Piece::WORDS)?)?;
            Some(Pieces(words.as_chunks().0))
        };
        let (evaluators, records) = (pieces(evaluators)?, pieces(records)?);
        let calls = pieces(calls)?;
        Some(Self {
            origin,
            cookie,
            interpreter,
            thread,
            first,
            bias,
            evaluators,
            records,
            calls,
            end,
        })
    }

    /// Whether all was read.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        matches!(self.end, End::Other(0))
    }
}

/// Some words of a structure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Where it is.
    pub at: u64,
    /// What tells it from another one there.
    pub check: u64,
    /// Its words.
    pub words: [u64; 4],
}

impl Piece {
    const WORDS: usize = 6;
}

/// Pieces of an interpreter's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces<'a>(&'a [[[u8; 8]; Piece::WORDS]]);

impl<'a> Pieces<'a> {
    /// Each.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Piece> + Clone + 'a {
        self.0.iter().map(|words| {
            let [at, check, words @ ..] = words.map(u64::from_ne_bytes);
            Piece { at, check, words }
        })
    }
}

/// What the program makes of the words that tell a code object or a frame from another one.
#[must_use]
pub fn identity_of(words: &[u64]) -> u64 {
    words.iter().fold(0_u64, |sum, &word| {
        let sum = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        sum ^ sum >> 29
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    fn record(count: u32, parts: [u32; 2], pieces: &[[u64; 6]]) -> Vec<u8> {
        let head = [5, 21, 20, count].into_iter().flat_map(u32::to_ne_bytes);
        let ids = [77_u64, 1_000].into_iter().flat_map(u64::to_ne_bytes);
        let end = [0_u32; 2].into_iter().flat_map(u32::to_ne_bytes);
        let words = [0x10_u64, 0x20, 0x30].into_iter().flat_map(u64::to_ne_bytes);
        let parts = [0, parts[0], parts[1], 0].into_iter().flat_map(u32::to_ne_bytes);
        let pieces = pieces.as_flattened().iter().flat_map(|word| word.to_ne_bytes());
        head.chain(ids).chain(end).chain(words).chain(parts).chain(pieces).collect()
    }

    #[test]
    fn calls_are_read_piece_by_piece() {
        let pieces = [[1, 2, 3, 0, 0, 0], [4, 0, 5, 6, 0, 0], [7, 8, 9, 10, 11, 12]];
        let bytes = record(3, [1, 1], &pieces);
        let Some(Record::Calls(calls)) = Record::parse(&bytes) else { panic!() };
        assert_eq!((calls.thread, calls.first, calls.bias), (0x10, 0x20, 0x30));
        assert!(calls.is_whole());
        let all: Vec<_> = [calls.evaluators, calls.records, calls.calls]
            .iter()
            .map(|pieces| pieces.iter().map(|it| it.at).collect::<Vec<_>>())
            .collect();
        assert_eq!(all, [[1], [4], [7]]);
        let last = Piece { at: 7, check: 8, words: [9, 10, 11, 12] };
        assert_eq!(calls.calls.iter().next(), Some(last));
        for len in 0..bytes.len() {
            assert_eq!(Record::parse(bytes.get(..len).unwrap()), None);
        }
        assert_eq!(Record::parse(&record(3, [2, 2], &pieces)), None);
        assert_eq!(Record::parse(&record(u32::MAX, [1, 1], &pieces)), None);
    }
}
