//! Code that a compiler has made while a program ran.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use object::elf;
use unwind_cfi::{CfiAbi, CfiError, CfiSection, CfiTable, Entries, FrameRules, IndexEntry};
use unwind_core::{RegisterRules, Row, WordSize};

use crate::untrusted::Untrusted;

/// A function. Copies share what is known of it.
#[derive(Clone, Debug)]
pub struct JitCode {
    pub start: u64,
    pub end: u64,
    pub name: Untrusted,
    frames: Option<Arc<JitFrames>>,
    /// Its instructions, if they were told.
    instructions: Option<Instructions>,
    /// How far it is above where its call frame information has it, wrapping.
    bias: u64,
}

/// The instructions of a function in a file.
#[derive(Clone, Debug)]
pub(crate) struct Instructions {
    pub(crate) file: Arc<File>,
    /// Where they are there.
    pub(crate) at: u64,
}

/// Call frame information of one function.
#[derive(Debug)]
pub(crate) struct JitFrames {
    bytes: Box<[u8]>,
    /// Where it would be in a file: after the code.
    addr: u64,
    abi: CfiAbi,
    index: Vec<IndexEntry>,
}

impl JitFrames {
    /// That of code which ends at `end`, of a machine by its number in ELF files.
    pub(crate) fn new(bytes: Box<[u8]>, end: u64, machine: u32) -> Option<Self> {
        let abi = match u16::try_from(machine).map(elf::Machine) {
            Ok(elf::EM_X86_64) => CfiAbi::X86_64,
            Ok(elf::EM_386) => CfiAbi::Ia32,
            _ => return None,
        };
        let addr = end.checked_next_multiple_of(8)?;
        let entries = Entries::new(CfiSection::eh_frame(&bytes, addr), abi);
        let needed = unwind_cfi::index(entries, &mut []).err().map_or(0, |few| few.needed);
        let mut index = vec![IndexEntry::default(); needed];
        // There are as many as it said.
        _ = unwind_cfi::index(entries, &mut index);
        Some(Self { bytes, addr, abi, index })
    }

    fn table(&self, word: WordSize) -> Option<CfiTable<'_>> {
        let is_of_word = match self.abi {
            CfiAbi::Ia32 => word == WordSize::Four,
            _ => word == WordSize::Eight,
        };
        let section = CfiSection::eh_frame(&self.bytes, self.addr);
        is_of_word.then(|| CfiTable::with_index(section, self.abi, &self.index))
    }
}

impl JitCode {
    /// `None` if it has no length, or goes past the end of the address space.
    pub(crate) fn new(
        start: u64,
        len: u64,
        name: &[u8],
        frames: Option<JitFrames>,
        instructions: Option<Instructions>,
    ) -> Option<Self> {
        let end = start.checked_add(len).filter(|_| len > 0)?;
        let name = if name.is_empty() { &b"[unknown]"[..] } else { name };
        let frames = frames.map(Arc::new);
        Some(Self { start, end, name: Untrusted::from(name), frames, instructions, bias: 0 })
    }

    /// The same code at another address.
    pub(crate) fn moved_to(&self, start: u64) -> Option<Self> {
        let end = start.checked_add(self.end.wrapping_sub(self.start))?;
        let bias = self.bias.wrapping_add(start.wrapping_sub(self.start));
        Some(Self { start, end, bias, ..self.clone() })
    }

    /// Fills `buf` with its instructions at an address, if these were told and it has as many.
    pub fn read(&self, addr: u64, buf: &mut [u8]) -> bool {
        let Some(Instructions { file, at }) = &self.instructions else { return false };
        let end = u64::try_from(buf.len()).ok().and_then(|len| addr.checked_add(len));
        let is_inside = addr >= self.start && end.is_some_and(|end| end <= self.end);
        let at = at.checked_add(addr.wrapping_sub(self.start));
        is_inside && at.is_some_and(|at| file.read_exact_at(buf, at).is_ok())
    }

    /// The row for an address; `None` if there is none that can be used.
    pub(crate) fn row(&self, addr: u64, word: WordSize) -> Option<Row> {
        self.found(addr, word).ok().flatten()
    }

    /// The same, or why there is none.
    pub fn found(&self, addr: u64, word: WordSize) -> Result<Option<Row>, CfiError> {
        let table = self.frames.as_ref().and_then(|frames| frames.table(word));
        table.map_or(Ok(None), |table| table.find_row(addr.wrapping_sub(self.bias)))
    }

    /// The rules for an address, where some are such that a row can say them in a frame alone.
    #[must_use]
    pub fn frame_rules(&self, addr: u64, word: WordSize) -> Option<FrameRules> {
        let table = self.frames.as_ref()?.table(word)?;
        let rules = table.find_frame_rules(addr.wrapping_sub(self.bias)).ok().flatten();
        rules.map(|rules| rules.loaded(self.bias))
    }

    /// The rules of other registers for an address, if there are any.
    #[must_use]
    pub fn register_rules(&self, addr: u64, word: WordSize) -> Option<RegisterRules> {
        let table = self.frames.as_ref()?.table(word)?;
        table.find_register_rules(addr.wrapping_sub(self.bias)).ok().flatten()
    }
}
