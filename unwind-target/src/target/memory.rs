//! How the memory of a process or of a core file is read.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;

use unwind_core::{Memory, ReadError, VirtAddr};

use crate::elf::ElfFile;
use crate::elf::error::Part;
use crate::loaded::loaded_file::LoadedFile;

/// How many bytes are read at once.
const PAGE: usize = 4096;
/// The bits of an address that say where in its page it is.
const IN_PAGE: u64 = 0xfff;
/// How many pages are kept: 16 MiB, twice the usual limit of a stack.
const KEPT_PAGES: usize = 4096;

/// Keeps the pages that were read, so that a walk costs one system call a page
/// and not one a word. For a target that does not run.
#[derive(Debug)]
pub struct PageCache<M> {
    pub(crate) source: M,
    pages: HashMap<u64, Box<[u8; PAGE]>>,
}

impl<M: Memory> PageCache<M> {
    pub(crate) fn new(source: M) -> Self {
        Self { source, pages: HashMap::new() }
    }

    /// The page that starts at `start`, if all of it can be read.
    fn page(&mut self, start: u64) -> Option<&[u8; PAGE]> {
        if !self.pages.contains_key(&start) {
            let mut page = Box::new([0; PAGE]);
            self.source.read(VirtAddr::new(start), page.as_mut_slice()).ok()?;
            if self.pages.len() >= KEPT_PAGES {
                self.pages.clear();
            }
            self.pages.insert(start, page);
        }
        self.pages.get(&start).map(|page| &**page)
    }

    /// Reads what lies in the page of `addr` and returns how many bytes that
    /// were.
    fn read_in_page(&mut self, addr: u64, buf: &mut [u8]) -> Result<usize, ReadError> {
        let start = usize::try_from(addr & IN_PAGE).map_err(|_| ReadError::Invalid)?;
        let len = buf.len().min(PAGE.saturating_sub(start));
        let buf = buf.get_mut(..len).unwrap_or_default();
        if let Some(page) = self.page(addr & !IN_PAGE)
            && let Some(bytes) = page.get(start..).and_then(|tail| tail.get(..len))
        {
            buf.copy_from_slice(bytes);
        } else {
            // Part of the page may be there, and the source knows why not all is.
            self.source.read(VirtAddr::new(addr), buf)?;
        }
        Ok(len)
    }
}

impl<M: Memory> Memory for PageCache<M> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        read_by_pieces(addr, buf, |addr, rest| self.read_in_page(addr, rest))
    }
}

/// Fills `buf` by `read`, which fills as much of the rest as it can at once and
/// returns how much that was.
pub fn read_by_pieces(
    addr: VirtAddr,
    buf: &mut [u8],
    mut read: impl FnMut(u64, &mut [u8]) -> Result<usize, ReadError>,
) -> Result<(), ReadError> {
    let mut addr = addr.get();
    let mut rest = buf;
    while !rest.is_empty() {
        let len = read(addr, rest)?;
        rest = rest.get_mut(len..).unwrap_or_default();
        // What reaches past the last address does not continue at the first.
        let next = u64::try_from(len).ok().and_then(|len| addr.checked_add(len));
        addr = match next {
            Some(next) if len != 0 => next,
            _ if rest.is_empty() => break,
            _ => return Err(ReadError::Invalid),
        };
    }
    Ok(())
}

/// The memory of a process, by `/proc/PID/mem`, which brings in what is
/// swapped out.
#[derive(Debug)]
pub struct ProcessMemory(File);

impl ProcessMemory {
    /// Opens the memory that a thread of a traced process has.
    ///
    /// # Errors
    ///
    /// As opening a file.
    pub fn open(thread: i32) -> io::Result<Self> {
        File::open(format!("/proc/{thread}/mem")).map(Self)
    }
}

impl Memory for ProcessMemory {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.0.read_exact_at(buf, addr.get()).map_err(|_| ReadError::Invalid)
    }
}

/// The memory that a core file keeps, and what of the rest is in the files that
/// were mapped: unchanged pages of files are often left out of a core.
#[derive(Debug)]
pub struct CoreMemory {
    core: Rc<ElfFile>,
    /// Sorted by start.
    segments: Vec<CoreSegment>,
    /// Sorted by start.
    files: Vec<MappedPart>,
}

/// A range that was mapped when the core was made.
#[derive(Clone, Debug)]
struct CoreSegment {
    range: Range<u64>,
    /// Up to where the core has its bytes.
    saved_end: u64,
    /// Where in the core they start.
    offset: u64,
}

/// A range that a file was mapped to.
#[derive(Clone, Debug)]
struct MappedPart {
    range: Range<u64>,
    offset: u64,
    file: Rc<LoadedFile>,
}

impl CoreMemory {
    pub(crate) fn new(core: Rc<ElfFile>) -> Self {
        let loads = core.segments.iter().filter(|s| s.kind == object::elf::PT_LOAD);
        // What the process could not read either, such as the guard below a stack, will never be there.
        let loads = loads.filter(|s| s.readable || s.file_size != 0);
        let mut segments: Vec<_> = loads
            .map(|s| CoreSegment {
                range: s.addr..s.addr.saturating_add(s.memory_size.max(s.file_size)),
                saved_end: s.addr.saturating_add(s.file_size),
                offset: s.offset,
            })
            .collect();
        segments.sort_by_key(|segment| segment.range.start);
        Self { core, segments, files: Vec::new() }
    }

    /// Adds which ranges were mapped from which offset on of which file.
    pub(crate) fn add_files(
        &mut self,
        files: impl IntoIterator<Item = (Range<u64>, u64, Rc<LoadedFile>)>,
    ) {
        let parts = files.into_iter();
        self.files.extend(parts.map(|(range, offset, file)| MappedPart { range, offset, file }));
        self.files.sort_by_key(|part| part.range.start);
    }

    /// Reads from what the core has itself at `addr`, and returns how many
    /// bytes that were.
    fn read_some(&self, addr: u64, buf: &mut [u8]) -> Result<usize, ReadError> {
        let segment = containing(&self.segments, addr, |segment| &segment.range);
        if let Some(segment) = segment
            && addr < segment.saved_end
        {
            let at = addr.wrapping_sub(segment.range.start).saturating_add(segment.offset);
            let piece = clip(buf, segment.saved_end.saturating_sub(addr));
            if self.core.read_into(Part::Memory, at, piece).is_ok() {
                return Ok(piece.len());
            }
            // The core was cut off before this: a mapped file may still help.
        }
        if let Some(part) = containing(&self.files, addr, |part| &part.range) {
            let at = addr.wrapping_sub(part.range.start).saturating_add(part.offset);
            let piece = clip(buf, part.range.end.saturating_sub(addr));
            if part.file.elf.read_into(Part::Memory, at, piece).is_ok() {
                return Ok(piece.len());
            }
        }
        Err(if segment.is_some() { ReadError::NotResident } else { ReadError::Invalid })
    }
}

impl Memory for CoreMemory {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        read_by_pieces(addr, buf, |addr, rest| self.read_some(addr, rest))
    }
}

/// The last of `list`, which is sorted by start, whose range holds `addr`.
pub(crate) fn containing<T>(
    list: &[T],
    addr: u64,
    range: impl Fn(&T) -> &Range<u64>,
) -> Option<&T> {
    let after = list.partition_point(|item| range(item).start <= addr);
    list.get(after.checked_sub(1)?).filter(|item| addr < range(item).end)
}

/// At most the first `len` bytes.
pub(super) fn clip(buf: &mut [u8], len: u64) -> &mut [u8] {
    let len = usize::try_from(len).unwrap_or(usize::MAX).min(buf.len());
    buf.get_mut(..len).unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "tests")]
mod tests {
    use super::*;

    /// Bytes from 0x1000 to 0x2800, each the low byte of its address, and a
    /// count of the reads.
    struct Ramp {
        reads: usize,
    }

    impl Memory for Ramp {
        fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
            self.reads += 1;
            for (byte, offset) in buf.iter_mut().zip(0..) {
                let addr = addr.wrapping_add(offset).get();
                if !(0x1000..0x2800).contains(&addr) {
                    return Err(ReadError::Invalid);
                }
                *byte = addr.to_le_bytes()[0];
            }
            Ok(())
        }
    }

    #[test]
    fn a_page_is_read_once_however_many_words_are() {
        let mut memory = PageCache::new(Ramp { reads: 0 });
        for addr in (0x1000..0x1ff0).step_by(8) {
            let word = memory.read_u64(VirtAddr::new(addr)).unwrap();
            assert_eq!(word.to_le_bytes()[0], addr.to_le_bytes()[0]);
        }
        assert_eq!(memory.source.reads, 1);
    }

    #[test]
    fn a_word_may_lie_across_two_pages() {
        let mut memory = PageCache::new(Ramp { reads: 0 });
        let word = memory.read_u64(VirtAddr::new(0x1ffc)).unwrap();
        assert_eq!(word.to_le_bytes(), [0xfc, 0xfd, 0xfe, 0xff, 0, 1, 2, 3]);
    }

    #[test]
    fn the_readable_part_of_a_page_is_read_and_no_more() {
        let mut memory = PageCache::new(Ramp { reads: 0 });
        assert!(memory.read_u64(VirtAddr::new(0x27f8)).is_ok());
        for addr in [0, 0xff9, 0x27f9, 0x2800, u64::MAX - 7, u64::MAX] {
            assert_eq!(memory.read_u64(VirtAddr::new(addr)), Err(ReadError::Invalid), "{addr:#x}");
        }
    }

    #[test]
    fn the_memory_of_this_process_is_read_as_it_is() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut memory = ProcessMemory::open(own).unwrap();
        let word = Box::new(0x1122_3344_5566_7788_u64);
        let addr = VirtAddr::new(u64::try_from(std::ptr::from_ref(&*word).addr()).unwrap());
        assert_eq!(memory.read_u64(addr), Ok(*word));
        assert_eq!(memory.read_u64(VirtAddr::new(8)), Err(ReadError::Invalid));
        assert_eq!(memory.read_u64(VirtAddr::new(u64::MAX - 7)), Err(ReadError::Invalid));
    }
}
