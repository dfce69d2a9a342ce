//! Where CPython's structures have their fields: by version up to 3.12, whose layouts are fixed, and as
//! the process says it since 3.13.

use unwind_core::Memory;

use crate::interpreters::bounded_memory::{BoundedMemory, Doubt};
use crate::interpreters::python::lines::LineTable;
use crate::interpreters::python::version::Version;

/// Offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) state: StateLayout,
    pub(super) chain: Chain,
    pub(super) frame: FrameLayout,
    pub(super) code: CodeLayout,
    pub(super) text: TextLayout,
}

/// Of the runtime, its interpreters and their threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StateLayout {
    pub(super) first_interpreter: u64,
    pub(super) next_interpreter: u64,
    pub(super) first_thread: u64,
    pub(super) next_thread: u64,
    /// What the C library calls the thread: where its own data is.
    pub(super) thread_id: u64,
}

/// How the frames of a thread hang together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chain {
    /// Each frame is one of the evaluator. The thread has the innermost one.
    Single { innermost: u64 },
    /// Each of the evaluator's frames has a record, the innermost of which the thread has, with its
    /// innermost frame. The outermost one of a record is marked.
    Records { record: u64, innermost: u64, previous: u64, is_entry: u64 },
    /// After the frames of each of the evaluator's there is an entry frame, inside the native one. The
    /// thread has the innermost frame, or a record that has it.
    Entries { record: Option<Record>, innermost: u64 },
}

/// Of the record of an evaluator's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Where the thread has it.
    pub(super) record: u64,
    pub(super) previous: u64,
}

/// Of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameLayout {
    pub(super) previous: u64,
    pub(super) code: u64,
    pub(super) place: Place,
    pub(super) owner: Option<u64>,
    /// Which copy of its code the thread executes.
    pub(super) copy: Option<u64>,
}

/// How a frame says where in its code it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// By the number of the last instruction, of `unit` bytes, and by a line where it is traced: by that
    /// alone if the word at `traced` is not zero.
    Number { at: u64, unit: i64, line: u64, traced: Traced },
    /// By the address of an instruction.
    Address { at: u64 },
}

/// What tells that a frame has its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Traced {
    /// A word that is not zero.
    Word(u64),
    /// The line itself.
    Line,
}

/// Of a code object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodeLayout {
    pub(super) file: u64,
    pub(super) name: u64,
    pub(super) first_line: u64,
    pub(super) table: u64,
    pub(super) lines: LineTable,
    /// Where its instructions start.
    pub(super) start: u64,
    /// Where the list of copies of the instructions is.
    pub(super) copies: Option<u64>,
}

/// Of objects, byte strings and texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextLayout {
    pub(super) kind: u64,
    pub(super) bytes_len: u64,
    pub(super) bytes: u64,
    pub(super) len: u64,
    pub(super) state: u64,
    /// The bit of the state from which on it says what characters there are.
    pub(super) state_bit: u32,
    /// Where characters are of a text that is ASCII, and of another one.
    pub(super) ascii: u64,
    pub(super) wide: u64,
}

const TEXT_TO_3_11: TextLayout = TextLayout {
    kind: 8,
    bytes_len: 16,
    bytes: 32,
    len: 16,
    state: 32,
    state_bit: 2,
    ascii: 48,
    wide: 72,
};

const V3_9: Layout = Layout {
    state: StateLayout {
        first_interpreter: 32,
        next_interpreter: 0,
        first_thread: 8,
        next_thread: 8,
        thread_id: 176,
    },
    chain: Chain::Single { innermost: 24 },
    frame: FrameLayout {
        previous: 24,
        code: 32,
        place: Place::Number { at: 104, unit: 1, line: 108, traced: Traced::Word(80) },
        owner: None,
        copy: None,
    },
    code: CodeLayout {
        file: 104,
        name: 112,
        first_line: 40,
        table: 120,
        lines: LineTable::Deltas,
        start: 0,
        copies: None,
    },
    text: TEXT_TO_3_11,
};

const V3_10: Layout = Layout {
    frame: FrameLayout {
        place: Place::Number { at: 96, unit: 2, line: 100, traced: Traced::Line },
        ..V3_9.frame
    },
    code: CodeLayout { lines: LineTable::Ranges, ..V3_9.code },
    ..V3_9
};

const V3_11: Layout = Layout {
    state: StateLayout {
        first_interpreter: 40,
        next_interpreter: 0,
        first_thread: 16,
        next_thread: 8,
        thread_id: 152,
    },
    chain: Chain::Records { record: 56, innermost: 8, previous: 16, is_entry: 68 },
    frame: FrameLayout {
        previous: 48,
        code: 32,
        place: Place::Address { at: 56 },
        owner: Some(69),
        copy: None,
    },
    code: CodeLayout {
        file: 112,
        name: 128,
        first_line: 72,
        table: 136,
        lines: LineTable::Locations,
        start: 184,
        copies: None,
    },
    text: TEXT_TO_3_11,
};

const V3_12: Layout = Layout {
    state: StateLayout { first_thread: 72, thread_id: 136, ..V3_11.state },
    chain: Chain::Entries { record: Some(Record { record: 56, previous: 8 }), innermost: 0 },
    frame: FrameLayout { previous: 8, code: 0, owner: Some(70), ..V3_11.frame },
    code: CodeLayout { first_line: 68, start: 192, ..V3_11.code },
    text: TextLayout { ascii: 40, wide: 56, ..TEXT_TO_3_11 },
};

impl Layout {
    /// That of a version, whose runtime is at an address.
    ///
    /// # Errors
    ///
    /// [`Doubt`] if it is not known, or what the process says of it cannot be right.
    pub(super) fn of<M: Memory>(
        version: Version,
        runtime: u64,
        memory: &mut BoundedMemory<'_, M>,
    ) -> Result<Self, Doubt> {
        match (version.major, version.minor) {
            (3, 9) => Ok(V3_9),
            (3, 10) => Ok(V3_10),
            (3, 11) => Ok(V3_11),
            (3, 12) => Ok(V3_12),
            (3, 13) => Self::told(&ORDER_3_13, version, memory.array(runtime, 0)?),
            (3, 14) => Self::told(&ORDER_3_14, version, memory.array(runtime, 0)?),
            _ => Err(Doubt::Version),
        }
    }

    /// What the process says itself: `_Py_DebugOffsets`.
    fn told(order: &Order, version: Version, bytes: [u8; TOLD]) -> Result<Self, Doubt> {
        let damaged = Doubt::Strange("the offsets that it tells");
        let (words, _) = bytes.as_chunks::<8>();
        let word = |at: usize| words.get(at).map(|&word| u64::from_le_bytes(word)).ok_or(damaged);
        if words.first() != Some(b"xdebugpy") || Version::of_number(word(1)?) != version {
            return Err(damaged);
        }
        // A structure of more is none.
        let offset = |at: usize| {
            word(at).and_then(|word| match word {
                0..0x10_0000 => Ok(word),
                _ => Err(damaged),
            })
        };
        let is_free_threaded = word(2)? != 0;
        let copies = order.copies.filter(|_| is_free_threaded);
        let ascii = offset(order.text.wrapping_add(3))?;
        Ok(Self {
            state: StateLayout {
                first_interpreter: offset(5)?,
                next_interpreter: offset(8)?,
                first_thread: offset(9)?,
                next_thread: offset(order.thread.wrapping_add(2))?,
                thread_id: offset(order.thread.wrapping_add(5))?,
            },
            chain: Chain::Entries {
                record: None,
                innermost: offset(order.thread.wrapping_add(4))?,
            },
            frame: FrameLayout {
                previous: offset(order.frame.wrapping_add(1))?,
                code: offset(order.frame.wrapping_add(2))?,
                place: Place::Address { at: offset(order.frame.wrapping_add(3))? },
                owner: Some(offset(order.frame.wrapping_add(5))?),
                copy: copies.map(|(index, _)| offset(index)).transpose()?,
            },
            code: CodeLayout {
                file: offset(order.code.wrapping_add(1))?,
                name: offset(order.code.wrapping_add(3))?,
                table: offset(order.code.wrapping_add(4))?,
                first_line: offset(order.code.wrapping_add(5))?,
                lines: LineTable::Locations,
                start: offset(order.code.wrapping_add(9))?,
                copies: copies.map(|(_, list)| offset(list)).transpose()?,
            },
            text: TextLayout {
                kind: offset(order.object.wrapping_add(1))?,
                bytes_len: offset(order.bytes.wrapping_add(1))?,
                bytes: offset(order.bytes.wrapping_add(2))?,
                state: offset(order.text.wrapping_add(1))?,
                len: offset(order.text.wrapping_add(2))?,
                state_bit: if copies.is_some() { 8 } else { 2 },
                ascii,
                wide: ascii.wrapping_add(16),
            },
        })
    }
}

/// How many bytes of what the process says are read.
const TOLD: usize = 1024;

/// Which words of what the process says begin the structures.
struct Order {
    thread: usize,
    frame: usize,
    code: usize,
    object: usize,
    bytes: usize,
    text: usize,
    /// The index of a frame's copy of code, and the list of copies; only where threads are free.
    copies: Option<(usize, usize)>,
}

const ORDER_3_13: Order =
    Order { thread: 19, frame: 28, code: 34, object: 44, bytes: 64, text: 67, copies: None };

const ORDER_3_14: Order = Order {
    thread: 22,
    frame: 31,
    code: 39,
    object: 50,
    bytes: 74,
    text: 77,
    copies: Some((38, 49)),
};
