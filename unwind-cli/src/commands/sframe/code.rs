//! Where a file has code, and how a place in it is written.

use std::fmt;
use std::ops::Range;

use object::elf;
use sframe::FuncRange;
use unwind_target::elf::ElfFile;
use unwind_target::{ElfError, Untrusted};

/// Where a file has code: its executable sections, or segments where it has no
/// such section.
#[derive(Debug, Default)]
pub(crate) struct Code {
    /// Ascending by start.
    parts: Vec<Part>,
    /// The addresses are made up: places are written as offsets in sections.
    is_object: bool,
}

#[derive(Debug)]
struct Part {
    range: Range<u64>,
    /// Where the first of the parts starts that this one continues without a gap.
    start_of_run: u64,
    name: Untrusted,
}

impl Code {
    /// That of a file.
    ///
    /// # Errors
    ///
    /// [`ElfError`] if an object's section headers are damaged. A linked file has
    /// segments.
    pub(crate) fn of(file: &ElfFile) -> Result<Self, ElfError> {
        let is_object = file.kind == elf::ET_REL;
        let sections = match file.sections() {
            Err(error) if is_object => return Err(error),
            sections => sections.unwrap_or_default(),
        };
        let range = |addr: u64, size: u64| addr..addr.saturating_add(size);
        let mut parts: Vec<_> = sections
            .iter()
            .filter(|section| section.executable && section.allocated)
            .map(|s| (range(s.addr, s.size), Untrusted::from(&s.name)))
            .collect();
        if parts.is_empty() {
            let segments = file.segments.iter().filter(|s| s.kind == elf::PT_LOAD && s.executable);
            parts =
                segments.map(|s| (range(s.addr, s.memory_size), Untrusted::default())).collect();
        }
        parts.sort_unstable_by_key(|(range, _)| (range.start, range.end));
        let mut run = 0..0;
        let parts = parts.into_iter().map(|(range, name)| {
            if is_object || range.start > run.end || run.is_empty() {
                run.start = range.start;
            }
            run.end = range.end.max(run.end);
            Part { range, start_of_run: run.start, name }
        });
        Ok(Self { parts: parts.collect(), is_object })
    }

    /// Whether nothing is known of the code.
    pub(crate) fn is_unknown(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether all of a function is code. One of no bytes may be at the end.
    pub(crate) fn holds(&self, function: FuncRange) -> bool {
        let Some(end) = function.start.checked_add(function.size.into()) else { return false };
        let after = self.parts.partition_point(|part| part.range.start <= end);
        let before = self.parts.get(..after).unwrap_or_default().iter().rev();
        // Parts that are in another one, or empty, are skipped.
        let mut holding = before.take(64).filter(|part| end <= part.range.end);
        holding.any(|part| part.start_of_run <= function.start)
    }

    /// How many parts there are.
    pub(crate) fn part_count(&self) -> usize {
        self.parts.len()
    }

    /// The code section of an object that holds an address, and where it starts.
    pub(crate) fn section_of(&self, addr: u64) -> Option<(&Untrusted, u64)> {
        let after = self.parts.partition_point(|part| part.range.start <= addr);
        let part = self.parts.get(..after)?.last()?;
        let is_inside = self.is_object && addr <= part.range.end;
        is_inside.then_some((&part.name, part.range.start))
    }

    /// An address as readers of objects have it: its offset in its section.
    pub(crate) fn offset(&self, addr: u64) -> u64 {
        self.section_of(addr).map_or(addr, |(_, start)| addr.wrapping_sub(start))
    }

    /// The address of an offset in the first section of an object that is long enough.
    pub(crate) fn address(&self, offset: u64) -> Option<u64> {
        let len = |part: &Part| part.range.end.saturating_sub(part.range.start);
        let part = self.parts.iter().find(|part| offset < len(part))?;
        Some(part.range.start.saturating_add(offset))
    }

    /// Where the section of an object with this name starts.
    pub(crate) fn named(&self, name: &[u8]) -> impl Iterator<Item = u64> {
        let parts = self.parts.iter().filter(move |part| part.name.as_bytes() == name);
        parts.filter(|_| self.is_object).map(|part| part.range.start)
    }

    /// A place as it is written: `0x1040`, or `.text+0x40` in an object.
    pub(crate) fn place(&self, addr: u64) -> Place<'_> {
        Place { code: self, addr }
    }
}

/// A place in code, to be written.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    code: &'a Code,
    addr: u64,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code.section_of(self.addr) {
            Some((name, start)) => write!(
                f,
                "{}+{:#x}",
                name.escaped().at_most(SHOWN_NAME),
                self.addr.wrapping_sub(start)
            ),
            None => write!(f, "{:#x}", self.addr),
        }
    }
}

/// How many characters of a name are shown.
pub(crate) const SHOWN_NAME: usize = 256;
