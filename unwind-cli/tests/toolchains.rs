//! Stacks through code that other compilers, libraries and linkers make than most programs have.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod support;

use std::path::Path;
use std::process::Command;

use object::{Object as _, ObjectSection as _};
use support::*;

/// The instructions of trampolines, of 64-bit code or 32-bit code, and whether the handler takes
/// a `siginfo`.
const TRAMPOLINES: [(&str, bool, &str); 11] = [
    ("64", false, "mov $15, %eax; syscall"),
    ("64", true, "mov $15, %rax; syscall"),
    ("64", false, "movabs $15, %rax; syscall"),
    ("64", false, "push $15; pop %rax; syscall"),
    ("64", true, "xor %eax, %eax; mov $15, %al; syscall"),
    ("64", false, "endbr64; mov $15, %eax; syscall"),
    ("32", false, "pop %eax; mov $119, %eax; int $0x80"),
    ("32", false, "pop %eax; push $119; pop %eax; int $0x80"),
    ("32", true, "mov $173, %eax; int $0x80"),
    ("32", true, "push $173; pop %eax; int $0x80"),
    ("32", true, "xor %eax, %eax; mov $173, %al; int $0x80"),
];

#[test]
fn u6_what_a_signal_interrupted_is_found_by_any_instructions_of_the_trampoline() {
    for (index, (bits, siginfo, code)) in TRAMPOLINES.iter().enumerate() {
        let (bits, code) = (format!("-m{bits}"), format!("-DOWN_TRAMPOLINE=\"{code}\""));
        let mut flags = vec!["-O1", "-fno-omit-frame-pointer", bits.as_str(), code.as_str()];
        if *siginfo {
            flags.push("-DWITH_SIGINFO");
        }
        let test = format!("trampoline-{index}");
        let Some(program) = compile(&test, "handler.c", &flags) else { continue };
        let target = Target::start(&program, &[]);
        let report = report_of(&target, &[]);
        let mut functions = functions_to_main(&report);
        // The trampoline, whose name is of no account here: nothing has called it.
        assert!(functions.len() > 2, "{code}: {report:#}");
        functions.remove(2);
        let expected = ["park", "handler", "interrupted", "outer", "main"];
        assert_eq!(functions, expected, "{code}: {report:#}");
        assert_eq!(threads(&report)[0]["end"]["complete"], true, "{code}: {report:#}");
    }
}

/// The frames by a method, and whether they are all.
#[test]
fn u3_a_function_that_asks_for_a_larger_stack_has_its_callers() {
    let flags = &["-O1", "-fomit-frame-pointer", "-fno-pie", "-no-pie"];
    let Some(program) = compile("u3_stack_check", "stack_check.c", flags) else { return };
    let target = Target::start(&program, &[]);
    let report = report_of(&target, &[]);
    let expected = ["grows", "caml_call_realloc_stack", "function", "calls", "main"];
    assert!(functions_to_main(&report).ends_with(&expected), "{report:#}");
    assert_eq!(threads(&report)[0]["end"]["complete"], true, "{report:#}");
}

fn frames_by(target: &Target, method: &str) -> (Vec<String>, bool) {
    let report = report_of(target, &["--method", method]);
    let [thread] = threads(&report) else { panic!("{report:#}") };
    let frames = thread["frames"].as_array().unwrap().iter();
    let pcs = frames.map(|frame| frame["pc"].as_str().unwrap().to_owned()).collect();
    (pcs, thread["end"]["complete"] == true)
}

#[test]
fn u5_a_stack_with_an_exception_in_flight_is_as_long_by_tables_that_are_made() {
    let flags = ["-O1", "-fexceptions", "-fomit-frame-pointer"];
    for (test, more) in [("in-flight", "-shared-libgcc"), ("in-flight-static", "-static-libgcc")] {
        let Some(program) = compile(test, "in_flight.c", &[&flags[..], &[more]].concat()) else {
            return;
        };
        let target = Target::start(&program, &[]);
        let functions = report_of(&target, &[]);
        let functions = functions_to_main(&functions);
        assert!(functions.ends_with(&["throws", "outer", "main"]), "{functions:?}");
        let direct = frames_by(&target, "cfi");
        assert!(direct.0.len() > functions.len() && direct.1, "{direct:?}");
        assert_eq!(frames_by(&target, "cfi-sframe"), direct, "{test}");
    }
}

#[test]
fn k10_a_table_that_is_made_has_all_code_of_the_library_that_throws() {
    let Some(compiler) = test_support::tool("gcc") else { return };
    let output = Command::new(compiler).arg("-print-file-name=libgcc_s.so.1").output().unwrap();
    let library = String::from_utf8(output.stdout).unwrap();
    for format in ["v2", "v3"] {
        let checked = run(["sframe", "check", "--built", format, library.trim()]);
        let text = String::from_utf8(checked.stdout).unwrap();
        assert!(checked.status.success(), "{format}: {text}");
        assert!(text.contains("of what the format can say: 100.0000 %"), "{format}: {text}");
    }
}

/// Reverses the entries of the table by which a program's call frame information is searched.
fn reverse_search_table(program: &Path) {
    let mut bytes = std::fs::read(program).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let section = file.section_by_name(".eh_frame_hdr").unwrap();
    let (start, size) = section.file_range().unwrap();
    let start = usize::try_from(start).unwrap();
    let table = &mut bytes[start..start + usize::try_from(size).unwrap()];
    let (entries, rest) = table[12..].as_chunks_mut::<8>();
    assert!(entries.len() > 4 && rest.is_empty());
    entries.reverse();
    std::fs::write(program, bytes).unwrap();
}

#[test]
fn u8_a_search_table_that_is_not_in_order_loses_no_frame_and_is_told_of() {
    let flags = ["-O1", "-fexceptions", "-fomit-frame-pointer"];
    let Some(program) = compile("not-in-order", "in_flight.c", &flags) else { return };
    let ordered = Target::start(&program, &[]);
    let expected = report_of(&ordered, &[]);
    assert_eq!(expected["warnings"], serde_json::json!([]));
    drop(ordered);
    reverse_search_table(&program);
    let target = Target::start(&program, &[]);
    let report = report_of(&target, &[]);
    assert_eq!(functions_to_main(&report), functions_to_main(&expected), "{report:#}");
    assert_eq!(threads(&report)[0]["end"]["complete"], true, "{report:#}");
    let warning = report["warnings"][0].as_str().unwrap();
    assert!(warning.contains("entry 1 of .eh_frame_hdr is not in order"), "{warning}");
    let explained = run(["explain", "--pid", &target.id().to_string()]);
    let told = stderr(&explained);
    assert!(told.contains("entry 1 of .eh_frame_hdr is not in order"), "{told}");
    let checked = run([
        "sframe".as_ref(),
        "check".as_ref(),
        "--built".as_ref(),
        "v3".as_ref(),
        program.as_os_str(),
    ]);
    let text = String::from_utf8(checked.stdout).unwrap();
    assert!(text.contains("entry 1 of .eh_frame_hdr is not in order"), "{text}");
}
