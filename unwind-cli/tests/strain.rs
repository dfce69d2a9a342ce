//! `unwind record` where it is hard to keep the books: very many processes and threads, a kernel
//! that stops taking samples, programs that are killed. The kernel counts, too.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use support::{Target, compile, stderr, unwind, wait_until};
use test_support::skip;

/// They would take the CPUs from each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

fn program(test: &str, source: &str) -> Option<PathBuf> {
    compile(test, source, &["-O1", "-fomit-frame-pointer", "-pthread"])
}

fn record(data: &Path, options: &[&str], command: &[&str]) -> Option<Value> {
    let data = data.to_str().unwrap();
    let command = if command.is_empty() { vec![] } else { [&["--"], command].concat() };
    let arguments = [&["record", "--json", "-o", data], options, &command].concat();
    ledger_of(unwind(&arguments).output().unwrap())
}

fn ledger_of(output: Output) -> Option<Value> {
    let told = stderr(&output);
    if told.contains("lets no sampling event be opened") {
        skip(&told);
        return None;
    }
    // It would be 10 if a sum did not come out.
    assert!(output.status.success(), "{told}");
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = out.lines().find(|line| line.starts_with('{')).unwrap();
    let ledger: Value = serde_json::from_str(line).unwrap();
    assert!(number(&ledger, "lost_told") <= number(&ledger, "lost"), "{ledger}");
    Some(ledger)
}

fn number(ledger: &Value, name: &str) -> u64 {
    ledger[name].as_u64().unwrap_or_else(|| panic!("{name} in {ledger}"))
}

/// Starts to record; its output is what comes of it once it has ended.
fn start_recording(data: &Path, arguments: &[&str]) -> Child {
    let mut command = unwind(["record", "--json", "-o", data.to_str().unwrap()]);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until a recorder has written what its events told it first, or has ended.
fn wait_for_events(data: &Path, recorder: &mut Child) {
    // More than a header. What comes first is compressed, and the next of it can be seconds later.
    let has_events = || fs::metadata(data).is_ok_and(|file| file.len() > 1_024);
    wait_until("events", || has_events() || recorder.try_wait().unwrap().is_some());
}

/// CPU time in milliseconds by the kernel's count, if it counts that.
fn cpu_ms(ledger: &Value) -> Option<u64> {
    Some(ledger.get("cpu_time")?["nanoseconds"].as_u64().unwrap() / 1_000_000)
}

/// Whether all samples that there should be of the CPU time are somewhere in the ledger.
fn check_all_are_there(ledger: &Value, rate: u64) {
    let Some(ms) = cpu_ms(ledger) else { return };
    let missing = number(&ledger["cpu_time"], "samples_missing_estimated");
    let throttled = number(&ledger["throttled"], "samples_estimated");
    let all = number(ledger, "written") + number(ledger, "lost") + throttled + missing;
    let expected = ms * rate / 1000;
    // What is missing is rounded down.
    let expected = expected.saturating_sub(1);
    assert!((expected..expected + expected / 20 + 100).contains(&all), "{expected} {ledger}");
}

#[test]
fn d14_ten_thousand_short_processes_are_in_the_ledger_with_their_time() {
    let _alone = alone();
    let Some(many) = program("strain_forks", "many.c") else { return };
    let data = many.with_file_name("perf.data");
    let command = [many.to_str().unwrap(), "forks", "10000"];
    let Some(ledger) = record(&data, &["-F", "199"], &command) else { return };
    check_all_are_there(&ledger, 199);
    let Some(ms) = cpu_ms(&ledger) else { return skip("there is a PMU, whose cycles are sampled") };
    // Each lives for less than the time between two samples, also on a slow machine.
    let missing = number(&ledger["cpu_time"], "samples_missing_estimated");
    assert!(ms > 200 && missing * 2 > ms * 199 / 1000, "{ledger}");
}

#[test]
fn d14_five_thousand_threads_are_in_the_ledger_with_their_time() {
    let _alone = alone();
    let Some(many) = program("strain_threads", "many.c") else { return };
    let data = many.with_file_name("perf.data");
    let command = [many.to_str().unwrap(), "threads", "5000"];
    let Some(ledger) = record(&data, &["-F", "499"], &command) else { return };
    check_all_are_there(&ledger, 499);
    // Where the machine is busy most of them run for less than the time between two samples.
    assert!(number(&ledger, "written") > 20, "{ledger}");
}

#[test]
fn d14_the_time_of_a_program_that_is_killed_is_what_the_kernel_says_that_it_was() {
    let _alone = alone();
    let Some(nested) = program("strain_killed", "nested.c") else { return };
    let data = nested.with_file_name("perf.data");
    let mut command = std::process::Command::new(&nested);
    let target = Target::start_command(command.arg("20"));
    let id = target.id();
    // Nanoseconds on a CPU.
    let time = || -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{id}/schedstat")).ok()?;
        Some(text.split_whitespace().next()?.parse::<u64>().ok()? / 1_000_000)
    };
    let mut recorder = start_recording(&data, &["--pid", &id.to_string()]);
    wait_for_events(&data, &mut recorder);
    let before = time();
    wait_until("half a second of its time", || {
        before.is_none() || time() > before.map(|ms| ms + 500)
    });
    let after = time();
    kill(Pid::from_raw(id.try_into().unwrap()), Signal::SIGKILL).unwrap();
    target.wait_for_state("Z");
    let all = time();
    let ledger = ledger_of(recorder.wait_with_output().unwrap());
    let times = (ledger, before, after, all);
    let (Some(ledger), Some(before), Some(after), Some(all)) = times else { return };
    check_all_are_there(&ledger, 999);
    let Some(ms) = cpu_ms(&ledger) else { return };
    // All that it had after the first samples, and no more than it ever had: the clocks of the event and
    // of the thread differ by a percent on a busy machine.
    let (least, most) = ((after - before) * 95 / 100, all + all / 50 + 1);
    assert!((least..=most).contains(&ms), "{before} {after} {all} {ledger}");
    let written = number(&ledger, "written");
    assert!(written > 50 && number(&ledger, "complete") * 10 > written * 9, "{ledger}");
}

/// How many samples a second the kernel allows; what was allowed before is again at the end.
struct AllowedRate(String);

const ALLOWED_RATE: &str = "/proc/sys/kernel/perf_event_max_sample_rate";

impl AllowedRate {
    fn set(rate: &str) -> Option<Self> {
        let before = fs::read_to_string(ALLOWED_RATE).ok()?;
        fs::write(ALLOWED_RATE, rate).ok()?;
        Some(Self(before))
    }
}

impl Drop for AllowedRate {
    fn drop(&mut self) {
        let _ = fs::write(ALLOWED_RATE, &self.0);
    }
}

/// For how many milliseconds the command of a recorder has waited for a CPU that others had.
fn waited_ms(recorder: u32) -> Option<u64> {
    let mut tasks = fs::read_dir(format!("/proc/{recorder}/task")).ok()?.flatten();
    let command = tasks.find_map(|task| {
        let children = fs::read_to_string(task.path().join("children")).ok()?;
        children.split_whitespace().next().map(str::to_owned)
    })?;
    let times = fs::read_to_string(format!("/proc/{command}/schedstat")).ok()?;
    Some(times.split_whitespace().nth(1)?.parse::<u64>().ok()? / 1_000_000)
}

#[test]
fn d14_samples_that_the_kernel_does_not_take_for_a_time_are_told_apart() {
    let _alone = alone();
    let Some(many) = program("strain_throttled", "many.c") else { return };
    let data = many.with_file_name("perf.data");
    // It runs until its own clock says that it had two seconds.
    let command = ["-F", "19999", "--", many.to_str().unwrap(), "deep", "200"];
    let mut recorder = start_recording(&data, &command);
    // Events at a rate that is not allowed any more could not be opened.
    wait_for_events(&data, &mut recorder);
    let allowed = AllowedRate::set("4000");
    sleep(Duration::from_millis(1000));
    let waited = waited_ms(recorder.id());
    sleep(Duration::from_millis(500));
    let is_throttled = allowed.is_some();
    drop(allowed);
    let Some(ledger) = ledger_of(recorder.wait_with_output().unwrap()) else { return };
    if !is_throttled {
        return skip("only root changes how many samples the kernel allows");
    }
    check_all_are_there(&ledger, 19_999);
    let throttled = &ledger["throttled"];
    assert!(number(throttled, "spans") > 0, "{ledger}");
    if let Some(ms) = cpu_ms(&ledger) {
        // Its clock also counts what the process has run before it executed the program.
        assert!((1900..2300).contains(&ms), "{ledger}");
    }
    // What is stopped while a thread does not run is no loss: where the machine has other work, that
    // may be all.
    if number(throttled, "spans") > 100 && waited.is_some_and(|ms| ms < 100) {
        assert!(number(throttled, "samples_estimated") > 0, "{ledger}");
    }
}

#[test]
fn d14_a_program_whose_file_is_removed_or_replaced_is_walked_by_the_file_that_it_executes() {
    let _alone = alone();
    let Some(nested) = program("strain_replaced", "nested.c") else { return };
    let data = nested.with_file_name("perf.data");
    for is_replaced in [false, true] {
        let copy = nested.with_file_name("copy");
        fs::copy(&nested, &copy).unwrap();
        let target = Target::start_command(std::process::Command::new(&copy).arg("60"));
        fs::remove_file(&copy).unwrap();
        if is_replaced {
            fs::copy("/bin/true", &copy).unwrap();
        }
        let (id, wait) = (target.id().to_string(), target.wait_for_cpu(500));
        let wait: Vec<&str> = wait.iter().map(String::as_str).collect();
        let ledger = record(&data, &["--pid", &id], &wait);
        let Some(ledger) = ledger else { return };
        let (written, complete) = (number(&ledger, "written"), number(&ledger, "complete"));
        assert!(written > 20 && complete * 10 > written * 9, "{is_replaced} {ledger}");
    }
}
