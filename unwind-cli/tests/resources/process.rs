//! Processes whose mappings are many, or share a file.

use std::fs;
use std::path::Path;
use std::process::Command;

use testdata::{ElfBuilder, ElfSection, ElfSegment};

use crate::elf::{one_name_for_all, size_of, table_of};
use crate::support::resources::{Bounds, Run, stays_linear};
use crate::support::{FRAME_POINTERS, Target, compile};

/// A library with code in its first page and a table of `table_bytes` bytes.
fn library(table_bytes: usize) -> Vec<u8> {
    let mut file = ElfBuilder::new(ElfBuilder::SHARED);
    file.put(&[0x90; 4096]);
    let table = table_of(table_bytes);
    let (offset, size) = (file.put(&table), size_of(&table));
    let (file_size, memory_size) = (4096, 4096);
    let kind = 1;
    file.segments.push(ElfSegment { kind, flags: 5, file_size, memory_size, ..Default::default() });
    let (name, kind, addr) = (11, 1, 0x20_0000);
    file.section(ElfSection { name, kind, addr, offset, size, ..ElfSection::default() });
    let names = b"\0.shstrtab\0.sframe\0";
    let (offset, size) = (file.put(names), size_of(names));
    let section = ElfSection { name: 1, kind: 3, offset, size, ..ElfSection::default() };
    file.names = file.section(section);
    file.finish()
}

fn look_at(program: &Path, arguments: &[&str], input: usize) -> Run {
    let target = Target::start_command(Command::new(program).args(arguments));
    let maps = fs::read(format!("/proc/{}/maps", target.id())).unwrap().len();
    let id = target.id().to_string();
    Run::new(["stack", "--pid", &id], maps + input).holding(target)
}

#[test]
fn c6_ranges_of_code_without_a_file_cost_in_proportion() {
    let Some(program) = compile("c6_anonymous", "hostile.c", FRAME_POINTERS) else { return };
    stays_linear("stack --pid", "code without a file", Bounds::USUAL, |times| {
        look_at(&program, &["maps-nothing", "", &(4000 * times).to_string()], 0)
    });
}

#[test]
fn c6_mappings_of_one_file_cost_in_proportion_and_its_table_is_kept_once() {
    let Some(program) = compile("c6_one_file", "hostile.c", FRAME_POINTERS) else { return };
    let path = program.with_file_name("library");
    stays_linear("stack --pid", "mappings of one file", Bounds::USUAL, |times| {
        let file = library((64 << 10) * times);
        fs::write(&path, &file).unwrap();
        let count = (1000 * times).to_string();
        look_at(&program, &["maps-a-file", path.to_str().unwrap(), &count], file.len())
    });
}

#[test]
fn c6_files_of_many_names_cost_in_proportion() {
    let Some(program) = compile("c6_files", "hostile.c", FRAME_POINTERS) else { return };
    stays_linear("stack --pid", "files of many names", Bounds::USUAL, |times| {
        let path = program.with_file_name(format!("library{times}"));
        let file = library(1 << 10);
        fs::write(&path, &file).unwrap();
        let count = 1000 * times;
        let arguments = ["maps-files", path.to_str().unwrap(), &count.to_string()];
        look_at(&program, &arguments, file.len() * count)
    });
}

#[test]
fn c3_a_process_that_maps_a_file_of_shared_names_costs_no_more_than_another() {
    let Some(program) = compile("c3_process", "hostile.c", FRAME_POINTERS) else { return };
    let path = program.with_file_name("library");
    stays_linear("stack --pid", "a file of one name for all", Bounds::USUAL, |times| {
        let mut file = one_name_for_all(2000 * times, (128 << 10) * times);
        let (kind, file_size, memory_size) = (1, 4096, 4096);
        let segment = ElfSegment { kind, flags: 5, file_size, memory_size, ..Default::default() };
        file.segments.push(segment);
        let file = file.finish();
        fs::write(&path, &file).unwrap();
        look_at(&program, &["maps-a-file", path.to_str().unwrap(), "1"], file.len())
    });
}

/// The list of mappings has the path once for each, a directory's name of newlines as
/// four letters each.
#[test]
fn c6_mappings_of_a_file_with_a_long_path_cost_in_proportion() {
    let Some(program) = compile("c6_long_path", "hostile.c", FRAME_POINTERS) else { return };
    for (construction, letter) in [("a long path", "p"), ("a long path of newlines", "\n")] {
        let directory = program.with_file_name(letter.repeat(250));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join(letter.repeat(250));
        let file = library(1 << 10);
        fs::write(&path, &file).unwrap();
        stays_linear("stack --pid", construction, Bounds::USUAL, |times| {
            let count = (2000 * times).to_string();
            look_at(&program, &["maps-a-file", path.to_str().unwrap(), &count], file.len())
        });
    }
}

/// Of each thread there is a name, a status, registers and a stack.
#[test]
fn c6_threads_cost_in_proportion() {
    let Some(program) = compile("c6_threads", "hostile.c", FRAME_POINTERS) else { return };
    let texts = ["status", "stat", "comm"];
    let own = texts.iter().map(|name| fs::read(format!("/proc/self/{name}")).unwrap().len());
    let own: usize = own.sum();
    stays_linear("stack --pid", "threads", Bounds::USUAL, |times| {
        let count = 100 * times;
        look_at(&program, &["threads", &count.to_string()], count * own)
    });
}
