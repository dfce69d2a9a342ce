//! How much of a stack is copied.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::{ledger_of, many, number, record, run, text, unwind};

#[test]
fn d14_copies_grow_once_stacks_are_deeper_and_the_recorder_does_not_sample_itself() {
    let Some(program) = many("record_growing") else { return };
    let data = program.with_file_name("perf.data");
    // For three seconds: on a busy machine stacks are walked late, and copies grow after that.
    let command = [program.to_str().unwrap(), "deep", "300"];
    let copied = ["--engine", "perf"];
    let Some(ledger) = record(&data, &copied, &command) else { return };
    let cut = ledger["incomplete"]["stack-copy-too-short"].as_u64().unwrap_or(0);
    assert!(cut >= 4 && cut * 2 < number(&ledger, "complete"), "{ledger}");
    let output = unwind(&["script", "-F", "comm", data.to_str().unwrap()]);
    let names = text(&output.stdout);
    assert!(names.contains("program") && !names.contains("unwind"), "{names}");
    let Some(ledger) = record(&data, &["--stack-bytes", "16384"], &command) else { return };
    assert!(number(&ledger, "complete") * 10 < number(&ledger, "written"), "{ledger}");
}

/// Records a program that computes for three seconds under this many KiB of stack, with
/// more above its first frame than any copy takes. Returns the ledger, and the bytes of the file
/// a sample.
fn deep(test: &str, kib: &str) -> Option<(Value, u64)> {
    let program = many(test)?;
    let data = program.with_file_name("perf.data");
    let path = data.to_str().unwrap();
    let arguments = ["record", "--json", "-F", "1999", "--keep-stacks", "-o", path, "--"];
    let arguments = [&arguments[..], &[program.to_str().unwrap(), "deep", "300", kib]].concat();
    let mut command = Command::new(env!("CARGO_BIN_EXE_unwind"));
    command.env("UNUSED", "x".repeat(100 << 10));
    let ledger = ledger_of(&arguments, run(command, &arguments))?;
    let bytes = fs::metadata(&data).unwrap().len() / number(&ledger, "written");
    fs::remove_file(&data).unwrap();
    Some((ledger, bytes))
}

#[test]
fn d14_copies_are_not_larger_than_stacks_need() {
    let Some((ledger, bytes)) = deep("record_24_kib", "24") else { return };
    assert!(number(&ledger, "complete") * 4 > number(&ledger, "written") * 3, "{ledger}");
    assert!((16 << 10..50 << 10).contains(&bytes), "{bytes}: {ledger}");
}

#[test]
fn d14_copies_stay_small_where_larger_ones_complete_no_stack() {
    let Some((ledger, bytes)) = deep("record_100_kib", "100") else { return };
    assert!(number(&ledger, "complete") < 100, "{ledger}");
    assert!((8 << 10..40 << 10).contains(&bytes), "{bytes}: {ledger}");
}
