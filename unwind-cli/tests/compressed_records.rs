//! Recordings whose records are compressed: of `unwind record` and of `perf record -z`.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::*;
use test_support::{perf_record, skip, tool};

const CALL_FRAMES: &[&str] = &["-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

/// Records a program that calls itself, compressed. `None` where the kernel allows no samples.
fn recording(test: &str, options: &[&str]) -> Option<(PathBuf, Value)> {
    let program = compile(test, "nested.c", CALL_FRAMES)?;
    let data = program.with_file_name("perf.data");
    let mut record = unwind(["record", "--json", "-o"]);
    let output = record.arg(&data).args(options).arg("--").arg(&program).arg("0.5").output();
    let output = output.unwrap();
    if stderr(&output).contains("lets no sampling event be opened") {
        skip(&stderr(&output));
        return None;
    }
    assert!(output.status.success(), "{}", stderr(&output));
    // The program writes a line of its own.
    let told = output.stdout.split(|&byte| byte == b'\n').find(|line| line.starts_with(b"{"));
    Some((data, serde_json::from_slice(told.unwrap()).unwrap()))
}

const FIELDS: [&str; 3] = ["-F", "tid,time,ip", "--ns"];

/// The lines of samples as `unwind script` or `perf script` prints them.
fn lines(mut script: Command, data: &Path) -> Vec<String> {
    let output = script.arg(data).args(FIELDS).args(["--max-stack", "1000"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.trim().to_owned()).collect()
}

fn perf_script() -> Option<Command> {
    let mut perf = Command::new(tool("perf")?);
    perf.args(["script", "--no-inline"]);
    perf.arg("-i");
    Some(perf)
}

/// The lines with a thread and a time.
fn headings(lines: &[String]) -> Vec<&String> {
    lines.iter().filter(|line| line.ends_with(':')).collect()
}

#[test]
fn each_sample_of_a_compressed_recording_is_read_and_the_ledger_adds_up() {
    let Some((data, ledger)) = recording("compressed_read", &[]) else { return };
    let shown = lines(unwind(["script"]), &data);
    assert_eq!(
        headings(&shown).len(),
        usize::try_from(ledger["written"].as_u64().unwrap()).unwrap()
    );
    assert!(headings(&shown).len() > 100, "{ledger}");
    run(["report", data.to_str().unwrap()]);
    // Uncompressed, with the same samples.
    let merged = data.with_file_name("merged.data");
    run(["merge", data.to_str().unwrap(), "-o", merged.to_str().unwrap()]);
    assert_eq!(lines(unwind(["script"]), &merged), shown);
    let len = |path: &Path| fs::metadata(path).unwrap().len();
    assert!(len(&data) * 2 < len(&merged), "{} of {}", len(&data), len(&merged));
    if let Some(perf) = perf_script() {
        let by_perf = lines(perf, &data);
        assert_eq!(headings(&by_perf), headings(&shown));
        let perf = perf_script().unwrap();
        assert_eq!(by_perf, lines(perf, &merged), "of the merged recording");
    }
}

#[test]
fn a_compressed_recording_with_its_stacks_is_walked_again() {
    let Some((data, ledger)) = recording("compressed_kept", &["--keep-stacks", "-z"]) else {
        return;
    };
    let shown = lines(unwind(["script"]), &data);
    assert_eq!(
        headings(&shown).len(),
        usize::try_from(ledger["written"].as_u64().unwrap()).unwrap()
    );
    assert!(!shown.iter().any(|line| line.starts_with('(')), "{shown:?}");
}

#[test]
fn records_are_written_as_they_are_at_level_0_alone() {
    /// The bit of the header that says so, after five words and three places.
    const COMPRESSED: usize = 27;
    let has_compressed = |options: &[&str]| {
        let (data, ledger) = recording("compressed_level", options)?;
        let bytes = fs::read(data).unwrap();
        let samples = usize::try_from(ledger["written"].as_u64().unwrap()).unwrap();
        let is_said = bytes[72 + COMPRESSED / 8] & 1 << (COMPRESSED % 8) != 0;
        // The addresses of a stack alone take as much as this if they stand there as they are.
        assert_eq!(is_said, bytes.len() < samples * 60, "{} bytes", bytes.len());
        Some(is_said)
    };
    for options in [&["-z0"][..], &["-z", "0"], &["--compression-level=0"]] {
        assert_ne!(has_compressed(options), Some(true), "{options:?}");
    }
    for options in [&["-z"][..], &["-z3"], &["--compression-level"]] {
        assert_ne!(has_compressed(options), Some(false), "{options:?}");
    }
}

#[test]
fn a_compressed_recording_of_perf_has_the_samples_that_perf_shows() {
    let (Some(program), Some(perf)) =
        (compile("compressed_perf", "nested.c", CALL_FRAMES), tool("perf"))
    else {
        return;
    };
    let data = program.with_file_name("perf.data");
    let mut record = Command::new(perf);
    record.args(["record", "-q", "-z", "-e", "cpu-clock", "-F", "999", "-g", "-o"]).arg(&data);
    let output = perf_record(record.arg("--").arg(&program).arg("0.5"));
    if !output.status.success() {
        skip(&stderr(&output));
        return;
    }
    let by_perf = lines(perf_script().unwrap(), &data);
    let shown = lines(unwind(["script"]), &data);
    assert!(headings(&shown).len() > 100);
    assert_eq!(headings(&shown), headings(&by_perf));
}

#[test]
fn a_compressed_recording_that_is_cut_anywhere_says_so() {
    let Some((data, _)) = recording("compressed_cut", &[]) else { return };
    let bytes = fs::read(&data).unwrap();
    let whole = headings(&lines(unwind(["script"]), &data)).len();
    // Where the records are, by the header.
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let [at, len] = [40, 48].map(|at| usize::try_from(word(at)).unwrap());
    for part in 1..16 {
        let cut = data.with_file_name("cut.data");
        fs::write(&cut, &bytes[..at + len * part / 16]).unwrap();
        let output = unwind(["script", cut.to_str().unwrap()]).output().unwrap();
        assert_eq!(output.status.code(), Some(5), "{part}: {}", stderr(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.matches(" cpu-clock").count() < whole, "{part}");
    }
}
