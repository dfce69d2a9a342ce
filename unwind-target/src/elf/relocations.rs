//! Relocations of a relocatable object: what a linker would write into the sections
//! that say where code is.
//!
//! All addresses of such a file are zero. Here its loaded sections are given
//! addresses one after the other, those with code first and from zero on, so that
//! each byte of code has an address of its own. With these the relocations are
//! applied. Nothing of it moves in the file.

use std::fmt;

use object::elf::{self, FileHeader64, Machine};
use object::read::elf::{FileHeader, Rel as _, Rela as _, Sym as _};
use object::{Endian as _, Endianness, pod};
use sframe::Flags;

use crate::elf::ElfFile;
use crate::elf::error::{ElfError, Part};
use crate::elf::section::Section;

type Header = FileHeader64<Endianness>;
type Rel = <Header as FileHeader>::Rel;
type Rela = <Header as FileHeader>::Rela;
type Sym = <Header as FileHeader>::Sym;

impl ElfFile {
    /// Copies what a section has in the file; in a relocatable object, with its
    /// relocations applied as far as they can be. `sections` are those of the file.
    ///
    /// # Errors
    ///
    /// As [`section_bytes`](Self::section_bytes), and as [`Relocations::apply`].
    pub(crate) fn relocated_bytes(
        &self,
        part: Part,
        section: &Section,
        sections: &[Section],
    ) -> Result<Vec<u8>, ElfError> {
        let mut bytes = self.section_bytes(part, section)?;
        if let Some(index) = sections.iter().position(|other| other == section) {
            // Personality routines are in other files as a rule.
            Relocations::new(self, sections).apply(index, &mut bytes)?;
        }
        Ok(bytes)
    }
}

/// A relocation that could not be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unresolved {
    /// Where in the section the field is.
    pub offset: u64,
    pub(crate) reason: UnresolvedReason,
}

/// Why a relocation could not be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnresolvedReason {
    /// Of a type that is not known, or of a machine whose types are not.
    UnknownType(u32),
    /// Its symbol is in another file.
    UndefinedSymbol,
    /// There is no such symbol, or it is in no section that is loaded.
    NoSuchSymbol(u32),
    /// The value has more bits than the field.
    DoesNotFit,
    /// The field is not inside the section.
    OutsideSection,
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the relocation of +{:#x} cannot be applied: ", self.offset)?;
        match self.reason {
            UnresolvedReason::UnknownType(kind) => write!(f, "its type, {kind}, is not known"),
            UnresolvedReason::UndefinedSymbol => f.write_str("its symbol is in another file"),
            UnresolvedReason::NoSuchSymbol(index) => {
                write!(f, "symbol {index} is in no section that is loaded")
            }
            UnresolvedReason::DoesNotFit => f.write_str("the value does not fit the field"),
            UnresolvedReason::OutsideSection => f.write_str("it is outside its section"),
        }
    }
}

/// What came of the relocations of a section.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// The fields that are relative to their own place, ascending by offset.
    relative: Vec<u64>,
    /// The relocations that could not be applied, ascending by offset.
    pub(crate) unresolved: Vec<Unresolved>,
}

/// The relocations of an object.
pub(crate) struct Relocations<'f> {
    file: &'f ElfFile,
    sections: &'f [Section],
    /// Which sections hold relocations of which, by that one's index.
    by_target: Vec<(u32, usize)>,
    /// The last symbol table that was read.
    symbols: Option<(u32, SymbolTable)>,
    /// How many bytes may still be read. Sections that share no bytes are not
    /// longer than the file.
    left: u64,
}

/// The symbols of an object.
struct SymbolTable {
    entries: Vec<u8>,
    /// Section indices that do not fit an entry.
    long_indices: Vec<u8>,
}

impl<'f> Relocations<'f> {
    /// Those of `file`; none unless it is a relocatable object.
    pub(crate) fn new(file: &'f ElfFile, sections: &'f [Section]) -> Self {
        let holds = |section: &Section| matches!(section.kind, elf::SHT_RELA | elf::SHT_REL);
        let mut by_target: Vec<_> = Vec::new();
        if file.kind == elf::ET_REL {
            let holders = sections.iter().enumerate().filter(|(_, section)| holds(section));
            by_target.extend(holders.map(|(index, section)| (section.info, index)));
        }
        by_target.sort_unstable();
        Self { file, sections, by_target, symbols: None, left: file.byte_len() }
    }

    /// Applies those of the section at `index` to its bytes.
    ///
    /// # Errors
    ///
    /// [`ElfError`] if relocations or symbols are not inside the file, or share
    /// bytes with others.
    pub(crate) fn apply(&mut self, index: usize, bytes: &mut [u8]) -> Result<Applied, ElfError> {
        let mut applied = Applied::default();
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        let first = self.by_target.partition_point(|&(target, _)| target < index);
        let after = self.by_target.partition_point(|&(target, _)| target <= index);
        for turn in first..after {
            let Some(&(_, holder)) = self.by_target.get(turn) else { continue };
            self.apply_from(holder, index, bytes, &mut applied)?;
        }
        applied.relative.sort_unstable();
        applied.unresolved.sort_unstable_by_key(|unresolved| unresolved.offset);
        Ok(applied)
    }

    /// Applies those of the section at `index` to its bytes, which are SFrame
    /// tables.
    ///
    /// Tables whose starts count from the section have relocations relative to
    /// the fields nonetheless: assemblers before the flag for that wrote them so,
    /// and linkers turned them into offsets from the section.
    ///
    /// # Errors
    ///
    /// As [`apply`](Self::apply).
    pub(crate) fn apply_to_sframe(
        &mut self,
        index: usize,
        bytes: &mut [u8],
    ) -> Result<Vec<Unresolved>, ElfError> {
        let Applied { relative, unresolved } = self.apply(index, bytes)?;
        // Where a start is, and how far it is from its table's first byte.
        let mut starts = Vec::new();
        for table in sframe::Section::new(bytes).tables().flatten() {
            let header = table.header();
            if header.flags.contains(Flags::PCREL) {
                continue;
            }
            let size = u64::try_from(header.version.fde_size()).unwrap_or(u64::MAX);
            let fdes = header.fdes_at().0;
            for index in 0..u64::from(header.num_fdes) {
                let from_table = index.saturating_mul(size).saturating_add(fdes);
                let at = table.addr().saturating_add(from_table);
                if relative.binary_search(&at).is_ok() {
                    starts.push((at, from_table));
                }
            }
        }
        for (at, from_table) in starts {
            // These versions have fields of four bytes.
            if let Some(field) = field(bytes, at, 4) {
                let value = read(field, self.file.endian);
                write(field, value.wrapping_add(from_table.cast_signed()), self.file.endian);
            }
        }
        Ok(unresolved)
    }

    fn apply_from(
        &mut self,
        holder: usize,
        target: u32,
        bytes: &mut [u8],
        applied: &mut Applied,
    ) -> Result<(), ElfError> {
        let part = Part::Relocations;
        let Some(section) = self.sections.get(holder) else { return Ok(()) };
        let has_addends = section.kind == elf::SHT_RELA;
        let size = if has_addends { size_of::<Rela>() } else { size_of::<Rel>() };
        if !self.file.is_64 || usize::try_from(section.entry_size) != Ok(size) {
            return Err(ElfError::EntrySize { part, size: section.entry_size });
        }
        let entries = self.read(part, section)?;
        let link = section.link;
        if self.symbols.as_ref().is_none_or(|&(index, _)| index != link) {
            let table = self.read_symbols(link)?;
            self.symbols = Some((link, table));
        }
        let Some((_, symbols)) = &self.symbols else { return Ok(()) };
        let place = usize::try_from(target).ok().and_then(|index| self.sections.get(index));
        let base = place.map_or(0, |section| section.addr);
        // What is not loaded itself counts from the starts of such sections.
        let is_loaded = place.is_none_or(|section| section.allocated);
        let endian = self.file.endian;
        let mut one = |offset: u64, kind: u32, symbol: u32, addend: Option<i64>| {
            let fault = |reason| Unresolved { offset, reason };
            let result = match Type::of(self.file.machine, kind) {
                Some(None) => Ok(false),
                None => Err(UnresolvedReason::UnknownType(kind)),
                Some(Some(kind)) => self
                    .value(symbols, symbol, is_loaded)
                    .and_then(|value| kind.write(bytes, base, offset, value, addend, endian))
                    .map(|()| kind.is_relative),
            };
            match result {
                Ok(true) => applied.relative.push(offset),
                Ok(false) => {}
                Err(reason) => applied.unresolved.push(fault(reason)),
            }
        };
        if has_addends {
            let entries: &[Rela] = pod::slice_from_all_bytes(&entries).unwrap_or_default();
            for entry in entries {
                let kind = entry.r_type(endian, false).0;
                let symbol = entry.r_sym(endian, false);
                one(entry.r_offset(endian), kind, symbol, Some(entry.r_addend(endian)));
            }
        } else {
            let entries: &[Rel] = pod::slice_from_all_bytes(&entries).unwrap_or_default();
            for entry in entries {
                let kind = entry.r_type(endian).0;
                one(entry.r_offset(endian), kind, entry.r_sym(endian), None);
            }
        }
        Ok(())
    }

    fn read(&mut self, part: Part, section: &Section) -> Result<Vec<u8>, ElfError> {
        self.left = self.left.checked_sub(section.size).ok_or(ElfError::Shared(part))?;
        let mut bytes = self.file.section_bytes(part, section)?;
        // A part of an entry at the end is none.
        let size = usize::try_from(section.entry_size.max(1)).unwrap_or(usize::MAX);
        let whole = bytes.len().saturating_sub(bytes.len().checked_rem(size).unwrap_or(0));
        bytes.truncate(whole);
        Ok(bytes)
    }

    fn read_symbols(&mut self, index: u32) -> Result<SymbolTable, ElfError> {
        let part = Part::Symbols;
        let sections = self.sections;
        let section = usize::try_from(index).ok().and_then(|index| sections.get(index));
        let section = section.ok_or(ElfError::NoSuchSection { part, index })?;
        if usize::try_from(section.entry_size) != Ok(size_of::<Sym>()) {
            return Err(ElfError::EntrySize { part, size: section.entry_size });
        }
        let entries = self.read(part, section)?;
        let long = sections
            .iter()
            .find(|section| section.kind == elf::SHT_SYMTAB_SHNDX && section.link == index);
        let long_indices = match long {
            Some(section) => self.read(part, section)?,
            None => Vec::new(),
        };
        Ok(SymbolTable { entries, long_indices })
    }

    /// The address of a symbol; of one in a section that is loaded, if that is wanted.
    fn value(
        &self,
        symbols: &SymbolTable,
        index: u32,
        is_loaded: bool,
    ) -> Result<u64, UnresolvedReason> {
        let endian = self.file.endian;
        let missing = UnresolvedReason::NoSuchSymbol(index);
        let at = usize::try_from(index).map_err(|_| missing)?;
        let entries: &[Sym] = pod::slice_from_all_bytes(&symbols.entries).unwrap_or_default();
        let symbol = entries.get(at).ok_or(missing)?;
        let value = symbol.st_value(endian);
        let section = match symbol.st_shndx(endian) {
            elf::SHN_UNDEF | elf::SHN_COMMON => return Err(UnresolvedReason::UndefinedSymbol),
            elf::SHN_ABS => return Ok(value),
            elf::SHN_XINDEX => symbols.long_index(at, endian).ok_or(missing)?,
            index if index.0 >= elf::SHN_LORESERVE => return Err(missing),
            index => index.0.into(),
        };
        let section = usize::try_from(section).ok().and_then(|index| self.sections.get(index));
        let section = section.filter(|section| section.allocated || !is_loaded).ok_or(missing)?;
        Ok(section.addr.wrapping_add(value))
    }
}

impl SymbolTable {
    fn long_index(&self, at: usize, endian: Endianness) -> Option<u32> {
        let bytes = self.long_indices.get(at.checked_mul(4)?..)?.first_chunk()?;
        Some(endian.read_u32(*bytes))
    }
}

/// What a relocation writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Type {
    /// The size of the field in bytes: 4 or 8.
    size: usize,
    /// The value counts from the field.
    is_relative: bool,
}

impl Type {
    /// `None` if the type is not known, `Some(None)` if it does nothing.
    fn of(machine: Machine, kind: u32) -> Option<Option<Self>> {
        let (size, is_relative) = match (machine, elf::RelocationType(kind)) {
            (elf::EM_X86_64, elf::R_X86_64_NONE)
            | (elf::EM_AARCH64, elf::R_AARCH64_NONE)
            | (elf::EM_S390, elf::R_390_NONE) => return Some(None),
            (elf::EM_X86_64, elf::R_X86_64_64)
            | (elf::EM_AARCH64, elf::R_AARCH64_ABS64)
            | (elf::EM_S390, elf::R_390_64) => (8, false),
            (elf::EM_X86_64, elf::R_X86_64_32 | elf::R_X86_64_32S)
            | (elf::EM_AARCH64, elf::R_AARCH64_ABS32)
            | (elf::EM_S390, elf::R_390_32) => (4, false),
            (elf::EM_X86_64, elf::R_X86_64_PC64)
            | (elf::EM_AARCH64, elf::R_AARCH64_PREL64)
            | (elf::EM_S390, elf::R_390_PC64) => (8, true),
            (elf::EM_X86_64, elf::R_X86_64_PC32 | elf::R_X86_64_PLT32)
            | (elf::EM_AARCH64, elf::R_AARCH64_PREL32)
            | (elf::EM_S390, elf::R_390_PC32) => (4, true),
            _ => return None,
        };
        Some(Some(Self { size, is_relative }))
    }

    /// Writes the field at `offset` of a section that is at `base`.
    fn write(
        self,
        bytes: &mut [u8],
        base: u64,
        offset: u64,
        symbol: u64,
        addend: Option<i64>,
        endian: Endianness,
    ) -> Result<(), UnresolvedReason> {
        let field = field(bytes, offset, self.size).ok_or(UnresolvedReason::OutsideSection)?;
        let addend = addend.unwrap_or_else(|| read(field, endian));
        let target = symbol.wrapping_add_signed(addend);
        let value = match self.is_relative {
            true => target.wrapping_sub(base.wrapping_add(offset)).cast_signed(),
            false => target.cast_signed(),
        };
        let fits = match (self.size, self.is_relative) {
            (4, true) => i32::try_from(value).is_ok(),
            (4, false) => i32::try_from(value).is_ok() || u32::try_from(value).is_ok(),
            _ => true,
        };
        if !fits {
            return Err(UnresolvedReason::DoesNotFit);
        }
        write(field, value, endian);
        Ok(())
    }
}

fn field(bytes: &mut [u8], offset: u64, size: usize) -> Option<&mut [u8]> {
    bytes.get_mut(usize::try_from(offset).ok()?..)?.get_mut(..size)
}

/// The value of a field of 4 or 8 bytes, signed.
fn read(field: &[u8], endian: Endianness) -> i64 {
    match *field {
        [a, b, c, d] => endian.read_i32([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => endian.read_i64([a, b, c, d, e, f, g, h]),
        _ => 0,
    }
}

/// Writes the lower bytes of a value.
fn write(field: &mut [u8], value: i64, endian: Endianness) {
    let len = field.len();
    match endian {
        Endianness::Little => {
            let bytes = value.to_le_bytes();
            field.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        }
        Endianness::Big => {
            let bytes = value.to_be_bytes();
            let skip = bytes.len().saturating_sub(len);
            field.iter_mut().zip(bytes.into_iter().skip(skip)).for_each(|(to, from)| *to = from);
        }
    }
}
