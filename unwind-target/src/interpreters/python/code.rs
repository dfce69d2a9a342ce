//! Code objects: what a function is called, and where it is from.

use std::collections::HashMap;
use std::sync::Arc;

use unwind_core::Memory;

use crate::interpreters::bounded_memory::{BoundedMemory, Doubt};
use crate::interpreters::python::lines::LineTable;
use crate::interpreters::python::offsets::{CodeLayout, Layout, TextLayout};
use crate::untrusted::Untrusted;

/// How many characters of the name of a function are read.
const NAME: u64 = 1024;
/// How many of a path.
const PATH: u64 = 4096;
/// How long a table of lines may be.
const TABLE: u64 = 4 << 20;

/// Where the types of code objects and texts are, if that is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Types {
    pub(super) code: Option<u64>,
    pub(super) text: Option<u64>,
}

/// A code object.
#[derive(Debug)]
pub(super) struct Code {
    pub(super) function: Option<Untrusted>,
    pub(super) file: Option<Untrusted>,
    /// Where its instructions start.
    pub(super) start: u64,
    /// Where the list of copies of its instructions is.
    pub(super) copies: u64,
    first_line: u32,
    table: Vec<u8>,
    lines: LineTable,
}

/// The code objects of a program, each read once.
#[derive(Debug)]
pub(super) struct CodeObjects<'l> {
    pub(super) layout: &'l Layout,
    types: Types,
    known: HashMap<u64, Arc<Code>>,
}

impl<'l> CodeObjects<'l> {
    pub(super) fn new(layout: &'l Layout, types: Types) -> Self {
        Self { layout, types, known: HashMap::new() }
    }

    /// The same with some that were read before.
    pub(super) const fn with(
        layout: &'l Layout,
        types: Types,
        known: HashMap<u64, Arc<Code>>,
    ) -> Self {
        Self { layout, types, known }
    }

    /// Those that were read.
    pub(super) fn into_known(self) -> HashMap<u64, Arc<Code>> {
        self.known
    }

    /// The code object at an address.
    ///
    /// # Errors
    ///
    /// [`Doubt`] if there is none.
    pub(super) fn at<M: Memory>(
        &mut self,
        addr: u64,
        memory: &mut BoundedMemory<'_, M>,
    ) -> Result<Arc<Code>, Doubt> {
        if let Some(known) = self.known.get(&addr) {
            return Ok(Arc::clone(known));
        }
        let code = Arc::new(self.read(addr, memory)?);
        self.known.insert(addr, Arc::clone(&code));
        Ok(code)
    }

    /// Reads the one at an address.
    pub(super) fn read<M: Memory>(
        &self,
        addr: u64,
        memory: &mut BoundedMemory<'_, M>,
    ) -> Result<Code, Doubt> {
        let CodeLayout { file, name, first_line, table, lines, start, copies } = self.layout.code;
        let kind = memory.word(addr, self.layout.text.kind)?;
        if self.types.code.is_some_and(|code| code != kind) {
            return Err(Doubt::Strange("a frame without code"));
        }
        let name = memory.word(addr, name)?;
        let path = memory.word(addr, file)?;
        let table = memory.word(addr, table)?;
        Ok(Code {
            function: self.text(name, NAME, memory)?,
            file: self.text(path, PATH, memory)?,
            start: addr.wrapping_add(start),
            copies: copies.map_or(Ok(0), |copies| memory.word(addr, copies))?,
            first_line: memory.half(addr, first_line)?,
            table: self.bytes(table, memory)?,
            lines,
        })
    }

    /// A byte string.
    fn bytes<M: Memory>(
        &self,
        addr: u64,
        memory: &mut BoundedMemory<'_, M>,
    ) -> Result<Vec<u8>, Doubt> {
        let TextLayout { bytes_len, bytes, .. } = self.layout.text;
        let len = memory.word(addr, bytes_len)?;
        let len = usize::try_from(len.min(TABLE)).unwrap_or(0);
        memory.bytes(addr.wrapping_add(bytes), len)
    }

    /// A text, up to `limit` characters; nothing if it has a form that names never have.
    fn text<M: Memory>(
        &self,
        addr: u64,
        limit: u64,
        memory: &mut BoundedMemory<'_, M>,
    ) -> Result<Option<Untrusted>, Doubt> {
        let layout = self.layout.text;
        let kind = memory.word(addr, layout.kind)?;
        if self.types.text.is_some_and(|text| text != kind) {
            return Err(Doubt::Strange("a name that is no text"));
        }
        let state = memory.half(addr, layout.state)?;
        let state = state.checked_shr(layout.state_bit).unwrap_or(0);
        let (is_compact, is_ascii) = (state & 1 << 3 != 0, state & 1 << 4 != 0);
        let width = match state & 7 {
            width @ (1 | 2 | 4) if is_compact => usize::try_from(width).unwrap_or(1),
            _ => return Ok(None),
        };
        let len = memory.word(addr, layout.len)?;
        let shown = usize::try_from(len.min(limit)).unwrap_or(0);
        let start = addr.wrapping_add(if is_ascii { layout.ascii } else { layout.wide });
        let bytes = memory.bytes(start, shown.saturating_mul(width))?;
        let mut text = Vec::with_capacity(bytes.len());
        for unit in bytes.chunks_exact(width) {
            let unit = unit.iter().rev().fold(0_u32, |sum, &byte| sum << 8 | u32::from(byte));
            match unit {
                // How bytes of a path are kept that are not UTF-8.
                0xdc80..=0xdcff => text.extend(u8::try_from(unit & 0xff)),
                _ => {
                    let shown = char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER);
                    text.extend_from_slice(shown.encode_utf8(&mut [0; 4]).as_bytes());
                }
            }
        }
        if len > limit {
            text.extend_from_slice("…".as_bytes());
        }
        Ok(Some(text.into()))
    }
}

impl Code {
    /// One of which nothing is known.
    pub(super) const fn unknown() -> Self {
        Self {
            function: None,
            file: None,
            start: 0,
            copies: 0,
            first_line: 0,
            table: Vec::new(),
            lines: LineTable::Deltas,
        }
    }

    /// The line of the instruction `at` bytes from the start.
    ///
    /// # Errors
    ///
    /// [`Doubt::TooMuch`] if there were too many long tables.
    pub(super) fn line<M: Memory>(
        &self,
        at: i64,
        memory: &mut BoundedMemory<'_, M>,
    ) -> Result<Option<u32>, Doubt> {
        memory.count(self.table.len())?;
        Ok(self.lines.line(&self.table, self.first_line, at))
    }

    /// Whether it stands between a class and its `__init__` since 3.12, by which its file is called, too.
    pub(super) fn is_between(&self) -> bool {
        let is_init = |name: &Option<Untrusted>| {
            name.as_ref().is_some_and(|name| name.as_bytes() == b"__init__")
        };
        is_init(&self.function) && is_init(&self.file)
    }

    /// About how many bytes it takes.
    pub(super) fn size(&self) -> usize {
        size_of::<Self>().saturating_add(self.table.len()).saturating_add(self.names_len())
    }

    /// About how long its names are.
    pub(super) fn names_len(&self) -> usize {
        let len = |name: &Option<Untrusted>| name.as_ref().map_or(0, |name| name.as_bytes().len());
        len(&self.function).saturating_add(len(&self.file))
    }
}
