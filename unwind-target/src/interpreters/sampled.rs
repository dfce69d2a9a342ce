//! What is shared by interpreters whose calls are read at samples: the words that a recorder has of a thread, the file
//! that says where they are, and the calls that come of them.

use std::ops::Range;

use unwind_core::{Memory, ReadError, VirtAddr};

use crate::elf::ElfFile;
use crate::elf::error::Part;
use crate::interpreters::bounded_memory::Doubt;
use crate::interpreters::frame::InterpretedFrame;

/// Some words of a structure that was at `at`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Where it was.
    pub at: u64,
    /// Of a call what tells its code from another one at the same place; of an evaluator's frame its CFA.
    pub check: u64,
    /// Of a call of Python the one before, the code, the place in that, and how it is marked; of a record the one
    /// before and its innermost call; of an evaluator's frame its place on the native stack and its address in the
    /// file. Of a frame of V8 what [`V8Frame`](crate::interpreters::v8::V8Frame) says.
    pub words: [u64; 4],
}

/// The calls of an interpreter that a file has are not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("frames of {interpreter} are not shown: {doubt}")]
pub struct UnreadInterpreter {
    /// What it is called, with its version if that is known.
    pub(crate) interpreter: String,
    pub(crate) doubt: Doubt,
}

/// What makes the check of a piece of the words that tell one from another, of which those that are not there are 0.
pub type CheckOf = fn(&[u64]) -> u64;

/// The calls that a native frame executes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampledRun {
    /// Its place on the stack as it was walked, from 0 for the innermost frame.
    pub place: usize,
    /// Where its execution stood.
    pub pc: u64,
    /// Its CFA.
    pub cfa: u64,
    /// The innermost first. None if it executes nothing of the program.
    pub calls: Vec<InterpretedFrame>,
    /// Whether there are others.
    pub others: Others,
    /// The function's code, where the interpreter has made it.
    pub code: Option<Range<u64>>,
}

/// Whether a frame executes calls that are not known; of two the greater one says less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Others {
    /// It does not.
    #[default]
    None,
    /// What it executes may be a function that is inlined in the innermost call.
    Inlined,
    /// It may.
    Unknown,
}

/// The calls of a sample's stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampledCalls {
    /// The innermost first.
    pub runs: Vec<SampledRun>,
    /// Each is at its frame, and none is missing but for [inlined](Others::Inlined) ones.
    pub is_complete: bool,
}

/// What a file has at link-time addresses. What it has no bytes for is zero.
#[derive(Debug)]
pub(super) struct FileMemory<'f> {
    pub(super) file: &'f ElfFile,
}

impl Memory for FileMemory<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let (addr, len) = (addr.get(), u64::try_from(buf.len()).unwrap_or(u64::MAX));
        let Some((at, left)) = self.file.place_of(addr) else {
            let end = addr.checked_add(len).ok_or(ReadError::Invalid)?;
            let is_zero = self.file.segments.iter().any(|segment| {
                let room = segment.addr..=segment.addr.saturating_add(segment.memory_size);
                segment.kind == object::elf::PT_LOAD && room.contains(&addr) && room.contains(&end)
            });
            buf.fill(0);
            return if is_zero { Ok(()) } else { Err(ReadError::Invalid) };
        };
        if left < len {
            return Err(ReadError::Invalid);
        }
        self.file.read_into(Part::Memory, at, buf).map_err(|_| ReadError::Invalid)
    }
}
