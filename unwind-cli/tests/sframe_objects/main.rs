//! `unwind sframe` over what compilers leave: relocatable objects, archives of
//! them, several at once. Held against what readelf 2.47 and llvm-readobj 22 print
//! of the same files.
#![cfg(test)]

mod diff;
mod inputs;
#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use object::{Object as _, ObjectSection as _};
use serde_json::Value;
use testdata::{ElfBuilder, ElfSection, ElfSegment, Function, Row, TableBuilder};

use support::{fails, fixture, run, scratch, stderr, unwind};

/// The objects, without their endings.
const OBJECTS: [&str; 8] = [
    "a64cfi.v3",
    "comdat.v3",
    "drap.sections.v3",
    "recur.v1",
    "recur.v2",
    "recur.v2e1_llvm",
    "recur.v3",
    "s390cfi.v3",
];

fn object(name: &str) -> String {
    fixture(&format!("objects/{name}.o")).to_str().unwrap().into()
}

fn sframe(arguments: &[&str]) -> Output {
    unwind([&["sframe"], arguments].concat()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Standard output of a command that succeeds.
fn done(arguments: &[&str]) -> String {
    text(&run([&["sframe"], arguments].concat()).stdout)
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&done(arguments)).unwrap()
}

fn functions(dump: &Value) -> &[Value] {
    dump["tables"][0]["functions"].as_array().unwrap()
}

/// The lines that say something.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect()
}

fn file(test: &str, name: &str, bytes: &[u8]) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("{}-{test}-{name}", std::process::id()));
    fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().into()
}

/// An archive of these members, in GNU's form.
fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = b"!<arch>\n".to_vec();
    for (name, content) in members {
        let name = format!("{name}/");
        let header =
            format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 0, 644, content.len());
        bytes.extend(header.bytes());
        bytes.extend(*content);
        if content.len() % 2 == 1 {
            bytes.push(b'\n');
        }
    }
    bytes
}

#[test]
fn d1_the_dump_of_an_object_is_that_of_readelf() {
    let mut compared = 0;
    for name in OBJECTS {
        let Ok(expected) = fs::read_to_string(fixture(&format!("objects/{name}.readelf.txt")))
        else {
            continue;
        };
        let dump = done(&["dump", "--no-names", &object(name)]);
        assert_eq!(lines(&dump), lines(&expected), "{name}");
        compared += 1;
    }
    assert_eq!(compared, 6);
}

#[test]
fn d1_functions_of_an_object_start_where_llvm_readobj_says() {
    for name in ["recur.v2", "recur.v2e1_llvm"] {
        let expected = fs::read_to_string(fixture(&format!("objects/{name}.llvm-readobj.txt")));
        let expected = expected.unwrap();
        // That of a function is in its "PC", those of rows are not.
        let starts = expected.split("PC {").skip(1).map(|entry| {
            let (_, start) = entry.split_once("Start Address: ").unwrap();
            start.lines().next().unwrap().to_owned()
        });
        let dump = json(&["dump", "--json", &object(name)]);
        let pcs = functions(&dump).iter().map(|function| function["pc"].as_str().unwrap());
        assert_eq!(pcs.collect::<Vec<_>>(), starts.map(|s| s.to_lowercase()).collect::<Vec<_>>());
    }
}

#[test]
fn d1_each_function_of_an_object_starts_at_its_symbol() {
    for name in OBJECTS {
        let dump = json(&["dump", "--json", &object(name)]);
        assert_eq!(dump["relocatable"], true);
        let mut names = Vec::new();
        for function in functions(&dump) {
            assert!(function["error"].is_null(), "{name}: {function}");
            assert!(function["section"].as_str().unwrap().starts_with(".text"), "{function}");
            names.push(function["name"].as_str().unwrap().to_owned());
        }
        let expected: &[&str] = match name {
            "a64cfi.v3" => &["pac_a", "pac_b", "ra_only", "outer", "sigtramp"],
            "comdat.v3" => &["rare", "twice<3>", "twice<4>", "shapes::Square::area"],
            "drap.sections.v3" => {
                &["touch", "align64", "align64_args", "align128_alloca", "align32_call", "main"]
            }
            "s390cfi.v3" => &["plain", "leafregs", "fp_only", "big", "outer"],
            _ => &["fib", "ack", "is_odd", "is_even", "deep", "main"],
        };
        assert_eq!(names, expected, "{name}");
    }
}

#[test]
fn d1_an_object_is_checked_against_its_call_frame_information() {
    for name in OBJECTS {
        let check = json(&["check", "--json", &object(name)]);
        assert_eq!(check["validation"]["errors"], 0, "{name}: {check}");
        let comparison = &check["comparison"];
        assert_eq!(comparison["differences"], 0, "{name}: {check}");
        assert!(comparison["places"].as_u64().unwrap() >= 6, "{name}: {check}");
        assert_eq!(comparison["covered_bytes"], comparison["code_bytes"], "{name}");
        // gimli knows nothing of the key that `a64cfi` has in a CIE.
        let entries = if name == "a64cfi.v3" { 1 } else { functions_of(name) };
        assert_eq!(comparison["entries"], entries, "{name}: {check}");
    }
}

fn functions_of(name: &str) -> usize {
    functions(&json(&["dump", "--json", &object(name)])).len()
}

#[test]
fn d1_a_table_that_is_made_of_an_object_is_checked_and_counted_too() {
    for name in ["comdat.v3", "drap.sections.v3", "recur.v1"] {
        let check = json(&["check", "--json", "--built", "v3", &object(name)]);
        assert_eq!(check["validation"]["errors"], 0, "{name}: {check}");
        assert_eq!(check["comparison"]["differences"], 0, "{name}: {check}");
        let stat = json(&["stat", "--json", &object(name)]);
        let [own, v2, v3] = stat["tables"].as_array().unwrap().as_slice() else { panic!("{stat}") };
        assert_eq!(own["functions"], v3["functions"], "{name}");
        assert_eq!(own["covered_bytes"], v3["covered_bytes"], "{name}");
        assert_eq!(v2["version"], 2);
    }
}

#[test]
fn d1_a_difference_in_an_object_is_named_by_section_and_offset() {
    // The first row of sp+16: sp+24.
    let bytes = fs::read(object("recur.v3")).unwrap();
    let (at, _) = section(&bytes, ".sframe");
    let mut damaged = bytes.clone();
    let row = bytes[at..].windows(3).position(|row| row[1..] == [3, 16]).unwrap();
    damaged[at + row + 2] = 24;
    let path = file("difference", "o", &damaged);
    let output = sframe(&["check", &path]);
    assert_eq!(output.status.code(), Some(1));
    let report = text(&output.stdout);
    assert!(report.contains("1 difference\n    .text"), "{report}");
    assert!(report.contains(": CFA, RA, SP differ: table CFA=rsp+24"), "{report}");
}

/// Where a section is in a file, and how long it is.
fn section(bytes: &[u8], name: &str) -> (usize, usize) {
    let file = object::File::parse(bytes).unwrap();
    let range = file.section_by_name(name).unwrap().file_range().unwrap();
    (usize::try_from(range.0).unwrap(), usize::try_from(range.1).unwrap())
}

#[test]
fn d1_a_relocation_that_cannot_be_applied_is_an_error_of_its_function_alone() {
    let bytes = fs::read(object("recur.v3")).unwrap();
    let (at, len) = section(&bytes, ".rela.sframe");
    assert_eq!(len, 6 * 24);
    let second = at + 24;
    for (what, offset, value, why) in [
        ("type", 8, 200_u32, "its type, 200, is not known"),
        ("no_symbol", 12, 1000, "symbol 1000 is in no section that is loaded"),
        // Symbol 0 is in no file.
        ("undefined", 12, 0, "its symbol is in another file"),
    ] {
        let mut damaged = bytes.clone();
        damaged[second + offset..][..4].copy_from_slice(&value.to_le_bytes());
        let path = file("unresolved", what, &damaged);
        let output = sframe(&["dump", &path]);
        assert_eq!(output.status.code(), Some(5), "{what}");
        let dump = text(&output.stdout);
        assert_eq!(dump.matches("error: ").count(), 1, "{dump}");
        assert_eq!(dump.matches("func idx").count(), 6, "{dump}");
        assert!(dump.contains(why) && dump.contains("<is_odd in .text>"), "{dump}");
        assert!(!dump.contains("<ack"), "{dump}");
        let output = sframe(&["check", &path]);
        assert_eq!(output.status.code(), Some(1), "{what}");
        assert!(text(&output.stdout).contains(why), "{}", text(&output.stdout));
        let output = sframe(&["diff", &path, &object("recur.v3")]);
        assert_eq!(output.status.code(), Some(5), "{what}");
    }
    // A field after the section's end is that of no function.
    let mut damaged = bytes;
    damaged[second..][..8].copy_from_slice(&0x10_0000_u64.to_le_bytes());
    let path = file("unresolved", "outside", &damaged);
    let output = sframe(&["dump", &path]);
    assert_eq!(output.status.code(), Some(0));
    let output = sframe(&["check", &path]);
    assert_eq!(output.status.code(), Some(1));
    let check = text(&output.stdout);
    assert!(check.contains("function 1: ") && check.contains("is not all code"), "{check}");
}

#[test]
fn d1_relocations_that_share_bytes_are_an_error() {
    let bytes = fs::read(object("recur.v3")).unwrap();
    let file_of = object::File::parse(&*bytes).unwrap();
    let index = file_of.section_by_name(".rela.sframe").unwrap().index().0;
    let mut shared = bytes.clone();
    let header = usize::from(u16::from_le_bytes([bytes[0x3c], bytes[0x3d]]));
    let headers =
        usize::try_from(u64::from_le_bytes(bytes[0x28..0x30].try_into().unwrap())).unwrap();
    let entry = bytes[headers + 64 * index..][..64].to_vec();
    for _ in 0..100 {
        shared.extend(&entry);
    }
    // The headers are at the end of what compilers write.
    assert_eq!(headers + 64 * header, bytes.len());
    let count = u16::try_from(header + 100).unwrap();
    shared[0x3c..0x3e].copy_from_slice(&count.to_le_bytes());
    let path = file("shared", "o", &shared);
    let error = fails(["sframe", "dump", &path], 5);
    assert!(error.contains("a relocation section shares bytes with other parts"), "{error}");
}

/// A linked file with code at 0x1000 to 0x2000 and tables at an address.
fn linked(addr: u64, sframe: &[u8]) -> Vec<u8> {
    let mut file = ElfBuilder::new(ElfBuilder::SHARED);
    file.segments.push(ElfSegment {
        kind: 1,
        flags: 5,
        addr: 0x1000,
        memory_size: 0x1000,
        ..ElfSegment::default()
    });
    let names = b"\0.sframe\0.text\0";
    let (offset, size) = (file.put(sframe), u64::try_from(sframe.len()).unwrap());
    let shared = ElfSection { flags: 2, ..ElfSection::default() };
    file.section(ElfSection { name: 1, kind: 1, addr, offset, size, ..shared });
    file.section(ElfSection {
        name: 9,
        kind: 8,
        flags: 6,
        addr: 0x1000,
        size: 0x1000,
        ..ElfSection::default()
    });
    let (offset, size) = (file.put(names), u64::try_from(names.len()).unwrap());
    file.names = file.section(ElfSection { kind: 3, offset, size, ..ElfSection::default() });
    file.finish()
}

#[test]
fn d2_a_linked_file_is_one_wherever_its_functions_start() {
    // Functions of a few bytes where the table itself is, one of them empty.
    let rows = || vec![Row::sp(0, &[8])];
    for (start, size) in [(0, 0), (28, 0), (8, 16)] {
        let table = TableBuilder::amd64(2).function(Function::new(start, size, rows())).build();
        let path = file("d2", "linked", &linked(0x1800, &table));
        let pc = format!("pc = {:#x}, size = {size} bytes", 0x1800 + start);
        for arguments in [&["dump", &path][..], &["check", &path]] {
            let output = sframe(arguments);
            assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
            assert_eq!(stderr(&output), "");
        }
        assert!(done(&["dump", &path]).contains(&pc));
        // And bytes that are said to be loaded somewhere.
        let raw = file("d2", "raw", &table);
        let dump = sframe(&["dump", "--raw", "--vaddr", "0x1800", &raw]);
        assert!(text(&dump.stdout).contains(&pc), "{}", text(&dump.stdout));
        assert_eq!(stderr(&dump), "");
        let addr = format!("{:#x}", 0x1800 + start);
        let found = sframe(&["find", "--raw", "--vaddr", "0x1800", &raw, &addr]);
        assert_eq!(found.status.code(), Some(if size == 0 { 7 } else { 0 }));
    }
}

#[test]
fn d2_an_object_is_one_wherever_its_functions_start() {
    // With relocations that place all functions far from the table.
    let bytes = fs::read(object("recur.v3")).unwrap();
    let (at, len) = section(&bytes, ".rela.sframe");
    let mut far = bytes;
    for entry in (at..at + len).step_by(24) {
        far[entry + 16..][..8].copy_from_slice(&0x10_0000_u64.to_le_bytes());
    }
    let path = file("d2", "far", &far);
    assert_eq!(json(&["dump", "--json", &path])["relocatable"], true);
}

#[test]
fn c9_names_of_sections_and_functions_cannot_steer_a_terminal() {
    let evil = "\u{1b}]0;x\u{7}\n\u{202e}\u{9b}";
    let function = Function::new(-0x7000, 0x10, vec![Row::sp(0, &[8])]);
    let table = TableBuilder::amd64(2).function(function).build();
    let mut elf = ElfBuilder::new(ElfBuilder::RELOCATABLE);
    let names = format!("\0{evil}\0");
    let (offset, size) = (elf.put(&table), u64::try_from(table.len()).unwrap());
    let (named, kind) = (1, 0x6fff_fff4);
    elf.section(ElfSection { name: named, kind, flags: 2, offset, size, ..ElfSection::default() });
    let code = ElfSection { name: named, kind: 8, flags: 6, size: 0x4000, ..ElfSection::default() };
    elf.section(code);
    elf.section(code);
    let (offset, size) = (elf.put(names.as_bytes()), u64::try_from(names.len()).unwrap());
    elf.names = elf.section(ElfSection { kind: 3, offset, size, ..ElfSection::default() });
    // A symbol of the same name: 0x10 bytes at the start of the code.
    let symbol = [1, 0, 0, 0, 0x12, 0, 2, 0]
        .into_iter()
        .chain(0_u64.to_le_bytes())
        .chain(0x4000_u64.to_le_bytes());
    let symbols: Vec<u8> = [0; 24].into_iter().chain(symbol).collect();
    let (offset, size) = (elf.put(&symbols), u64::try_from(symbols.len()).unwrap());
    let link = elf.names;
    elf.section(ElfSection {
        kind: 2,
        link,
        offset,
        size,
        entry_size: 24,
        ..ElfSection::default()
    });
    let library = archive(&[("m\u{1b}\u{202e}", &elf.finish())]);
    let [object, library] =
        [("o", &elf.finish()), ("a", &library)].map(|(name, bytes)| file("evil", name, bytes));
    for path in [&object, &library] {
        for arguments in [
            &["dump", path][..],
            &["dump", "--json", path],
            &["check", path],
            &["check", "--json", path],
            &["find", path, "0x0", evil],
            &["find", "--json", path, "0x0", evil],
            &["diff", path, support::c_library().to_str().unwrap()],
            &["stat", path],
        ] {
            let output = sframe(arguments);
            for stream in [&output.stdout, &output.stderr] {
                let stream = text(stream);
                let is_bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
                assert!(!stream.contains(is_bad), "{arguments:?}: {stream:?}");
            }
        }
    }
    assert!(done(&["dump", &object]).contains("SFrame section \\x1b]0;x\\x07\\n"));
}
