//! Code of a file that a program has moved to memory without a file, at the same addresses: to
//! have it on huge pages, as `node --use-largepages=on` and some loaders do.
//!
//! Where code of a file would be, by what is mapped of it nearby and its program headers, memory
//! without a file is taken for that code if it has the same bytes. A compiler that has put its own
//! code there by chance has others.

use std::ops::Range;

use object::elf;
use unwind_core::{Memory, VirtAddr};

use crate::elf::ElfFile;
use crate::elf::error::Part;
use crate::target::maps::{Backing, Mapping};

/// How many pages of a range are compared.
const PLACES: u64 = 16;

/// One in this many of the compared pages may differ: a program may have patched a few.
const MAY_DIFFER: usize = 8;

/// How many ranges of a process are looked at, and how many segments of a file.
const MAX_RANGES: usize = 256;
const MAX_SEGMENTS: usize = 64;

const PAGE: u64 = 4096;
const IN_PAGE: u64 = PAGE - 1;

/// Where a file is mapped: an address, and what offset of the file is there.
#[derive(Clone, Copy, Debug)]
pub struct MappedAt {
    pub start: u64,
    pub offset: u64,
}

/// A part of a range that would be code of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub range: Range<u64>,
    /// Where in the file it starts.
    pub offset: u64,
    /// Where the file's bytes end.
    code_end: u64,
}

/// The parts of `range` that would be code of a file which is mapped nearby.
pub fn pieces(file: &ElfFile, at: MappedAt, range: &Range<u64>) -> Vec<Piece> {
    let loaded = || {
        let loaded = file.segments.iter().filter(|segment| segment.kind == elf::PT_LOAD);
        loaded.take(MAX_SEGMENTS)
    };
    // Two segments may share a page of the file, and be at different distances from it.
    let mut biases: Vec<u64> = loaded()
        .filter(|segment| {
            let end = segment.offset.saturating_add(segment.file_size);
            (segment.offset & !IN_PAGE..end).contains(&at.offset)
        })
        .map(|segment| {
            let addr = segment.addr.wrapping_sub(segment.offset).wrapping_add(at.offset);
            at.start.wrapping_sub(addr)
        })
        .collect();
    biases.sort_unstable();
    biases.dedup();
    let of_bias = |bias: u64| -> Vec<Piece> {
        let code = loaded().filter(|segment| segment.executable);
        code.filter_map(|segment| {
            let first = segment.addr.wrapping_add(bias);
            let code_end = first.checked_add(segment.file_size)?;
            let start = range.start.max(first & !IN_PAGE);
            let end = range.end.min(code_end.checked_next_multiple_of(PAGE)?);
            let offset = segment.offset.wrapping_add(start.wrapping_sub(first));
            (start < end).then_some(Piece { range: start..end, offset, code_end })
        })
        .collect()
    };
    biases.into_iter().map(of_bias).find(|pieces| !pieces.is_empty()).unwrap_or_default()
}

/// The same, as far as memory has the bytes of the file there.
pub fn same_pieces(
    file: &ElfFile,
    at: MappedAt,
    range: &Range<u64>,
    memory: &mut impl Memory,
) -> Vec<Piece> {
    let mut pieces = pieces(file, at, range);
    pieces.retain(|piece| piece.is_same(file, range, memory));
    pieces
}

impl Piece {
    /// Whether memory has the bytes of the file, by a sample of `range`, of which this is a part.
    fn is_same(&self, file: &ElfFile, range: &Range<u64>, memory: &mut impl Memory) -> bool {
        let (mut compared, mut differing) = (0_usize, 0_usize);
        for place in places(range) {
            let (start, end) = (place.start.max(self.range.start), place.end.min(self.code_end));
            let len = end.checked_sub(start).and_then(|len| usize::try_from(len).ok());
            let (mut there, mut of_file) = match len {
                Some(len @ 1..) => (vec![0; len], vec![0; len]),
                _ => continue,
            };
            let at = self.offset.wrapping_add(start.wrapping_sub(self.range.start));
            let is_read = memory.read(VirtAddr::new(start), &mut there).is_ok()
                && file.read_into(Part::Memory, at, &mut of_file).is_ok();
            // Padding is the same everywhere.
            let is_code = of_file.iter().any(|byte| Some(byte) != of_file.first());
            if is_read && is_code {
                compared = compared.saturating_add(1);
                differing = differing.saturating_add(usize::from(there != of_file));
            }
        }
        compared > 0 && differing.saturating_mul(MAY_DIFFER) <= compared
    }
}

/// The pages of a range that are compared: all, or some from its first to its last.
pub(crate) fn places(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let first = range.start & !IN_PAGE;
    let pages = range.end.saturating_sub(first).div_ceil(PAGE);
    let count = pages.min(PLACES);
    let (last, steps) = (pages.saturating_sub(1), count.saturating_sub(1).max(1));
    let page = move |step: u64| {
        let page = u128::from(last).wrapping_mul(u128::from(step)).checked_div(steps.into());
        u64::try_from(page.unwrap_or(0)).unwrap_or(0)
    };
    (0..count).map(move |step| {
        let start = first.saturating_add(page(step).saturating_mul(PAGE));
        start..start.saturating_add(PAGE)
    })
}

/// Executable memory without a file, and the mappings of files next to it.
#[derive(Debug)]
pub(crate) struct Candidate<'m> {
    pub(crate) range: Range<u64>,
    pub(crate) neighbours: Vec<&'m Mapping>,
}

/// The executable memory without a file that may be code of a file, by what is next to it.
pub(crate) fn candidates(mappings: &[Mapping]) -> Vec<Candidate<'_>> {
    let is_code = |mapping: &&Mapping| mapping.executable && mapping.is_memory();
    if !mappings.iter().any(|mapping| is_code(&mapping)) {
        return Vec::new();
    }
    let mut files: Vec<_> = mappings.iter().filter(|mapping| mapping.is_file()).collect();
    files.sort_unstable_by_key(|mapping| mapping.range.start);
    let candidate = |mapping: &Mapping| {
        let after = files.partition_point(|file| file.range.start < mapping.range.start);
        let below = after.checked_sub(1).and_then(|at| files.get(at)).copied();
        let above = files.get(after).copied();
        let is_one = |below: &Mapping, above: &Mapping| below.backing == above.backing;
        let is_inside = below.zip(above).is_some_and(|(below, above)| is_one(below, above));
        // Without the file on both sides it may still be its beginning or its end.
        let below = below.filter(|below| is_inside || below.range.end == mapping.range.start);
        let above = above.filter(|above| is_inside || above.offset != 0);
        let neighbours: Vec<_> = below.into_iter().chain(above).collect();
        (!neighbours.is_empty()).then(|| Candidate { range: mapping.range.clone(), neighbours })
    };
    mappings.iter().filter(is_code).filter_map(candidate).take(MAX_RANGES).collect()
}

impl Candidate<'_> {
    /// Where a neighbour has its file.
    pub(crate) fn place(neighbour: &Mapping) -> Option<MappedAt> {
        let is_file = matches!(neighbour.backing, Backing::File(_));
        is_file.then_some(MappedAt { start: neighbour.range.start, offset: neighbour.offset })
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "tests")]
mod tests {
    use std::fs::File;

    use unwind_core::SliceMemory;

    use super::*;
    use crate::target::maps::parse;

    /// This very program, its code as it would be in memory at its link-time addresses, and where
    /// it is mapped.
    fn own() -> (ElfFile, Range<u64>, MappedAt, Vec<u8>) {
        let file = ElfFile::from_file(File::open("/proc/self/exe").unwrap()).unwrap();
        let code = file.segments.iter().filter(|s| s.kind == elf::PT_LOAD && s.executable);
        let code = *code.max_by_key(|segment| segment.file_size).unwrap();
        let at = MappedAt { start: code.addr & !IN_PAGE, offset: code.offset & !IN_PAGE };
        // Some pages after the first.
        let range = at.start + 3 * PAGE..at.start + 40 * PAGE;
        assert!(range.end <= code.addr + code.file_size);
        let bytes = file.bytes(Part::Memory, at.offset + 3 * PAGE, 37 * PAGE).unwrap();
        (file, range, at, bytes)
    }

    fn found(file: &ElfFile, at: MappedAt, range: &Range<u64>, bytes: &[u8]) -> Vec<Piece> {
        let mut memory = SliceMemory::new(VirtAddr::new(range.start), bytes);
        same_pieces(file, at, range, &mut memory)
    }

    #[test]
    fn k9_memory_with_the_bytes_of_a_files_code_is_that_code() {
        let (file, range, at, bytes) = own();
        let pieces = found(&file, at, &range, &bytes);
        let [piece] = pieces.as_slice() else { panic!("{pieces:?}") };
        assert_eq!(piece.range, range);
        assert_eq!(piece.offset, at.offset + 3 * PAGE);
        // A few instructions may have been patched.
        let mut patched = bytes.clone();
        patched[100] ^= 1;
        assert_eq!(found(&file, at, &range, &patched).len(), 1);
    }

    #[test]
    fn k9_memory_with_other_bytes_is_no_files_code() {
        let (file, range, at, bytes) = own();
        let other: Vec<u8> = bytes.iter().map(|byte| byte ^ 1).collect();
        let shifted = [&bytes[1..], &[0]].concat();
        let half: Vec<u8> = [&bytes[..bytes.len() / 2], &other[bytes.len() / 2..]].concat();
        for wrong in [&other, &shifted, &half, &vec![0; bytes.len()]] {
            assert_eq!(found(&file, at, &range, wrong), []);
        }
        // Nothing of it can be read, and what is nowhere near the file's code.
        assert_eq!(found(&file, at, &range, &[]), []);
        let far = range.start + (1 << 40)..range.end + (1 << 40);
        assert_eq!(found(&file, at, &far, &bytes), []);
    }

    #[test]
    fn k9_a_range_is_compared_from_its_first_page_to_its_last() {
        let pages = |pages: u64| -> Vec<u64> {
            places(&(0x1000..0x1000 + pages * PAGE)).map(|place| place.start / PAGE - 1).collect()
        };
        assert!(pages(0).is_empty());
        assert_eq!(pages(1), [0]);
        assert_eq!(pages(16), (0..16).collect::<Vec<_>>());
        let many = pages(6144);
        assert_eq!((many.len(), many[0], many[15]), (16, 0, 6143));
        assert!(many.is_sorted_by(|one, next| one < next));
        assert_eq!(places(&(0..u64::MAX)).count(), 16);
    }

    #[test]
    fn k9_only_code_beside_mappings_of_a_file_is_looked_at() {
        let of = |text: &str| -> Vec<(u64, usize)> {
            let mappings = parse(text.as_bytes());
            let all = candidates(&mappings);
            all.iter().map(|one| (one.range.start, one.neighbours.len())).collect()
        };
        let inside = |line: &str| {
            of(&format!("1000-2000 r--p 0 00:01 7 /a\n{line}\n9000-a000 r--p 8000 00:01 7 /a"))
        };
        assert_eq!(inside("3000-5000 r-xp 00000000 00:00 0 "), [(0x3000, 2)]);
        assert_eq!(inside("3000-5000 rw-p 00000000 00:00 0 "), []);
        // Huge pages, and memory with a name.
        for name in ["/anon_hugepage (deleted)", "[anon:text]"] {
            assert_eq!(inside(&format!("3000-5000 r-xp 0 00:0f 9 {name}")), [(0x3000, 2)]);
        }
        assert_eq!(inside("3000-5000 r-xp 0 00:0f 9 /anon_hugepage"), []);
        // Between two files, and where there is none.
        let between =
            |above| of(&format!("1000-2000 r-xp 0 00:01 7 /a\n3000-5000 r-xp 0 00:00 0 \n{above}"));
        assert_eq!(between("9000-a000 r--p 0 00:01 8 /b"), []);
        assert_eq!(between("9000-a000 r--p 1000 00:01 8 /b"), [(0x3000, 1)]);
        assert_eq!(of("3000-5000 r-xp 0 00:00 0 "), []);
    }
}
