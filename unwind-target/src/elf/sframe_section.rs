//! The sections of an ELF file that hold SFrame tables.

use object::elf;
use sframe::{Abi, Flags, Header};
use unwind_core::Row;

use crate::elf::error::{ElfError, Part};
use crate::elf::relocations::{Relocations, Unresolved};
use crate::elf::section::Section;
use crate::elf::segment::Segment;
use crate::elf::table_indices::TableIndices;
use crate::elf::{ElfFile, refuse_shared};
use crate::untrusted::Untrusted;

/// A section of SFrame tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SframeSection {
    pub name: Untrusted,
    /// The link-time address of its first byte.
    pub addr: u64,
    pub bytes: Vec<u8>,
    /// In a relocatable object: the relocations that could not be applied.
    pub unresolved: Vec<Unresolved>,
    pub(super) indices: TableIndices,
}

impl SframeSection {
    /// `.sframe`.
    #[must_use]
    pub fn new(addr: u64, bytes: Vec<u8>) -> Self {
        let (unresolved, indices) = (Vec::new(), TableIndices::default());
        Self { name: Untrusted::from(b".sframe"), addr, bytes, unresolved, indices }
    }

    /// Its tables. Linkers that do not merge them leave many.
    pub fn tables(&self) -> sframe::Section<'_> {
        sframe::Section::new(&self.bytes).at(self.addr)
    }

    /// Whether a linker has joined the tables of objects without knowing what they are: gold, and
    /// LLVM's. Where a start counts from the table, assemblers leave a relocation from
    /// the start's own place, which only a linker that merges tables turns into an offset from
    /// the table. Such a linker sorts them, too.
    fn is_unmerged(&self) -> bool {
        self.tables().tables().flatten().any(|table| {
            let Header { flags, num_fdes, .. } = table.header();
            !flags.intersects(Flags::SORTED.union(Flags::PCREL)) && num_fdes != 0
        })
    }

    /// The row of 64-bit x86 code for an address of a process that has the file loaded so far
    /// above its link-time addresses.
    ///
    /// # Errors
    ///
    /// [`sframe::Error`] if a table's header or the function that holds the address is damaged.
    pub fn row(&self, bias: u64, addr: u64) -> Result<Option<Row>, sframe::Error> {
        let at = self.addr.wrapping_add(bias);
        let tables = || sframe::Section::new(&self.bytes).at(at).tables();
        let indices = self.indices.at_lookup(tables);
        for (number, table) in tables().enumerate() {
            let table = table?;
            if table.header().abi != Abi::Amd64Little {
                continue;
            }
            let row = match indices {
                Some(indices) => indices.find_row(number, &table, addr)?,
                None => table.find_row(addr)?,
            };
            if row.is_some() {
                return Ok(row);
            }
        }
        Ok(None)
    }
}

impl ElfFile {
    /// Finds the sections of SFrame tables: by name or type, else by the program
    /// header. A linked file has one, an object may have one a function. Some
    /// may have no bytes, as those of start files do.
    ///
    /// # Errors
    ///
    /// [`ElfError`] if the section headers are damaged and no program header
    /// leads to a table, if one is not inside the file, or if two have the same
    /// bytes.
    pub fn sframe_sections(&self) -> Result<Vec<SframeSection>, ElfError> {
        self.read_sframe(usize::MAX)
    }

    /// The section of SFrame tables of a linked file. One of no bytes is none.
    ///
    /// # Errors
    ///
    /// As [`sframe_sections`](Self::sframe_sections), but that only the first one
    /// is looked at; [`ElfError::UnmergedSframe`].
    pub fn sframe(&self) -> Result<Option<SframeSection>, ElfError> {
        let found = self.read_sframe(1)?.pop().filter(|section| !section.bytes.is_empty());
        match found {
            Some(section) if self.kind != elf::ET_REL && section.is_unmerged() => {
                Err(ElfError::UnmergedSframe)
            }
            found => Ok(found),
        }
    }

    /// The first `count` sections of tables, those that have bytes before others if
    /// not all of them are wanted.
    fn read_sframe(&self, count: usize) -> Result<Vec<SframeSection>, ElfError> {
        let listed = self.sections();
        let sections = listed.unwrap_or_default();
        let is_sframe =
            |section: &Section| section.name == b".sframe" || section.kind == elf::SHT_GNU_SFRAME;
        let places = || sections.iter().enumerate().filter(|(_, section)| is_sframe(section));
        let has_bytes = |section: &Section| section.size != 0 && section.kind != elf::SHT_NOBITS;
        if places().any(|(_, section)| has_bytes(section)) {
            let mut places: Vec<_> = places().collect();
            if places.len() > count {
                places.retain(|(_, section)| has_bytes(section));
                places.truncate(count);
            }
            refuse_shared(places.iter().map(|(_, section)| (section.offset, section.size)))?;
            let mut relocations = Relocations::new(self, sections);
            let read = |&(index, section): &(usize, &Section)| {
                let mut bytes = self.section_bytes(Part::Sframe, section)?;
                let unresolved = relocations.apply_to_sframe(index, &mut bytes)?;
                let name = Untrusted::from(&section.name);
                let (addr, indices) = (section.addr, TableIndices::default());
                Ok(SframeSection { name, addr, bytes, unresolved, indices })
            };
            return places.iter().map(read).collect();
        }
        let segments = self.segments.iter().filter(|s| s.kind == elf::PT_GNU_SFRAME);
        let segments: Vec<_> = segments.filter(|s| s.file_size != 0).take(count).collect();
        if segments.is_empty() {
            let empty = places().map(|(_, section)| (section.addr, Vec::new()));
            let empty = empty.map(|(addr, bytes)| SframeSection::new(addr, bytes)).collect();
            return listed.map(|_| empty);
        }
        refuse_shared(segments.iter().map(|segment| (segment.offset, segment.file_size)))?;
        let read = |segment: &&Segment| {
            let bytes = self.image.read(Part::Sframe, segment.offset, segment.file_size)?;
            Ok(SframeSection::new(segment.addr, bytes))
        };
        segments.iter().map(read).collect()
    }
}
