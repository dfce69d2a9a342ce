//! Linkage tables: the code by which a linked file of x86 calls functions of others.
//! It has no symbols.
//!
//! Each entry jumps by a word of the global offset table, and a relocation of that
//! word says which function the loader puts there.

use std::collections::HashMap;

use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, Rel as _, Rela as _, Sym as _};
use object::{Endianness, pod};

use crate::elf::ElfFile;
use crate::elf::error::{ElfError, Part};
use crate::elf::section::Section;

/// The entries of a file, by link-time address.
#[derive(Debug, Default)]
pub struct LinkageTables {
    /// Ascending, none over another.
    entries: Vec<LinkageEntry>,
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkageEntry {
    /// Its first byte, and past its last one.
    pub start: u64,
    pub(crate) end: u64,
    pub callee: Callee,
    /// It is in `.plt`, not in one of the tables that newer linkers make beside it.
    pub is_in_plt: bool,
}

/// Where an entry leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callee {
    /// To a function of this name, which is at this offset in the file.
    Named(u64),
    /// To a function of the file itself, which the one at this link-time address
    /// chooses when the file is loaded.
    Chosen(u64),
}

impl LinkageTables {
    /// Reads the tables of a file. One of another CPU, and an object, have none.
    ///
    /// # Errors
    ///
    /// [`ElfError`] if a table, or what says where its entries lead, is not inside the
    /// file.
    pub fn read(file: &ElfFile) -> Result<Self, ElfError> {
        match (file.machine, file.is_64, file.endian) {
            _ if file.kind == elf::ET_REL => Ok(Self::default()),
            (elf::EM_X86_64, true, Endianness::Little) => {
                read::<FileHeader64<Endianness>>(file, file.sections()?)
            }
            (elf::EM_386, false, Endianness::Little) => {
                read::<FileHeader32<Endianness>>(file, file.sections()?)
            }
            _ => Ok(Self::default()),
        }
    }

    /// The entry that holds a link-time address.
    #[must_use]
    pub fn find(&self, addr: u64) -> Option<&LinkageEntry> {
        let after = self.entries.partition_point(|entry| entry.start <= addr);
        let entry = self.entries.get(after.checked_sub(1)?)?;
        (addr < entry.end).then_some(entry)
    }
}

/// An entry, and the address of the word that it jumps by.
struct Jump {
    start: u64,
    end: u64,
    slot: u64,
    is_in_plt: bool,
}

fn read<H>(file: &ElfFile, sections: &[Section]) -> Result<LinkageTables, ElfError>
where
    H: FileHeader<Endian = Endianness>,
{
    let find = |name: &[u8]| sections.iter().find(|section| section.name == name);
    let got = find(b".got.plt").or_else(|| find(b".got")).map_or(0, |section| section.addr);
    let mut jumps = Vec::new();
    for name in [&b".plt"[..], b".plt.sec", b".plt.got"] {
        if let Some(section) = find(name).filter(|section| section.executable) {
            let code = file.section_bytes(Part::LinkageTable, section)?;
            add_jumps(file.is_64, section, &code, got, &mut jumps);
        }
    }
    jumps.sort_unstable_by_key(|jump| jump.start);
    jumps.dedup_by(|jump, before| jump.start < before.end);
    let callees = callees::<H>(file, sections, &jumps)?;
    let entry = |jump: &Jump| {
        let &callee = callees.get(&jump.slot)?;
        let &Jump { start, end, is_in_plt, .. } = jump;
        Some(LinkageEntry { start, end, callee, is_in_plt })
    };
    Ok(LinkageTables { entries: jumps.iter().filter_map(entry).collect() })
}

/// Finds the jumps in the code of a table. `got` is what a 32-bit file that may be
/// loaded anywhere has in EBX.
fn add_jumps(is_64: bool, section: &Section, code: &[u8], got: u64, jumps: &mut Vec<Jump>) {
    let size = match section.entry_size {
        8 => 8,
        _ if section.name == b".plt.got" && section.size.checked_rem(16) != Some(0) => 8,
        _ => 16,
    };
    let is_in_plt = section.name == b".plt";
    for (number, entry) in (0_u64..).zip(code.chunks_exact(size)) {
        let size = u64::try_from(size).unwrap_or(0);
        let start = section.addr.wrapping_add(number.wrapping_mul(size));
        if let Some(slot) = slot(is_64, start, entry, got) {
            jumps.push(Jump { start, end: start.saturating_add(size), slot, is_in_plt });
        }
    }
}

/// The address of the word by which an entry at `start` jumps.
fn slot(is_64: bool, start: u64, entry: &[u8], got: u64) -> Option<u64> {
    let mut code = entry;
    for prefix in [
        // endbr64, endbr32, bnd
        &[0xf3, 0x0f, 0x1e, 0xfa][..],
        &[0xf3, 0x0f, 0x1e, 0xfb],
        &[0xf2],
    ] {
        code = code.strip_prefix(prefix).unwrap_or(code);
    }
    let (&[0xff, operand, a, b, c, d], rest) = code.split_first_chunk()? else { return None };
    let word = i32::from_le_bytes([a, b, c, d]);
    match operand {
        // jmp *word(%rip)
        0x25 if is_64 => {
            let read = u64::try_from(entry.len().checked_sub(rest.len())?).ok()?;
            Some(start.wrapping_add(read).wrapping_add_signed(word.into()))
        }
        // jmp *word
        0x25 => Some(word.cast_unsigned().into()),
        // jmp *word(%ebx)
        0xa3 if !is_64 => Some(got.wrapping_add_signed(word.into()) & u64::from(u32::MAX)),
        _ => None,
    }
}

/// What the loader puts into each of the words that are jumped by.
fn callees<H>(
    file: &ElfFile,
    sections: &[Section],
    jumps: &[Jump],
) -> Result<HashMap<u64, Callee>, ElfError>
where
    H: FileHeader<Endian = Endianness>,
{
    let mut callees = HashMap::new();
    let Some(symbols) = sections.iter().find(|section| section.kind == elf::SHT_DYNSYM) else {
        return Ok(callees);
    };
    let names = usize::try_from(symbols.link).ok().and_then(|index| sections.get(index));
    let names =
        names.ok_or(ElfError::NoSuchSection { part: Part::SymbolNames, index: symbols.link })?;
    let bytes = file.section_bytes(Part::Symbols, symbols)?;
    let symbols: &[H::Sym] = pod::slice_from_all_bytes(&bytes).unwrap_or_default();
    let name_of = |index: u32| {
        let symbol = symbols.get(usize::try_from(index).ok()?)?;
        let name = u64::from(symbol.st_name(file.endian));
        let is_there = name != 0 && name < names.size;
        Some(Callee::Named(names.offset.checked_add(name).filter(|_| is_there)?))
    };
    let mut slots: Vec<u64> = jumps.iter().map(|jump| jump.slot).collect();
    slots.sort_unstable();
    let is_slot = |at: u64| slots.binary_search(&at).is_ok();
    for name in [&b".rela.plt"[..], b".rela.dyn", b".rel.plt", b".rel.dyn"] {
        let Some(section) = sections.iter().find(|section| section.name == name) else { continue };
        let bytes = file.section_bytes(Part::Relocations, section)?;
        if section.kind == elf::SHT_RELA {
            let relocations: &[H::Rela] = pod::slice_from_all_bytes(&bytes).unwrap_or_default();
            for relocation in relocations {
                let at = relocation.r_offset(file.endian).into();
                let callee = match relocation.r_sym(file.endian, false) {
                    _ if !is_slot(at) => None,
                    0 => {
                        let addend: i64 = relocation.r_addend(file.endian).into();
                        Some(Callee::Chosen(addend.cast_unsigned()))
                    }
                    index => name_of(index),
                };
                callees.extend(callee.map(|callee| (at, callee)));
            }
        } else if section.kind == elf::SHT_REL {
            // What else such a relocation says is in the word itself, which is not needed
            // for a name.
            let relocations: &[H::Rel] = pod::slice_from_all_bytes(&bytes).unwrap_or_default();
            for relocation in relocations {
                let at = relocation.r_offset(file.endian).into();
                let callee = is_slot(at).then(|| name_of(relocation.r_sym(file.endian)));
                callees.extend(callee.flatten().map(|callee| (at, callee)));
            }
        }
    }
    Ok(callees)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d5_an_entry_jumps_by_the_word_that_its_code_names() {
        let padded = |code: &[u8]| {
            let mut entry = code.to_vec();
            entry.resize(16, 0x90);
            entry
        };
        let jump = [0xff, 0x25, 0x10, 0, 0, 0];
        let endbr = [0xf3, 0x0f, 0x1e, 0xfa];
        for (is_64, code, expected) in [
            (true, jump.to_vec(), Some(0x1000 + 6 + 0x10)),
            (true, [&endbr[..], &jump].concat(), Some(0x1000 + 10 + 0x10)),
            (true, [&endbr[..], &[0xf2], &jump].concat(), Some(0x1000 + 11 + 0x10)),
            (true, vec![0xff, 0x25, 0xfa, 0xff, 0xff, 0xff], Some(0x1000)),
            (false, jump.to_vec(), Some(0x10)),
            (false, vec![0xff, 0xa3, 0x0c, 0, 0, 0], Some(0x800c)),
            // The entry that calls the loader, and one that only leads to it.
            (true, vec![0xff, 0x35, 2, 0, 0, 0], None),
            (true, [&endbr[..], &[0x68, 0, 0, 0, 0, 0xf2, 0xe9]].concat(), None),
            (true, vec![0xff, 0xa3, 0x0c, 0, 0, 0], None),
        ] {
            assert_eq!(slot(is_64, 0x1000, &padded(&code), 0x8000), expected, "{code:x?}");
        }
        assert_eq!(slot(true, 0x1000, &[0xff, 0x25], 0), None);
    }
}
