//! Code that a compiler has made while a program ran.

use std::sync::Arc;

use object::elf;
use unwind_cfi::{CfiAbi, CfiSection, CfiTable, Entries, IndexEntry};
use unwind_core::{RegisterRules, Row, WordSize};

use crate::untrusted::Untrusted;

/// A function. Copies share what is known of it.
#[derive(Clone, Debug)]
pub(crate) struct JitCode {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) name: Untrusted,
    frames: Option<Arc<JitFrames>>,
    /// How far it is above where its call frame information has it, wrapping.
    bias: u64,
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
    ) -> Option<Self> {
        let end = start.checked_add(len).filter(|_| len > 0)?;
        let name = if name.is_empty() { &b"[unknown]"[..] } else { name };
        let frames = frames.map(Arc::new);
        Some(Self { start, end, name: Untrusted::from(name), frames, bias: 0 })
    }

    /// The same code at another address.
    pub(crate) fn moved_to(&self, start: u64) -> Option<Self> {
        let end = start.checked_add(self.end.wrapping_sub(self.start))?;
        let bias = self.bias.wrapping_add(start.wrapping_sub(self.start));
        Some(Self { start, end, bias, ..self.clone() })
    }

    /// The row for an address; `None` if there is none that can be used.
    pub(crate) fn row(&self, addr: u64, word: WordSize) -> Option<Row> {
        self.frames.as_ref()?.table(word)?.find_row(addr.wrapping_sub(self.bias)).ok().flatten()
    }

    /// The rules of other registers for an address, if there are any.
    pub(crate) fn register_rules(&self, addr: u64, word: WordSize) -> Option<RegisterRules> {
        let table = self.frames.as_ref()?.table(word)?;
        table.find_register_rules(addr.wrapping_sub(self.bias)).ok().flatten()
    }
}
