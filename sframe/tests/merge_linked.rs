//! Tables of objects, merged here, find what the linker's merged table finds in
//! the same objects.
//!
//! Objects come from the system's assembler, from LLVM's, and from the GNU
//! releases in the directories that `UNWIND_BINUTILS` names (separated by `:`,
//! each with `as` and `ld`).
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::read::elf::{ElfFile64, FileHeader as _, SectionHeader as _};
use object::{Endianness, Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget};
use sframe::{Abi, Builder, CfiSection, Fde, Format, Table};
use unwind_core::Row;

const FORMATS: [Format; 3] = [Format::V2, Format::V2Pcrel, Format::V3];

/// Frames of all sizes, realigned ones and leaves, in three objects.
const SOURCES: [&str; 3] = [
    r#"
    #define HIDDEN __attribute__((visibility("hidden"), noinline))
    HIDDEN int second_sum(int *words, int count);
    HIDDEN int first_leaf(int a) { return a * 3; }
    HIDDEN int first_caller(int a) { return first_leaf(a) + first_leaf(a + 1) * a; }
    HIDDEN int first_large(int a) {
        int words[50000];
        for (int i = 0; i < 50000; i++) words[i] = i * a;
        return second_sum(words, 50000) + a;
    }
    int first(int a) { return a > 3 ? first(a - 1) * first_caller(a) : first_large(a); }
    "#,
    r#"
    #define HIDDEN __attribute__((visibility("hidden"), noinline))
    HIDDEN int first_leaf(int a);
    HIDDEN int second_sum(int *words, int count) {
        int sum = 0;
        for (int i = 0; i < count; i++) sum += first_leaf(words[i]);
        return sum;
    }
    HIDDEN int second_realigned(int a) {
        _Alignas(64) int words[16] = { a };
        int *more = __builtin_alloca(a * 4);
        more[0] = a;
        return second_sum(words, 16) + second_sum(more, 1);
    }
    "#,
    r#"
    #define HIDDEN __attribute__((visibility("hidden"), noinline))
    HIDDEN int second_realigned(int a);
    static HIDDEN int third_static(long a, long b, long c, long d, long e, long f, long g) {
        return second_realigned(a) + a * b * c * d * e * f * g;
    }
    int third(int a) { return third_static(a, a, a, a, a, a, a) * second_realigned(a + 1); }
    "#,
];

const RUST: &str = "
#![no_std]
#[unsafe(no_mangle)] #[inline(never)]
pub extern \"C\" fn fourth_leaf(a: u64) -> u64 { a.wrapping_mul(7) }
#[unsafe(no_mangle)] #[inline(never)]
pub extern \"C\" fn fourth_sum(words: &[u64; 400], more: u64) -> u64 {
    words.iter().fold(more, |sum, &word| sum.wrapping_add(fourth_leaf(word)))
}
#[unsafe(no_mangle)]
pub extern \"C\" fn fourth(a: u64) -> u64 {
    let mut words = [a; 400];
    for word in &mut words { *word = fourth_leaf(*word); }
    let rest = if a > 3 { fourth(a.wrapping_sub(1)) } else { 0 };
    fourth_sum(&words, rest).wrapping_mul(a)
}
";

/// A directory of one test's own.
fn scratch(test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
}

/// The system's tools, and those of the releases that the environment names.
fn gnu_tools() -> Vec<Option<PathBuf>> {
    let named = env::var_os("UNWIND_BINUTILS").unwrap_or_default();
    let named = env::split_paths(&named).filter(|path| path.join("ld").is_file()).map(Some);
    [None].into_iter().chain(named).collect()
}

/// The compiler's driver with the assembler and linker of a release.
fn gcc(tools: Option<&Path>) -> Option<Command> {
    let mut command = Command::new(test_support::tool("gcc")?);
    if let Some(tools) = tools {
        command.arg("-B").arg(tools);
    }
    Some(command)
}

/// Objects with tables by GNU's assembler.
fn gnu_objects(tools: Option<&Path>, directory: &Path) -> Option<Vec<PathBuf>> {
    let mut objects = Vec::new();
    for (number, source) in SOURCES.iter().enumerate() {
        let path = directory.join(format!("{number}.c"));
        fs::write(&path, source).unwrap();
        let object = path.with_extension("o");
        let flags = ["-c", "-O2", "-fPIC", "-fomit-frame-pointer", "-Wa,--gsframe"];
        run(gcc(tools)?.args(flags).arg("-o").arg(&object).arg(path));
        objects.push(object);
    }
    Some(objects)
}

/// An object with a table by LLVM's assembler.
fn llvm_object(directory: &Path) -> PathBuf {
    let source = directory.join("fourth.rs");
    fs::write(&source, RUST).unwrap();
    let object = source.with_extension("o");
    let mut rustc = Command::new("rustc");
    rustc.args(["-O", "--edition=2024", "--crate-type=lib", "--emit=obj", "-Cpanic=abort"]);
    rustc.args(["-Cforce-unwind-tables=yes", "-Ccodegen-units=1", "-Cllvm-args=--gsframe"]);
    run(rustc.arg("-o").arg(&object).arg(source));
    object
}

/// Links objects. Nothing is called by a PLT, so the linker adds no functions.
fn link(tools: Option<&Path>, objects: &[PathBuf], directory: &Path) -> Option<Vec<u8>> {
    let library = directory.join("library.so");
    let flags = ["-shared", "-nostdlib", "-Wl,-Bsymbolic", "-o"];
    run(gcc(tools)?.args(flags).arg(&library).args(objects));
    Some(fs::read(library).unwrap())
}

/// The bytes and the address of a section.
fn section<'a>(file: &object::File<'a>, name: &str) -> Option<(&'a [u8], u64)> {
    let section = file.section_by_name(name)?;
    Some((section.data().unwrap(), section.address()))
}

/// Where the functions of an object come to be: by the offset of their entry in
/// the table, whose relocation names a place with a symbol.
fn places(object: &object::File<'_>, linked: &object::File<'_>) -> BTreeMap<u64, u64> {
    let linked: BTreeMap<_, _> = linked
        .symbols()
        .filter(|symbol| symbol.is_definition())
        .map(|symbol| (symbol.name_bytes().unwrap(), symbol.address()))
        .collect();
    let names: BTreeMap<_, _> = object
        .symbols()
        .filter(|symbol| symbol.is_definition())
        .map(|symbol| {
            ((symbol.section_index().map(|s| s.0), symbol.address()), symbol.name_bytes().unwrap())
        })
        .collect();
    let table = object.section_by_name(".sframe").unwrap();
    table
        .relocations()
        .map(|(at, relocation)| {
            let RelocationTarget::Symbol(index) = relocation.target() else {
                panic!("{relocation:?}")
            };
            let symbol = object.symbol_by_index(index).unwrap();
            let start = symbol.address().wrapping_add_signed(relocation.addend());
            let name = names[&(symbol.section_index().map(|s| s.0), start)];
            (at, linked[name])
        })
        .collect()
}

/// Merges the tables of objects for the place of `library`'s, or for one where
/// no code is.
fn merge(format: Format, objects: &[PathBuf], library: &object::File<'_>, addr: u64) -> Vec<u8> {
    let mut builder = Builder::new(format, Abi::Amd64Little).unwrap();
    for path in objects {
        let bytes = fs::read(path).unwrap();
        let object = object::File::parse(&*bytes).unwrap();
        let (table, _) = section(&object, ".sframe").unwrap();
        let table = Table::parse(table).unwrap();
        let places = places(&object, library);
        let place = |fde: &Fde| Some(places[&fde.at.0]);
        builder.add_table(&table, place, |lost| assert!(format != Format::V3, "{lost}")).unwrap();
    }
    builder.finish(addr, |lost| panic!("{lost}")).unwrap()
}

/// The row of every address that the functions of a table cover.
fn rows(table: &Table<'_>) -> BTreeMap<u64, Row> {
    let functions = table.fdes().map(Result::unwrap);
    let addresses = functions.flat_map(|fde| {
        let start = fde.range.start;
        start..start + u64::from(fde.range.size)
    });
    addresses.map(|addr| (addr, table.find_row(addr).unwrap().unwrap())).collect()
}

/// Merges objects in every format, and compares with the table of the library
/// that they were linked to. Returns how many addresses were compared.
fn check(objects: &[PathBuf], library: &[u8], expected: &Table<'_>) -> usize {
    let library = object::File::parse(library).unwrap();
    let expected = rows(expected);
    for format in FORMATS {
        let bytes = merge(format, objects, &library, 0x40_0000);
        let merged = Table::parse(&bytes).unwrap().at(0x40_0000);
        let merged = rows(&merged);
        for (addr, row) in &expected {
            let of_format = merged.get(addr);
            // Version 2 has no words for the CFA of a realigned frame.
            if of_format.is_none() && format != Format::V3 {
                let mut builder = Builder::new(format, Abi::Amd64Little).unwrap();
                let rows = [(0, *row)];
                let function = sframe::Function::new(*addr, 1, &rows);
                let mut lost = 0;
                builder.add(&function, |_| lost += 1).unwrap();
                assert_eq!(lost, 1, "{addr:#x} in {format:?}: {row:?} is left out");
                continue;
            }
            assert_eq!(of_format, Some(row), "{addr:#x} in {format:?}");
        }
        assert!(merged.keys().all(|addr| expected.contains_key(addr)), "{format:?}");
    }
    expected.len()
}

#[test]
fn gnu_objects_find_what_their_linker_finds() {
    for tools in gnu_tools() {
        let name = tools.as_ref().and_then(|tools| tools.file_name()).unwrap_or_default();
        let directory = scratch(&format!("gnu_objects-{}", name.to_string_lossy()));
        let Some(objects) = gnu_objects(tools.as_deref(), &directory) else { return };
        let library = link(tools.as_deref(), &objects, &directory).unwrap();
        let file = object::File::parse(&*library).unwrap();
        let (table, addr) = section(&file, ".sframe").unwrap();
        let table = Table::parse(table).unwrap().at(addr);
        let version = table.header().version;
        let count = check(&objects, &library, &table);
        println!("{count} addresses of {version:?} by {tools:?}");
        assert!(count > 500, "{count}");
    }
}

/// GNU ld up to 2.44 does not know the type of LLVM's sections, and 2.46 takes
/// version 3 only. 2.41 to 2.44 merge them, if they take them for their own: the
/// starts in their objects are relative to the field too, without a mark.
fn as_gnu_2_44(object: &Path) -> PathBuf {
    let mut bytes = fs::read(object).unwrap();
    let file = ElfFile64::<Endianness>::parse(&*bytes).unwrap();
    let table = file.section_by_name(".sframe").unwrap();
    let (at, _) = table.file_range().unwrap();
    let at = usize::try_from(at).unwrap();
    let endian = file.endian();
    let headers = usize::try_from(file.elf_header().e_shoff(endian)).unwrap();
    let kind = headers + 64 * table.index().0 + 4;
    assert_eq!(table.elf_section_header().sh_type(endian).0, 0x6fff_fff4);
    bytes[kind..kind + 4].copy_from_slice(&1_u32.to_le_bytes());
    assert_eq!(bytes[at + 3], 4);
    bytes[at + 3] = 0;
    let path = object.with_extension("2.44.o");
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn llvm_objects_find_what_gnu_ld_finds() {
    for tools in gnu_tools().into_iter().flatten() {
        let output = Command::new(tools.join("ld")).arg("--version").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = text.lines().next().unwrap().rsplit(' ').next().unwrap();
        if !["2.41", "2.42", "2.43", "2.44"].contains(&version) {
            continue;
        }
        let directory = scratch(&format!("llvm_objects-{version}"));
        let object = llvm_object(&directory);
        let library = link(Some(&tools), &[as_gnu_2_44(&object)], &directory).unwrap();
        let file = object::File::parse(&*library).unwrap();
        let (table, addr) = section(&file, ".sframe").unwrap();
        let table = Table::parse(table).unwrap().at(addr);
        let count = check(&[object], &library, &table);
        println!("{count} addresses of LLVM's object by {version}");
        assert!(count > 100, "{count}");
    }
}

/// Objects of both assemblers, of different versions, in one table, compared
/// with the `.eh_frame` of all of them.
#[test]
fn objects_of_several_versions_find_what_their_eh_frame_says() {
    let directory = scratch("objects_of_several_versions");
    let Some(mut objects) = gnu_objects(None, &directory) else { return };
    objects.push(llvm_object(&directory));
    let library = link(None, &objects, &directory).unwrap();
    let file = object::File::parse(&*library).unwrap();
    let (frames, addr) = section(&file, ".eh_frame").unwrap();
    let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
    builder.add_cfi(CfiSection::eh_frame(frames, addr), |lost| panic!("{lost:?}")).unwrap();
    let table = builder.finish(0x40_0000, |lost| panic!("{lost}")).unwrap();
    let expected = rows(&Table::parse(&table).unwrap().at(0x40_0000));
    let merged = merge(Format::V3, &objects, &file, 0x40_0000);
    let merged = rows(&Table::parse(&merged).unwrap().at(0x40_0000));
    assert!(merged.len() > 600, "{}", merged.len());
    for (addr, row) in &merged {
        assert_eq!(expected.get(addr), Some(row), "{addr:#x}");
    }
    // The system's assembler may leave realigned frames out.
    let realigned = file.symbol_by_name("second_realigned").unwrap();
    let of_realigned = realigned.address()..realigned.address() + realigned.size();
    for addr in expected.keys().filter(|addr| !merged.contains_key(addr)) {
        assert!(of_realigned.contains(addr), "{addr:#x} is left out");
    }
}
