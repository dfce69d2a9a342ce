//! Where call frame information is read from: `.eh_frame`, `.debug_frame`,
//! compressed sections, files that have more than one.
#![cfg(test)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::*;
use test_support::{Compiler, skip, tool};

/// A program that has `.debug_frame` alone, as Go's have, compressed this way.
fn with_compressed_frames(test: &str, kind: &str) -> Option<PathBuf> {
    const FLAGS: &[&str] = &[
        "-O1",
        "-g",
        "-fomit-frame-pointer",
        "-fno-optimize-sibling-calls",
        "-fno-asynchronous-unwind-tables",
        "-no-pie",
        "-static",
        "-nostdlib",
    ];
    let objcopy = tool("objcopy")?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/debug_frame.c");
    let program = scratch(test).join("program");
    Compiler::find(&[])?.compile(&source, &program, FLAGS);
    let kind = format!("--compress-debug-sections={kind}");
    let status = Command::new(objcopy).arg(&kind).arg(&program).status().unwrap();
    if !status.success() {
        skip(&format!("objcopy knows no {kind}"));
        return None;
    }
    Some(program)
}

#[test]
fn a4_call_frames_that_are_compressed_are_read_by_either_way_of_compression() {
    for kind in ["none", "zlib", "zstd"] {
        let Some(program) = with_compressed_frames(&format!("a4_{kind}"), kind) else { continue };
        let target = Target::start(&program, &[]);
        let report = report_of(&target, &[]);
        let [thread] = threads(&report) else { panic!("{report:#}") };
        assert_eq!(functions(thread)[..4], ["waits", "inner", "outer", "start"], "{kind}");
        let found = thread["frames"].as_array().unwrap().iter().map(|frame| &frame["found_by"]);
        assert_eq!(found.skip(1).take(3).collect::<Vec<_>>(), ["cfi"; 3], "{kind}");
    }
}

#[test]
fn a4_a_damaged_section_is_named_as_the_one_that_it_is() {
    let Some(program) = with_compressed_frames("a4_damaged", "zlib") else { return };
    let mut bytes = fs::read(&program).unwrap();
    // Headers of compressed sections, before streams of zlib.
    let header = [1, 0, 0, 0, 0, 0, 0, 0];
    let places = 0..bytes.len() - 40;
    let starts = places.filter(|&at| bytes[at..at + 8] == header && bytes[at + 24] == 0x78);
    for at in starts.collect::<Vec<_>>() {
        bytes[at + 30] ^= 0xff;
        bytes[at + 31] ^= 0xff;
    }
    fs::write(&program, &bytes).unwrap();
    let target = Target::start(&program, &[]);
    let warnings = report_of(&target, &[])["warnings"].to_string();
    let said = "its call frame information is not used: .debug_frame is compressed, and damaged";
    assert!(warnings.contains(said), "{warnings}");
}

/// A program of two files, one that has only `.eh_frame`, one only `.debug_frame`.
fn with_frames_in_two_sections(test: &str) -> Option<PathBuf> {
    const FLAGS: &[&str] =
        &["-O1", "-g", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-pie"];
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let scratch = scratch(test);
    let compiler = Compiler::find(&[])?;
    let object = scratch.join("through.o");
    let flags = [FLAGS, &["-c", "-fasynchronous-unwind-tables"]].concat();
    compiler.compile(&programs.join("eh_frame.c"), &object, &flags);
    let program = scratch.join("program");
    let link = ["-fno-asynchronous-unwind-tables", "-DTHROUGH", "-no-pie", "-static", "-nostdlib"];
    let flags = [FLAGS, &link, &[object.to_str()?]].concat();
    compiler.compile(&programs.join("debug_frame.c"), &program, &flags);
    Some(program)
}

#[test]
fn a4_call_frames_of_both_sections_of_a_file_are_used() {
    let Some(program) = with_frames_in_two_sections("a4_both") else { return };
    let target = Target::start(&program, &[]);
    let report = report_of(&target, &[]);
    let [thread] = threads(&report) else { panic!("{report:#}") };
    assert_eq!(functions(thread)[..5], ["waits", "inner", "through", "outer", "start"]);
    let found = thread["frames"].as_array().unwrap().iter().map(|frame| &frame["found_by"]);
    assert_eq!(found.skip(1).take(4).collect::<Vec<_>>(), ["cfi"; 4]);
    let checked = run(["sframe", "check", "--built", "v3", "--json", program.to_str().unwrap()]);
    let checked: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
    let comparison = &checked["comparison"];
    assert_eq!(comparison["differences"], 0, "{comparison}");
    assert_eq!(comparison["code_bytes"], comparison["covered_bytes"], "{comparison}");
    // `through` by one section; `call`, `waits`, `inner`, `outer`, `start` by the other.
    assert!(comparison["entries"].as_u64().unwrap() >= 5, "{comparison}");
}

#[test]
fn a4_a_damaged_section_takes_nothing_from_the_other_one() {
    let Some(program) = with_frames_in_two_sections("a4_other") else { return };
    let mut bytes = fs::read(&program).unwrap();
    let name = bytes.windows(13).position(|bytes| bytes == b".debug_frame\0").unwrap();
    let headers = usize::try_from(u64::from_le_bytes(bytes[40..48].try_into().unwrap())).unwrap();
    let names = usize::from(u16::from_le_bytes(bytes[62..64].try_into().unwrap()));
    let word = |bytes: &[u8], at: usize| {
        usize::try_from(u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())).unwrap()
    };
    let names = word(&bytes, headers + names * 64 + 24);
    let name = u32::try_from(name - names).unwrap().to_le_bytes();
    let header = (headers..bytes.len() - 63).step_by(64).find(|&at| bytes[at..at + 4] == name);
    // The section reaches past the end of the file.
    let size = header.unwrap() + 32;
    bytes[size..size + 8].copy_from_slice(&(1_u64 << 40).to_le_bytes());
    fs::write(&program, &bytes).unwrap();
    let checked = run(["sframe", "check", "--built", "v3", program.to_str().unwrap()]);
    let text = String::from_utf8(checked.stdout).unwrap();
    assert!(text.contains(".debug_frame"), "{text}");
    assert!(text.contains("1 function,"), "{text}");
    let target = Target::start(&program, &[]);
    let report = report_of(&target, &[]);
    let [thread] = threads(&report) else { panic!("{report:#}") };
    assert!(thread["end"].to_string().contains(".debug_frame"), "{thread:#}");
}
