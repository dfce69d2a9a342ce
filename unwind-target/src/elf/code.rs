//! Which code segment of a file is where in it.

use object::elf;

use crate::elf::segment::Segment;

/// How many code segments that begin before a place are looked at. They do not
/// overlap but for the page that two may share.
const LOOK_BACK: usize = 16;

/// The segments of a file that are loaded: those with code, and the others. On some systems whatever a program may
/// read it may execute, and a mapping of code begins with the others.
#[derive(Debug)]
pub(super) struct CodeSegments([Vec<CodeSegment>; 2]);

/// One of them.
#[derive(Clone, Copy, Debug)]
struct CodeSegment {
    /// Where in the file its first page starts.
    start: u64,
    end: u64,
    /// Which program header it is.
    index: usize,
    /// From offsets in the file to link-time addresses, wrapping.
    to_addr: u64,
}

impl CodeSegments {
    pub(super) fn new(segments: &[Segment]) -> Self {
        // The kernel maps whole pages, so a mapping may start below its segment.
        const IN_PAGE: u64 = 0xfff;
        let of_kind = |is_code: bool| {
            let all = segments.iter().enumerate();
            let all = all.filter(|(_, s)| s.kind == elf::PT_LOAD && s.executable == is_code);
            let mut all: Vec<_> = all
                .map(|(index, s)| CodeSegment {
                    start: s.offset & !IN_PAGE,
                    end: s.offset.saturating_add(s.file_size),
                    index,
                    to_addr: s.addr.wrapping_sub(s.offset),
                })
                .collect();
            all.sort_by_key(|segment| segment.start);
            all
        };
        Self([of_kind(true), of_kind(false)])
    }

    /// The link-time address of what is mapped from `offset` on; `None` if no
    /// segment has that.
    pub(super) fn addr_of(&self, offset: u64) -> Option<u64> {
        self.0.iter().find_map(|segments| {
            let after = segments.partition_point(|segment| segment.start <= offset);
            let before = segments.get(..after)?.iter().rev().take(LOOK_BACK);
            // Where two share a page the first one has it.
            let segment = before.filter(|segment| offset < segment.end).min_by_key(|s| s.index)?;
            Some(offset.wrapping_add(segment.to_addr))
        })
    }
}
