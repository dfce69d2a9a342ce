//! The tables of an image, and the code that they are about.

use std::path::PathBuf;

use object::elf;
use sframe::Flags;
use sframe::Table;
use unwind_target::elf::ElfFile;
use unwind_target::elf::relocations::Unresolved;
use unwind_target::elf::sframe_section::SframeSection;
use unwind_target::rows::call_frames::CallFrames;
use unwind_target::{InputError, Untrusted};

use crate::commands::sframe::code::Code;
use crate::commands::sframe::error::SframeError;
use crate::commands::sframe::input::{Content, Image};
use crate::commands::sframe::names::Names;
use crate::failure::Failure;

/// The sections of an image that hold tables, none of them empty.
#[derive(Debug)]
pub(crate) struct SframeFile<'a> {
    pub(crate) path: PathBuf,
    pub(crate) sections: Vec<SframeSection>,
    pub(crate) starts: Starts,
    pub(crate) code: Code,
    elf: Option<&'a ElfFile>,
}

/// What is known of where functions start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Starts {
    /// Their addresses in a linked file, or in a section as it is loaded.
    Linked,
    /// Their offsets in the code sections of a relocatable object.
    Object,
    /// Nothing: these are the bytes of a relocatable object's section alone, and its
    /// relocations are not in them.
    Unknown,
}

impl<'a> SframeFile<'a> {
    /// Reads the sections of an image.
    ///
    /// # Errors
    ///
    /// [`Failure`] if it cannot be read or has no tables.
    pub(crate) fn open(image: &'a Image) -> Result<Self, Failure> {
        let path = image.path.clone();
        let elf_error = |error| InputError::Elf { path: image.path.clone(), error };
        let (mut sections, elf) = match &image.content {
            Content::Raw(bytes, addr) => {
                (vec![SframeSection::new(addr.unwrap_or(0), bytes.clone())], None)
            }
            Content::Elf(elf) => (elf.sframe_sections().map_err(elf_error)?, Some(elf)),
        };
        if sections.is_empty() {
            let has_frames = elf.is_some_and(|elf| matches!(CallFrames::read(elf), Ok(Some(_))));
            return Err(SframeError::NoSection { path, has_frames }.into());
        }
        sections.retain(|section| !section.bytes.is_empty());
        if sections.is_empty() {
            return Err(SframeError::Empty { path }.into());
        }
        if let [only] = sections.as_slice()
            && let Some(Err(error)) = only.tables().tables().next()
        {
            return Err(SframeError::Table { path, error }.into());
        }
        let starts = match &image.content {
            Content::Elf(elf) if elf.kind == elf::ET_REL => Starts::Object,
            Content::Raw(_, None) if sections.iter().all(has_no_starts) => Starts::Unknown,
            _ => Starts::Linked,
        };
        let code = elf.map_or(Ok(Code::default()), Code::of).map_err(elf_error)?;
        Ok(Self { path, sections, starts, code, elf })
    }

    /// Where a function is said to start, as readelf says it: in an object, its
    /// offset in its section.
    pub(crate) fn shown_start(&self, start: u64) -> u64 {
        match self.starts {
            Starts::Linked => start,
            Starts::Object => self.code.offset(start),
            Starts::Unknown => 0,
        }
    }

    /// Where the functions of an object are that have the code at an offset in their
    /// sections.
    pub(crate) fn addresses_of(&self, offset: u64) -> Vec<u64> {
        let tables = self.sections.iter().flat_map(|section| section.tables().tables().flatten());
        let ranges = tables
            .flat_map(|table| (0..table.header().num_fdes).filter_map(move |i| table.range(i)));
        let addresses = ranges.filter_map(|range| {
            let addr = range.start.wrapping_sub(self.code.offset(range.start)).wrapping_add(offset);
            range.contains(addr).then_some(addr)
        });
        let mut addresses: Vec<_> = addresses.collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// The code section of an object that holds a function.
    pub(crate) fn code_section(&self, start: u64) -> Option<&Untrusted> {
        self.code.section_of(start).map(|(name, _)| name)
    }

    /// The names of the functions, or why there are none.
    pub(crate) fn names(&self) -> Names<'a> {
        self.elf.map_or(Names::NONE, Names::read)
    }
}

/// The relocation of the start of a function, the entry of which is `index` in a
/// table of a section, where that could not be applied.
pub(crate) fn unresolved_start(
    section: &SframeSection,
    table: &Table<'_>,
    index: u32,
) -> Option<Unresolved> {
    if section.unresolved.is_empty() {
        return None;
    }
    let at = table.addr().wrapping_sub(section.addr).wrapping_add(entry_at(table, index));
    let found = section.unresolved.binary_search_by_key(&at, |unresolved| unresolved.offset);
    section.unresolved.get(found.ok()?).copied()
}

/// Where the entry of a function is in its table.
fn entry_at(table: &Table<'_>, index: u32) -> u64 {
    let header = table.header();
    let size = u64::try_from(header.version.fde_size()).unwrap_or(u64::MAX);
    header.fdes_at().0.saturating_add(u64::from(index).saturating_mul(size))
}

/// Whether the field of each start is zero, as it is where a relocation is to be
/// applied. No linked function starts at the field that says so, nor with the table.
fn has_no_starts(section: &SframeSection) -> bool {
    let mut starts = section.tables().tables().flatten().flat_map(|table| {
        let is_relative = table.header().flags.contains(Flags::PCREL);
        (0..table.header().num_fdes).filter_map(move |index| {
            let anchor = if is_relative { entry_at(&table, index) } else { 0 };
            Some((table.range(index)?.start, table.addr().wrapping_add(anchor)))
        })
    });
    let mut some = false;
    starts.all(|(start, anchor)| {
        some = true;
        start == anchor
    }) && some
}
