//! `unwind verify`: stacks of recordings beside those of perf and of the kernel.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod support;

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::*;
use test_support::{Compiler, skip, tool};

/// All functions that call others keep frame pointers.
const WITH_FRAME_POINTERS: &[&str] =
    &["-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"];

/// A program without a C library, which spends its time at the end of a chain of calls.
fn framed(test: &str) -> Option<PathBuf> {
    let compiler = Compiler::find(WITH_FRAME_POINTERS)?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/framed.c");
    let program = scratch(test).join("program");
    compiler.compile(&source, &program, &["-static", "-nostdlib", "-Wl,--eh-frame-hdr"]);
    Some(program)
}

/// Records a program, its registers and stacks, and the kernel's chains. `None` where the kernel
/// allows no samples.
fn recording(test: &str) -> Option<PathBuf> {
    let program = framed(test)?;
    let data = program.with_file_name("perf.data");
    let mut record = unwind(["record", "--keep-stacks", "--uretprobes", "-o"]);
    let output = record.arg(&data).arg("--").arg(&program).output().unwrap();
    if stderr(&output).contains("lets no sampling event be opened") {
        skip(&stderr(&output));
        return None;
    }
    assert!(output.status.success(), "{}", stderr(&output));
    Some(data)
}

fn verified<const N: usize>(data: &Path, options: [&str; N]) -> Value {
    let output = run(["verify", "--json", data.to_str().unwrap()].into_iter().chain(options));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)))
}

/// How the stacks of another unwinder agree: its counts by class.
fn beside<'v>(verified: &'v Value, name: &str) -> &'v Value {
    let beside = verified["beside"].as_array().unwrap();
    let found = beside.iter().find(|beside| beside["name"] == name);
    &found.unwrap_or_else(|| panic!("no {name}: {verified:#}"))["counts"]
}

const CLASSES: [&str; 6] =
    ["equal", "ours_further", "ours_more", "theirs_further", "differ", "nothing"];

fn counts(counts: &Value) -> [u64; 6] {
    CLASSES.map(|class| counts[class].as_u64().unwrap())
}

#[test]
fn with_frame_pointers_each_chain_of_the_kernel_is_a_part_of_the_walked_stack() {
    let Some(data) = recording("verify_kernel") else { return };
    let all = verified(&data, ["--no-perf"]);
    let [equal, further, more, theirs_further, differ, nothing] = counts(beside(&all, "kernel"));
    // Where a function was interrupted before it had set its frame pointer the kernel leaves out
    // its caller.
    assert_eq!([further, theirs_further, differ, nothing], [0; 4], "{all:#}");
    assert_eq!(equal + more, all["samples"].as_u64().unwrap(), "{all:#}");
    assert!(equal > 100 && equal > more * 10, "{all:#}");
    assert_eq!(all["beside"].as_array().unwrap().len(), 1, "{all:#}");
}

#[test]
fn stacks_are_equal_to_those_of_perf() {
    let Some(data) = recording("verify_perf") else { return };
    if tool("perf").is_none() {
        return;
    }
    let all = verified(&data, []);
    let [equal, further, more, theirs_further, differ, nothing] = counts(beside(&all, "perf"));
    // In the program's first instructions perf does not see that there is no caller.
    assert!(equal > 100 && further < 3, "{all:#}");
    assert_eq!([more, theirs_further, differ, nothing], [0; 4], "{all:#}");
}

/// A program in the place of perf that shows these stacks: thread, time and addresses.
fn showing(folder: &Path, stacks: &[(u64, u64, Vec<u64>)]) -> PathBuf {
    let mut text = String::new();
    for (thread, time, addrs) in stacks {
        let (seconds, rest) = (time / 1_000_000_000, time % 1_000_000_000);
        writeln!(text, "{thread:>5} {seconds}.{rest:09}: ").unwrap();
        addrs.iter().for_each(|addr| writeln!(text, "\t{addr:16x}").unwrap());
        text.push('\n');
    }
    let (shown, program) = (folder.join("shown"), folder.join("perf"));
    fs::write(&shown, text).unwrap();
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && exec echo perf of a test\nexec cat {}\n",
        shown.display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[test]
fn what_another_unwinder_has_otherwise_is_counted_and_listed() {
    let Some(data) = recording("verify_differ") else { return };
    let text = String::from_utf8(run(["script", "--json", data.to_str().unwrap()]).stdout).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let hex = |text: &Value| u64::from_str_radix(&text.as_str().unwrap()[2..], 16).unwrap();
    let stack = |sample: Value| {
        // The kernel's chain comes first, and then what was walked, as perf shows them.
        let parts = sample["chain"].as_array().unwrap();
        let user = parts.iter().filter(|part| part["context"] == "user");
        let mut user = user.map(|part| part["ips"].as_array().unwrap().iter().map(hex));
        let mut addrs: Vec<u64> = user.next().unwrap().collect();
        // Callers by the last byte of their call.
        let call = |(number, ip)| if number == 0 { ip } else { ip - 1 };
        addrs.extend(user.next().unwrap().enumerate().map(call));
        (sample["tid"].as_u64().unwrap(), sample["time"].as_u64().unwrap(), addrs)
    };
    let samples = lines.filter(|line| line["type"] == "sample");
    let mut stacks: Vec<_> = samples.map(stack).collect();
    assert!(stacks.len() > 100);
    let folder = data.parent().unwrap();
    let verified_with = |stacks: &[_]| {
        let perf = showing(folder, stacks);
        verified(&data, ["--perf", perf.to_str().unwrap()])
    };
    let all = verified_with(&stacks);
    let samples = all["samples"].as_u64().unwrap();
    assert_eq!(counts(beside(&all, "perf")), [samples, 0, 0, 0, 0, 0], "{all:#}");
    assert_eq!(all["beside"][0]["version"], "perf of a test");

    let walked = |addrs: &[u64]| {
        addrs.len() - addrs.iter().skip(1).position(|ip| *ip == addrs[0]).unwrap() - 1
    };
    let deep: Vec<usize> = (0..stacks.len()).filter(|&at| stacks[at].2.len() > 20).collect();
    let of = |at: usize| deep[at * deep.len() / 8];
    _ = stacks[of(1)].2.pop();
    let last_but_three = stacks[of(2)].2.len() - 4;
    _ = stacks[of(2)].2.remove(last_but_three);
    stacks[of(3)].2.push(0x1234);
    *stacks[of(4)].2.iter_mut().nth_back(4).unwrap() ^= 1;
    stacks[of(5)].2.clear();
    // In another order; and one is not shown.
    stacks.swap(of(1), of(2));
    _ = stacks.remove(of(6));
    let all = verified_with(&stacks);
    assert_eq!(counts(beside(&all, "perf")), [samples - 6, 1, 1, 1, 1, 2], "{all:#}");
    let listed = all["listed"].as_array().unwrap();
    let listed: Vec<_> = listed
        .iter()
        .map(|sample| (sample["sample"].as_u64(), &sample["agreement"], &sample["frame"]))
        .collect();
    let number = |at: usize| u64::try_from(of(at) + 1).ok();
    let last = walked(&stacks[of(3)].2) - 1;
    let changed = walked(&stacks[of(4)].2) - 5;
    assert_eq!(
        listed,
        [
            (number(3), &"theirs_further".into(), &last.into()),
            (number(4), &"differ".into(), &changed.into())
        ],
        "{all:#}"
    );
    assert_eq!(
        (&all["listed"][0]["here"], &all["listed"][0]["there"]),
        (&Value::Null, &"0x1234".into())
    );
}

#[test]
fn a_recording_without_stacks_and_a_perf_that_fails_are_told() {
    let Some(program) = framed("verify_none") else { return };
    let data = program.with_file_name("perf.data");
    let output = unwind(["record", "-o"]).arg(&data).arg("--").arg(&program).output();
    if !output.unwrap().status.success() {
        return;
    }
    let data = data.to_str().unwrap();
    assert!(fails(["verify", "--no-perf", data], 5).contains("no sample has its stack"));
    assert!(fails(["verify", "--perf", "/nowhere/perf", data], 3).contains("/nowhere/perf"));
    assert!(fails(["verify", "--perf", "false", data], 1).contains("exit status: 1"));
}

#[test]
fn n3_stacks_of_one_event_are_compared_apart_from_those_of_others() {
    let Some(program) = framed("verify_events") else { return };
    let data = program.with_file_name("perf.data");
    let mut record = unwind(["record", "-e", "cpu-clock,page-faults", "--keep-stacks", "-o"]);
    let output = record.arg(&data).arg("--").arg(&program).output().unwrap();
    if stderr(&output).contains("lets no sampling event be opened") {
        return skip(&stderr(&output));
    }
    let text = String::from_utf8(run(["script", "--json", data.to_str().unwrap()]).stdout).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let samples: Vec<_> = lines.filter(|line| line["type"] == "sample").collect();
    // Nothing of this is here.
    let stack = |sample: &Value| {
        (sample["tid"].as_u64().unwrap(), sample["time"].as_u64().unwrap(), vec![0x1234])
    };
    let stacks: Vec<_> = samples.iter().map(stack).collect();
    let perf = showing(data.parent().unwrap(), &stacks);
    let numbers = |options: &[&str]| {
        let options =
            [&["verify", "--json", "--list", "100000"][..], options, &["--perf"]].concat();
        let mut command = unwind(options);
        let output = command.arg(&perf).arg(&data).output().unwrap();
        let verified: Value = serde_json::from_slice(&output.stdout).unwrap();
        let listed = verified["listed"].as_array().unwrap();
        listed.iter().map(|sample| sample["sample"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let all = numbers(&[]);
    let of_event = |name: &str| {
        let is_of = |&&number: &&u64| {
            samples[usize::try_from(number - 1).unwrap()]["event"]
                .as_str()
                .unwrap()
                .starts_with(name)
        };
        all.iter().filter(is_of).copied().collect::<Vec<_>>()
    };
    for event in ["cpu-clock", "page-faults"] {
        let expected = of_event(event);
        assert!(!expected.is_empty() && expected.len() < all.len(), "{event}: {all:?}");
        assert_eq!(numbers(&["--event", event]), expected, "{event}");
    }
    let mut command = unwind(["verify", "--no-perf", "--event", "cycles"]);
    let output = command.arg(&data).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}
