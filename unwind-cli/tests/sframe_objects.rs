//! `unwind sframe` over what compilers leave: relocatable objects, archives of
//! them, several at once. Held against what readelf 2.47 and llvm-readobj 22 print
//! of the same files.
#![cfg(test)]

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
fn d4_names_are_found_and_shown() {
    let program = fixture("v3/x86_64/drap.O2-omit.exe");
    let program = program.to_str().unwrap();
    let dump = done(&["dump", program]);
    assert!(dump.contains("pc = 0x1210, size = 53 bytes <align64_args>\n"), "{dump}");
    assert!(dump.contains("pc = 0x1250, size = 169 bytes <align128_alloca>, attr = \"F\"\n"));
    let named = done(&["find", program, "main+0x10", "align128_alloca", "align128_alloca+21"]);
    let by_address = done(&["find", program, "0x1050", "0x1250", "0x1265"]);
    assert_eq!(named, by_address);
    let absent = sframe(&["find", program, "main", "nonsense", "main+0x1000000"]);
    assert_eq!(absent.status.code(), Some(7));
    let answers = text(&absent.stdout);
    assert!(answers.contains("\nnonsense  no row: no function has this name\n"), "{answers}");
    assert_eq!(stderr(&absent), "unwind: 2 of 3 addresses have no row\n");
    let answer = json(&["find", "--json", program, "main"]);
    assert_eq!(answer["addresses"][0]["symbol"], "main");
    assert_eq!(answer["addresses"][0]["function"]["name"], "main");
}

#[test]
fn d4_a_place_in_an_object_is_an_offset_a_name_or_a_section() {
    let path = object("comdat.v3");
    let found = done(&["find", &path, "twice<4>", ".text+0x4", "_Z5twiceILi3EEii+1"]);
    let start = "function .text._Z5twiceILi4EEii+0x0+0x17 <twice<4>>, row +0x0: CFA=rsp+8";
    assert!(found.contains(start), "{found}");
    assert!(
        found.contains("\n.text+0x4  function .text+0x0+0x23 <shapes::Square::area>"),
        "{found}"
    );
    assert!(found.contains("\n.text._Z5twiceILi3EEii+0x1  function"), "{found}");
    // An offset is looked up in each section.
    assert_eq!(done(&["find", &path, "0x0"]).lines().count(), 4);
    assert_eq!(done(&["find", &path, "0x20"]).lines().count(), 1);
    let absent = sframe(&["find", &path, "0x1000"]);
    assert_eq!(absent.status.code(), Some(7));
    assert!(text(&absent.stdout).contains("no code section is long enough"));
}

#[test]
fn d4_members_of_an_archive_are_each_looked_at() {
    let [recur, comdat] = ["recur.v3", "comdat.v3"].map(|name| fs::read(object(name)).unwrap());
    let data = ElfBuilder::new(ElfBuilder::RELOCATABLE).finish();
    let library = archive(&[("recur.o", &recur), ("data.o", &data), ("comdat.o", &comdat)]);
    let path = file("archive", "lib.a", &library);
    let output = sframe(&["dump", &path]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let dump = text(&output.stdout);
    let expected: String = ["recur", "comdat"]
        .map(|name| {
            let dump = done(&["dump", &object(&format!("{name}.v3"))]);
            format!("\nFile: {path}({name}.o)\n{dump}")
        })
        .concat();
    assert_eq!(dump, expected);
    assert_eq!(stderr(&output), format!("unwind: {path}: 1 members have no tables\n"));
    let check = done(&["check", &path]);
    assert_eq!(check.matches(" 0 differences").count(), 2, "{check}");
    assert_eq!(done(&["stat", &path]).matches("recur.o)").count(), 1);
    let found = done(&["find", &path, "ack", "shapes::Square::area"]);
    assert_eq!(found.matches("\nFile: ").count(), 2, "{found}");
    let missing = sframe(&["find", &path, "ack", "nonsense"]);
    assert_eq!(missing.status.code(), Some(7));
    assert!(text(&missing.stdout).ends_with("nonsense  no row: no member has one\n"));
}

#[test]
fn d4_what_is_wrong_with_a_member_is_its_own() {
    let recur = fs::read(object("recur.v3")).unwrap();
    let members = [("text.o", &b"no object"[..]), ("recur.o", &recur), ("cut.o", &recur[..2000])];
    let path = file("members", "lib.a", &archive(&members));
    let output = sframe(&["check", &path]);
    assert_eq!(output.status.code(), Some(5));
    assert!(text(&output.stdout).contains("(recur.o): its tables"));
    let errors = stderr(&output);
    assert!(errors.contains("lib.a(text.o): not an ELF file\n"), "{errors}");
    assert!(errors.contains("lib.a(cut.o): the section header table"), "{errors}");
    assert!(errors.ends_with("unwind: 2 of 3 files failed\n"), "{errors}");
    // What is cut off is not passed over in silence.
    let whole = archive(&members);
    for len in [20, 68, 100, whole.len() - 100] {
        let path = file("members", "cut.a", &whole[..len]);
        let output = sframe(&["check", &path]);
        assert_eq!(output.status.code(), Some(5), "{len}");
        assert!(stderr(&output).contains("is a damaged archive"), "{len}: {}", stderr(&output));
    }
    let thin = [b"!<thin>\n", &whole[8..68]].concat();
    let error = fails(["sframe", "dump", &file("members", "thin.a", &thin)], 5);
    assert!(error.contains("is a thin archive"), "{error}");
    let none = file("members", "none.a", b"!<arch>\n");
    assert!(fails(["sframe", "dump", &none], 5).contains("no member of"));
}

#[test]
fn d4_several_files_are_one_call() {
    let paths = ["recur.v3", "recur.v2"].map(object);
    let output = sframe(&["check", &paths[0], "/nonexistent", &paths[1]]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(text(&output.stdout).matches(" 0 differences").count(), 2);
    let errors = stderr(&output);
    assert!(errors.contains("cannot read /nonexistent"), "{errors}");
    assert!(errors.ends_with("unwind: 1 of 3 files failed\n"), "{errors}");
    let dump = done(&["dump", &paths[0], &paths[1]]);
    assert_eq!(dump.matches("\nFile: ").count(), 2);
    let all = done(&["dump", "--json", &paths[0], &paths[1]]);
    let all: Vec<Value> =
        serde_json::Deserializer::from_str(&all).into_iter().map(Result::unwrap).collect();
    assert_eq!(all.len(), 2);
    assert_eq!(all[1], json(&["dump", "--json", &paths[1]]));
    assert_eq!(done(&["stat", &paths[0], &paths[1]]).matches("recur.v").count(), 2);
}

#[test]
fn d4_standard_input_is_a_file_a_pipe_or_an_archive() {
    let path = object("recur.v3");
    let bytes = fs::read(&path).unwrap();
    let raw = {
        let (at, len) = section(&bytes, ".sframe");
        bytes[at..at + len].to_vec()
    };
    let library = archive(&[("recur.o", &bytes)]);
    let expected = done(&["dump", &path]);
    let with_stdin = |arguments: &[&str], input: Stdio, bytes: &[u8]| {
        let mut command = unwind([&["sframe"], arguments].concat());
        let command = command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        if let Some(mut pipe) = child.stdin.take() {
            pipe.write_all(bytes).unwrap();
        }
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        text(&output.stdout)
    };
    assert_eq!(with_stdin(&["dump", "-"], Stdio::piped(), &bytes), expected);
    assert_eq!(with_stdin(&["dump", "-"], fs::File::open(&path).unwrap().into(), &[]), expected);
    let member = with_stdin(&["dump", "-"], Stdio::piped(), &library);
    assert_eq!(member, format!("\nFile: -(recur.o)\n{expected}"));
    let library = fs::File::open(file("stdin", "lib.a", &library)).unwrap();
    assert_eq!(with_stdin(&["dump", "-"], library.into(), &[]), member);
    let dump = with_stdin(&["dump", "--raw", "--vaddr", "0x1000", "-"], Stdio::piped(), &raw);
    assert_eq!(dump.matches("func idx").count(), 6);
    let checked = with_stdin(&["check", "-"], Stdio::piped(), &bytes);
    assert!(checked.starts_with("-: its tables\n"), "{checked}");
    let found = with_stdin(&["find", "-", "ack"], Stdio::piped(), &bytes);
    assert!(found.contains("<ack>"), "{found}");
    let diff = with_stdin(&["diff", "-", &path], Stdio::piped(), &bytes);
    assert_eq!(diff, "0 functions changed, 0 added, 0 removed, 6 equal\n");
}

#[test]
fn d4_a_function_outside_all_code_is_an_error() {
    let rows = || vec![Row::sp(0, &[8])];
    for (start, size, is_code) in [
        (0x1000, 0x20, true),
        (0x1fe0, 0x20, true),
        (0x2000, 0, true),
        (0x1fe0, 0x21, false),
        (0xff0, 0x20, false),
        (0x3000, 0x10, false),
        (0x2001, 0, false),
    ] {
        let function = Function::new(start - 0x8000, size, rows());
        let table = TableBuilder::amd64(2).function(function).build();
        let whole = linked(0x8000, &table);
        // Sections say where code is; without them, segments do.
        let mut without = whole.clone();
        without[0x28..0x30].fill(0);
        without[0x3c..0x40].fill(0);
        let path = file("outside", "program", &whole);
        let output = sframe(&["check", &path]);
        let report = text(&output.stdout);
        assert_eq!(output.status.code(), Some(i32::from(!is_code)), "{start:#x}: {report}");
        let expected = format!("function 0: {start:#x}+{size:#x} is not all code");
        assert_eq!(report.contains(&expected), !is_code, "{report}");
    }
}

#[test]
fn d4_tables_of_programs_are_about_code() {
    for version in ["v1", "v2", "v3"] {
        for name in ["drap", "recur"] {
            let path = fixture(&format!("{version}/x86_64/{name}.O2-omit.exe"));
            // What ld 2.44 says of `.plt.got` is wrong.
            let output = sframe(&["check", "--json", path.to_str().unwrap()]);
            let check: Value = serde_json::from_slice(&output.stdout).unwrap();
            let errors = check["validation"]["first_errors"].to_string();
            assert!(!errors.contains("code"), "{errors}");
        }
    }
}

#[test]
fn d4_who_has_call_frame_information_is_told_what_it_is_good_for() {
    let own = env!("CARGO_BIN_EXE_unwind");
    for command in ["check", "dump"] {
        let error = fails(["sframe", command, own], 5);
        assert!(error.contains("has no .sframe section"), "{error}");
        assert!(error.contains("check --built v3"), "{error}");
        assert!(!error.contains("gsframe"), "{error}");
    }
    let bare = file("hint", "bare", &ElfBuilder::new(ElfBuilder::SHARED).finish());
    assert!(fails(["sframe", "check", &bare], 5).contains("-Wa,--gsframe"));
}

#[test]
fn d4_tables_that_say_the_same_are_equal_whatever_their_form() {
    for (old, new) in [("recur.v1", "recur.v3"), ("recur.v2", "recur.v2e1_llvm")] {
        // The flags differ, the code is the same; V1 has no outermost frame either.
        let diff = done(&["diff", &object(old), &object(new)]);
        assert_eq!(diff, "0 functions changed, 0 added, 0 removed, 6 equal\n", "{old} {new}");
    }
    let directory = scratch("diff_built");
    let libc = support::c_library();
    let [v2, v3] = ["v2-pcrel", "v3"].map(|format| {
        let path: PathBuf = directory.join(format);
        let path = path.to_str().unwrap().to_owned();
        run(["sframe", "build", "--format", format, libc.to_str().unwrap(), "-o", &path]);
        path
    });
    let same = done(&["diff", "--raw", &v3, &v3]);
    assert!(same.starts_with("0 functions changed, 0 added, 0 removed, "), "{same}");
    // What only V3 can say.
    let output = sframe(&["diff", "--raw", "--json", &v2, &v3]);
    assert_eq!(output.status.code(), Some(1));
    let diff: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(diff["by"], "address");
    assert!(diff["equal"].as_u64().unwrap() > 1000, "{}", diff["equal"]);
    let functions = diff["functions"].as_array().unwrap();
    let count = |change: &str| functions.iter().filter(|f| f["change"] == change).count();
    for change in ["added", "removed", "changed"] {
        assert_eq!(diff[change], count(change), "{change}");
    }
    assert!(count("added") > 0 && count("added") + count("changed") < 200);
}

#[test]
fn d4_a_diff_says_which_functions_and_rows_differ() {
    type Rows = &'static [(u32, i32)];
    let table = |functions: &[(i64, u32, Rows)]| {
        functions.iter().fold(TableBuilder::amd64(2), |table, &(start, size, rows)| {
            let rows = rows.iter().map(|&(start, cfa)| Row::sp(start, &[cfa])).collect();
            table.function(Function::new(start, size, rows))
        })
    };
    let old = table(&[
        (0x1000, 0x20, &[(0, 8), (4, 16)]),
        (0x2000, 0x10, &[(0, 8)]),
        (0x3000, 0x10, &[(0, 8), (2, 16), (8, 24)]),
        (0x4000, 0x10, &[(0, 8), (5, 8)]),
        (0x1_0000, 0x10, &[(0, 8)]),
    ]);
    let new = table(&[
        (0x1000, 0x24, &[(0, 8), (4, 24)]),
        (0x3000, 0x10, &[(0, 8), (4, 16), (8, 24)]),
        (0x4000, 0x10, &[(0, 8)]),
        (0x5000, 0x8, &[(0, 8)]),
    ]);
    let [old, new] = [("old", old), ("new", new)].map(|(name, t)| file("rows", name, &t.build()));
    let output = sframe(&["diff", "--raw", &old, &new]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stdout),
        "changed  0x1000: 0x1000+0x20, now 0x1000+0x24\n  \
           - +0x4..+0x20       CFA=rsp+16 RA=*(CFA-8) FP=rbp\n  \
           + +0x4..+0x20       CFA=rsp+24 RA=*(CFA-8) FP=rbp\n  \
           - +0x20..+0x24      no row\n  \
           + +0x20..+0x24      CFA=rsp+24 RA=*(CFA-8) FP=rbp\n\
         removed  0x2000: 0x2000+0x10, 1 row\n\
         changed  0x3000: 0x3000+0x10, now 0x3000+0x10\n  \
           - +0x2..+0x4        CFA=rsp+16 RA=*(CFA-8) FP=rbp\n  \
           + +0x2..+0x4        CFA=rsp+8 RA=*(CFA-8) FP=rbp\n\
         added    0x5000: 0x5000+0x8, 1 row\n\
         removed  0x10000: 0x10000+0x10, 1 row\n\
         2 functions changed, 1 added, 2 removed, 1 equal\n"
    );
    assert!(stderr(&output).ends_with("differ in 5 functions\n"), "{}", stderr(&output));
}

/// What no comparison has looked at is not equal, though both files say the same.
#[test]
fn d4_a_diff_says_which_functions_are_unread_in_both_files() {
    let row = |start| Row::sp(start, &[8]);
    let functions = 0x1_0000 / 2000 + 2;
    let first = Function::new(0, 0x8000, (0..2000).map(row).collect());
    let table = (1..functions).fold(TableBuilder::amd64(2).function(first), |table, index| {
        table.function(Function::new(index * 0x1_0000, 0x8000, Vec::new()))
    });
    let mut bytes = table.build();
    for index in 1..usize::try_from(functions).unwrap() {
        let entry = &mut bytes[28 + 20 * index..][..20];
        entry[8..12].fill(0);
        entry[12..16].copy_from_slice(&2000_u32.to_le_bytes());
        entry[16] = 1;
    }
    let path = file("unread", "o", &bytes);
    let output = sframe(&["diff", "--raw", &path, &path]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    // The last one in the order of their addresses.
    let last =
        "unread   0x210000: 0x210000+0x8000, now 0x210000+0x8000\n    .sframe+0x2b0: too many";
    assert!(said.contains(last), "{said}");
    assert!(said.ends_with(&format!("{} equal, 2 unread\n", functions - 2)), "{said}");

    let output = sframe(&["diff", "--raw", "--json", &path, &path]);
    assert_eq!(output.status.code(), Some(1));
    let diff: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&diff["unread"], &diff["equal"]), (&2.into(), &(functions - 2).into()));
    assert_eq!(diff["functions"][0]["change"], "unread");
}

#[test]
fn d4_functions_that_only_moved_are_equal_by_name() {
    let [old, new] = ["recur.v2", "recur.v2e1_llvm"].map(object);
    let by_name = sframe(&["diff", "--by", "name", &old, &new]);
    assert_eq!(by_name.status.code(), Some(0));
    let by_address = sframe(&["diff", "--by", "address", &old, &new]);
    assert_eq!(by_address.status.code(), Some(1));
    let text = text(&by_address.stdout);
    assert!(text.contains("removed  .text+0x30: .text+0x30+0x34, "), "{text}");
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
