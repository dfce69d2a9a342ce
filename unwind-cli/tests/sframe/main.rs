//! `unwind sframe` over sections and programs that GNU and LLVM tools wrote:
//! the same text as `readelf --sframe` of the release that wrote them, and the
//! same rows as libsframe finds.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod elf;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use testdata::{Fixture, Function, Row, TableBuilder, malformed_sections, sections};

use elf::{GNU_SFRAME, PROGBITS, elf};

fn unwind(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_unwind")).arg("sframe").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Standard output of a command that succeeds.
fn done(arguments: &[&str]) -> String {
    let output = unwind(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Exit code and the one line of standard error of a command that fails.
fn failed(arguments: &[&str]) -> (i32, String) {
    let output = unwind(arguments);
    let error = text(&output.stderr);
    assert_eq!(error.lines().count(), 1, "{arguments:?}: {error}");
    (output.status.code().unwrap(), error)
}

/// The path of a raw section.
fn raw(fixture: &Fixture) -> String {
    format!("{}.sframe.bin", fixture.name())
}

fn dump_raw(fixture: &Fixture) -> String {
    done(&["dump", "--raw", "--vaddr", &format!("{:#x}", fixture.addr), &raw(fixture)])
}

/// A file of this test run.
fn scratch(name: &str, bytes: &[u8]) -> PathBuf {
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    fs::write(&path, bytes).unwrap();
    path
}

/// The lines that say something.
fn lines(dump: &str) -> Vec<String> {
    dump.lines().map(|line| line.trim_end().to_owned()).filter(|line| !line.is_empty()).collect()
}

/// The same with each function moved to address 0.
fn unplaced(dump: &str) -> Vec<String> {
    let mut start = 0;
    lines(dump)
        .into_iter()
        .map(|line| {
            if let Some((before, after)) = line.split_once("pc = 0x") {
                let (pc, after) = after.split_once(',').unwrap();
                start = u64::from_str_radix(pc, 16).unwrap();
                return format!("{before}pc = 0x0,{after}");
            }
            match line.get(4..20).map(|pc| u64::from_str_radix(pc, 16)) {
                Some(Ok(pc)) => format!("    {:016x}{}", pc - start, &line[20..]),
                _ => line,
            }
        })
        .collect()
}

#[test]
fn dump_prints_what_readelf_prints() {
    let mut same = 0;
    let mut unlinked = 0;
    for fixture in sections() {
        let Some(expected) = fixture.text(".sframe.txt") else { continue };
        let dump = dump_raw(&fixture);
        if lines(&dump) == lines(&expected) {
            same += 1;
            continue;
        }
        // The starts of an object's functions are in relocations, which readelf
        // applies from V2 errata 1 on. Raw bytes do not have them.
        let pcrel = expected.contains("SFRAME_F_FDE_FUNC_START_PCREL");
        let object = fixture.name().ends_with(".o");
        assert!(pcrel && object, "{}:\n{dump}\n--- readelf:\n{expected}", fixture.name());
        assert_eq!(unplaced(&dump), unplaced(&expected), "{}", fixture.name());
        unlinked += 1;
    }
    println!("{same} dumps are equal, {unlinked} of objects but for unresolved starts");
    assert!(same >= 20 && unlinked >= 5, "{same} {unlinked}");
}

#[test]
fn dump_shows_rows_that_many_functions_share_a_bounded_number_of_times() {
    // 100 functions, each of all 2,000 rows, of 4 bytes each.
    let row = |start| Row::sp(start, &[i32::try_from(8 + start % 2 * 8).unwrap()]);
    let first = Function::new(0, 0x8000, (0..2000).map(row).collect());
    let table = (1..100).fold(TableBuilder::amd64(2).function(first), |table, index| {
        table.function(Function::new(index * 0x1_0000, 0x8000, Vec::new()))
    });
    let mut bytes = table.build();
    for index in 1..100 {
        let entry = &mut bytes[28 + 20 * index..][..20];
        entry[8..12].fill(0);
        entry[12..16].copy_from_slice(&2000_u32.to_le_bytes());
        entry[16] = 1;
    }
    // More than one for each byte.
    let shown = 65_536;
    let path = scratch("shared.sframe.bin", &bytes);
    let path = path.to_str().unwrap();
    let why = "too many functions share rows";

    let output = unwind(&["dump", "--raw", path]);
    assert_eq!(output.status.code(), Some(5));
    let dump = text(&output.stdout);
    assert_eq!(dump.lines().filter(|line| line.starts_with("    0000")).count(), shown);
    // The last functions have none, and say why.
    assert_eq!(dump.matches("func idx").count(), 100);
    assert_eq!(dump.matches(why).count(), 100 - shown / 2000);

    let output = unwind(&["dump", "--raw", "--json", path]);
    assert_eq!(output.status.code(), Some(5));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let functions = json["tables"][0]["functions"].as_array().unwrap();
    let rows: usize = functions.iter().map(|f| f["rows"].as_array().unwrap().len()).sum();
    assert_eq!((functions.len(), rows), (100, shown));
    assert!(functions[99]["error"].as_str().unwrap().contains(why));
}

#[test]
fn dump_finds_the_section_of_a_program() {
    for version in ["v1", "v2", "v3"] {
        let fixture = sections()
            .into_iter()
            .find(|fixture| {
                fixture.is_in(version) && fixture.name().ends_with("x86_64/drap.O2-omit.exe")
            })
            .unwrap();
        let expected = fixture.text(".sframe.txt").unwrap();
        let dump = done(&["dump", "--no-names", &fixture.name()]);
        assert_eq!(lines(&dump), lines(&expected), "{version}");
        // By the program header, without section headers.
        let mut program = fs::read(&fixture.stem).unwrap();
        // e_shoff, e_shnum, e_shstrndx
        program[0x28..0x30].fill(0);
        program[0x3c..0x40].fill(0);
        let stripped = scratch(&format!("{version}.stripped"), &program);
        let stripped = stripped.to_str().unwrap();
        assert_eq!(done(&["dump", "--no-names", stripped]), dump, "{version}");
    }
}

#[test]
fn find_answers_as_libsframe() {
    let mut compared = 0;
    let mut faults = BTreeMap::<_, u32>::new();
    for fixture in sections() {
        let Some(lookups) = fixture.text(".lookup.txt") else { continue };
        let mut addresses = Vec::new();
        let mut expected = Vec::new();
        for line in lookups.lines() {
            let (range, row) = line.split_once(' ').unwrap();
            let (start, end) = range.split_once('-').unwrap();
            let [start, end] = [start, end].map(|addr| u64::from_str_radix(addr, 16).unwrap());
            for addr in [start, start.midpoint(end), end - 1] {
                addresses.push(format!("{addr:#x}"));
                expected.push(row);
            }
        }
        let vaddr = format!("{:#x}", fixture.addr);
        let file = raw(&fixture);
        let mut arguments = vec!["find", "--json", "--raw", "--vaddr", &vaddr, &file];
        arguments.extend(addresses.iter().map(String::as_str));
        let output = unwind(&arguments);
        // Some addresses beside functions have no row.
        assert_eq!(output.status.code(), Some(7), "{file}: {}", text(&output.stderr));
        let answers: Value = serde_json::from_slice(&output.stdout).unwrap();
        let answers = answers["addresses"].as_array().unwrap();
        assert_eq!(answers.len(), addresses.len());
        let dump = dump_raw(&fixture);
        for (answer, expected) in answers.iter().zip(expected) {
            compared += 1;
            let found = print(&answer["row"]);
            if found == expected {
                continue;
            }
            let fault = known_fault(&fixture, &dump, answer);
            let addr = &answer["addr"];
            let fault =
                fault.unwrap_or_else(|| panic!("{file} {addr}: {found}, libsframe: {expected}"));
            *faults.entry(fault).or_default() += 1;
        }
    }
    println!("{compared} addresses compared, libsframe is wrong at: {faults:?}");
    assert!(compared > 1500 && faults.len() == 2, "{compared} {faults:?}");
}

/// A row as the `.lookup.txt` files print it.
fn print(row: &Value) -> String {
    if row.is_null() {
        return "none".into();
    }
    let words: Vec<String> =
        row["words"].as_array().unwrap().iter().map(ToString::to_string).collect();
    let info = row["info"].as_u64().unwrap();
    format!("info={info:02x} start={} words={}", row["start"], words.join(","))
}

/// Why libsframe is known to be wrong at an address: in blocks, before V3.
fn known_fault(fixture: &Fixture, dump: &str, answer: &Value) -> Option<&'static str> {
    let number = |text: &Value| {
        u64::from_str_radix(text.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
    };
    let addr = number(&answer["addr"]);
    // The last function at or before the address.
    let blocks = dump
        .split("func idx ")
        .skip(1)
        .filter_map(|function| {
            let (_, pc) = function.split_once("pc = 0x")?;
            let pc = u64::from_str_radix(pc.split_once(',')?.0, 16).ok()?;
            (pc <= addr).then_some((pc, function.contains("STARTPC[m]")))
        })
        .max()?
        .1;
    match (fixture.is_in("v1"), fixture.is_in("v2"), blocks) {
        (true, _, true) => Some("libsframe 2.40 takes blocks for 256 bytes long"),
        (_, true, true) => {
            Some("libsframe 2.44 finds the first byte of a block only, of any block")
        }
        _ => None,
    }
}

#[test]
fn find_says_what_the_row_means_or_why_there_is_none() {
    let all = sections();
    let fixture =
        all.iter().find(|fixture| fixture.name().ends_with("v3/x86_64/drap.O2-omit.exe")).unwrap();
    let program = fixture.name();
    let found = done(&["find", &program, "0x1050", "0x1265", "4672"]);
    assert_eq!(
        found,
        "0x1050  function 0x1040+0x7b <main>, row +0x4: CFA=rsp+16 RA=*(CFA-8) FP=rbp\n\
         0x1265  function 0x1250+0xa9 <align128_alloca>, row +0x15: CFA=*(rbp-8) RA=*(CFA-8) FP=*(rbp+0)\n\
         0x1240  function 0x1210+0x35 <align64_args>, row +0x11: CFA=rbp+16 RA=*(CFA-8) FP=*(CFA-16)\n"
    );
    let output = unwind(&["find", &program, "0x1044", "0x1038", "0x10"]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(
        text(&output.stdout),
        "0x1044  function 0x1040+0x7b <main>, row +0x4: CFA=rsp+16 RA=*(CFA-8) FP=rbp\n\
         0x1038  no row: no function covers it; the last one before it ends at 0x1038\n\
         0x10  no row: no function covers it, nor any address before it\n"
    );
    assert_eq!(text(&output.stderr), "unwind: 2 of 3 addresses have no row\n");
}

#[test]
fn json_says_the_same_as_the_text() {
    for fixture in sections() {
        let vaddr = format!("{:#x}", fixture.addr);
        let json = done(&["dump", "--json", "--raw", "--vaddr", &vaddr, &raw(&fixture)]);
        let json: Value = serde_json::from_str(&json).unwrap();
        let table = &json["tables"][0];
        assert_eq!(table["addr"].as_str().unwrap(), vaddr);
        let mut rows = Vec::new();
        for function in table["functions"].as_array().unwrap() {
            assert!(function["error"].is_null());
            let pc = function["pc"].as_str().unwrap();
            let pc = u64::from_str_radix(pc.trim_start_matches("0x"), 16).unwrap();
            let base = if function["pc_type"] == "mask" { 0 } else { pc };
            for row in function["rows"].as_array().unwrap() {
                let start = base + row["start"].as_u64().unwrap();
                let cell = |name: &str| row[name].as_str().map(str::to_owned);
                rows.push(match (cell("cfa"), cell("fp"), cell("ra")) {
                    (Some(cfa), Some(fp), Some(ra)) => format!("{start:016x} {cfa} {fp} {ra}"),
                    _ => format!("{start:016x} RA undefined"),
                });
            }
        }
        let printed: Vec<String> = lines(&dump_raw(&fixture))
            .iter()
            .filter(|line| line.get(4..20).is_some_and(|pc| u64::from_str_radix(pc, 16).is_ok()))
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(rows, printed, "{}", fixture.name());
    }
}

#[test]
fn a_damaged_section_is_a_line_or_is_shown_in_part() {
    for fixture in malformed_sections() {
        let path = raw(&fixture);
        for arguments in [
            &["dump", "--raw", &path][..],
            &["dump", "--raw", "--json", &path],
            &["find", "--raw", &path, "0x0", "0x1040"],
        ] {
            let output = unwind(arguments);
            // Exit by a code of ours: no panic, no signal.
            let code = output.status.code().unwrap();
            assert!([0, 5, 7].contains(&code), "{arguments:?}: {code}");
            let error = text(&output.stderr);
            assert!(code == 0 || error.starts_with("unwind: "), "{error}");
        }
    }
    let all = malformed_sections();
    let path = |name: &str| raw(all.iter().find(|fixture| fixture.name().ends_with(name)).unwrap());
    let (code, error) = failed(&["dump", "--raw", &path("v3.ver255")]);
    assert_eq!(code, 5);
    assert!(error.contains(".sframe+0x2: version 255 is not one of 1, 2 and 3"), "{error}");
    let output = unwind(&["dump", "--raw", &path("v3so.mask_rep0")]);
    assert_eq!(output.status.code(), Some(5));
    let dump = text(&output.stdout);
    assert_eq!(dump.matches("error: ").count(), 1, "{dump}");
    assert_eq!(dump.matches("func idx").count(), 5, "{dump}");
}

#[test]
fn an_object_has_no_addresses() {
    let all = sections();
    let object =
        all.iter().find(|fixture| fixture.name().ends_with("v3/x86_64/drap.O2-omit.o")).unwrap();
    let path = raw(object);
    let output = unwind(&["dump", "--raw", &path]);
    assert!(output.status.success());
    assert!(text(&output.stderr).contains("not resolved"));
    let (code, error) = failed(&["find", "--raw", &path, "0x0"]);
    assert_eq!(code, 5);
    assert!(error.contains("relocatable object"), "{error}");
}

#[test]
fn tables_one_after_another_are_all_shown() {
    let table = |mark| {
        let rows = vec![Row::sp(0, &[mark])];
        let flags = TableBuilder::PCREL;
        let table = TableBuilder { flags, ..TableBuilder::amd64(2) };
        table.function(Function::new(-0x1000, 0x10, rows)).build()
    };
    let mut bytes = table(8);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let second = bytes.len();
    bytes.extend(table(16));
    let path = scratch("two", &bytes);
    let path = path.to_str().unwrap();
    let dump = done(&["dump", "--raw", "--vaddr", "0x5000", path]);
    assert!(dump.contains("section .sframe:\n"), "{dump}");
    assert!(dump.contains("section .sframe, table 2:\n"), "{dump}");
    let addr = format!("{:#x}", 0x4000 + second);
    let found = done(&["find", "--raw", "--vaddr", "0x5000", path, "0x4000", &addr]);
    let [first, second]: [&str; 2] = found.lines().collect::<Vec<_>>().try_into().unwrap();
    assert!(first.contains("CFA=rsp+8") && second.contains("CFA=rsp+16"), "{found}");
}

#[test]
fn errors_say_what_to_do() {
    let (code, error) = failed(&["dump", "/nonexistent"]);
    assert_eq!(
        (code, error.as_str()),
        (3, "unwind: cannot read /nonexistent: No such file or directory (os error 2)\n")
    );
    let text = scratch("text", b"no ELF file at all");
    let (code, error) = failed(&["dump", text.to_str().unwrap()]);
    assert!(code == 5 && error.contains("not an ELF file"), "{error}");
    let without = scratch("without", &elf(true, false, ".text", PROGBITS, &[0x90]));
    let (code, error) = failed(&["dump", without.to_str().unwrap()]);
    assert!(code == 5 && error.contains("has no .sframe section"), "{error}");
    let empty = scratch("empty", &elf(true, false, ".sframe", GNU_SFRAME, &[]));
    let (code, error) = failed(&["dump", empty.to_str().unwrap()]);
    assert!(code == 5 && error.contains("zero bytes"), "{error}");
}
