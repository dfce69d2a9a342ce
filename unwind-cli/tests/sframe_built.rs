//! `unwind sframe check`, `build` and `stat`: tables made of call frame
//! information say what gimli reads in it, run in the programs that they are put
//! into, and faults in tables are found.
#![cfg(test)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use object::{Object as _, ObjectSection as _};
use serde_json::Value;
use sframe::Table;
use support::{c_library, fixture, programs, scratch};
use test_support::Compiler;

fn unwind(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_unwind")).arg("sframe").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Standard output of a command that ends with an exit code.
#[track_caller]
fn ends(code: i32, arguments: &[&str]) -> String {
    let output = unwind(arguments);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
    assert_eq!(error.lines().count(), usize::from(code != 0), "{arguments:?}: {error}");
    text(&output.stdout)
}

fn check_json(code: i32, file: &Path, more: &[&str]) -> Value {
    let mut arguments = vec!["check", "--json", file.to_str().unwrap()];
    arguments.extend(more);
    serde_json::from_str(&ends(code, &arguments)).unwrap()
}

#[test]
fn tables_of_every_format_say_what_gimli_reads() {
    for program in programs() {
        for format in ["v2", "v2-pcrel", "v3"] {
            let report = check_json(0, &program, &["--built", format]);
            let name = format!("{} in {format}", program.display());
            assert_eq!(report["validation"]["errors"], 0, "{name}");
            assert_eq!(report["validation"]["notes"], 0, "{name}");
            let comparison = &report["comparison"];
            assert_eq!(comparison["differences"], 0, "{name}");
            assert_eq!(comparison["unreadable"], 0, "{name}");
            assert!(comparison["places"].as_u64() > Some(20), "{name}");
            // All code has a row or a reason.
            let missing = report["missing"].as_array().unwrap();
            assert!(missing.iter().all(|missing| missing["reason"] != "no-row"), "{name}");
            let expressible = &report["expressible"];
            assert_eq!(expressible["bytes"], expressible["covered_bytes"], "{name}");
            let lost: u64 = missing.iter().map(|missing| missing["bytes"].as_u64().unwrap()).sum();
            assert_eq!(
                comparison["code_bytes"].as_u64().unwrap(),
                comparison["covered_bytes"].as_u64().unwrap() + lost,
                "{name}"
            );
        }
    }
}

#[test]
fn realigned_frames_are_lost_in_v2_and_named() {
    let program = fixture("v3/x86_64/drap.O2-omit.exe");
    let report = check_json(0, &program, &["--built", "v2"]);
    let missing = report["missing"].as_array().unwrap();
    let reasons: Vec<_> = missing.iter().map(|missing| missing["reason"].as_str()).collect();
    assert_eq!(reasons, [Some("cfa-loaded"), Some("cfa-register")]);
    assert_eq!(missing[1]["first"][0]["why"], "the cfa comes from r10");
    let v3 = check_json(0, &program, &["--built", "v3"]);
    assert_eq!(v3["missing"], Value::Array(Vec::new()));
}

#[test]
fn the_rows_that_gnu_ld_gets_wrong_are_found() {
    // 2.40 writes none for .plt.got; 2.44 and 2.46 take them for those of .plt.
    for name in ["drap", "recur"] {
        let file = |version| fixture(&format!("{version}/x86_64/{name}.O2-omit.exe"));
        assert_eq!(check_json(0, &file("v1"), &[])["comparison"]["differences"], 0);
        for version in ["v2", "v3"] {
            let report = check_json(1, &file(version), &[]);
            assert_eq!(report["validation"]["errors"], 0);
            assert_eq!(report["comparison"]["differences"], 1);
            let difference = &report["comparison"]["first_differences"][0];
            assert_eq!(difference["addr"], "0x1030");
            assert_eq!(difference["what"], serde_json::json!(["CFA", "RA", "SP"]));
            assert_eq!(difference["table"], "CFA=rsp+16 RA=*(CFA-8) FP=rbp");
            assert_eq!(difference["cfi"], "CFA=r7+8 RA=*(CFA-8)");
        }
    }
}

/// Where a section is in a file.
fn section_of(file: &[u8], name: &str) -> (usize, usize, u64) {
    let object = object::File::parse(file).unwrap();
    let section = object.section_by_name(name).unwrap();
    let (at, len) = section.file_range().unwrap();
    (usize::try_from(at).unwrap(), usize::try_from(len).unwrap(), section.address())
}

#[test]
fn a_wrong_word_anywhere_is_a_difference() {
    let program = fs::read(fixture("v1/x86_64/drap.O2-omit.exe")).unwrap();
    let (at, len, addr) = section_of(&program, ".sframe");
    let section = Table::parse(&program[at..at + len]).unwrap().at(addr);
    let directory = scratch("a_wrong_word_anywhere_is_a_difference");
    let mut tried = 0;
    for fde in section.fdes().map(Result::unwrap).filter(|fde| !fde.is_mask()) {
        for fre in section.fres(&fde).unwrap().map(Result::unwrap) {
            let width = usize::from(fde.fre_type().unwrap().width());
            for word in 0..fre.words().len() {
                let mut wrong = program.clone();
                let size = usize::from(fre.info.word_size().unwrap());
                let low = at + usize::try_from(fre.at.0).unwrap() + width + 1 + word * size;
                wrong[low] = wrong[low].wrapping_add(8);
                let path = directory.join("program");
                fs::write(&path, &wrong).unwrap();
                let report = check_json(1, &path, &[]);
                let difference = &report["comparison"]["first_differences"][0];
                let expected = fde.range.start + u64::from(fre.start);
                assert_eq!(difference["addr"], format!("{expected:#x}"));
                assert_eq!(difference["what"][0], if word == 0 { "CFA" } else { "FP" });
                tried += 1;
            }
        }
    }
    assert!(tried > 20, "only {tried} words");
}

#[test]
fn a_table_against_the_format_is_found() {
    let mut program = fs::read(fixture("v1/x86_64/recur.O2-omit.exe")).unwrap();
    let (at, _, _) = section_of(&program, ".sframe");
    // num_fres of the header
    program[at + 0x0c] += 1;
    let path = scratch("a_table_against_the_format_is_found").join("program");
    fs::write(&path, &program).unwrap();
    let report = check_json(1, &path, &[]);
    assert_eq!(report["validation"]["errors"], 1);
    assert_eq!(report["comparison"]["differences"], 0);
    let text = ends(1, &["check", path.to_str().unwrap()]);
    assert!(text.contains("1 error,"), "{text}");
}

/// Compiles a program that prints its arguments' number and uses its heap.
fn program(test: &str, flags: &[&str]) -> Option<PathBuf> {
    let compiler = Compiler::find(flags)?;
    let directory = scratch(test);
    let source = directory.join("program.c");
    let code = r#"
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        static char zeros[300000];
        int main(int count, char **arguments) {
            char *heap = malloc(1 << 20);
            memset(heap, count, 1 << 20);
            for (int i = 0; i < 100; i++) free(malloc(i * 1000));
            printf("%d %d %d\n", count, heap[7], zeros[count * 1000]);
            return 0;
        }
    "#;
    fs::write(&source, code).unwrap();
    let program = directory.join("program");
    compiler.compile(&source, &program, &[]);
    Some(program)
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    text(&output.stdout)
}

#[test]
fn programs_run_with_a_table_in_them() {
    for (test, flags) in [
        ("programs_run_pie", &["-O2", "-fPIE", "-pie"][..]),
        ("programs_run_no_pie", &["-O2", "-no-pie"]),
        ("programs_run_static", &["-O2", "-static"]),
    ] {
        let Some(program) = program(test, flags) else { continue };
        for format in ["v2", "v2-pcrel", "v3"] {
            let embedded = program.with_file_name(format);
            let arguments = ["build", path(&program), "-o", path(&embedded), "--embed"];
            let said = ends(0, &[&arguments[..], &["--format", format]].concat());
            assert!(said.contains(" bytes of code, at 0x"), "{said}");
            assert_eq!(run(Command::new(&embedded).args(["a", "b"])), "3 3 0\n", "{test}");
            // It is found by its section and by its program header, and is right.
            let report = check_json(0, &embedded, &[]);
            assert_eq!(report["comparison"]["differences"], 0, "{test} {format}");
            assert!(report["comparison"]["places"].as_u64() > Some(10), "{test} {format}");
            let mut bytes = fs::read(&embedded).unwrap();
            let dump = ends(0, &["dump", "--no-names", path(&embedded)]);
            bytes[0x28..0x30].fill(0); // e_shoff
            bytes[0x3c..0x40].fill(0); // e_shnum, e_shstrndx
            let stripped = program.with_file_name("stripped");
            fs::write(&stripped, bytes).unwrap();
            assert_eq!(ends(0, &["dump", "--no-names", path(&stripped)]), dump, "{test} {format}");
            let mode = fs::metadata(&embedded).unwrap().permissions().mode();
            assert_eq!(mode, fs::metadata(&program).unwrap().permissions().mode());
        }
    }
}

#[test]
fn the_c_library_runs_with_a_table_in_it() {
    let test = "the_c_library_runs_with_a_table_in_it";
    let Some(program) = program(test, &["-O2"]) else { return };
    let directory = program.with_file_name("lib");
    fs::create_dir(&directory).unwrap();
    let embedded = directory.join("libc.so.6");
    ends(0, &["build", path(&c_library()), "-o", path(&embedded), "--embed"]);
    let report = check_json(0, &embedded, &[]);
    assert_eq!(report["comparison"]["differences"], 0);
    let mut command = Command::new(&program);
    command.env("LD_LIBRARY_PATH", &directory);
    assert_eq!(run(&mut command), "1 1 0\n");
    // It is that library which was loaded.
    command.env("LD_DEBUG", "libs").env("LD_DEBUG_OUTPUT", directory.join("debug"));
    run(&mut command);
    let debug = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("debug"));
    let debug = fs::read_to_string(debug.unwrap()).unwrap();
    assert!(debug.contains(&format!("calling init: {}", path(&embedded))), "{debug}");
}

#[test]
fn a_section_alone_can_be_dumped_at_its_address() {
    let file = fixture("v3/x86_64/recur.O2-omit.exe");
    let directory = scratch("a_section_alone_can_be_dumped_at_its_address");
    for (format, vaddr) in [("v2", "0"), ("v2-pcrel", "0x8000"), ("v3", "0x7000000000")] {
        let output = directory.join(format);
        let mut arguments = vec!["build", path(&file), "-o", path(&output)];
        arguments.extend(["--format", format, "--vaddr", vaddr]);
        ends(0, &arguments);
        let found =
            ends(0, &["find", "--raw", "--vaddr", vaddr, path(&output), "0x1030", "0x1050"]);
        assert!(found.contains("0x1030  function 0x1030+0x8, row +0x0: CFA=rsp+8"), "{found}");
        let dump = ends(0, &["dump", "--raw", "--vaddr", vaddr, path(&output)]);
        assert!(dump.contains("pc = 0x1030"), "{dump}");
        // The same to standard output.
        let mut arguments = vec!["build", path(&file), "-o", "/dev/stdout"];
        arguments.extend(["--format", format, "--vaddr", vaddr]);
        let piped = unwind(&arguments);
        assert_eq!(piped.stdout, fs::read(&output).unwrap(), "{format}");
        assert!(text(&piped.stderr).starts_with("/dev/stdout: "), "{format}");
    }
}

#[test]
fn where_no_segment_can_be_added_the_section_is_written_alone() {
    let directory = scratch("where_no_segment_can_be_added_the_section_is_written_alone");
    let original = fs::read(fixture("v1/x86_64/recur.O2-omit.exe")).unwrap();
    // Without its .sframe: the section's and the segment's types are changed.
    let mut plain = original.clone();
    let at = plain.windows(8).position(|name| name == b".sframe\0").unwrap();
    plain[at + 1] = b'S';
    let segment = plain.windows(4).position(|kind| kind == [0x54, 0xe5, 0x74, 0x64]).unwrap();
    plain[segment..segment + 4].fill(0);
    let phoff = usize::from(plain[0x20]);
    let first_load = (0..)
        .map(|index| phoff + 56 * index)
        .find(|&at| plain[at..at + 4] == [1, 0, 0, 0])
        .unwrap();
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut file = plain.clone();
        change(&mut file);
        file
    };
    for (why, file, reason) in [
        ("has one", original, "it has an .sframe section"),
        ("overlay", with(&|file| file.extend(b"payload")), "it has data after its end"),
        // p_paddr
        (
            "physical",
            with(&|file| file[first_load + 0x18 + 2] = 1),
            "it is loaded by physical addresses",
        ),
        // p_offset
        ("headers", with(&|file| file[first_load + 0x08 + 1] = 0x10), "its headers are not loaded"),
        // p_memsz
        (
            "order",
            with(&|file| file[first_load + 0x28 + 3] = 1),
            "its segments overlap or are not in order",
        ),
    ] {
        let input = directory.join("input");
        fs::write(&input, &file).unwrap();
        let output = directory.join("output");
        let arguments = ["build", path(&input), "-o", path(&output), "--embed"];
        let done = unwind(&arguments);
        let error = text(&done.stderr);
        assert_eq!(done.status.code(), Some(5), "{why}: {error}");
        assert!(error.contains(reason), "{why}: {error}");
        assert!(error.contains("is the section alone"), "{why}: {error}");
        let section = fs::read(&output).unwrap();
        assert!(Table::parse(&section).unwrap().find(0x1030).unwrap().is_some(), "{why}");
        assert!(fs::metadata(&output).unwrap().permissions().mode() & 0o111 == 0, "{why}");
    }
    // What is changed only to be like that is fine else.
    let input = directory.join("input");
    fs::write(&input, &plain).unwrap();
    let output = directory.join("output");
    ends(0, &["build", path(&input), "-o", path(&output), "--embed"]);
    // Nothing is left over.
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 2);
}

#[test]
fn c11_a_file_is_not_replaced_by_the_table_that_is_made_of_it() {
    let directory = scratch("c11_a_file_is_not_replaced");
    let file = directory.join("file");
    fs::copy(fixture("v3/x86_64/drap.O2-omit.exe"), &file).unwrap();
    let before = fs::read(&file).unwrap();
    let [link, symbolic, dangling] =
        ["link", "symbolic", "dangling"].map(|name| directory.join(name));
    fs::hard_link(&file, &link).unwrap();
    std::os::unix::fs::symlink("file", &symbolic).unwrap();
    std::os::unix::fs::symlink("nothing", &dangling).unwrap();
    let detour = directory.join("../c11_a_file_is_not_replaced/file");
    for input in [&file, &link, &symbolic] {
        for output in [&file, &link, &symbolic, &detour] {
            for more in [None, Some("--embed")] {
                let arguments = ["build", path(input), "-o", path(output)].into_iter().chain(more);
                let arguments: Vec<_> = arguments.collect();
                ends(2, &arguments);
                let error = text(&unwind(&arguments).stderr);
                assert!(error.contains("is the input, too"), "{arguments:?}: {error}");
            }
        }
    }
    assert_eq!(fs::read(&file).unwrap(), before);
    assert!(symbolic.is_symlink());
    // A copy is another file.
    let copy = directory.join("copy");
    fs::copy(&file, &copy).unwrap();
    ends(0, &["build", path(&file), "-o", path(&copy)]);
    ends(0, &["build", path(&file), "-o", path(&dangling)]);
}

#[test]
fn what_has_no_call_frame_information_is_refused() {
    let directory = scratch("what_has_no_call_frame_information_is_refused");
    let output = directory.join("output");
    let mut file = fs::read(fixture("v3/x86_64/recur.O2-omit.exe")).unwrap();
    // Another machine.
    file[0x12] = 0xf3;
    let input = directory.join("input");
    fs::write(&input, &file).unwrap();
    for arguments in [
        &["build", path(&input), "-o", path(&output)][..],
        &["check", "--built", "v3", path(&input)],
        &["stat", path(&directory.join("input"))],
    ] {
        let done = unwind(arguments);
        // `stat` shows the table that is there all the same.
        let code = if arguments[0] == "stat" { 0 } else { 5 };
        assert_eq!(done.status.code(), Some(code), "{arguments:?}: {}", text(&done.stderr));
    }
    assert!(!output.exists());
    let missing = unwind(&["build", "/no/such/file", "-o", path(&output)]);
    assert_eq!(missing.status.code(), Some(3));
    let nowhere = unwind(&["build", path(&fixture("v3/x86_64/recur.O2-omit.exe")), "-o", "/no/x"]);
    assert_eq!(nowhere.status.code(), Some(1));
}

#[test]
fn damaged_information_ends_no_command_but_by_an_exit_code() {
    let program = fs::read(fixture("v3/x86_64/drap.O2-omit.exe")).unwrap();
    let (at, len, _) = section_of(&program, ".eh_frame");
    let directory = scratch("damaged_information_ends_no_command_but_by_an_exit_code");
    let input = directory.join("input");
    let output = directory.join("output");
    for byte in 0..len {
        let mut damaged = program.clone();
        damaged[at + byte] ^= 0x55;
        fs::write(&input, &damaged).unwrap();
        let arguments = match byte % 3 {
            0 => vec!["check", "--built", "v3", path(&input)],
            1 => vec!["check", path(&input)],
            _ => vec!["build", path(&input), "-o", path(&output)],
        };
        let done = unwind(&arguments);
        assert!(matches!(done.status.code(), Some(0 | 1 | 5)), "byte {byte}: {done:?}");
    }
}

#[test]
fn statistics_are_those_of_the_tables() {
    let file = fixture("v3/x86_64/drap.O2-omit.exe");
    let json: Value = serde_json::from_str(&ends(0, &["stat", "--json", path(&file)])).unwrap();
    let bytes = fs::read(&file).unwrap();
    let (at, len, _) = section_of(&bytes, ".sframe");
    let section = Table::parse(&bytes[at..at + len]).unwrap();
    let table = &json["tables"][0];
    assert_eq!(table["source"], "file");
    assert_eq!(table["bytes"], section.bytes().len());
    assert_eq!(table["functions"], section.header().num_fdes);
    assert_eq!(table["rows"], section.header().num_fres);
    assert_eq!((&table["flexible"], &table["blocks"]), (&1.into(), &1.into()));
    // The realigned frame's CFA is in r10 at its start and at its end.
    assert_eq!(table["first_frame_rows"], 4);
    assert_eq!(json["sections"][".eh_frame"], section_of(&bytes, ".eh_frame").1);
    for (index, format) in [(1, "v2"), (2, "v3")] {
        let report = check_json(0, &file, &["--built", format]);
        let table = &json["tables"][index];
        assert_eq!(table["source"], format);
        assert_eq!(table["bytes"], report["tables"][0]["bytes"]);
        assert_eq!(table["rows"], report["tables"][0]["rows"]);
        assert_eq!(table["covered_bytes"], report["comparison"]["covered_bytes"]);
        assert_eq!(json["code_bytes"], report["comparison"]["code_bytes"]);
        let left_out: u64 = sum(&table["left_out"]);
        assert_eq!(left_out, sum(&report["missing"]));
    }
    let text = ends(0, &["stat", path(&file)]);
    assert!(text.contains("left out of v2: 118 bytes in 2 ranges: cfa-loaded"), "{text}");
}

fn sum(list: &Value) -> u64 {
    list.as_array().unwrap().iter().map(|entry| entry["bytes"].as_u64().unwrap()).sum()
}
