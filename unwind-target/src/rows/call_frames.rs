//! The call frame information of an ELF file, and SFrame tables made of it.

use std::collections::BTreeMap;
use std::ops::Range;

use gimli::RunTimeEndian;
use object::{Endian as _, Endianness, elf};
use sframe::{
    Abi, Builder, CfiConverter, CfiError, CfiOmission, CfiOmissionReason, CfiReport, CfiSection,
    Endian, Format, Omission, WriteError,
};
use unwind_core::{Origin, Row};

use crate::elf::ElfFile;
use crate::elf::error::{ElfError, Part};
use crate::elf::section::Section;

/// `.eh_frame` and `.debug_frame` of a file with code that has SFrame tables.
#[derive(Clone, Debug)]
pub struct CallFrames {
    pub abi: Abi,
    pub sections: FrameSections,
}

/// `.eh_frame` and `.debug_frame`. A file has both where a part of it is made
/// by another compiler, as in a Go program that calls C.
#[derive(Clone, Debug, Default)]
pub struct FrameSections {
    /// One at least, where they were read. Code that is in two of them is described by the first.
    pub list: Vec<FrameSection>,
    /// Why `.debug_frame` is not among them, where it is damaged and not the only
    /// one.
    pub unread: Option<ElfError>,
    /// Where `.text` is, and the global offset table.
    pub text: Option<u64>,
    pub got: Option<u64>,
    /// Where the file has code, in link-time addresses.
    pub code: Vec<Range<u64>>,
}

/// A section of call frame information.
#[derive(Clone, Debug)]
pub struct FrameSection {
    /// [`Part::EhFrame`] or [`Part::DebugFrame`].
    pub part: Part,
    pub bytes: Vec<u8>,
    pub addr: u64,
}

/// A table made of call frame information.
#[derive(Clone, Debug)]
pub struct BuiltTable {
    pub bytes: Vec<u8>,
    /// Where the table has to be.
    pub addr: u64,
    pub report: CfiReport,
    /// What the table does not have of the code.
    pub lost: Vec<LostCode>,
    /// Code whose rows a table cannot mark as those of functions that may return to where an exception
    /// is caught, ascending.
    eh_returns: Vec<Range<u64>>,
    /// Parts of entries that are about the same code as others.
    pub overlaps: Vec<Omission>,
    /// Why `.debug_frame` is not in it, where that is damaged and not the only
    /// section.
    pub(crate) unread: Option<ElfError>,
}

/// Code that a table made of call frame information does not have.
#[derive(Clone, Copy, Debug)]
pub struct LostCode {
    /// The section that describes it.
    pub part: Part,
    pub range: CfiOmission,
}

impl FrameSections {
    /// Reads the sections of a file; `None` if it has none.
    ///
    /// # Errors
    ///
    /// [`ElfError`] if they are not inside the file.
    pub fn read(file: &ElfFile) -> Result<Option<Self>, ElfError> {
        let sections = file.sections();
        let all = sections.unwrap_or_default();
        let find =
            |name: &[u8]| all.iter().find(|section| section.name == name && section.size != 0);
        let addr_of = |name| find(name).map(|section: &Section| section.addr);
        let mut found = Vec::new();
        if let Some(section) = find(b".eh_frame") {
            let bytes = file.relocated_bytes(Part::EhFrame, section, all)?;
            found.push(FrameSection { part: Part::EhFrame, bytes, addr: section.addr });
        } else if let Some((bytes, addr)) = by_header(file)? {
            found.push(FrameSection { part: Part::EhFrame, bytes, addr });
        }
        let mut unread = None;
        if let Some(section) = find(b".debug_frame") {
            match file.relocated_bytes(Part::DebugFrame, section, all) {
                Ok(bytes) => found.push(FrameSection { part: Part::DebugFrame, bytes, addr: 0 }),
                // The other section is as good without this one.
                Err(error) if !found.is_empty() => unread = Some(error),
                Err(error) => return Err(error),
            }
        }
        if found.is_empty() {
            // Bad section headers matter only if nothing else leads to it.
            sections?;
            return Ok(None);
        }
        found.retain(|section| !section.bytes.is_empty());
        if found.is_empty() {
            return Ok(None);
        }
        let range = |(addr, size): (u64, u64)| addr..addr.saturating_add(size);
        let code = if file.kind == elf::ET_REL {
            let loaded = all.iter().filter(|section| section.allocated && section.executable);
            loaded.map(|section| range((section.addr, section.size))).collect()
        } else {
            let loaded = file.segments.iter().filter(|s| s.kind == elf::PT_LOAD && s.executable);
            loaded.map(|s| range((s.addr, s.memory_size))).collect()
        };
        let code = joined(code);
        let got = addr_of(b".got").or_else(|| addr_of(b".got.plt"));
        let text = addr_of(b".text");
        Ok(Some(Self { list: found, unread, text, got, code }))
    }

    /// A section, as what it says of this code.
    pub(crate) fn cfi<'a>(
        &self,
        section: &'a FrameSection,
        code: &'a [Range<u64>],
    ) -> CfiSection<'a> {
        let mut cfi = match section.part {
            Part::DebugFrame => CfiSection::debug_frame(&section.bytes),
            _ => CfiSection::eh_frame(&section.bytes, section.addr),
        };
        if let Some(text) = self.text {
            cfi = cfi.text(text);
        }
        if let Some(got) = self.got {
            cfi = cfi.data(got);
        }
        cfi.code(code)
    }
}

impl CallFrames {
    /// Reads the information of a file; `None` if it has none, or is for a CPU
    /// that has no SFrame tables.
    ///
    /// # Errors
    ///
    /// [`ElfError`] if it is not inside the file.
    pub fn read(file: &ElfFile) -> Result<Option<Self>, ElfError> {
        let Some(abi) = abi(file) else { return Ok(None) };
        Ok(FrameSections::read(file)?.map(|sections| Self { abi, sections }))
    }

    /// The bytes of all sections.
    pub fn byte_len(&self) -> usize {
        self.sections.list.iter().map(|section| section.bytes.len()).fold(0, usize::saturating_add)
    }

    /// The bytes of a section.
    #[must_use]
    pub fn bytes(&self, part: Part) -> &[u8] {
        let section = self.sections.list.iter().find(|section| section.part == part);
        section.map_or(&[], |section| &section.bytes)
    }

    /// The byte order of the sections, for gimli.
    #[must_use]
    pub fn endian(&self) -> RunTimeEndian {
        match self.abi.endian() {
            Some(Endian::Big) => RunTimeEndian::Big,
            _ => RunTimeEndian::Little,
        }
    }

    /// Makes a table for a place at `addr`. `progress` is told how many bytes
    /// of the information are done, now and then.
    ///
    /// # Errors
    ///
    /// [`WriteError`] if memory is short or the table too large.
    pub fn build(
        &self,
        format: Format,
        addr: u64,
        mut progress: impl FnMut(u64),
    ) -> Result<BuiltTable, WriteError> {
        /// Entries between two reports of progress.
        const STRIDE: u32 = 4096;
        let mut builder = Builder::new(format, self.abi)?;
        let mut table = BuiltTable {
            bytes: Vec::new(),
            addr,
            report: CfiReport::default(),
            lost: Vec::new(),
            eh_returns: Vec::new(),
            overlaps: Vec::new(),
            unread: self.sections.unread,
        };
        let mut code = self.sections.code.clone();
        let mut before = 0_u64;
        let mut entries = 0_u32;
        for (index, section) in self.sections.list.iter().enumerate() {
            let is_first = index == 0;
            let is_last = index.saturating_add(1) == self.sections.list.len();
            let mut converter = CfiConverter::new(self.sections.cfi(section, &code), &builder);
            let mut covered = Vec::new();
            let mut elsewhere = 0_u64;
            let mut lost = |range: CfiOmission| match range.reason {
                // What an earlier section describes, most of all.
                CfiOmissionReason::Cfi(CfiError::NotCode) if !is_first => {
                    elsewhere = elsewhere.saturating_add(1);
                }
                _ => table.lost.push(LostCode { part: section.part, range }),
            };
            while converter.next(&mut builder, &mut lost)? {
                table.eh_returns.extend_from_slice(converter.eh_returns());
                if !is_last && let Some(code) = converter.code().cloned() {
                    covered.push(code);
                }
                entries = entries.wrapping_add(1);
                if entries.is_multiple_of(STRIDE) {
                    progress(before.saturating_add(converter.position()));
                }
            }
            before = before.saturating_add(converter.position());
            let report = converter.report();
            let sum = &mut table.report;
            sum.fdes = sum.fdes.saturating_add(report.fdes.saturating_sub(elsewhere));
            sum.unusable = sum.unusable.saturating_add(report.unusable.saturating_sub(elsewhere));
            sum.code_bytes = sum.code_bytes.saturating_add(report.code_bytes);
            sum.lost_bytes = sum.lost_bytes.saturating_add(report.lost_bytes);
            if !is_last {
                code = without(code, joined(covered));
                if code.is_empty() {
                    break;
                }
            }
        }
        table.eh_returns = joined(table.eh_returns);
        table.bytes = builder.finish(addr, |range| table.overlaps.push(range))?;
        Ok(table)
    }
}

impl BuiltTable {
    /// The row for an address of a process that has the file loaded so far above its
    /// link-time addresses.
    ///
    /// # Errors
    ///
    /// [`sframe::Error`] if the function that holds the address is damaged.
    pub(crate) fn row(&self, addr: u64, bias: u64) -> Result<Option<Row>, sframe::Error> {
        // To open it is to look at its header.
        let table = sframe::Table::parse(&self.bytes)?.at(self.addr.wrapping_add(bias));
        let Some(row) = table.find_row(addr)? else { return Ok(None) };
        let row = row.with_origin(Origin::CallFrames);
        let is_marked = self.is_eh_return(addr.wrapping_sub(bias));
        Ok(Some(if is_marked { row.with_eh_return() } else { row }))
    }

    /// Whether the function of a link-time address may be on its way to where an exception is caught.
    fn is_eh_return(&self, addr: u64) -> bool {
        let after = self.eh_returns.partition_point(|range| range.start <= addr);
        let range = after.checked_sub(1).and_then(|last| self.eh_returns.get(last));
        range.is_some_and(|range| range.contains(&addr))
    }

    /// Why the table has nothing of an address, and which section describes it, if
    /// that is known.
    pub(crate) fn why_missing(&self, addr: u64) -> Option<(Part, CfiOmissionReason)> {
        let mut lost = self.lost.iter();
        let at = lost.find(|lost| addr.wrapping_sub(lost.range.start) < lost.range.size)?;
        Some((at.part, at.range.reason))
    }

    /// By reason: how many ranges the table does not have, and their bytes.
    #[must_use]
    pub fn lost_by_reason(&self) -> BTreeMap<&'static str, (u64, u64)> {
        let from_cfi = self.lost.iter().map(|lost| (lost.range.reason.name(), lost.range.size));
        let from_table = self.overlaps.iter().map(|lost| (lost.reason.name(), lost.size));
        let mut by_reason = BTreeMap::<_, (u64, u64)>::new();
        for (name, size) in from_cfi.chain(from_table) {
            let (ranges, bytes) = by_reason.entry(name).or_default();
            *ranges = ranges.saturating_add(1);
            *bytes = bytes.saturating_add(size);
        }
        by_reason
    }
}

/// The ranges in ascending order, those that meet in one.
#[must_use]
pub fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|range, before| {
        let meets = range.start <= before.end;
        if meets {
            before.end = before.end.max(range.end);
        }
        meets
    });
    ranges
}

/// What is left of ranges without others. Both ascend and are [`joined`]; no
/// ranges at all stand for every address.
fn without(ranges: Vec<Range<u64>>, others: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let ranges = match ranges.is_empty() {
        true => std::iter::once(0..u64::MAX).collect(),
        false => ranges,
    };
    let mut left = Vec::new();
    let mut others = others.into_iter().peekable();
    for range in ranges {
        let mut start = range.start;
        while let Some(other) = others.peek().filter(|other| other.start < range.end) {
            if start < other.start {
                left.push(start..other.start);
            }
            start = start.max(other.end);
            if range.end < other.end {
                break;
            }
            others.next();
        }
        if start < range.end {
            left.push(start..range.end);
        }
    }
    left
}

/// The ABI of a file's code, if there are tables for it.
pub(crate) fn abi(file: &ElfFile) -> Option<Abi> {
    match (file.machine, file.endian, file.is_64) {
        (elf::EM_X86_64, Endianness::Little, true) => Some(Abi::Amd64Little),
        (elf::EM_AARCH64, Endianness::Little, true) => Some(Abi::Aarch64Little),
        (elf::EM_AARCH64, Endianness::Big, true) => Some(Abi::Aarch64Big),
        (elf::EM_S390, Endianness::Big, true) => Some(Abi::S390xBig),
        _ => None,
    }
}

/// Finds `.eh_frame` by the program header of its index, as a running program
/// does: from the address that the index names up to the end of the segment.
/// The section ends itself by an entry of no length.
fn by_header(file: &ElfFile) -> Result<Option<(Vec<u8>, u64)>, ElfError> {
    let Some(header) = file.segments.iter().find(|s| s.kind == elf::PT_GNU_EH_FRAME) else {
        return Ok(None);
    };
    let mut bytes = [0; 8];
    file.read_into(Part::EhFrame, header.offset, &mut bytes)?;
    // Version 1 with a pointer of four bytes, relative to its place, is what
    // every linker writes.
    let [1, 0x1b, _, _, a, b, c, d] = bytes else { return Ok(None) };
    let pointer = file.endian.read_i32([a, b, c, d]);
    let addr = header.addr.wrapping_add(4).wrapping_add_signed(pointer.into());
    match file.place_of(addr) {
        Some((offset, len)) => Ok(Some((file.bytes(Part::EhFrame, offset, len)?, addr))),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u5_rows_of_a_table_that_is_made_are_marked_where_direct_ones_are() {
        // That of the tests themselves.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libraries = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
        let library = libraries.into_iter().find(|path| path.contains("/libgcc_s.so"));
        let Some(library) = library else { return test_support::skip("no libgcc_s.so") };
        let file = ElfFile::from_file(std::fs::File::open(library).unwrap()).unwrap();
        let rows = crate::rows::call_frame_rows::CallFrameRows::new(&file);
        let built = CallFrames::read(&file).unwrap().unwrap().build(Format::V3, 0, |_| ()).unwrap();
        let marked = &built.eh_returns;
        assert!((4..64).contains(&marked.len()), "{marked:x?}");
        for code in marked {
            for addr in code.start - 0x400..code.end + 0x100 {
                let direct = rows.row(&file, addr).unwrap();
                let found = built.row(addr.wrapping_add(0x5000), 0x5000).unwrap();
                let marks = [found, direct].map(|row| row.map(|row| row.is_eh_return()));
                assert_eq!(marks[0], marks[1], "{addr:#x}");
            }
        }
    }

    #[test]
    fn ranges_that_meet_are_joined_in_any_order() {
        let ranges = vec![0x30..0x40, 0x10..0x20, 0x18..0x28, 0x50..0x60, 0x28..0x29, 0x52..0x54];
        assert_eq!(joined(ranges), [0x10..0x29, 0x30..0x40, 0x50..0x60]);
        assert_eq!(joined(Vec::new()), []);
    }

    #[test]
    fn what_is_left_of_ranges_is_what_no_other_range_holds() {
        let mut state = 1_u64;
        for _ in 0..2000 {
            let mut ranges = || {
                let some = (0..4).map(|_| {
                    state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    let start = state >> 59;
                    start..start + (state >> 33) % 8
                });
                let mut some = joined(some.collect());
                some.retain(|range| !range.is_empty());
                some
            };
            let (all, others) = (ranges(), ranges());
            let left = without(all.clone(), others.clone());
            assert!(left.is_sorted_by(|a, b| a.start < a.end && a.end <= b.start), "{left:?}");
            let has = |ranges: &[Range<u64>], at| ranges.iter().any(|range| range.contains(&at));
            for at in 0..64 {
                let wanted = (all.is_empty() || has(&all, at)) && !has(&others, at);
                assert_eq!(has(&left, at), wanted, "{at} of {all:?} without {others:?}");
            }
        }
    }
}
