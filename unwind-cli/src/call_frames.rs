//! The call frame information of an ELF file, and SFrame tables made of it.

use std::collections::BTreeMap;
use std::ops::Range;

use gimli::RunTimeEndian;
use object::{Endianness, elf};
use sframe::{
    Abi, Builder, CfiConverter, CfiOmission, CfiOmissionReason, CfiReport, CfiSection, Endian,
    Format, Omission, WriteError,
};
use unwind_core::{Origin, Row};

use crate::elf::{ElfError, ElfFile, Part, Section};

/// `.eh_frame`, or `.debug_frame` where there is none.
#[derive(Clone, Debug)]
pub(crate) struct CallFrames {
    pub(crate) abi: Abi,
    pub(crate) bytes: Vec<u8>,
    pub(crate) addr: u64,
    pub(crate) is_eh: bool,
    /// Where `.text` is, and the global offset table.
    pub(crate) text: Option<u64>,
    pub(crate) got: Option<u64>,
    /// Where the file has code, in link-time addresses.
    pub(crate) code: Vec<Range<u64>>,
}

/// A table made of call frame information.
#[derive(Clone, Debug)]
pub(crate) struct BuiltTable {
    pub(crate) bytes: Vec<u8>,
    /// What it was made of: `.eh_frame` or `.debug_frame`.
    pub(crate) section: Part,
    /// Where the table has to be.
    pub(crate) addr: u64,
    pub(crate) report: CfiReport,
    /// What the table does not have of the code.
    pub(crate) lost: Vec<CfiOmission>,
    /// Parts of entries that are about the same code as others.
    pub(crate) overlaps: Vec<Omission>,
}

impl CallFrames {
    /// Reads the information of a file; `None` if it has none, or is for a CPU
    /// that has no SFrame tables.
    ///
    /// # Errors
    ///
    /// [`ElfError`] if it is not inside the file.
    pub(crate) fn read(file: &ElfFile) -> Result<Option<Self>, ElfError> {
        let Some(abi) = abi(file) else { return Ok(None) };
        let sections = file.sections();
        let all = sections.as_deref().unwrap_or_default();
        let find =
            |name: &[u8]| all.iter().find(|section| section.name == name && section.size != 0);
        let addr_of = |name| find(name).map(|section: &Section| section.addr);
        let (bytes, addr, is_eh) = if let Some(section) = find(b".eh_frame") {
            (file.relocated_bytes(Part::EhFrame, section, all)?, section.addr, true)
        } else if let Some((bytes, addr)) = by_header(file)? {
            (bytes, addr, true)
        } else if let Some(section) = find(b".debug_frame") {
            (file.relocated_bytes(Part::DebugFrame, section, all)?, 0, false)
        } else {
            // Bad section headers matter only if nothing else leads to it.
            sections?;
            return Ok(None);
        };
        if bytes.is_empty() {
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
        Ok(Some(Self { abi, bytes, addr, is_eh, text: addr_of(b".text"), got, code }))
    }

    /// The byte order of the section, for gimli.
    pub(crate) fn endian(&self) -> RunTimeEndian {
        match self.abi.endian() {
            Some(Endian::Big) => RunTimeEndian::Big,
            _ => RunTimeEndian::Little,
        }
    }

    /// The section, for a converter.
    pub(crate) fn section(&self) -> CfiSection<'_> {
        let mut section = match self.is_eh {
            true => CfiSection::eh_frame(&self.bytes, self.addr),
            false => CfiSection::debug_frame(&self.bytes),
        };
        if let Some(text) = self.text {
            section = section.text(text);
        }
        if let Some(got) = self.got {
            section = section.data(got);
        }
        section.code(&self.code)
    }

    /// Makes a table for a place at `addr`. `progress` is told how many bytes
    /// of the information are done, now and then.
    ///
    /// # Errors
    ///
    /// [`WriteError`] if memory is short or the table too large.
    pub(crate) fn build(
        &self,
        format: Format,
        addr: u64,
        mut progress: impl FnMut(u64),
    ) -> Result<BuiltTable, WriteError> {
        /// Entries between two reports of progress.
        const STRIDE: u32 = 4096;
        let mut builder = Builder::new(format, self.abi)?;
        let mut converter = CfiConverter::new(self.section(), &builder);
        let mut lost = Vec::new();
        let mut entries = 0_u32;
        while converter.next(&mut builder, &mut |range| lost.push(range))? {
            entries = entries.wrapping_add(1);
            if entries.is_multiple_of(STRIDE) {
                progress(converter.position());
            }
        }
        let report = converter.report();
        let mut overlaps = Vec::new();
        let bytes = builder.finish(addr, |range| overlaps.push(range))?;
        let section = if self.is_eh { Part::EhFrame } else { Part::DebugFrame };
        Ok(BuiltTable { bytes, section, addr, report, lost, overlaps })
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
        Ok(table.find_row(addr)?.map(|row| row.with_origin(Origin::BuiltTable)))
    }

    /// Why the table has nothing of an address, if that is known.
    pub(crate) fn why_missing(&self, addr: u64) -> Option<CfiOmissionReason> {
        let mut lost = self.lost.iter();
        let at = lost.find(|lost| addr.wrapping_sub(lost.start) < lost.size)?;
        Some(at.reason)
    }

    /// By reason: how many ranges the table does not have, and their bytes.
    pub(crate) fn lost_by_reason(&self) -> BTreeMap<&'static str, (u64, u64)> {
        let from_cfi = self.lost.iter().map(|lost| (lost.reason.name(), lost.size));
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
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
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
    let pointer = match file.endian {
        Endianness::Little => i32::from_le_bytes([a, b, c, d]),
        Endianness::Big => i32::from_be_bytes([a, b, c, d]),
    };
    let addr = header.addr.wrapping_add(4).wrapping_add_signed(pointer.into());
    let inside = |addr: u64| {
        file.segments.iter().find_map(|s| {
            let skip = addr.checked_sub(s.addr)?;
            let left = s.file_size.checked_sub(skip).filter(|&left| left != 0)?;
            (s.kind == elf::PT_LOAD).then(|| (s.offset.saturating_add(skip), left))
        })
    };
    match inside(addr) {
        Some((offset, len)) => Ok(Some((file.bytes(Part::EhFrame, offset, len)?, addr))),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_meet_are_joined_in_any_order() {
        let ranges = vec![0x30..0x40, 0x10..0x20, 0x18..0x28, 0x50..0x60, 0x28..0x29, 0x52..0x54];
        assert_eq!(joined(ranges), [0x10..0x29, 0x30..0x40, 0x50..0x60]);
        assert_eq!(joined(Vec::new()), []);
    }
}
