//! Several recordings as one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use test_support::skip;

use crate::{WITHOUT_FRAME_POINTERS, folded_with, support, text, unwind};

/// Records a program of two and a half seconds in parts of one second.
fn parts(test: &str) -> Option<Vec<String>> {
    let program = support::compile(test, "nested.c", WITHOUT_FRAME_POINTERS)?;
    let folder = program.with_file_name("parts");
    fs::create_dir_all(&folder).unwrap();
    let data = folder.join("perf.data");
    let output = unwind(&[
        "record",
        "--every",
        "1",
        "-o",
        data.to_str().unwrap(),
        "--",
        program.to_str().unwrap(),
        "2.5",
    ]);
    let told = text(&output.stderr);
    if told.contains("lets no sampling event be opened") {
        skip(&told);
        return None;
    }
    assert!(output.status.success(), "{told}");
    let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.collect();
    files.sort();
    assert!(files.len() > 1, "{files:?}");
    Some(files.into_iter().map(|file| file.to_str().unwrap().to_owned()).collect())
}

fn folded(files: &[&str]) -> BTreeMap<Vec<String>, u64> {
    let (last, others) = files.split_last().unwrap();
    folded_with(Path::new(last), others).into_iter().collect()
}

fn json(format: &str, files: &[&str]) -> Value {
    let output = unwind(&[&["report", "--format", format], files].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn d15_parts_are_put_together_with_each_sample_once_in_its_time() {
    let Some(parts) = parts("report_together") else { return };
    let files: Vec<&str> = parts.iter().map(String::as_str).collect();
    let all = folded(&files);
    let mut sum = BTreeMap::new();
    for &file in &files {
        for (stack, count) in folded(&[file]) {
            *sum.entry(stack).or_insert(0) += count;
        }
    }
    assert_eq!(all, sum);
    // The order in which they are given says nothing.
    let reversed: Vec<&str> = files.iter().rev().copied().collect();
    assert_eq!(folded(&reversed), sum);

    let ledger_of = |files: &[&str]| json("speedscope", files)["ledger"].clone();
    let ledgers: Vec<Value> = files.iter().map(|&file| ledger_of(&[file])).collect();
    let ledger = ledger_of(&files);
    for field in ["written", "complete", "kernel_only", "lost", "dropped"] {
        let sum: u64 = ledgers.iter().map(|ledger| ledger[field].as_u64().unwrap()).sum();
        assert_eq!(ledger[field].as_u64().unwrap(), sum, "{field}");
    }
    assert!(ledger["written"].as_u64().unwrap() > 1_000, "{ledger}");

    // One after the other: together they take as long as the program ran.
    for files in [&files, &reversed] {
        let profile = json("firefox", files);
        let threads = profile["threads"].as_array().unwrap();
        let deltas = threads.iter().flat_map(|thread| {
            thread["samples"]["timeDeltas"].as_array().into_iter().flatten().map(Value::as_f64)
        });
        let ms: f64 = deltas.map(Option::unwrap).sum();
        assert!((1_500.0..60_000.0).contains(&ms), "{ms}");
    }
}

#[test]
fn d15_of_several_recordings_one_that_cannot_be_read_is_told_and_the_others_are_shown() {
    let Some(parts) = parts("report_together_bad") else { return };
    let (first, last) = (parts.first().unwrap(), parts.last().unwrap());
    let bad = format!("{last}.bad");
    fs::write(&bad, "no recording").unwrap();
    let gone = format!("{last}.gone");
    let output = unwind(&["report", "--format", "folded", &bad, first, &gone, last]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{told}");
    for file in [&bad, &gone] {
        let name = file.rsplit('/').next().unwrap();
        assert!(told.lines().any(|line| line.contains(name)), "{name}: {told}");
    }
    let shown: u64 = text(&output.stdout)
        .lines()
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
        .sum();
    let whole: u64 = folded(&[first, last]).values().sum();
    assert_eq!(shown, whole);

    // One that is cut is shown as far as it is read: in the middle of its records, where the header says
    // that they are.
    let mut bytes = fs::read(last).unwrap();
    let field = |at: usize| {
        let field = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        usize::try_from(field).unwrap()
    };
    let (start, len) = (field(40), field(48));
    bytes.truncate(start + len / 2);
    fs::write(&bad, bytes).unwrap();
    let output = unwind(&["report", "--format", "folded", &bad, first]);
    assert!(!output.status.success() && !output.stdout.is_empty(), "{}", text(&output.stderr));

    let output = unwind(&["report", "--format", "otlp", first, last]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
fn d16_tables_of_several_recordings_have_rows_for_each() {
    let Some(parts) = parts("report_together_tables") else { return };
    let folder = PathBuf::from(&parts[0]).with_file_name("tables");
    let folder = folder.to_str().unwrap();
    let files: Vec<&str> = parts.iter().map(String::as_str).collect();
    let output = unwind(&[&["report", "--format", "parquet", "-o", folder], &files[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mut tables = 0;
    let mut left = vec![PathBuf::from(folder).join("ledger")];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { left.push(path) } else { tables += 1 }
        }
    }
    assert_eq!(tables, files.len());
}
