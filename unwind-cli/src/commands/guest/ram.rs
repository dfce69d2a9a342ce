//! The guest's physical memory, in the file that QEMU keeps it in or in QEMU itself.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::rc::Rc;

use object::elf;
use unwind_core::ReadError;
use unwind_target::InputError;
use unwind_target::elf::ElfFile;
use unwind_x86::paging::{PhysAddr, PhysicalMemory};

use crate::commands::guest::error::GuestError;
use crate::commands::guest::gdb::{BLOCK, Gdb};
use crate::failure::Failure;

/// Where guest physical addresses are in the file of the guest's memory.
///
/// The address space has gaps where the file has none: below 4 GiB, for
/// devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryMap {
    /// Ranges of addresses with the offset of each one's start, ascending.
    ranges: Vec<(Range<u64>, u64)>,
}

impl MemoryMap {
    /// Reads the text of `info mtree -f`: what the flat view of the system has by each name, the most first. Nodes of
    /// NUMA, memory that was plugged in, firmware and video memory have names of their own.
    pub(crate) fn regions(text: &str) -> Vec<Self> {
        let mut by_name = BTreeMap::<&str, Vec<(Range<u64>, u64)>>::new();
        let mut of_system = false;
        for line in text.lines().map(str::trim) {
            if let Some(root) = line.strip_prefix("Root memory region: ") {
                of_system = root == "system";
            } else if of_system && let Some((name, range, offset)) = region(line) {
                by_name.entry(name).or_default().push((range, offset));
            }
        }
        let size = |ranges: &[(Range<u64>, u64)]| {
            ranges.iter().fold(0_u64, |sum, (range, _)| {
                sum.saturating_add(range.end.saturating_sub(range.start))
            })
        };
        let mut regions: Vec<_> = by_name.into_values().collect();
        regions.sort_by_key(|ranges| Reverse(size(ranges)));
        let sorted = |mut ranges: Vec<(Range<u64>, u64)>| {
            ranges.sort_unstable_by_key(|(range, _)| range.start);
            Self { ranges }
        };
        regions.into_iter().map(sorted).collect()
    }

    /// All of these regions, each at its addresses.
    pub(crate) fn of_addresses(regions: Vec<Self>) -> Self {
        let ranges = regions.into_iter().flat_map(|region| region.ranges);
        Self::flat(ranges.map(|(range, _)| (range.clone(), range.start)).collect())
    }

    /// All of these regions, each with what is to be added to its places.
    pub(crate) fn of_regions(regions: Vec<(Self, u64)>) -> Self {
        let moved = regions.into_iter().flat_map(|(region, by)| {
            region.ranges.into_iter().map(move |(range, at)| (range, at.wrapping_add(by)))
        });
        Self::flat(moved.collect())
    }

    /// The memory in the dump of a machine, as far as its file has it.
    pub(crate) fn of_dump(core: &ElfFile) -> Self {
        let loads = core.segments.iter().filter(|segment| segment.kind == elf::PT_LOAD);
        let ranges = loads.filter_map(|segment| {
            let left = core.byte_len().saturating_sub(segment.offset);
            let start = segment.physical_addr;
            Some((start..start.checked_add(segment.file_size.min(left))?, segment.offset))
        });
        Self::flat(ranges.collect())
    }

    /// Ranges that may overlap: a kernel that has crashed lists its code once more, apart from the memory that it is in.
    fn flat(mut ranges: Vec<(Range<u64>, u64)>) -> Self {
        ranges.sort_unstable_by_key(|(range, _)| (range.start, Reverse(range.end)));
        let mut end = 0;
        ranges.retain_mut(|(range, offset)| {
            let twice = end.max(range.start).saturating_sub(range.start);
            range.start = range.start.saturating_add(twice);
            *offset = offset.saturating_add(twice);
            end = end.max(range.end);
            range.start < range.end
        });
        Self { ranges }
    }

    /// An address that is in memory, and its place in the file.
    pub(crate) fn first(&self) -> Option<(u64, u64)> {
        self.ranges.first().map(|(range, at)| (range.start, *at))
    }

    /// How long the file has to be.
    fn file_end(&self) -> u64 {
        let end = |(range, offset): &(Range<u64>, u64)| {
            range.end.saturating_sub(range.start).saturating_add(*offset)
        };
        self.ranges.iter().map(end).max().unwrap_or(0)
    }

    /// Where in the file `len` bytes are that are all in one range.
    fn locate(&self, addr: u64, len: u64) -> Option<u64> {
        let after = self.ranges.partition_point(|(range, _)| range.start <= addr);
        let (range, offset) = self.ranges.get(after.checked_sub(1)?)?;
        let end = addr.checked_add(len)?;
        if end > range.end {
            return None;
        }
        addr.checked_sub(range.start)?.checked_add(*offset)
    }
}

/// Reads a line of a flat view: `START-END (prio N, KIND): NAME @OFFSET`.
/// `None` if it is no range of memory.
fn region(line: &str) -> Option<(&str, Range<u64>, u64)> {
    let (range, rest) = line.split_once(" (prio ")?;
    let (kind, rest) = rest.split_once("): ")?;
    // Shadowed firmware areas are read-only memory.
    if !kind.ends_with(", ram") && !kind.ends_with(", rom") {
        return None;
    }
    let (start, last) = range.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(last, 16).ok()?.checked_add(1)?;
    let mut words = rest.split_whitespace();
    let name = words.next()?;
    let offset = match words.find_map(|word| word.strip_prefix('@')) {
        Some(offset) => u64::from_str_radix(offset, 16).ok()?,
        None => 0,
    };
    (start < end).then_some((name, start..end, offset))
}

/// The guest's physical memory.
#[derive(Debug)]
pub(crate) enum GuestRam {
    /// It is read by system calls: a mapped file that shrinks would kill the reader.
    File { file: File, map: MemoryMap },
    /// A stub for gdb reads it while the guest stands. It would read devices, too, which a read may change, so the map says
    /// what is memory.
    Stub { stub: Rc<RefCell<Gdb>>, map: MemoryMap },
}

impl GuestRam {
    /// Opens the file, which has to be as long as the map says.
    ///
    /// # Errors
    ///
    /// [`Failure`] if it cannot be read, or is too short.
    pub(crate) fn open(path: &Path, map: MemoryMap) -> Result<Self, Failure> {
        let failed = |error| InputError::Read { path: path.to_owned(), error };
        let file = File::open(path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        let end = map.file_end();
        if len < end {
            return Err(GuestError::MemoryFile { path: path.to_owned(), len, end }.into());
        }
        Ok(Self::File { file, map })
    }

    /// The memory of the process that runs the guest, whose places are addresses there.
    ///
    /// # Errors
    ///
    /// [`GuestError::Process`] if it may not be read.
    pub(crate) fn of_process(pid: i32, map: MemoryMap) -> Result<Self, GuestError> {
        let file = File::open(format!("/proc/{pid}/mem"));
        let file = file.map_err(|error| GuestError::Process { pid, error })?;
        Ok(Self::File { file, map })
    }
}

impl PhysicalMemory for GuestRam {
    fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let (file, map) = match self {
            Self::File { file, map } => (file, map),
            Self::Stub { stub, map } => {
                let (at, len) = blocks_of(addr.get(), buf.len()).ok_or(ReadError::Invalid)?;
                map.locate(at, len).ok_or(ReadError::Invalid)?;
                let read = stub.borrow_mut().read(addr.get(), buf);
                return read.ok_or(ReadError::Invalid);
            }
        };
        let len = u64::try_from(buf.len()).map_err(|_| ReadError::Invalid)?;
        let at = map.locate(addr.get(), len).ok_or(ReadError::Invalid)?;
        loop {
            match file.read_exact_at(buf, at) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(ReadError::Invalid),
            }
        }
    }
}

/// The whole blocks that a stub is asked for: where they begin, and how many bytes they have.
fn blocks_of(addr: u64, len: usize) -> Option<(u64, u64)> {
    let block = u64::try_from(BLOCK).ok()?;
    let start = addr & !block.checked_sub(1)?;
    let end = addr.checked_add(u64::try_from(len).ok()?)?.checked_next_multiple_of(block)?;
    Some((start, end.checked_sub(start)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "
FlatView #1
 AS \"I/O\", root: io
 Root memory region: io
  0000000000000000-000000000000000f (prio 0, ram): not-memory

FlatView #2
 AS \"memory\", root: system
 AS \"cpu-memory-0\", root: system
 Root memory region: system
  0000000000000000-000000000009ffff (prio 0, ram): m
  00000000000a0000-00000000000bffff (prio 1, i/o): vga-lowmem
  00000000000c0000-00000000000dffff (prio 1, rom): m @00000000000c0000
  00000000000e0000-00000000000fffff (prio 1, rom): pc.bios @0000000000020000
  0000000000100000-000000007fffffff (prio 0, ram): m @0000000000100000
  00000000fffc0000-00000000ffffffff (prio 0, rom): pc.bios
  0000000100000000-000000017fffffff (prio 0, ram): m @0000000080000000
";

    #[test]
    fn memory_above_the_gap_is_after_that_below_in_the_file() {
        let map = MemoryMap::regions(TREE).remove(0);
        assert_eq!(map.locate(0x1000, 8), Some(0x1000));
        assert_eq!(map.locate(0x0c_0000, 8), Some(0x0c_0000), "read-only memory");
        assert_eq!(map.locate(0x7fff_fff8, 8), Some(0x7fff_fff8));
        assert_eq!(map.locate(0x1_0000_0000, 8), Some(0x8000_0000));
        assert_eq!(map.file_end(), 0x1_0000_0000);
    }

    #[test]
    fn memory_that_is_listed_twice_has_a_place_all_over() {
        let ranges = vec![(0x5000..0x7000, 0x100), (0x1000..0x9000, 0x8000), (0x8000..0xa000, 0)];
        let map = MemoryMap::flat(ranges);
        for (addr, at) in [(0x1000, 0x8000), (0x5008, 0xc008), (0x7000, 0xe000), (0x8ff8, 0xfff8)] {
            assert_eq!(map.locate(addr, 8), Some(at), "{addr:#x}");
        }
        assert_eq!(map.locate(0x9000, 8), Some(0x1000));
        assert_eq!((map.locate(0xfff, 1), map.locate(0xa000, 1)), (None, None));
    }

    #[test]
    fn what_is_not_memory_has_no_place() {
        let map = MemoryMap::regions(TREE).remove(0);
        for addr in [0x9_fff9, 0xa_0000, 0xe_0000, 0x7fff_fff9, 0xffff_fff0, 0x1_8000_0000] {
            assert_eq!(map.locate(addr, 8), None, "{addr:#x}");
        }
        assert_eq!(map.locate(u64::MAX, 8), None);
    }

    #[test]
    fn all_memory_of_the_system_has_a_place_by_its_name() {
        let regions = MemoryMap::regions(TREE);
        let hosts = [0x7f00_0000_0000, 0x7e00_0000_0000];
        assert_eq!(regions.len(), hosts.len());
        let map = MemoryMap::of_regions(regions.into_iter().zip(hosts).collect());
        assert_eq!(map.locate(0x1_0000_0000, 8), Some(0x7f00_8000_0000));
        assert_eq!(map.locate(0xe_0000, 8), Some(0x7e00_0002_0000));
        assert_eq!(map.locate(0xffff_fff0, 8), Some(0x7e00_0003_fff0));
        assert_eq!(map.locate(0xa_0000, 8), None);
    }

    #[test]
    fn a_stub_is_asked_for_memory_alone() {
        let map = MemoryMap::of_addresses(MemoryMap::regions(TREE));
        let is_memory = |addr, len| {
            let (at, len) = blocks_of(addr, len).unwrap();
            map.locate(at, len).is_some()
        };
        for (addr, len) in [(0, 8), (0x9_fff8, 8), (0xc_0000, 0x400), (0x1_7fff_fc01, 0x3ff)] {
            assert!(is_memory(addr, len), "{addr:#x}");
        }
        for (addr, len) in
            [(0xa_0000, 8), (0x9_fff8, 16), (0xfee0_0000, 4), (0x8000_0000, 1), (0x1_8000_0000, 1)]
        {
            assert!(!is_memory(addr, len), "{addr:#x}");
        }
        assert_eq!(blocks_of(u64::MAX, 2), None);
    }

    #[test]
    fn text_without_memory_gives_no_map() {
        assert_eq!(MemoryMap::regions(""), []);
        assert_eq!(
            MemoryMap::regions(
                &TREE.replace("root: system", "root: s").replace("region: system", "region: s")
            ),
            []
        );
        let damaged = "Root memory region: system\n zz-10 (prio 0, ram): m\n 10-0 (prio 0, ram): m\n 0-ffffffffffffffff (prio 0, ram): m";
        assert_eq!(MemoryMap::regions(damaged), []);
    }
}
