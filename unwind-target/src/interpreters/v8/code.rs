//! Compiled code: what it was compiled from, and which function an instruction of it is of.

use unwind_core::Memory;

use crate::interpreters::bounded_memory::Doubt;
use crate::interpreters::frame::CallKind;
use crate::interpreters::v8::heap::{Heap, object};
use crate::interpreters::v8::positions::{Position, bytecode_offset, position};

/// How far before an instruction its code's start is looked for.
const LONGEST: u64 = 4 << 20;
/// What the instructions of code start at a multiple of.
const ALIGNMENT: u64 = 64;
/// How much is read at once to find that.
const BLOCK: u64 = 4096;
/// How long a table may be.
const TABLE: u64 = 4 << 20;
/// How deep functions may be inlined.
const DEEPEST: usize = 256;

/// Code, in memory that V8 has made for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Code {
    object: u64,
    /// Where its instructions start, and end.
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) kind: CodeKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodeKind {
    Baseline,
    Maglev,
    Optimized,
    /// Of no function in JavaScript.
    Other,
}

impl CodeKind {
    /// What a call of a function is that such code executes.
    pub(super) const fn call(self) -> Option<CallKind> {
        match self {
            Self::Baseline => Some(CallKind::Baseline),
            Self::Maglev => Some(CallKind::Maglev),
            Self::Optimized => Some(CallKind::Optimized),
            Self::Other => None,
        }
    }
}

/// A function that is inlined in code.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inlined {
    pub(super) shared: u64,
    pub(super) offset: Option<u64>,
}

/// What an instruction of optimized code is of.
#[derive(Debug)]
pub(super) struct Origin {
    /// Innermost first.
    pub(super) inlined: Vec<Inlined>,
    /// Where that is in the code's own function.
    pub(super) own: Option<u64>,
}

impl Code {
    /// The code that has an instruction.
    ///
    /// # Errors
    ///
    /// [`Doubt`] if it cannot be read.
    pub(super) fn at<M: Memory>(
        pc: u64,
        heap: &mut Heap<'_, '_, M>,
    ) -> Result<Option<Self>, Doubt> {
        let (layout, kind) = (heap.layout.code, heap.layout.types.instructions);
        let mut last_map = None;
        let mut start = pc & !ALIGNMENT.wrapping_sub(1);
        // Below there are no headers.
        let end = pc.saturating_sub(LONGEST).max(BLOCK.saturating_mul(2));
        while start > end {
            // Headers of all starts in a block.
            let from = (start.saturating_sub(layout.header) & !BLOCK.wrapping_sub(1)).max(BLOCK);
            let len = start.saturating_sub(layout.header).saturating_sub(from).saturating_add(8);
            let bytes = match heap.memory.bytes(from, usize::try_from(len).unwrap_or(0)) {
                Ok(bytes) => bytes,
                // No code reaches over what is not there.
                Err(Doubt::Unreadable(_)) => return Ok(None),
                Err(doubt) => return Err(doubt),
            };
            while start.saturating_sub(layout.header) >= from && start > end {
                let header = start.saturating_sub(layout.header);
                let place = usize::try_from(header.saturating_sub(from)).unwrap_or(usize::MAX);
                let word = bytes.get(place..).and_then(|bytes| bytes.first_chunk::<8>());
                let map = word.and_then(|word| object(u64::from_le_bytes(*word)));
                if let Some(map) = map.filter(|&map| last_map != Some(map)) {
                    let found = heap.memory.array(map, heap.layout.instance_type);
                    match found.map(u16::from_le_bytes) {
                        Ok(found) if u64::from(found) == kind => {
                            if let Some(code) = Self::of_header(header, start, pc, heap)? {
                                return Ok(Some(code));
                            }
                        }
                        // It is no address, but a number or an instruction.
                        Ok(_) | Err(Doubt::Unreadable(_)) => last_map = Some(map),
                        Err(doubt) => return Err(doubt),
                    }
                }
                start = start.saturating_sub(ALIGNMENT);
            }
        }
        Ok(None)
    }

    /// The code with this header, if that is one, and has the instruction.
    fn of_header<M: Memory>(
        header: u64,
        start: u64,
        pc: u64,
        heap: &mut Heap<'_, '_, M>,
    ) -> Result<Option<Self>, Doubt> {
        let layout = heap.layout.code;
        let object = match layout.object {
            None => header,
            Some(object) => {
                let Some(object) = heap.at(header, object)? else { return Ok(None) };
                if heap.memory.word(object, layout.start)? != start {
                    return Ok(None);
                }
                object
            }
        };
        let size = u64::from(heap.memory.half(object, layout.size)?);
        // A call may be the last instruction.
        let end = start.saturating_add(size);
        if pc > end {
            return Ok(None);
        }
        let kind = u64::from(heap.memory.half(object, layout.flags)?) & layout.kind_mask;
        let kind = match kind.checked_sub(layout.baseline) {
            Some(0) => CodeKind::Baseline,
            Some(1) => CodeKind::Maglev,
            Some(2) => CodeKind::Optimized,
            _ => CodeKind::Other,
        };
        Ok(Some(Self { object, start, end, kind }))
    }

    /// The offset in its bytecode of an instruction of baseline code. `at` is after that.
    ///
    /// # Errors
    ///
    /// [`Doubt`] if it cannot be read.
    pub(super) fn bytecode_offset<M: Memory>(
        &self,
        at: u64,
        bytecode: u64,
        sizes: &[u8],
        heap: &mut Heap<'_, '_, M>,
    ) -> Result<Option<u64>, Doubt> {
        let table = heap.at(self.object, heap.layout.code.positions)?;
        let table = table.ok_or(Doubt::Strange("code without a table"))?;
        let table = heap.bytes(table, TABLE)?;
        let len = heap.small(bytecode, heap.layout.array_length)?.min(TABLE);
        let start = bytecode.wrapping_add(heap.layout.bytecode.data);
        let bytecode = heap.memory.bytes(start, usize::try_from(len).unwrap_or(0))?;
        Ok(bytecode_offset(&table, &bytecode, sizes, at.saturating_sub(self.start)))
    }

    /// The function that optimized code was made of, if that is kept.
    ///
    /// # Errors
    ///
    /// [`Doubt`] if it cannot be read.
    pub(super) fn shared<M: Memory>(
        &self,
        heap: &mut Heap<'_, '_, M>,
    ) -> Result<Option<u64>, Doubt> {
        let Some(deopt) = heap.at(self.object, heap.layout.code.deopt)? else { return Ok(None) };
        let element = heap.element(deopt, heap.layout.deopt.places.saturating_sub(1))?;
        let Some(found) = element.and_then(object) else { return Ok(None) };
        let shared = heap.layout.types.shared;
        if heap.kind(found)? == shared {
            return Ok(Some(found));
        }
        heap.of_kind(found, heap.layout.deopt.wrapped, shared)
    }

    /// How many functions are inlined in optimized code.
    ///
    /// # Errors
    ///
    /// [`Doubt`] if it cannot be read.
    pub(super) fn inlined_count<M: Memory>(
        &self,
        heap: &mut Heap<'_, '_, M>,
    ) -> Result<u64, Doubt> {
        let Some(deopt) = heap.at(self.object, heap.layout.code.deopt)? else { return Ok(0) };
        match heap.element(deopt, heap.layout.deopt.inlined)? {
            Some(count) => Ok(count >> 32),
            None => Ok(0),
        }
    }

    /// What an instruction of optimized code is of; `None` if its table has no such instruction.
    ///
    /// # Errors
    ///
    /// [`Doubt`] if they cannot be read.
    pub(super) fn origin<M: Memory>(
        &self,
        at: u64,
        heap: &mut Heap<'_, '_, M>,
    ) -> Result<Option<Origin>, Doubt> {
        const DAMAGED: Doubt = Doubt::Strange("inlined functions");
        let table = heap.at(self.object, heap.layout.code.positions)?;
        let Some(table) = table else { return Ok(None) };
        let table = heap.bytes(table, TABLE)?;
        let layout = heap.layout.deopt;
        let at = at.saturating_sub(self.start);
        // Code that is no longer valid returns to one of its exits: they have no positions, and are after all code that has.
        let deopt = heap.at(self.object, heap.layout.code.deopt)?;
        let exits = match deopt {
            Some(deopt) => heap.element(deopt, layout.places.saturating_add(1))?,
            None => None,
        };
        let is_exit =
            exits.is_some_and(|exits| exits >> 32 != 0 && at >= (exits >> 32).saturating_sub(1));
        let place = position(&table, at).filter(|_| !is_exit);
        let Some(mut place) = place else { return Ok(None) };
        let mut inlined = Vec::new();
        while let Some(index) = place.inlined {
            if inlined.len() >= DEEPEST {
                return Err(Doubt::Circle);
            }
            let deopt = deopt.ok_or(DAMAGED)?;
            let array = |element: Option<u64>| element.and_then(object).ok_or(DAMAGED);
            let places = array(heap.element(deopt, layout.places)?)?;
            let literals = array(heap.element(deopt, layout.literals)?)?;
            // Of sixteen bytes each.
            if index.saturating_mul(16) >= heap.small(places, heap.layout.array_length)? {
                return Err(DAMAGED);
            }
            let entry = heap.layout.array_data.saturating_add(index.saturating_mul(16));
            let caller = heap.memory.word(places, entry)?.cast_signed();
            let literal = u64::from(heap.memory.half(places, entry.saturating_add(8))?);
            let shared = array(heap.element(literals, literal)?)?;
            inlined.push(Inlined { shared, offset: place.offset });
            place = Position::of(caller);
        }
        Ok(Some(Origin { inlined, own: place.offset }))
    }
}
