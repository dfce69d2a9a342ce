//! The commands of SFrame tables: functions that share rows and names, relocations,
//! archives.

use std::fs;
use std::path::Path;
use std::time::Duration;

use testdata::{ElfBuilder, ElfSection, Function, Row, TableBuilder};

use crate::support::resources::{Bounds, Run, input_file, stays_linear};

const SHT_PROGBITS: u32 = 1;
const SHT_SYMTAB: u32 = 2;
const SHT_STRTAB: u32 = 3;
const SHT_RELA: u32 = 4;
const SHT_NOBITS: u32 = 8;

/// A function of 16 bytes takes a line for itself, one for its columns, one for each
/// row, and 256 characters of its name.
const LISTING: Bounds = Bounds { time: Duration::from_secs(20), memory: 64, output: 64 };

fn size_of(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap()
}

/// An object with as many functions of one row, in a code section each or all in one,
/// and a symbol for each that is called as `name` says.
struct Object {
    functions: usize,
    has_sections: bool,
    names: Vec<u8>,
    /// Where in `names` a symbol's is.
    name_of: fn(usize) -> usize,
}

impl Object {
    fn build(&self) -> Vec<u8> {
        let mut elf = ElfBuilder::new(ElfBuilder::RELOCATABLE);
        let table = (0..self.functions).fold(
            TableBuilder { flags: TableBuilder::PCREL, ..TableBuilder::amd64(3) },
            |table, index| {
                let field = 28 + 16 * i64::try_from(index).unwrap();
                table.function(Function::new(field, 16, vec![Row::sp(0, &[8])]))
            },
        );
        let table = table.build();
        let names = b"\0.sframe\0.text\0";
        let (offset, size) = (elf.put(&table), size_of(&table));
        let sframe = ElfSection { name: 1, kind: SHT_PROGBITS, flags: 2, ..ElfSection::default() };
        let target = elf.section(ElfSection { offset, size, ..sframe });
        let code = ElfSection { name: 9, kind: SHT_NOBITS, flags: 6, ..ElfSection::default() };
        let sections = if self.has_sections { self.functions } else { 1 };
        let in_section = if self.has_sections { 1 } else { self.functions };
        let size = 16 * u64::try_from(in_section).unwrap();
        let first = elf.section(ElfSection { size, ..code });
        for _ in 1..sections {
            elf.section(ElfSection { size, ..code });
        }
        let place = |index: usize| {
            let index = u32::try_from(index).unwrap();
            if self.has_sections { (first + index, 0) } else { (first, 16 * u64::from(index)) }
        };
        let (offset, size) = (elf.put(names), size_of(names));
        elf.names = elf.section(ElfSection { kind: SHT_STRTAB, offset, size, ..code_less() });
        let (offset, size) = (elf.put(&self.names), size_of(&self.names));
        let link = elf.section(ElfSection { kind: SHT_STRTAB, offset, size, ..code_less() });
        let mut symbols = vec![0; 24];
        for index in 0..self.functions {
            let (section, value) = place(index);
            let name = u32::try_from((self.name_of)(index)).unwrap();
            symbols.extend(name.to_le_bytes());
            symbols.extend([2, 0]);
            symbols.extend(u16::try_from(section).unwrap().to_le_bytes());
            symbols.extend(value.to_le_bytes());
            symbols.extend(16_u64.to_le_bytes());
        }
        let (offset, size) = (elf.put(&symbols), size_of(&symbols));
        let entries = ElfSection { kind: SHT_SYMTAB, entry_size: 24, ..code_less() };
        let link = elf.section(ElfSection { link, offset, size, ..entries });
        let mut relocations = Vec::new();
        for index in 0..self.functions {
            relocations.extend((28 + 16 * u64::try_from(index).unwrap()).to_le_bytes());
            // R_X86_64_PC64
            relocations.extend(24_u32.to_le_bytes());
            relocations.extend(u32::try_from(index + 1).unwrap().to_le_bytes());
            relocations.extend(0_u64.to_le_bytes());
        }
        let (offset, size) = (elf.put(&relocations), size_of(&relocations));
        let entries = ElfSection { kind: SHT_RELA, entry_size: 24, ..code_less() };
        elf.section(ElfSection { link, info: target, offset, size, ..entries });
        elf.finish()
    }
}

fn code_less() -> ElfSection {
    ElfSection::default()
}

/// A name of letters that all symbols share, each from another place on.
fn shared_names() -> Vec<u8> {
    let mut names = vec![b'n'; 60_000];
    names[0] = 0;
    names.push(0);
    names
}

fn run(path: &Path, bytes: &[u8], arguments: &[&str]) -> Run {
    Run::of_file(path, bytes, &[&["sframe"], arguments].concat())
}

#[test]
fn functions_whose_names_share_their_bytes() {
    let path = input_file("shared_symbol_names");
    for command in [&["dump", "FILE"][..], &["check", "FILE"], &["diff", "FILE", "FILE"]] {
        stays_linear(&format!("sframe {}", command[0]), "names share bytes", LISTING, |times| {
            let (names, functions) = (shared_names(), 4_000 * times);
            let object =
                Object { functions, has_sections: false, names, name_of: |i| 1 + i % 50_000 };
            run(&path, &object.build(), command)
        });
    }
}

#[test]
fn code_sections_of_an_object() {
    let path = input_file("code_sections");
    for command in [
        &["dump", "FILE"][..],
        &["check", "FILE"],
        &["stat", "FILE"],
        &["find", "FILE", "0x0", "0x20"],
        &["find", "FILE", "n", "nn+1", "absent"],
    ] {
        stays_linear(&format!("sframe {}", command[0]), "code sections", LISTING, |times| {
            // All of one name.
            let (names, functions) = (b"\0n\0".to_vec(), 4_000 * times);
            let object = Object { functions, has_sections: true, names, name_of: |_| 1 };
            run(&path, &object.build(), command)
        });
    }
}

#[test]
fn functions_that_share_rows() {
    let path = input_file("shared_rows");
    let none = path.with_file_name("none");
    fs::write(&none, TableBuilder::amd64(2).build()).unwrap();
    let none = none.to_str().unwrap();
    // Of rows, one for each of their bytes is printed, in lines of 60, in JSON of 200.
    let json = Bounds { output: 256, ..LISTING };
    for (reader, command, bounds) in [
        ("sframe dump", &["dump", "--raw", "FILE"][..], LISTING),
        ("sframe dump --json", &["dump", "--raw", "--json", "FILE"], json),
        ("sframe diff of itself", &["diff", "--raw", "FILE", "FILE"], LISTING),
        ("sframe diff of another", &["diff", "--raw", "FILE", none], LISTING),
        ("sframe check", &["check", "--raw", "FILE"], LISTING),
    ] {
        stays_linear(reader, "functions share rows", bounds, |times| {
            let rows = 8_000 * times;
            let row = |start| Row::sp(u32::try_from(start).unwrap(), &[8]);
            let first =
                Function { info: 1, ..Function::new(0, 0xffff, (0..rows).map(row).collect()) };
            let table = TableBuilder::amd64(2).function(first);
            let table = (1..rows).fold(table, |table, index| {
                let start = i64::try_from(index).unwrap() * 0x1_0000;
                table.function(Function::new(start, 0xffff, Vec::new()))
            });
            let mut bytes = table.build();
            let count = u32::try_from(rows).unwrap();
            for index in 1..rows {
                let entry = &mut bytes[28 + 20 * index..][..20];
                entry[8..12].fill(0);
                entry[12..16].copy_from_slice(&count.to_le_bytes());
                entry[16] = 1;
            }
            run(&path, &bytes, command)
        });
    }
}

#[test]
fn members_of_an_archive() {
    let path = input_file("members");
    let object =
        Object { functions: 1, has_sections: false, names: b"\0name\0".to_vec(), name_of: |_| 1 };
    let object = object.build();
    for command in [&["dump", "FILE"][..], &["check", "FILE"], &["find", "FILE", "name"]] {
        stays_linear(&format!("sframe {}", command[0]), "members", LISTING, |times| {
            let mut archive = b"!<arch>\n".to_vec();
            for index in 0..2_000 * times {
                let (name, len) = (format!("{index}.o/"), object.len());
                archive.extend(
                    format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{len:<10}`\n", 0, 0, 0, 644).bytes(),
                );
                archive.extend(&object);
                archive.resize(archive.len().next_multiple_of(2), b'\n');
            }
            run(&path, &archive, command)
        });
    }
}
