//! Which code segment of a file is where in it.

use object::elf;

use crate::elf::segment::Segment;

/// How many code segments that begin before a place are looked at. They do not
/// overlap but for the page that two may share.
const LOOK_BACK: usize = 16;

/// The code segments of a file.
#[derive(Debug)]
pub(super) struct CodeSegments(Vec<CodeSegment>);

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
        let code = segments.iter().enumerate();
        let code = code.filter(|(_, s)| s.kind == elf::PT_LOAD && s.executable);
        let mut code: Vec<_> = code
            .map(|(index, s)| CodeSegment {
                start: s.offset & !IN_PAGE,
                end: s.offset.saturating_add(s.file_size),
                index,
                to_addr: s.addr.wrapping_sub(s.offset),
            })
            .collect();
        code.sort_by_key(|segment| segment.start);
        Self(code)
    }

    /// The link-time address of what is mapped from `offset` on; `None` if that is
    /// no code.
    pub(super) fn addr_of(&self, offset: u64) -> Option<u64> {
        let after = self.0.partition_point(|segment| segment.start <= offset);
        let before = self.0.get(..after)?.iter().rev().take(LOOK_BACK);
        // Where two share a page the first one has it.
        let segment = before.filter(|segment| offset < segment.end).min_by_key(|s| s.index)?;
        Some(offset.wrapping_add(segment.to_addr))
    }
}
