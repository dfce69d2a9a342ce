//! Where data and functions with given names are, by one look at each symbol.

use std::collections::BTreeMap;

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

fn named<const N: usize>(
    file: &ElfFile,
    wanted: elf::SymbolType,
    names: &[&[u8]; N],
) -> Result<[Option<(u64, u64)>; N], ElfError> {
    let mut found = [None; N];
    if !file.is_64 || file.endian != Endianness::Little {
        return Ok(found);
    }
    let sections = file.sections()?;
    for kind in [elf::SHT_DYNSYM, elf::SHT_SYMTAB] {
        let Some(table) = sections.iter().find(|section| section.kind == kind) else { continue };
        each_symbol(file, sections, table, (wanted, names), |name, place| {
            let at = names.iter().position(|wanted| *wanted == name);
            if let Some(found) = at.and_then(|at| found.get_mut(at)) {
                *found = Some(place);
            }
        })?;
        if found.iter().any(Option::is_some) {
            break;
        }
    }
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
    if !file.is_64 || file.endian != Endianness::Little {
        return Ok(found);
    }
    let sections = file.sections()?;
    for kind in [elf::SHT_DYNSYM, elf::SHT_SYMTAB] {
        let Some(table) = sections.iter().find(|section| section.kind == kind) else { continue };
        let wanted = (elf::STT_OBJECT, &[start][..]);
        each_symbol(file, sections, table, wanted, |name, (addr, _)| {
            if let Some(rest) = name.strip_prefix(start).filter(|_| found.len() < MOST) {
                found.insert(rest.to_vec(), addr);
            }
        })?;
        if !found.is_empty() {
            break;
        }
    }
    Ok(found)
}

/// Tells the names, addresses and sizes of all symbols of a kind in a table, if one of the texts is in its
/// names.
fn each_symbol(
    file: &ElfFile,
    sections: &[Section],
    table: &Section,
    (wanted, texts): (elf::SymbolType, &[&[u8]]),
    mut tell: impl FnMut(&[u8], (u64, u64)),
) -> Result<(), ElfError> {
    let section = usize::try_from(table.link).ok().and_then(|index| sections.get(index));
    let section =
        section.ok_or(ElfError::NoSuchSection { part: Part::SymbolNames, index: table.link })?;
    let names = file.section_bytes(Part::SymbolNames, section)?;
    // Most files have none of them, and may have a million others.
    if texts.iter().all(|text| memmem::find(&names, text).is_none()) {
        return Ok(());
    }
    let bytes = file.section_bytes(Part::Symbols, table)?;
    let count = bytes.len().checked_div(size_of::<Entry>()).unwrap_or(0);
    let entries: &[Entry] = pod::slice_from_bytes(&bytes, count).map_or(&[], |(s, _)| s);
    let data = entries.iter().filter(|entry| {
        entry.st_type() == wanted && entry.st_shndx(LittleEndian) != elf::SHN_UNDEF
    });
    for entry in data {
        let name = string_at(&names, entry.st_name(LittleEndian));
        tell(name, (entry.st_value(LittleEndian), entry.st_size(LittleEndian)));
    }
    Ok(())
}
