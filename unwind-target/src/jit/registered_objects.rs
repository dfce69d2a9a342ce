//! Object files that the compilers of a program have registered by GDB's JIT interface: a list of ELF
//! files in its memory, whose sections have the addresses of the code. Its layout is in "JIT Compilation
//! Interface" of GDB's manual.

use std::ops::Range;
use std::rc::Rc;

use unwind_core::{Memory, VirtAddr};

use crate::elf::ElfFile;
use crate::loaded::file_data::{FileData, data_of_files};
use crate::loaded::loaded_file::LoadedFile;
use crate::symbols::data::data_named;
use crate::target::maps::Mapping;
use crate::target::memory::ProcessMemory;

/// The head of the list.
const DESCRIPTOR: &[u8] = b"__jit_debug_descriptor";
/// The version of its layout.
const VERSION: u32 = 1;
/// Offsets in the head, and in an entry.
const FIRST_ENTRY: u64 = 16;
const NEXT_ENTRY: u64 = 0;
const FILE_ADDR: u64 = 16;
const FILE_SIZE: u64 = 24;

/// How many lists, objects, and bytes of objects are read of a program.
const MAX_LISTS: usize = 8;
const MAX_OBJECTS: usize = 1 << 14;
const MAX_BYTES: u64 = 64 << 20;

/// The link-time address of the head of a list that a file has, if it is one of a 64-bit program.
#[must_use]
pub fn list_of(file: &ElfFile) -> Option<u64> {
    let [addr] = data_named(file, &[DESCRIPTOR]).ok()?;
    addr
}

/// Where an object has code: at the addresses of its sections.
pub fn code_of(object: &ElfFile) -> impl Iterator<Item = Range<u64>> {
    let sections = object.sections().unwrap_or_default().iter();
    let code = sections.filter(|section| section.allocated && section.executable);
    code.filter_map(|section| Some(section.addr..section.addr.checked_add(section.size)?))
        .filter(|range| !range.is_empty())
}

/// Where a program has such lists. Only 64-bit ones are looked for.
#[derive(Debug, Default)]
pub struct JitLists {
    descriptors: Vec<u64>,
}

impl JitLists {
    /// Those with their heads at these addresses: the first eight, as more are not read.
    #[must_use]
    pub fn at(descriptors: impl IntoIterator<Item = u64>) -> Self {
        Self { descriptors: descriptors.into_iter().take(MAX_LISTS).collect() }
    }

    /// Those of the files that are mapped, if there is code in memory without a file; `open` opens the
    /// file of a mapping.
    pub(crate) fn find(
        mappings: &[Mapping],
        open: impl FnMut(&Mapping) -> Option<Rc<LoadedFile>>,
    ) -> Self {
        let mut code = mappings.iter().filter(|mapping| mapping.executable);
        if !code.any(Mapping::is_memory) {
            return Self::default();
        }
        let found = data_of_files(mappings, open, |_| true, &[DESCRIPTOR]);
        Self::at(found.filter_map(|FileData { addrs: [addr], .. }| addr))
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.descriptors.is_empty()
    }

    /// The objects that the lists of a process have which is held; some thread leads to its memory.
    pub(crate) fn read_process(&self, thread: i32) -> Vec<ElfFile> {
        if self.is_empty() {
            return Vec::new();
        }
        let memory = ProcessMemory::open(thread);
        memory.map_or_else(|_| Vec::new(), |mut memory| self.read(&mut memory))
    }

    /// The objects that the lists have. What is no ELF file is left out: compilers may register files of
    /// other formats.
    pub(crate) fn read(&self, memory: &mut impl Memory) -> Vec<ElfFile> {
        let mut objects = Vec::new();
        self.read_files(memory, |bytes| objects.extend(ElfFile::from_bytes(bytes)));
        objects
    }

    /// Hands out the bytes of the files that the lists have. A list that cannot be read ends there; returns
    /// whether all were read to their ends.
    pub fn read_files(&self, memory: &mut impl Memory, take: impl FnMut(Vec<u8>)) -> bool {
        let mut reader = ListReader { memory, left: MAX_BYTES, files: 0, take };
        // What was read up to there holds.
        self.descriptors.iter().fold(true, |all, &list| all & reader.read(list).is_some())
    }
}

struct ListReader<'m, M, T> {
    memory: &'m mut M,
    /// How many bytes of files may still be read.
    left: u64,
    /// How many were read.
    files: usize,
    take: T,
}

impl<M: Memory, T: FnMut(Vec<u8>)> ListReader<'_, M, T> {
    fn read(&mut self, descriptor: u64) -> Option<()> {
        let version = u32::from_le_bytes(self.array(descriptor)?);
        if version != VERSION {
            return None;
        }
        let mut entry = self.word(descriptor, FIRST_ENTRY)?;
        // A list in a circle has an end, too.
        while entry != 0 && self.files < MAX_OBJECTS {
            self.files = self.files.saturating_add(1);
            let (addr, size) = (self.word(entry, FILE_ADDR)?, self.word(entry, FILE_SIZE)?);
            self.left = self.left.checked_sub(size)?;
            let mut bytes = vec![0; usize::try_from(size).ok()?];
            if self.memory.read(VirtAddr::new(addr), &mut bytes).is_ok() {
                (self.take)(bytes);
            }
            entry = self.word(entry, NEXT_ENTRY)?;
        }
        // Of a longer list it is not known what it has no more.
        (entry == 0).then_some(())
    }

    fn word(&mut self, addr: u64, offset: u64) -> Option<u64> {
        Some(u64::from_le_bytes(self.array(addr.checked_add(offset)?)?))
    }

    fn array<const N: usize>(&mut self, addr: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.memory.read(VirtAddr::new(addr), &mut bytes).ok()?;
        Some(bytes)
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "tests")]
mod tests {
    use unwind_core::SliceMemory;

    use super::*;

    /// Where the memory of these tests starts.
    const BASE: u64 = 0x1000;

    /// A descriptor at the base, and after it entries with the file `file` each; the last one leads to
    /// `next`.
    fn list(entries: u64, next: u64, (file, size): (u64, u64)) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut push = |word: u64| bytes.extend(word.to_le_bytes());
        let entry = |number: u64| BASE + 24 + 32 * number;
        [1, 0, entry(0)].into_iter().for_each(&mut push);
        for number in 0..entries {
            let next = if number + 1 == entries { next } else { entry(number + 1) };
            [next, 0, file, size].into_iter().for_each(&mut push);
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Vec<ElfFile> {
        let lists = JitLists { descriptors: vec![BASE] };
        lists.read(&mut SliceMemory::new(VirtAddr::new(BASE), bytes))
    }

    /// The list with an ELF header after it.
    fn with_file(entries: u64, next: u64, size: u64) -> Vec<u8> {
        let file = BASE + u64::try_from(list(entries, next, (0, 0)).len()).unwrap();
        let mut bytes = list(entries, next, (file, size));
        bytes.extend(b"\x7fELF\x02\x01\x01");
        bytes.resize(bytes.len() + 57, 0);
        bytes
    }

    #[test]
    fn m1_the_objects_of_a_list_are_read_up_to_what_is_damaged() {
        assert_eq!(read(&with_file(3, 0, 64)).len(), 3);
        // The next one is nowhere.
        assert_eq!(read(&with_file(3, 1, 64)).len(), 3);
        // It is longer than memory, or than anything.
        assert_eq!(read(&with_file(3, 0, 65)).len(), 0);
        assert_eq!(read(&with_file(3, 0, u64::MAX)).len(), 0);
        // It is no ELF file.
        assert_eq!(read(&list(3, 0, (BASE, 24))).len(), 0);
        let mut other_version = with_file(3, 0, 64);
        other_version[0] = 2;
        assert_eq!(read(&other_version).len(), 0);
    }

    #[test]
    fn m1_a_list_in_a_circle_has_an_end() {
        assert_eq!(read(&with_file(3, BASE + 24, 64)).len(), MAX_OBJECTS);
        // Each copy counts.
        let size = 1 << 20;
        let mut bytes = with_file(1, BASE + 24, size);
        bytes.resize(bytes.len() + (1 << 20), 0);
        assert_eq!(u64::try_from(read(&bytes).len()).unwrap(), MAX_BYTES / size);
    }
}
