//! ELF files whose parts are many, or share their bytes.

use std::path::Path;

use testdata::{ElfBuilder, ElfSection, Function, TableBuilder};

use crate::support::resources::{Bounds, Run, input_file, stays_linear};

const SHT_PROGBITS: u32 = 1;
const SHT_STRTAB: u32 = 3;
const SHT_GNU_SFRAME: u32 = 0x6fff_fff4;

pub(crate) fn size_of(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap()
}

fn check(path: &Path, file: &ElfBuilder) -> Run {
    Run::of_file(path, &file.finish(), &["sframe", "check", "FILE"])
}

/// Adds the table of the sections' names.
fn add_names(file: &mut ElfBuilder, names: &[u8]) {
    let (offset, size) = (file.put(names), size_of(names));
    let kind = SHT_STRTAB;
    file.names = file.section(ElfSection { name: 1, kind, offset, size, ..ElfSection::default() });
}

/// A section of one table with functions for `bytes` bytes.
pub(crate) fn table_of(bytes: usize) -> Vec<u8> {
    let mut table = TableBuilder::amd64(3);
    for (_, start) in (0..bytes / 16).zip((0x10_0000..).step_by(64)) {
        let (size, rows) = (32, Vec::new());
        table.functions.push(Function { start, size, info: 0, info2: 0, rep_size: 0, rows });
    }
    table.build()
}

#[test]
fn section_headers_with_names_of_their_own() {
    let path = input_file("section_names");
    stays_linear("sframe check", "names of their own", Bounds::USUAL, |times| {
        let mut file = ElfBuilder::new(ElfBuilder::SHARED);
        let mut names = b"\0.shstrtab\0".to_vec();
        for _ in 0..10_000 * times {
            let name = u32::try_from(names.len()).unwrap();
            file.section(ElfSection { name, kind: SHT_PROGBITS, ..ElfSection::default() });
            names.extend(format!(".text.{name}\0").bytes());
        }
        add_names(&mut file, &names);
        check(&path, &file)
    });
}

/// A file with many section headers that have one long name.
pub(crate) fn one_name_for_all(sections: usize, name_len: usize) -> ElfBuilder {
    let mut file = ElfBuilder::new(ElfBuilder::SHARED);
    for _ in 0..sections {
        file.section(ElfSection { name: 11, kind: SHT_PROGBITS, ..ElfSection::default() });
    }
    let name = vec![b'n'; name_len];
    add_names(&mut file, &[b"\0.shstrtab\0", name.as_slice(), b"\0"].concat());
    file
}

#[test]
fn c3_section_headers_that_share_a_name_cost_no_more_than_others() {
    let path = input_file("c3_shared_name");
    stays_linear("sframe check", "one name for all", Bounds::USUAL, |times| {
        check(&path, &one_name_for_all(2000 * times, (128 << 10) * times))
    });
}

/// A file with many sections of tables, all of which have the same bytes, or
/// each some less at its front than the one before.
fn tables_that_share(sections: usize, bytes: usize, step: u64) -> ElfBuilder {
    let mut file = ElfBuilder::new(ElfBuilder::SHARED);
    let table = table_of(bytes);
    let (offset, size) = (file.put(&table), size_of(&table));
    for (_, skip) in (0..sections).zip((0..).map(|number| step * number)) {
        let (name, kind) = (11, SHT_GNU_SFRAME);
        let (offset, size) = (offset + skip, size - skip);
        file.section(ElfSection { name, kind, offset, size, ..ElfSection::default() });
    }
    add_names(&mut file, b"\0.shstrtab\0.sframe\0");
    file
}

#[test]
fn c4_sections_of_tables_that_share_their_bytes_cost_no_more_than_others() {
    let path = input_file("c4_shared_tables");
    for (construction, step) in [("tables that share bytes", 0), ("tables that overlap", 4)] {
        for command in ["check", "dump", "stat"] {
            let reader = format!("sframe {command}");
            stays_linear(&reader, construction, Bounds::USUAL, |times| {
                let file = tables_that_share(500 * times, (64 << 10) * times, step);
                Run::of_file(&path, &file.finish(), &["sframe", command, "FILE"])
            });
        }
    }
}
