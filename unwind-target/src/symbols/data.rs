//! Where data and functions with given names are, by one look at each symbol.

use std::collections::{BTreeMap, HashSet};

use memchr::memmem;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, Sym as _};
use object::{Endianness, LittleEndian, pod};

use crate::elf::error::{ElfError, Part};
use crate::elf::section::Section;
use crate::elf::{ElfFile, string_at};

/// As many names are kept at most.
const MOST: usize = 4096;

type Entry = <FileHeader64<LittleEndian> as FileHeader>::Sym;

/// The link-time addresses of data with these names in a little-endian 64-bit file, where it has them:
/// those that it exports, else of all of its symbols.
///
/// # Errors
///
/// [`ElfError`] if a table of symbols is damaged.
pub(crate) fn data_named<const N: usize>(
    file: &ElfFile,
    names: &[&[u8]; N],
) -> Result<[Option<u64>; N], ElfError> {
    Ok(named(file, elf::STT_OBJECT, names)?.map(|place| Some(place?.0)))
}

/// The link-time addresses of functions with these names, and their lengths, likewise.
///
/// # Errors
///
/// As [`data_named`].
pub(crate) fn functions_named<const N: usize>(
    file: &ElfFile,
    names: &[&[u8]; N],
) -> Result<[Option<(u64, u64)>; N], ElfError> {
    named(file, elf::STT_FUNC, names)
}

/// The link-time addresses of labels in assembly with these names, which are neither, likewise.
///
/// # Errors
///
/// As [`data_named`].
pub(crate) fn labels_named<const N: usize>(
    file: &ElfFile,
    names: &[&[u8]; N],
) -> Result<[Option<u64>; N], ElfError> {
    Ok(named(file, elf::STT_NOTYPE, names)?.map(|place| Some(place?.0)))
}

fn named<const N: usize>(
    file: &ElfFile,
    wanted: elf::SymbolType,
    names: &[&[u8]; N],
) -> Result<[Option<(u64, u64)>; N], ElfError> {
    let mut found = [None; N];
    each_symbol(file, (wanted, names), |name, place| {
        let at = names.iter().position(|wanted| *wanted == name);
        let found = at.and_then(|at| found.get_mut(at));
        found.map(|found| *found = Some(place)).is_some()
    })?;
    Ok(found)
}

/// The link-time addresses of data whose names start so, by the rest of the names, as [`data_named`] looks for them.
///
/// # Errors
///
/// As [`data_named`].
pub(crate) fn data_starting(
    file: &ElfFile,
    start: &[u8],
) -> Result<BTreeMap<Vec<u8>, u64>, ElfError> {
    let mut found = BTreeMap::new();
    each_symbol(file, (elf::STT_OBJECT, &[start]), |name, (addr, _)| {
        let rest = name.strip_prefix(start).filter(|_| found.len() < MOST);
        rest.map(|rest| found.insert(rest.to_vec(), addr)).is_some()
    })?;
    Ok(found)
}

/// Tells the names, addresses and sizes of all symbols of a kind that a little-endian 64-bit file exports, and if
/// `is_found` finds none among them those of all of its symbols. Tables without one of the texts are passed.
fn each_symbol(
    file: &ElfFile,
    wanted: (elf::SymbolType, &[&[u8]]),
    mut is_found: impl FnMut(&[u8], (u64, u64)) -> bool,
) -> Result<(), ElfError> {
    if !file.is_64 || file.endian != Endianness::Little {
        return Ok(());
    }
    let sections = file.sections()?;
    for kind in [elf::SHT_DYNSYM, elf::SHT_SYMTAB] {
        let Some(table) = sections.iter().find(|section| section.kind == kind) else { continue };
        let mut is_any = false;
        each_of_table(file, sections, table, wanted, |name, place| {
            is_any |= is_found(name, place);
        })?;
        if is_any {
            break;
        }
    }
    Ok(())
}

fn each_of_table(
    file: &ElfFile,
    sections: &[Section],
    table: &Section,
    (wanted, texts): (elf::SymbolType, &[&[u8]]),
    mut tell: impl FnMut(&[u8], (u64, u64)),
) -> Result<(), ElfError> {
    let section = usize::try_from(table.link).ok().and_then(|index| sections.get(index));
    let section =
        section.ok_or(ElfError::NoSuchSection { part: Part::SymbolNames, index: table.link })?;
    let names = file.shared_section_bytes(Part::SymbolNames, section)?;
    // Most files have none of them, and may have a million others.
    let places = texts.iter().flat_map(|text| memmem::find_iter(&names, text).take(MOST));
    let places: HashSet<u32> = places.filter_map(|place| u32::try_from(place).ok()).collect();
    if places.is_empty() {
        return Ok(());
    }
    let bytes = file.shared_section_bytes(Part::Symbols, table)?;
    let count = bytes.len().checked_div(size_of::<Entry>()).unwrap_or(0);
    let entries: &[Entry] = pod::slice_from_bytes(&bytes, count).map_or(&[], |(s, _)| s);
    let data = entries.iter().filter(|entry| {
        entry.st_type() == wanted
            && entry.st_shndx(LittleEndian) != elf::SHN_UNDEF
            && places.contains(&entry.st_name(LittleEndian))
    });
    for entry in data {
        let name = string_at(&names, entry.st_name(LittleEndian));
        tell(name, (entry.st_value(LittleEndian), entry.st_size(LittleEndian)));
    }
    Ok(())
}
