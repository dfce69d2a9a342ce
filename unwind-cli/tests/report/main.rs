//! `unwind report`: the same samples in each format, and what is not complete apart.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod difference;
mod events;
mod inlined;
mod lines;
mod many_stacks;
mod page;
#[path = "../support/mod.rs"]
mod support;
mod tables;
mod together;
mod ways;

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use test_support::{perf_record, skip, tool};

/// No function keeps a frame pointer.
const WITHOUT_FRAME_POINTERS: &[&str] =
    &["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

fn unwind(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unwind"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Records a program that spends its time at the end of a chain of calls, under this name.
/// `None` where the kernel allows no samples, or there is no compiler.
fn recording(test: &str, name: &[u8], options: &[&str]) -> Option<PathBuf> {
    let program = support::compile(test, "nested.c", WITHOUT_FRAME_POINTERS)?;
    let named = program.with_file_name(std::ffi::OsStr::from_bytes(name));
    fs::rename(&program, &named).unwrap();
    record(&named, options)
}

/// Records a program.
fn record(program: &Path, options: &[&str]) -> Option<PathBuf> {
    let data = program.with_file_name("perf.data");
    let mut command = Command::new(env!("CARGO_BIN_EXE_unwind"));
    command.arg("record").arg("-o").arg(&data).args(options).arg("--").arg(program).arg("0.4");
    let output = command.stdin(Stdio::null()).output().unwrap();
    let told = text(&output.stderr);
    if told.contains("lets no sampling event be opened") {
        skip(&told);
        return None;
    }
    assert!(output.status.success(), "{told}");
    Some(data)
}

fn report(data: &Path, format: &str) -> Vec<u8> {
    report_with(data, &["--format", format])
}

fn report_with(data: &Path, options: &[&str]) -> Vec<u8> {
    let output = unwind(&[&["report"], options, &[data.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    output.stdout
}

/// The frames of folded stacks, and how often each was seen.
fn folded(data: &Path) -> Vec<(Vec<String>, u64)> {
    folded_with(data, &[])
}

fn folded_with(data: &Path, options: &[&str]) -> Vec<(Vec<String>, u64)> {
    let folded = text(&report_with(data, &[&["--format", "folded"], options].concat()));
    let lines = folded.lines().map(|line| {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        (stack.split(';').map(str::to_owned).collect(), count.parse().unwrap())
    });
    lines.collect()
}

/// The samples of a profile for Firefox, whose tables have to fit together.
fn firefox_samples(profile: &[u8]) -> u64 {
    let profile: Value = serde_json::from_slice(profile).unwrap();
    assert_eq!(profile["meta"]["symbolicated"], true);
    assert_eq!(profile["meta"]["sampleUnits"]["threadCPUDelta"], "µs");
    let len = |table: &Value| table["length"].as_u64().unwrap();
    let column = |table: &Value, name: &str| -> Vec<Option<u64>> {
        let column = table[name].as_array().unwrap_or_else(|| panic!("{name}"));
        assert_eq!(u64::try_from(column.len()).unwrap(), len(table), "{name}");
        column.iter().map(Value::as_u64).collect()
    };
    let mut samples = 0;
    let mut names = Vec::new();
    for thread in profile["threads"].as_array().unwrap() {
        let is_below = |index: &Option<u64>, limit: u64| index.is_none_or(|at| at < limit);
        let (stacks, frames) = (&thread["stackTable"], &thread["frameTable"]);
        let ends = column(&thread["samples"], "stack");
        assert!(ends.iter().all(|at| is_below(at, len(stacks))));
        // A caller comes before what it calls.
        let callers = column(stacks, "prefix");
        assert!((0..).zip(&callers).all(|(at, caller)| is_below(caller, at)));
        assert!(column(stacks, "frame").iter().all(|at| is_below(at, len(frames))));
        let functions = &thread["funcTable"];
        assert!(column(frames, "func").iter().all(|at| is_below(at, len(functions))));
        let texts = thread["stringArray"].as_array().unwrap();
        let of_function = column(functions, "name");
        let text = |at: &Option<u64>| texts[usize::try_from(at.unwrap()).unwrap()].as_str();
        names.extend(of_function.iter().map(|at| text(at).unwrap().to_owned()));
        let sum = |name: &str| -> u64 {
            column(&thread["samples"], name).iter().map(|number| number.unwrap()).sum()
        };
        samples += sum("weight");
        // The period of 999 samples a second, in microseconds.
        if thread["name"] != "[without a time]" {
            let cpu_time = sum("threadCPUDelta");
            let expected = sum("weight") * 1_000..=sum("weight") * 1_002;
            assert!(expected.contains(&cpu_time), "{cpu_time} of {expected:?}");
        }
    }
    assert!(names.iter().any(|name| name == "innermost"), "{names:?}");
    samples
}

#[test]
fn d15_each_format_has_the_same_samples() {
    let Some(data) = recording("report_formats", b"nested", &[]) else { return };
    let stacks = folded(&data);
    let samples: u64 = stacks.iter().map(|(_, count)| count).sum();
    assert!(samples > 100, "{samples}");
    let deep = stacks.iter().find(|(stack, _)| stack.last().unwrap() == "innermost").unwrap();
    let names: Vec<&str> = deep.0.iter().map(String::as_str).collect();
    let end = [&["main"][..], &["nested"; 11], &["innermost"]].concat();
    assert!(names.starts_with(&["nested", "_start"]) && names.ends_with(&end), "{names:?}");

    let table = text(&report(&data, "text"));
    assert!(table.contains(&format!("{samples} samples:")), "{table}");
    let innermost: u64 = stacks
        .iter()
        .filter(|(stack, _)| stack.last().unwrap() == "innermost")
        .map(|(_, count)| count)
        .sum();
    let tenths = (innermost * 1000 + samples / 2) / samples;
    let share = format!("{}.{} %", tenths / 10, tenths % 10);
    let line = table.lines().find(|line| line.contains("  innermost (")).unwrap();
    assert!(line.trim_start().starts_with(&share), "{share} {line}");

    let speedscope: Value = serde_json::from_slice(&report(&data, "speedscope")).unwrap();
    let weights = speedscope["profiles"][0]["weights"].as_array().unwrap();
    assert_eq!(weights.iter().map(|weight| weight.as_u64().unwrap()).sum::<u64>(), samples);
    assert_eq!(speedscope["profiles"][0]["endValue"].as_u64(), Some(samples));
    assert_eq!(speedscope["ledger"]["written"].as_u64(), Some(samples));

    assert_eq!(firefox_samples(&report(&data, "firefox")), samples);

    let svg = text(&report(&data, "svg"));
    assert!(svg.contains(&format!("{samples} samples: ")) && svg.contains("innermost ("), "{svg}");

    let pprof = data.with_file_name("profile.pb.gz");
    fs::write(&pprof, report(&data, "pprof")).unwrap();
    let Some(go) = tool("go") else { return };
    let output = Command::new(&go).args(["tool", "pprof", "-raw"]).arg(&pprof).output().unwrap();
    let raw = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let counts = raw.lines().skip_while(|line| *line != "samples/count").skip(1);
    // A line of labels follows each.
    let counts = counts.take_while(|line| *line != "Locations");
    let counts = counts.filter_map(|line| line.split_once(':')?.0.trim().parse::<u64>().ok());
    assert_eq!(counts.sum::<u64>(), samples, "{raw}");
    // A program is no source file, of which pprof would show the lines.
    let show = |what: &str| {
        let output = Command::new(&go).args(["tool", "pprof", what]).arg(&pprof).output().unwrap();
        text(&output.stdout) + &text(&output.stderr)
    };
    assert!(show("-list=innermost").contains("No source information for innermost"));
    assert!(show("-top").starts_with("File: nested\n"), "{}", show("-top"));
}

#[test]
fn d15_stacks_can_be_put_together_by_process_thread_group_and_file() {
    let Some(data) = recording("report_by", b"nested", &[]) else { return };
    let samples: u64 = folded(&data).iter().map(|(_, count)| count).sum();
    for (by, root) in [
        ("process", "nested (process "),
        ("thread", "nested (thread "),
        ("module", "/nested"),
        ("cgroup", "[no cgroup in the recording]"),
    ] {
        let stacks = folded_with(&data, &["--by", by]);
        assert_eq!(stacks.iter().map(|(_, count)| count).sum::<u64>(), samples, "{by}");
        let is_innermost = |stack: &[String]| stack.last().unwrap() == "innermost";
        let roots: Vec<&str> =
            stacks.iter().filter(|(s, _)| is_innermost(s)).map(|(s, _)| s[0].as_str()).collect();
        assert!(!roots.is_empty() && roots.iter().all(|r| r.contains(root)), "{by} {roots:?}");
    }
}

#[test]
fn d15_groups_that_perf_has_recorded_are_named() {
    let Some(perf) = tool("perf") else { return };
    let data = tempfile::tempdir().unwrap();
    let data = data.path().join("perf.data");
    let mut record = Command::new(&perf);
    record.args(["record", "-q", "--all-cgroups", "-e", "cpu-clock", "-F", "999", "-o"]);
    // It runs for hundreds of samples.
    record.arg(&data).args(["sh", "-c", "i=0; while [ $i -lt 400000 ]; do i=$((i + 1)); done"]);
    if !perf_record(&mut record).status.success() {
        // Not every kernel has them.
        eprintln!("perf records no cgroups here");
        return;
    }
    let stacks = folded_with(&data, &["--by", "cgroup"]);
    assert!(!stacks.is_empty() && stacks.iter().all(|(s, _)| s[0].starts_with('/')), "{stacks:?}");
}

#[test]
fn d16_two_recordings_of_one_program_differ_by_chance_only() {
    let before = recording("report_before", b"nested", &[]);
    let after = recording("report_after", b"nested", &["-F", "3000"]);
    let (Some(before), Some(after)) = (before, after) else { return };
    let files = [before.to_str().unwrap(), after.to_str().unwrap()];
    let output = unwind(&[&["report", "--diff"], &files[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    // The file of the program is another one.
    assert!(table.contains("  innermost (") && table.contains("after: "), "{table}");
    let svg = unwind(&[&["report", "--format", "svg", "--diff"], &files[..]].concat());
    assert!(text(&svg.stdout).contains("innermost ("));
    // No other format has differences.
    let other = unwind(&[&["report", "--format", "pprof", "--diff"], &files[..]].concat());
    assert_eq!(other.status.code(), Some(2));
    // Nor are inputs written over.
    let output = unwind(&[&["report", "-o", files[1], "--diff"], &files[..]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(fs::metadata(&after).unwrap().len() > 1000);
}

#[test]
fn d15_stacks_that_are_not_complete_are_under_a_root_that_says_why() {
    let options = ["--stack-bytes", "256"];
    let Some(data) = recording("report_incomplete", b"nested", &options) else { return };
    let stacks = folded(&data);
    let innermost = stacks.iter().filter(|(stack, _)| stack.last().unwrap() == "innermost");
    let roots: Vec<&String> = innermost.map(|(stack, _)| &stack[0]).collect();
    let is_apart = |root: &&&String| **root == "[incomplete: stack-copy-too-short]";
    assert!(!roots.is_empty() && roots.iter().all(|root| is_apart(&root)), "{roots:?}");
}

#[test]
fn d15_a_recording_that_is_cut_anywhere_is_reported_as_far_as_it_goes_and_refused() {
    let Some(data) = recording("report_cut", b"nested", &[]) else { return };
    let bytes = fs::read(&data).unwrap();
    for cut in (0..bytes.len()).step_by(bytes.len() / 40) {
        let lengths = unwind_profile::bounded::reported_len(&bytes[..cut]);
        assert!(lengths.is_none_or(|lengths| lengths.len() == 11), "{cut}");
    }
    // In the middle of the samples, where the ledger is gone.
    let cut = bytes.len() / 2;
    fs::write(&data, &bytes[..cut]).unwrap();
    let output = unwind(&["report", data.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
}

#[test]
fn d15_lost_samples_are_in_the_picture() {
    let options = ["--ring-kib", "16", "--stack-bytes", "12288", "-F", "20000"];
    let Some(data) = recording("report_lost", b"nested", &options) else { return };
    let stacks = folded(&data);
    let lost = stacks.iter().find(|(stack, _)| stack[0] == "[lost in a ring]").unwrap();
    assert!(lost.1 > 100 && lost.0.len() == 1, "{lost:?}");
}

#[test]
fn d15_a_recording_whose_ledger_does_not_add_up_is_refused_after_it_was_shown() {
    let Some(data) = recording("report_ledger", b"nested", &[]) else { return };
    let bytes = fs::read(&data).unwrap();
    let key = b"\"complete\":";
    let at = memchr::memmem::find(&bytes, key).unwrap() + key.len();
    let changed = |value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        fs::write(&data, bytes).unwrap();
        unwind(&["report", data.to_str().unwrap()])
    };
    let digit = if bytes[at] == b'9' { b'8' } else { bytes[at] + 1 };
    let output = changed(digit);
    assert_eq!(output.status.code(), Some(10), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("does not add up"));
    // What is no ledger at all is damage.
    assert_eq!(changed(b'x').status.code(), Some(5));
}

#[test]
fn c9_names_from_outside_are_no_markup_and_no_frames_of_their_own() {
    let name = b"<b>&\"';a\x1b[1m";
    let Some(data) = recording("report_names", name, &[]) else { return };
    let svg = report(&data, "svg");
    assert!(!svg.contains(&0x1b));
    let svg = text(&svg);
    assert!(svg.contains("&lt;b&gt;&amp;"), "{svg}");
    assert!(!svg.contains("<b>"));
    let stacks = folded(&data);
    let is_named = |(stack, _): &(Vec<String>, u64)| {
        let after_reason = usize::from(stack[0].starts_with("[incomplete: "));
        // A name has 15 bytes at most.
        stack[after_reason] == "<b>&\"':a\\x1b[1m"
    };
    assert!(stacks.iter().all(is_named), "{stacks:?}");
    let page = report(&data, "html");
    assert!(!page.contains(&0x1b) && memchr::memmem::find(&page, b"<b>").is_none());
    assert!(memchr::memmem::find(&page, b"\\u003cb>&\\\"';a").is_some());
    let speedscope = report(&data, "speedscope");
    assert!(serde_json::from_slice::<Value>(&speedscope).is_ok() && !speedscope.contains(&0x1b));
}

#[test]
fn d15_recordings_of_perf_are_walked_and_those_by_frame_pointers_are_not_called_complete() {
    let Some(perf) = tool("perf") else { return };
    let Some(program) = support::compile("report_perf", "nested.c", WITHOUT_FRAME_POINTERS) else {
        return;
    };
    let data = program.with_file_name("perf.data");
    for (way, class) in [
        ("dwarf", "complete"),
        ("dwarf,256", "incomplete: stack-copy-too-short"),
        ("fp", "unchecked"),
    ] {
        let mut record = Command::new(&perf);
        record.args(["record", "-q", "-e", "cpu-clock", "-F", "999", "--call-graph", way]);
        // Room for all copies: on a busy machine it may come late.
        if nix::unistd::geteuid().is_root() {
            record.args(["-m", "8M"]);
        }
        let output = perf_record(record.arg("-o").arg(&data).arg(&program).arg("0.3"));
        if !output.status.success() {
            skip(&format!("perf cannot record here: {}", text(&output.stderr)));
            return;
        }
        let table = text(&report(&data, "text"));
        let line = table.lines().find(|line| line.contains(&format!(" % {class}"))).unwrap();
        let share: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(share > 90.0, "{table}");
    }
}

#[test]
fn n5_a_recording_without_samples_has_a_picture_that_says_so() {
    let data = support::scratch("n5_empty").join("<none>.data");
    let output = unwind_record(&data, &["-F", "1", "--", "true"]);
    if output.contains("lets no sampling event be opened") {
        return skip(&output);
    }
    for format in ["svg", "html", "folded", "text", "speedscope", "firefox"] {
        let shown = Command::new(env!("CARGO_BIN_EXE_unwind"))
            .args(["report", "--format", format, "-o", "-", data.to_str().unwrap()])
            .output()
            .unwrap();
        let (picture, told) = (text(&shown.stdout), text(&shown.stderr));
        assert!(shown.status.success(), "{format}: {told}");
        if format == "svg" {
            assert!(
                picture.contains("There are no samples") && !picture.contains("ERROR"),
                "{picture}"
            );
            assert!(!picture.contains("<none>"), "{picture}");
        }
    }
    let arguments = ["report", "--format", "svg", "--diff"];
    let mut diff = Command::new(env!("CARGO_BIN_EXE_unwind"));
    diff.args(arguments).args([&data, &data]).args(["-o", "-"]);
    let shown = diff.output().unwrap();
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    assert!(text(&shown.stdout).contains("There are no samples"));
}

/// What a recorder tells.
fn unwind_record(data: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unwind"));
    let output = command.args(["record", "-o"]).arg(data).args(arguments).output().unwrap();
    text(&output.stderr)
}
