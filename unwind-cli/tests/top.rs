//! `unwind top`: what its screens show of a program, and what its ledger says.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod support;

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use test_support::{skip, tool};

/// A program none of whose functions keeps a frame pointer.
fn nested(test: &str) -> Option<PathBuf> {
    let flags = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
    support::compile(test, "nested.c", &flags)
}

fn running(test: &str, seconds: &str) -> Option<support::Target> {
    Some(support::Target::start_command(Command::new(nested(test)?).arg(seconds)))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What it prints, and the ledger that it ends with; `None` where the kernel allows no samples.
fn screens(output: &Output) -> Option<(Vec<String>, String)> {
    let told = text(&output.stderr);
    if told.contains("lets no sampling event be opened") {
        skip(&told);
        return None;
    }
    assert!(output.status.success(), "{told}");
    let out = text(&output.stdout);
    let screens = out.split_terminator("\n\n").map(str::to_owned).collect();
    Some((screens, told))
}

/// The shares of a function, `self` and `total`.
fn shares(screen: &str, function: &str) -> (f64, f64) {
    let is_it =
        |line: &&str| line.split("  ").last().is_some_and(|name| name.starts_with(function));
    let line = screen.lines().find(is_it).unwrap_or_else(|| panic!("{function}: {screen}"));
    let numbers: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    (numbers[0], numbers[1])
}

/// The sums of the ledger, made here once more. Returns how many samples it has, and how many
/// of them are complete.
fn sums(told: &str) -> (u64, u64) {
    let mut lines = told.lines().skip_while(|line| !line.ends_with(" samples:"));
    let first = |line: &str| line.split_whitespace().next().and_then(|word| word.parse().ok());
    let all = first(lines.next().unwrap_or_else(|| panic!("{told}"))).unwrap();
    let classes: Vec<&str> = lines.take_while(|line| line.contains(" % ")).collect();
    assert_eq!(classes.iter().map(|line| first(line).unwrap()).sum::<u64>(), all, "{told}");
    let complete = classes.iter().find(|line| line.ends_with("% complete"));
    (all, complete.and_then(|line| first(line)).unwrap_or(0))
}

#[test]
fn d14_screens_show_whole_stacks_of_a_program_without_frame_pointers() {
    let Some(target) = running("top_nested", "60") else { return };
    let process = target.id().to_string();
    let arguments = ["top", "--pid", &process, "--interval", "1", "--batch", "2"];
    let output = support::unwind(arguments).output().unwrap();
    let Some((screens, told)) = screens(&output) else { return };
    assert_eq!(screens.len(), 2, "{screens:?}");
    for screen in &screens {
        let head = screen.lines().next().unwrap();
        assert!(head.starts_with(&format!("unwind top: process {process}, ")), "{screen}");
        let (own, total) = shares(screen, "innermost ");
        assert!(own > 30.0 && total >= own, "{screen}");
        let innermost = total;
        let (own, total) = shares(screen, "nested ");
        assert!(own < 20.0 && total >= innermost, "{screen}");
        let (own, total) = shares(screen, "main ");
        assert!(own < 10.0 && total > 90.0, "{screen}");
        let foot = screen.lines().last().unwrap();
        assert!(foot.contains(" samples: ") && foot.contains(" % complete"), "{screen}");
        let thread = format!("program (thread {process})");
        assert!(
            screen.lines().any(|line| line.ends_with(&format!("100.0 %  {thread}"))),
            "{screen}"
        );
    }
    // On a busy machine it gets a part of the two seconds.
    let (all, complete) = sums(&told);
    assert!(all > 20 && complete * 100 > all * 95, "{told}");
}

#[test]
fn d14_a_view_ends_with_its_process_and_has_each_sample_in_its_ledger() {
    let Some(target) = running("top_ends", "0.5") else { return };
    let process = target.id().to_string();
    let arguments = ["top", "--pid", &process, "--threads", "-F", "1999"];
    let output = target.sampled_by(&mut support::unwind(arguments));
    let Some((screens, told)) = screens(&output) else { return };
    drop(target);
    let last = screens.last().unwrap();
    assert!(last.contains("   share  1 thread\n"), "{last}");
    let (all, _) = sums(&told);
    assert!(all > 100, "{told}");
    // At its end nothing waits: the foot is about all of them.
    assert!(last.lines().last().unwrap().starts_with(&format!("{all} samples: ")), "{last} {told}");
}

#[test]
fn d14_a_signal_ends_a_view_with_its_ledger() {
    let Some(target) = running("top_signal", "60") else { return };
    let process = target.id().to_string();
    let mut command = support::unwind(["top", "--pid", &process, "--interval", "1"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut shown = String::new();
    reader.read_line(&mut shown).unwrap();
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
    let start = Instant::now();
    reader.read_to_string(&mut shown).unwrap();
    let output = Output { stdout: shown.into_bytes(), ..child.wait_with_output().unwrap() };
    let Some((screens, told)) = screens(&output) else { return };
    assert!(start.elapsed() < Duration::from_secs(60));
    assert!(!screens.is_empty() && sums(&told).0 > 0, "{screens:?} {told}");
}

#[test]
fn d14_a_terminal_is_given_back_by_a_key_and_by_a_signal() {
    let Some(target) = running("top_terminal", "60") else { return };
    let Some(script) = tool("script") else { return };
    let top = format!("{} top --pid {} --interval 1", env!("CARGO_BIN_EXE_unwind"), target.id());
    // `script` gives it a terminal, of which `stty` then tells the state.
    let inside = format!("stty rows 24 cols 80; sh -c 'echo \"pid $$.\"; exec {top}'; stty -a");
    for has_keys in [true, false] {
        let mut command = Command::new(&script);
        command.args(["-qec", &inside, "/dev/null"]).env("TERM", "xterm");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut keys, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut shown = String::new();
        read_until(&mut output, &mut shown, "innermost");
        if has_keys {
            for key in [b"t", b"p", b"q"] {
                keys.write_all(key).unwrap();
                sleep(Duration::from_millis(500));
            }
        } else {
            let id = shown.split_once("pid ").and_then(|(_, rest)| rest.split_once('.'));
            let id = id.unwrap_or_else(|| panic!("{shown}")).0.parse().unwrap();
            // If it has ended by itself it has said why.
            let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
        }
        let mut rest = Vec::new();
        output.read_to_end(&mut rest).unwrap();
        child.wait().unwrap();
        shown += &text(&rest);
        if shown.contains("lets no sampling event be opened") {
            return skip(&shown);
        }
        let (before, after) =
            shown.rsplit_once("\u{1b}[?1049l").unwrap_or_else(|| panic!("{shown}"));
        assert!(before.contains("\u{1b}[?1049h") && before.contains("innermost"), "{shown}");
        assert!(after.contains(" icanon") && after.contains(" echo "), "{after}");
        assert!(after.contains(" samples:"), "{after}");
    }
}

/// Reads until a text has come, or the end.
fn read_until(output: &mut impl Read, shown: &mut String, awaited: &str) {
    let mut buffer = [0; 4096];
    while !shown.contains(awaited) {
        let len = output.read(&mut buffer).unwrap();
        if len == 0 {
            return;
        }
        *shown += &text(&buffer[..len]);
    }
}

#[test]
fn d14_what_cannot_be_looked_at_is_said_with_its_exit_code() {
    let code = |arguments: &[&str]| support::unwind(arguments).output().unwrap().status.code();
    assert_eq!(code(&["top", "--pid", "4194303"]), Some(3));
    assert_eq!(code(&["top"]), Some(2));
    assert_eq!(code(&["top", "--all", "--pid", "1"]), Some(2));
    assert_eq!(code(&["top", "--all", "--batch", "0"]), Some(2));
}

#[test]
fn stacks_that_are_walked_in_the_kernel_are_shown() {
    let Some(target) = running("top_in_kernel", "60") else { return };
    let process = target.id().to_string();
    let arguments =
        ["top", "--engine", "bpf", "--pid", &process, "--interval", "3", "--batch", "1"];
    let output = support::unwind(arguments).output().unwrap();
    let told = text(&output.stderr);
    if told.contains("stacks cannot be walked in the kernel") {
        return skip(&told);
    }
    let Some((screens, told)) = screens(&output) else { return };
    let (own, total) = shares(&screens[0], "innermost ");
    assert!(own > 30.0 && total >= own, "{screens:?}");
    let (_, total) = shares(&screens[0], "main ");
    assert!(total > 90.0, "{screens:?}");
    let (all, complete) = sums(&told);
    assert!(all > 20 && complete * 100 > all * 95, "{told}");
    assert!(told.contains("stacks walked at once: "), "{told}");
}

#[test]
fn n3_samples_of_the_event_that_is_asked_for_are_shown() {
    let Some(target) = running("top_event", "60") else { return };
    let process = target.id().to_string();
    let arguments = ["top", "--pid", &process, "--interval", "2", "--batch", "1", "-e"];
    let top = |event: &str| support::unwind(arguments).arg(event).output().unwrap();
    let samples = |event: &str| {
        let (shown, _) = screens(&top(event))?;
        let head = shown[0].lines().next().unwrap().to_owned();
        assert!(head.starts_with(&format!("unwind top: process {process}, {event}, ")), "{head}");
        let count = head.rsplit(", ").next().unwrap().split(' ').next().unwrap();
        Some(count.parse::<u64>().unwrap())
    };
    // It has all of its memory, and computes.
    let (Some(faults), Some(ticks)) = (samples("page-faults"), samples("task-clock")) else {
        return;
    };
    assert!(faults * 2 < ticks, "{faults} {ticks}");
    for (event, reason) in
        [("task-clock,page-faults", "one event"), ("no-event", "there is no event")]
    {
        let output = top(event);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(reason), "{}", text(&output.stderr));
    }
}
