//! `unwind record`: what it takes, what its ledger says, and who reads its files.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod compiled_code;
mod copies;
mod events;
mod in_kernel;
mod in_kernel_hostile;
mod in_kernel_programs;
mod in_kernel_python;
mod in_kernel_v8;
mod kept;
mod killed;
mod remapped;
#[path = "../support/schema.rs"]
mod schema;
mod started;
#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use test_support::{skip, tool};

/// No function keeps a frame pointer.
const WITHOUT_FRAME_POINTERS: &[&str] =
    &["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

fn nested(test: &str) -> Option<PathBuf> {
    support::compile(test, "nested.c", WITHOUT_FRAME_POINTERS)
}

fn many(test: &str) -> Option<PathBuf> {
    support::compile(test, "many.c", &["-O1", "-fomit-frame-pointer", "-pthread"])
}

fn unwind(arguments: &[&str]) -> Output {
    run(Command::new(env!("CARGO_BIN_EXE_unwind")), arguments)
}

fn run(mut command: Command, arguments: &[&str]) -> Output {
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Records into `data` and returns the ledger; `None` where the kernel allows no samples.
fn record(data: &Path, options: &[&str], command: &[&str]) -> Option<Value> {
    let data = data.to_str().unwrap();
    let mut arguments = vec!["record", "--json", "-o", data];
    arguments.extend(options);
    if !command.is_empty() {
        arguments.push("--");
        arguments.extend(command);
    }
    ledger_of(&arguments, unwind(&arguments))
}

/// Records what is left of a program's time.
fn record_rest(data: &Path, target: &support::Target) -> Option<Value> {
    let process = target.id().to_string();
    let arguments = ["record", "--json", "-o", data.to_str().unwrap(), "--pid", &process];
    ledger_of(&arguments, target.sampled_by(&mut support::unwind(arguments)))
}

/// Records a program until its first thread has had as many milliseconds of a CPU.
fn record_for(
    data: &Path,
    options: &[&str],
    target: &support::Target,
    milliseconds: u32,
) -> Option<Value> {
    let (process, wait) = (target.id().to_string(), target.wait_for_cpu(milliseconds));
    let wait: Vec<&str> = wait.iter().map(String::as_str).collect();
    record(data, &[options, &["--pid", &process]].concat(), &wait)
}

/// The ledger that a recording has printed.
fn ledger_of(arguments: &[&str], output: Output) -> Option<Value> {
    let told = text(&output.stderr);
    if told.contains("lets no sampling event be opened") {
        skip(&told);
        return None;
    }
    assert!(output.status.success(), "{arguments:?}: {told}");
    // The command may print, too.
    let out = text(&output.stdout);
    let line = out.lines().find(|line| line.starts_with('{')).unwrap();
    let ledger: Value = serde_json::from_str(line).unwrap();
    check_sums(&ledger);
    Some(ledger)
}

fn number(ledger: &Value, name: &str) -> u64 {
    ledger[name].as_u64().unwrap_or_else(|| panic!("{name} in {ledger}"))
}

/// The sums, made here once more.
fn check_sums(ledger: &Value) {
    let incomplete: u64 =
        ledger["incomplete"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    let classes = ["complete", "kernel_only", "unmatched", "unchecked", "damaged", "dropped"];
    let classified: u64 = classes.iter().map(|name| number(ledger, name)).sum();
    assert_eq!(classified + incomplete, number(ledger, "written"), "{ledger}");
    assert!(number(ledger, "lost_told") <= number(ledger, "lost"), "{ledger}");
}

/// The names of the functions of each sample that `unwind script` shows.
fn stacks(data: &Path) -> Vec<Vec<String>> {
    let output = unwind(&["script", "--max-stack", "5000", "-F", "ip,sym", data.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    split(&text(&output.stdout))
}

/// The second word of each line, which is the function, by blocks.
fn split(script: &str) -> Vec<Vec<String>> {
    let blocks = script.split("\n\n").map(|block| {
        let names = block.lines().filter_map(|line| line.split_whitespace().nth(1));
        names.map(str::to_owned).collect::<Vec<_>>()
    });
    blocks.filter(|block| !block.is_empty()).collect()
}

#[test]
fn d14_a_cpu_that_the_recorder_may_not_run_on_is_recorded_too() {
    let test = "record_other_cpu";
    let (Some(program), Some(taskset)) = (nested(test), tool("taskset")) else { return };
    let data = program.with_file_name("perf.data");
    let there = Command::new(&taskset).args(["-c", "1", "true"]).output().unwrap();
    if !there.status.success() {
        return skip("there is no second CPU");
    }
    let (data, program) = (data.to_str().unwrap(), program.to_str().unwrap());
    let record = ["-c", "0", env!("CARGO_BIN_EXE_unwind"), "record", "--json", "-o", data, "--"];
    let command = [taskset.to_str().unwrap(), "-c", "1", program, "0.3"];
    let arguments = [&record[..], &command[..]].concat();
    let output = run(Command::new(&taskset), &arguments);
    let Some(ledger) = ledger_of(&arguments, output) else { return };
    assert!(number(&ledger, "complete") > 50, "{ledger}");
}

#[test]
fn d14_a_program_without_frame_pointers_is_recorded_with_whole_stacks_that_perf_reads() {
    let test = "record_nested";
    let Some(program) = nested(test) else { return };
    let data = program.with_file_name("perf.data");
    let Some(ledger) = record(&data, &[], &[program.to_str().unwrap(), "0.5"]) else { return };
    let (written, complete) = (number(&ledger, "written"), number(&ledger, "complete"));
    assert!(written > 100 && complete * 100 > written * 95, "{ledger}");
    let stacks = stacks(&data);
    assert_eq!(stacks.len(), usize::try_from(written).unwrap());
    let whole = |stack: &&Vec<String>| {
        let count = |name: &str| stack.iter().filter(|&found| found == name).count();
        count("innermost") == 1 && count("nested") == 11 && count("main") == 1
    };
    let deep = stacks.iter().filter(|stack| stack.iter().any(|name| name == "innermost"));
    let deep: Vec<_> = deep.collect();
    assert!(deep.len() > 50 && deep.iter().all(whole), "{deep:?}");
    let Some(perf) = tool("perf") else { return };
    let mut script = Command::new(perf);
    let output =
        script.args(["script", "--no-inline", "-F", "ip,sym", "-i"]).arg(&data).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let of_user = |stacks: &[Vec<String>]| -> Vec<Vec<String>> {
        let own = |name: &&String| ["innermost", "nested", "main"].contains(&name.as_str());
        stacks.iter().map(|stack| stack.iter().filter(own).cloned().collect()).collect()
    };
    assert_eq!(of_user(&split(&text(&output.stdout))), of_user(&stacks));
}

#[test]
fn d14_a_process_that_runs_is_recorded_until_it_ends() {
    let Some(program) = nested("record_attach") else { return };
    let data = program.with_file_name("perf.data");
    let mut command = Command::new(&program);
    let target = support::Target::start_command(command.arg("1"));
    let Some(ledger) = record_rest(&data, &target) else { return };
    let (written, complete) = (number(&ledger, "written"), number(&ledger, "complete"));
    assert!(written > 100 && complete * 100 > written * 95, "{ledger}");
    let stacks = stacks(&data);
    assert!(stacks.iter().any(|stack| stack.iter().filter(|name| *name == "nested").count() == 11));
}

#[test]
fn d14_what_has_no_room_in_a_ring_is_lost_by_the_kernels_own_count() {
    let Some(program) = nested("record_lost") else { return };
    let data = program.with_file_name("perf.data");
    // Room for one sample: each that is taken before that was read is lost.
    let options = ["--ring-kib", "16", "--stack-bytes", "12288", "-F", "20000"];
    let command = [program.to_str().unwrap(), "0.5"];
    let Some(ledger) = record(&data, &options, &command) else { return };
    let lost = number(&ledger, "lost");
    assert!(lost > 100 && number(&ledger, "written") > 10, "{ledger}");
    if let Some(counted) = ledger["lost_by_kernel"].as_u64() {
        assert_eq!(counted, lost);
    }
}

#[test]
fn d14_stacks_deeper_than_what_is_looked_at_are_incomplete_for_that_reason() {
    let Some(program) = nested("record_deep") else { return };
    let data = program.with_file_name("perf.data");
    let command = [program.to_str().unwrap(), "0.3"];
    let Some(ledger) = record(&data, &["--stack-bytes", "256"], &command) else { return };
    let cut = ledger["incomplete"]["stack-copy-too-short"].as_u64().unwrap_or(0);
    assert!(cut * 10 > number(&ledger, "written") * 9, "{ledger}");
}

#[test]
fn d14_code_that_pushes_registers_without_a_row_for_it_has_its_caller_by_instructions() {
    let flags = &["-m32", "-O1", "-fomit-frame-pointer", "-no-pie"];
    let Some(program) = support::compile("record_pushes", "pushes.c", flags) else { return };
    let data = program.with_file_name("perf.data");
    let Some(ledger) = record(&data, &[], &[program.to_str().unwrap()]) else { return };
    let filled = stacks(&data).into_iter().filter(|stack| stack[0] == "fill").count();
    // At most what was taken elsewhere, as in the loader.
    let elsewhere = number(&ledger, "written") - u64::try_from(filled).unwrap();
    let not_code = ledger["incomplete"]["not-code"].as_u64().unwrap_or(0);
    assert!(
        filled > 20 && not_code <= elsewhere && elsewhere * 2 < number(&ledger, "written"),
        "{ledger}"
    );
}

#[test]
fn d14_threads_that_want_all_cpus_do_not_keep_the_rings_from_being_read() {
    let Some(program) = many("record_threads") else { return };
    let data = program.with_file_name("perf.data");
    let command = [program.to_str().unwrap(), "threads", "1000"];
    let Some(ledger) = record(&data, &["-F", "4999"], &command) else { return };
    let (written, lost) = (number(&ledger, "written"), number(&ledger, "lost"));
    assert!(written > 1_000, "{ledger}");
    // Only who may go first can promise that.
    if nix::unistd::geteuid().is_root() {
        assert!(lost < written, "{ledger}");
    }
}

#[test]
fn d14_waits_of_threads_are_recorded_with_their_lengths() {
    let flags = ["-O2", "-fomit-frame-pointer", "-pthread"];
    let Some(program) = support::compile("record_waits", "off_cpu.c", &flags) else { return };
    let data = program.with_file_name("perf.data");
    // A user may not be allowed to sample the kernel, in which threads wait.
    if !nix::unistd::geteuid().is_root() {
        return skip("samples of the kernel need root");
    }
    let Some(ledger) = record(&data, &["--off-cpu"], &[program.to_str().unwrap()]) else { return };
    let waits = &ledger["off_cpu"];
    assert!(number(waits, "samples") >= 4, "{ledger}");
    let data = data.to_str().unwrap();
    // The main thread sleeps for 0.6 s, and the other one waits for it all the time.
    let nanoseconds = number(waits, "nanoseconds");
    assert!(nanoseconds > 1_100_000_000, "{ledger}");
    let report = |options: &[&str]| {
        let arguments = [&["report", "--format", "folded"], options, &[data]].concat();
        let output = unwind(&arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let lines = text(&output.stdout);
        let lines = lines.lines().filter_map(|line| line.rsplit_once(' '));
        let lines = lines.map(|(stack, count)| (stack.to_owned(), count.parse::<u64>().unwrap()));
        lines.collect::<Vec<_>>()
    };
    let sum = |lines: &[(String, u64)], function: &str| -> u64 {
        let is_so = |stack: &str| stack.contains(function) && stack.ends_with("[off CPU]");
        lines.iter().filter(|(stack, _)| is_so(stack)).map(|(_, count)| count).sum()
    };
    let shown = report(&["--off-cpu"]);
    let sleeps = sum(&shown, ";main;sleeps;");
    assert!((590..1_200).contains(&sleeps), "{sleeps}: {shown:?}");
    assert!(sum(&shown, ";waits_in_pipe;") > 500, "{shown:?}");
    assert!(shown.iter().any(|(stack, _)| stack.contains(";computes")), "{shown:?}");
    assert_eq!(sum(&report(&[]), ""), 0);
    // Functions and waits together are all of the time in the table, too.
    let table = unwind(&["report", "--off-cpu", "--no-inlined", "--top", "100000", data]);
    let table = text(&table.stdout);
    let own = |line: &str| line.split_once(" %")?.0.trim().parse::<f64>().ok();
    let waits: Vec<f64> =
        table.lines().filter(|line| line.ends_with("  [off CPU]")).filter_map(own).collect();
    let all: f64 = table.lines().skip(1).filter_map(own).sum();
    assert!(matches!(waits[..], [share] if share > 50.0) && all > 95.0, "{all} {table}");
    let Some(perf) = tool("perf") else { return };
    let script = Command::new(perf).args(["script", "-F", "event,period", "-i", data]).output();
    let script = text(&script.unwrap().stdout);
    let lines = script.lines().filter(|line| line.contains("offcpu-time"));
    let periods = lines.filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    assert_eq!(periods.sum::<u64>(), nanoseconds);
}

#[test]
fn d14_each_of_many_processes_is_in_the_ledger() {
    let Some(program) = many("record_forks") else { return };
    let data = program.with_file_name("perf.data");
    // Each runs for some milliseconds: also where the kernel allows few samples a second.
    let command = [program.to_str().unwrap(), "forks", "300", "8000000"];
    let Some(ledger) = record(&data, &["-F", "20000"], &command) else { return };
    assert!(number(&ledger, "complete") > 100, "{ledger}");
    assert_eq!(ledger["lost_by_kernel"], ledger["lost"], "{ledger}");
    let output = unwind(&["script", "-F", "pid", data.to_str().unwrap()]);
    let processes: std::collections::BTreeSet<String> =
        text(&output.stdout).lines().map(str::to_owned).collect();
    assert!(processes.len() > 100, "{}", processes.len());
}

#[test]
fn d14_a_recording_in_parts_has_each_sample_once_and_each_part_is_read_alone() {
    let Some(program) = nested("record_parts") else { return };
    let folder = program.parent().unwrap();
    let data = folder.join("perf.data");
    // A file of an earlier recording, for which there is no room.
    let old = folder.join("perf.data.20200101T000000.000Z");
    fs::write(&old, vec![0; 2 << 20]).unwrap();
    // The program is not the process that was started, and is there before most parts.
    let shell = format!("{} 2.4 >&2; true", program.display());
    let data = data.to_str().unwrap();
    let options = ["record", "-o", data, "--json", "--every", "1", "--disk", "1", "--"];
    let output = unwind(&[&options[..], &["sh", "-c", &shell]].concat());
    let told = text(&output.stderr);
    if told.contains("lets no sampling event be opened") {
        skip(&told);
        return;
    }
    assert!(output.status.success(), "{told}");
    let ledgers: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut files: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().to_str().unwrap().to_owned())
        .filter(|path| path.starts_with(&format!("{data}.")))
        .collect();
    files.sort();
    assert!(!old.exists() && files.iter().all(|file| !file.ends_with(".part")), "{files:?}");
    assert!(ledgers.len() >= 3 && files.len() == ledgers.len(), "{files:?} {ledgers:?}");
    let mut all = 0;
    for (file, ledger) in files.iter().zip(&ledgers) {
        let (written, complete) = (number(ledger, "written"), number(ledger, "complete"));
        all += written;
        let output = unwind(&["report", "--format", "folded", file]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let stacks = text(&output.stdout);
        let counts = stacks.lines().map(|line| line.rsplit_once(' ').unwrap().1);
        let sum: u64 = counts.map(|count| count.parse::<u64>().unwrap()).sum();
        assert_eq!(sum, written + number(ledger, "lost"), "{file}");
        if written > 100 {
            assert!(complete * 10 > written * 9, "{file} {ledger}");
            assert!(stacks.contains(";main;nested;nested;"), "{stacks}");
        }
    }
    assert!(all > 1_500, "{all}");
    // However little room there is, the last one stays, also by a name without a folder.
    let mut command = support::unwind(["record", "-o", "last.data", "--every", "1", "--disk", "0"]);
    let output = command.args(["--", "true"]).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let is_last = |name: std::ffi::OsString| name.to_string_lossy().starts_with("last.data.");
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(entries.filter(|name| is_last(name.clone())).count(), 1);
}

#[test]
fn d14_stacks_that_are_kept_are_walked_again_to_the_same_end() {
    let Some(program) = nested("record_kept") else { return };
    let data = program.with_file_name("perf.data");
    let command = [program.to_str().unwrap(), "0.3"];
    let Some(ledger) = record(&data, &["--keep-stacks"], &command) else { return };
    let output = unwind(&["script", "--json", data.to_str().unwrap()]);
    let lines = text(&output.stdout);
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let walks: Vec<Value> = lines.filter(|line| line["type"] == "sample").collect();
    let complete = walks.iter().filter(|line| line["walk"]["complete"] == true).count();
    assert_eq!(u64::try_from(complete).unwrap(), number(&ledger, "complete"));
    assert_eq!(u64::try_from(walks.len()).unwrap(), number(&ledger, "written"));
}

#[test]
fn d14_what_cannot_be_recorded_is_said_with_its_exit_code() {
    let folder = support::scratch("record_errors");
    let data = folder.join("perf.data");
    let data = data.to_str().unwrap();
    let code = |arguments: &[&str]| unwind(arguments).status.code();
    assert_eq!(code(&["record", "-o", data, "--pid", "4194303"]), Some(3));
    assert_eq!(code(&["record", "-o", data]), Some(2));
    assert_eq!(code(&["record", "-o", data, "--ring-kib", "5", "--", "true"]), Some(2));
    let output = unwind(&["record", "-o", data, "--", "/no/such\u{1b}[31m"]);
    let told = text(&output.stderr);
    if !told.contains("lets no sampling event be opened") {
        assert_eq!(output.status.code(), Some(3), "{told}");
        assert!(told.contains("/no/such\\x1b[31m"), "{told}");
    }
    assert_eq!(code(&["record", "-o", "/no/such/file", "--", "true"]), Some(3));
}

#[test]
fn d14_a_command_that_fails_is_told_and_its_recording_is_whole() {
    let data = support::scratch("record_failure").join("perf.data");
    let data = data.to_str().unwrap();
    for (command, told) in [("exit 7", "sh: exit status: 7"), ("kill -9 $$", "sh: signal: 9")] {
        let output = unwind(&["record", "-o", data, "--", "sh", "-c", command]);
        let text = text(&output.stderr);
        if text.contains("lets no sampling event be opened") {
            return skip(&text);
        }
        assert!(output.status.success() && text.contains(told), "{text}");
        assert!(unwind(&["report", data]).status.success());
    }
    let output = unwind(&["record", "-o", data, "--", "true"]);
    assert!(!text(&output.stderr).contains("exit status"));
}

#[test]
fn d14_a_recording_that_cannot_be_written_any_more_ends() {
    let data = support::scratch("record_full").join("perf.data");
    // It would run for a minute or more, ends with the recorder, and does not keep its pipes.
    let busy =
        "exec >&- 2>&-; i=0; while kill -0 $PPID && [ $i -lt 20000000 ]; do i=$((i + 1)); done";
    let full = "trap '' XFSZ; ulimit -f 512; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", full, "sh", env!("CARGO_BIN_EXE_unwind"), "record", "--engine", "perf"]);
    command.arg("--keep-stacks").arg("-o").arg(&data).args(["--", "sh", "-c", busy]);
    let begun = Instant::now();
    let output = command.output().unwrap();
    let text = text(&output.stderr);
    if text.contains("lets no sampling event be opened") {
        return skip(&text);
    }
    assert!(!output.status.success() && text.contains("File too large"), "{text}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[test]
fn d14_each_field_of_the_ledger_is_documented() {
    let data = support::scratch("record_json").join("perf.data");
    let Some(ledger) = record(&data, &["--off-cpu"], &["sh", "-c", "sleep 0.1"]) else { return };
    let help = text(&unwind(&["record", "--help"]).stdout);
    let (_, documented) = help.split_once("The ledger has each sample in one class").unwrap();
    let words: Vec<&str> =
        documented.split(|other: char| !(other.is_ascii_alphanumeric() || other == '_')).collect();
    let objects = [&ledger, &ledger["throttled"], &ledger["cpu_time"], &ledger["off_cpu"]];
    let fields = objects.into_iter().filter_map(Value::as_object).flat_map(|object| object.keys());
    let undocumented: Vec<&String> =
        fields.filter(|field| !words.contains(&field.as_str())).collect();
    assert!(undocumented.is_empty(), "{undocumented:?}");
    assert!(ledger["off_cpu"].is_object());
}

#[test]
fn d14_a_command_that_cannot_be_started_leaves_an_earlier_recording() {
    let data = support::scratch("record_twice").join("perf.data");
    let again = ["sh", "-c", "for i in $(seq 20000); do :; done"];
    let Some(_) = record(&data, &[], &again) else { return };
    let before = fs::read(&data).unwrap();
    let missing = unwind(&["record", "-o", data.to_str().unwrap(), "--", "/no/such"]);
    assert_eq!(missing.status.code(), Some(3));
    assert!(fs::read(&data).unwrap() == before);
    // A longer one is gone when the next one begins.
    let longer = [before.as_slice(), &[1; 1 << 20]].concat();
    fs::write(&data, &longer).unwrap();
    record(&data, &[], &["true"]).unwrap();
    assert!(fs::metadata(&data).unwrap().len() < 1 << 20);
    assert!(unwind(&["report", data.to_str().unwrap()]).status.success());
}

#[test]
fn d14_a_kernel_that_does_not_walk_stacks_later_is_told_as_such() {
    let data = support::scratch("record_deferred").join("perf.data");
    let arguments = ["record", "--deferred", "--json", "-o", data.to_str().unwrap(), "--", "true"];
    let output = unwind(&arguments);
    let told = text(&output.stderr);
    if output.status.success() {
        // It does: what comes of it is tested in a guest.
        return check_sums(&ledger_of(&arguments, output).unwrap());
    }
    if told.contains("lets no sampling event be opened") {
        return skip(&told);
    }
    assert!(told.contains("from 6.19 on") && told.contains("without --deferred"), "{told}");
    // What waits to become the command says nothing of its own.
    let is_message = told.starts_with("unwind: this kernel does not") && told.lines().count() == 1;
    assert!(is_message, "{told}");
    assert_eq!(output.status.code(), Some(1), "{told}");
    let both = unwind(&["record", "--deferred", "--keep-stacks", "--", "true"]);
    assert_eq!(both.status.code(), Some(2), "{}", text(&both.stderr));
}
