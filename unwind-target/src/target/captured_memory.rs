//! The memory of a process as far as it was copied while it was held.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use unwind_core::{Memory, ReadError, VirtAddr};

use crate::elf::error::Part;
use crate::loaded::module::{ModuleFile, Modules};
use crate::target::maps::{Access, Backing, Mapping};
use crate::target::memory::{PageCache, clip, containing, read_by_pieces};

/// Bytes that were copied.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) start: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Copied {
    /// Past the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(u64::try_from(self.bytes.len()).unwrap_or(u64::MAX))
    }

    pub(crate) fn contains(&self, addr: u64) -> bool {
        (self.start..self.end()).contains(&addr)
    }
}

/// Whether the bytes of a mapping are those of its file: code that the process cannot
/// change.
pub(crate) fn is_file_code(mapping: &Mapping) -> bool {
    mapping.executable
        && mapping.access == Some(Access::ReadOnly)
        && matches!(mapping.backing, Backing::File(_))
}

/// The memory of a process at the time of a hold: what was copied then, and code, which is
/// in files.
#[derive(Debug)]
pub struct CapturedMemory {
    /// Sorted by start; none has bytes of another one.
    copies: Vec<Copied>,
    code: PageCache<FileCode>,
    /// What was mapped, and could be read. Sorted by start.
    readable: Vec<Range<u64>>,
    /// Pages that were mapped, but could not be read.
    unreadable: BTreeSet<u64>,
    /// Pages that were asked for, and not copied.
    lacked: BTreeSet<u64>,
    /// How often one was.
    refusals: u64,
}

impl CapturedMemory {
    /// Of what was copied, sorted by start, and the pages that could not be, although they
    /// are mapped. The files are not known yet.
    pub(crate) fn new(
        mappings: &[Mapping],
        copies: Vec<Copied>,
        unreadable: BTreeSet<u64>,
    ) -> Self {
        let readable = mappings.iter();
        let readable = readable.filter(|mapping| mapping.access != Some(Access::Nothing));
        Self {
            copies,
            code: PageCache::new(FileCode::default()),
            readable: readable.map(|mapping| mapping.range.clone()).collect(),
            unreadable,
            lacked: BTreeSet::new(),
            refusals: 0,
        }
    }

    /// Adds the files that code is in.
    pub(crate) fn add_code(&mut self, mappings: &[Mapping], modules: &Modules) {
        let code = mappings.iter().filter(|mapping| is_file_code(mapping));
        let parts = code.filter_map(|mapping| {
            let file = Rc::clone(modules.file_of(&mapping.backing)?);
            Some(CodePart { range: mapping.range.clone(), offset: mapping.offset, file })
        });
        self.code.source.0.extend(parts);
    }

    /// The pages that were asked for so far, and not copied.
    pub(crate) fn lacked(&self) -> &BTreeSet<u64> {
        &self.lacked
    }

    /// How often something was asked for so far that was not copied.
    pub(crate) fn refusals(&self) -> u64 {
        self.refusals
    }

    fn read_some(&mut self, addr: u64, buf: &mut [u8]) -> Result<usize, ReadError> {
        let after = self.copies.partition_point(|copied| copied.start <= addr);
        let copied = after.checked_sub(1).and_then(|at| self.copies.get(at));
        if let Some(copied) = copied.filter(|copied| addr < copied.end()) {
            let skip = usize::try_from(addr.wrapping_sub(copied.start)).unwrap_or(usize::MAX);
            let bytes = copied.bytes.get(skip..).unwrap_or_default();
            let len = bytes.len().min(buf.len());
            for (to, from) in buf.iter_mut().zip(bytes) {
                *to = *from;
            }
            return Ok(len);
        }
        let mapping = containing(&self.readable, addr, |range| range).ok_or(ReadError::Invalid)?;
        let piece = clip(buf, mapping.end.saturating_sub(addr));
        if self.code.read(VirtAddr::new(addr), piece).is_ok() {
            return Ok(piece.len());
        }
        let page = addr & !0xfff;
        if self.unreadable.contains(&page) {
            return Err(ReadError::Invalid);
        }
        self.refusals = self.refusals.saturating_add(1);
        self.lacked.insert(page);
        Err(ReadError::NotResident)
    }
}

impl Memory for CapturedMemory {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        read_by_pieces(addr, buf, |addr, rest| self.read_some(addr, rest))
    }
}

/// Code that a process cannot change, read from the files that it maps.
#[derive(Debug, Default)]
struct FileCode(Vec<CodePart>);

/// A range that code of a file was mapped to.
#[derive(Clone, Debug)]
struct CodePart {
    range: Range<u64>,
    offset: u64,
    file: Rc<ModuleFile>,
}

impl Memory for FileCode {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let addr = addr.get();
        let part = containing(&self.0, addr, |part| &part.range).ok_or(ReadError::Invalid)?;
        let len = u64::try_from(buf.len()).unwrap_or(u64::MAX);
        if part.range.end.saturating_sub(addr) < len {
            return Err(ReadError::Invalid);
        }
        let file = part.file.get().map_err(|_| ReadError::Invalid)?;
        let at = addr.wrapping_sub(part.range.start).saturating_add(part.offset);
        file.elf.read_into(Part::Memory, at, buf).map_err(|_| ReadError::Invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::maps;

    #[test]
    fn what_was_mapped_and_not_copied_is_lacked_and_what_never_was_there_is_not() {
        let mappings = maps::parse(
            b"1000-3000 rw-p 0 00:00 0 \n5000-7000 rw-p 0 00:00 0 \n8000-9000 ---p 0 00:00 0 ",
        );
        let copies = vec![
            Copied { start: 0x1800, bytes: vec![1; 0x800] },
            Copied { start: 0x2000, bytes: vec![2; 16] },
        ];
        let unreadable = BTreeSet::from([0x6000]);
        let mut memory = CapturedMemory::new(&mappings, copies, unreadable);
        let mut read = |addr| memory.read_u64(VirtAddr::new(addr));
        assert_eq!(read(0x1ff8), Ok(0x0101_0101_0101_0101));
        assert_eq!(read(0x1ffc), Ok(0x0202_0202_0101_0101));
        for addr in [0x0, 0x6000, 0x7000, 0x8000, u64::MAX - 7] {
            assert_eq!(read(addr), Err(ReadError::Invalid), "{addr:#x}");
        }
        for addr in [0x17f8, 0x200c, 0x5000] {
            assert_eq!(read(addr), Err(ReadError::NotResident), "{addr:#x}");
        }
        assert_eq!(*memory.lacked(), BTreeSet::from([0x1000, 0x2000, 0x5000]));
        assert_eq!(memory.refusals(), 3);
    }

    #[test]
    fn only_code_that_cannot_change_is_read_from_its_file() {
        for (line, is_code) in [
            (&b"1000-2000 r-xp 0 00:01 7 /a"[..], true),
            (b"1000-2000 rwxp 0 00:01 7 /a", false),
            (b"1000-2000 r--p 0 00:01 7 /a", false),
            (b"1000-2000 r-xp 0 00:00 0 ", false),
            (b"1000-2000 r-xp 0 00:00 0 [vdso]", false),
        ] {
            assert_eq!(maps::parse(line).iter().all(is_file_code), is_code);
        }
    }
}
