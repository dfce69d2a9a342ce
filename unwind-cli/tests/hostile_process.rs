//! `unwind stack` of processes that do not hold still, or that lie: an answer
//! or an error in one line, soon, and a process that continues.
#![cfg(test)]

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use serde_json::Value;
use support::*;

/// Far longer than a stack takes, also on a machine that is busy.
const SOON: Duration = Duration::from_secs(120);

/// Runs the command; a report, or the line that it failed with.
fn look(id: u32, arguments: &[&str]) -> Result<Value, String> {
    let id = id.to_string();
    let child = unwind(["stack", "--json", "--pid", &id].iter().chain(arguments))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let command = child.id().to_string();
    let (done, output) = mpsc::channel();
    thread::spawn(move || done.send(child.wait_with_output()));
    let output = output.recv_timeout(SOON).unwrap_or_else(|_| {
        Command::new("kill").args(["-KILL", &command]).status().unwrap();
        panic!("it takes more than {SOON:?}");
    });
    let output = output.unwrap();
    match output.status.code() {
        Some(0) => Ok(serde_json::from_slice(&output.stdout).expect("is JSON")),
        Some(code) => {
            let text = stderr(&output);
            assert!(code != 101, "a panic: {text}");
            assert!(text.starts_with("unwind: ") && text.lines().count() == 1, "{text}");
            Err(text)
        }
        None => panic!("{:?}: {}", output.status, stderr(&output)),
    }
}

fn chaos(test: &str, flags: &[&str], arguments: &[&str]) -> Option<Target> {
    let program = compile(test, "chaos.c", flags)?;
    Some(Target::start_command(Command::new(program).args(arguments)))
}

#[test]
fn a_process_that_ends_while_it_is_read_is_a_report_or_an_error() {
    let Some(program) = compile("ends", "chaos.c", FRAME_POINTERS) else { return };
    let (mut reports, mut errors) = (0, 0);
    for round in 0..60_u32 {
        // From at once to some time after the command has started.
        let microseconds = (round * round * 5).to_string();
        let target = Target::start_command(Command::new(&program).args(["ends", &microseconds]));
        let how: &[&str] = if round % 2 == 0 { &[] } else { &["--no-stop"] };
        match look(target.id(), how) {
            Ok(_) => reports += 1,
            Err(_) => errors += 1,
        }
    }
    println!("{reports} reports, {errors} errors");
    assert_eq!(reports + errors, 60);
}

#[test]
fn a_process_that_executes_itself_forks_starts_threads_or_unmaps_code_continues() {
    for what in ["execs", "forks", "unmaps", "threads"] {
        let Some(target) = chaos(what, FRAME_POINTERS, &[what, "first", "of", "all"]) else {
            return;
        };
        let (mut reports, mut errors) = (0, Vec::new());
        for round in 0..50 {
            let how: &[&str] = if round % 2 == 0 { &[] } else { &["--no-stop"] };
            match look(target.id(), how) {
                Ok(report) => {
                    reports += 1;
                    assert!(!threads(&report).is_empty(), "{report:#}");
                }
                Err(text) => errors.push(text),
            }
        }
        println!("{what}: {reports} reports, {errors:?}");
        assert!(reports > 0, "{what}: {errors:?}");
        assert_eq!(target.status("TracerPid"), "0");
        assert_eq!(target.finish(), Some(0), "{what}");
    }
}

/// The kernel lets a tracer wait for an exec, and the exec for the tracer to see
/// the ends of other threads. The thread that gets the process's id may be
/// traced already, under the id that it had before.
#[test]
fn an_exec_by_another_thread_is_waited_for_and_is_no_refusal() {
    let Some(target) = chaos("thread-execs", FRAME_POINTERS, &["thread-execs", "first", "of"])
    else {
        return;
    };
    for _ in 0..50 {
        let report = look(target.id(), &[]).expect("the process is there");
        assert!(!threads(&report).is_empty(), "{report:#}");
    }
    assert_eq!(target.status("TracerPid"), "0");
    assert_eq!(target.finish(), Some(0));
}

/// A stack and a table that another process in the same memory writes to while
/// they are read.
#[test]
fn a_stack_that_is_rewritten_meanwhile_has_an_end_and_no_more_frames_than_asked_for() {
    for flags in [FRAME_POINTERS, SFRAME] {
        let Some(target) = chaos("rewritten", flags, &["is-rewritten"]) else { continue };
        for round in 0..30 {
            let method = ["auto", "fp", "sframe"][round % 3];
            let report = look(target.id(), &["--method", method, "--max-frames", "100"])
                .expect("the process is there");
            for thread in threads(&report) {
                let frames = thread["frames"].as_array().unwrap();
                assert!((1..=100).contains(&frames.len()), "{} frames", frames.len());
                assert!(thread["end"]["reason"].is_string(), "{thread:#}");
            }
        }
        assert_eq!(target.status("TracerPid"), "0");
        assert_eq!(target.finish(), Some(0));
    }
}

/// Starts `hostile.c` with these arguments.
fn hostile(program: &Path, arguments: &[&str]) -> Target {
    Target::start_command(Command::new(program).args(arguments))
}

/// What a mapping names is opened without waiting, and read if it is a regular
/// file.
#[test]
fn c2_what_has_taken_the_place_of_a_mapped_file_is_never_waited_for() {
    let Some(program) = compile("c2_replaced", "hostile.c", FRAME_POINTERS) else { return };
    for what in ["fifo", "terminal", "directory"] {
        let mapped = program.with_file_name(format!("mapped_{what}"));
        fs::copy(&program, &mapped).unwrap();
        let target = hostile(&program, &["replaces", mapped.to_str().unwrap(), what]);
        let report = look(target.id(), &[]).expect("the process is there");
        assert!(!threads(&report).is_empty(), "{report:#}");
        assert_eq!(target.status("TracerPid"), "0");
        assert_eq!(target.finish(), Some(0));
    }
}

/// Runs until the process is held, and stands then.
fn stands_while_it_holds(target: &Target, delay: Duration) -> Option<Child> {
    let id = target.id().to_string();
    let mut child = unwind(["stack", "--live", "--pid", &id])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let command = Pid::from_raw(child.id().try_into().unwrap());
    wait_until("it holds the process", || {
        target.status("TracerPid") != "0" || child.try_wait().unwrap().is_some()
    });
    sleep(delay);
    kill(command, Signal::SIGSTOP).ok()?;
    wait_until("it stands", || status_of(child.id(), "State").starts_with(['T', 'Z']));
    if target.status("TracerPid") != "0" {
        return Some(child);
    }
    // It was too quick.
    kill(command, Signal::SIGCONT).unwrap();
    child.wait().unwrap();
    None
}

#[test]
fn c11_a_process_that_is_killed_while_it_is_held_has_ended_which_is_exit_code_6() {
    let Some(program) = compile("c11_killed", "twenty_threads.c", FRAME_POINTERS) else { return };
    let mut tries = 0;
    for round in 0..200 {
        let target = Target::start_unchecked(&program);
        // From the first thread's stop to the walks.
        let delay = Duration::from_millis(3 * (round % 10));
        let Some(child) = stands_while_it_holds(&target, delay) else { continue };
        let (command, process) = (child.id(), target.id());
        kill(Pid::from_raw(process.try_into().unwrap()), Signal::SIGKILL).unwrap();
        kill(Pid::from_raw(command.try_into().unwrap()), Signal::SIGCONT).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = stderr(&output);
        if output.status.code() == Some(0) {
            // It had its stacks, and was letting go of the threads.
            continue;
        }
        assert_eq!(output.status.code(), Some(6), "{text}");
        assert_eq!(text, format!("unwind: process {process} has ended\n"));
        tries += 1;
        if tries == 20 {
            return;
        }
    }
    panic!("it was held {tries} times only");
}

/// A page that only the process itself can bring in, which is held.
#[test]
fn c2_a_page_that_only_the_process_can_bring_in_is_not_waited_for() {
    let Some(program) = compile("c2_page", "hostile.c", FRAME_POINTERS) else { return };
    let target = hostile(&program, &["page-never-comes"]);
    target.wait_for_state("S");
    let report = look(target.id(), &["--method", "fp"]).expect("the process is there");
    assert_eq!(threads(&report).len(), 1, "{report:#}");
    assert_eq!(target.status("TracerPid"), "0");
    assert_eq!(target.finish(), Some(0));
}

/// Each hold finds where the next part of such a stack is, and there are few holds. So a
/// stack of a few parts is whole, and one of many ends where no more was copied.
#[test]
fn a_stack_of_many_parts_ends_where_it_was_not_copied_and_is_whole_in_place() {
    let Some(program) = compile("places", "hostile.c", FRAME_POINTERS) else { return };
    for (parts, reason) in [("3", "frame-pointer-zero"), ("30", "not-captured")] {
        let target = hostile(&program, &["places", parts]);
        target.wait_for_state("S");
        let frames = |arguments: &[&str]| {
            let report = look(target.id(), arguments).expect("the process is there");
            let thread = &report["threads"][0];
            let end = thread["end"].clone();
            assert_eq!(end["complete"], false, "{end}");
            (thread["frames"].as_array().unwrap().len(), end)
        };
        let (in_place, end) = frames(&["--method", "fp", "--live"]);
        assert_eq!(end["reason"], "frame-pointer-zero", "{end}");
        let (copied, end) = frames(&["--method", "fp"]);
        assert_eq!(end["reason"], reason, "{end}");
        let is_whole = reason != "not-captured";
        assert_eq!(copied == in_place, is_whole, "{copied} of {in_place}");
        assert_eq!(end["text"].as_str().unwrap().contains("--live"), !is_whole, "{end}");
        assert_eq!(target.status("TracerPid"), "0");
        assert_eq!(target.finish(), Some(0));
    }
}

#[test]
fn c2_a_process_whose_stacks_take_too_long_is_let_go_after_the_stated_time() {
    let Some(program) = compile("c2_chain", "hostile.c", FRAME_POINTERS) else { return };
    // 256 MiB of frames.
    let target = hostile(&program, &["chain", "16777216"]);
    target.wait_for_state("S");
    let id = target.id().to_string();
    let started = Instant::now();
    let arguments =
        ["stack", "--live", "--method", "fp", "--max-frames", "4000000000", "--hold-limit", "1"];
    let text = fails(arguments.into_iter().chain(["--pid", &id]), 1);
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    let said = format!("process {id} was let go after 1 s");
    assert!(text.contains(&said), "{text}");
    assert_eq!(target.status("TracerPid"), "0");
    assert_eq!(target.finish(), Some(0));
}

/// A command that was started is not left alone when the time is over: with `--kill` it is
/// ended, and without it is waited for.
#[test]
fn c2_a_started_command_that_was_held_too_long_is_ended_or_waited_for() {
    let Some(program) = compile("c2_started", "hostile.c", FRAME_POINTERS) else { return };
    let looks = ["--live", "--method", "fp", "--max-frames", "4000000000", "--hold-limit", "1"];
    // The stack is short until the program has its chain, for which it needs longer on a busy machine.
    let begun = Instant::now();
    drop(hostile(&program, &["chain", "16777216"]));
    let after = Duration::from_secs(2) + 10 * begun.elapsed();
    let after = after.as_millis().to_string();
    for kill in [true, false] {
        let mut command = unwind(["stack", "--after", &after].iter().chain(&looks));
        if kill {
            command.arg("--kill");
        }
        command.args(["--", program.to_str().unwrap(), "chain", "16777216"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        while !said.contains("was let go after 1 s") {
            said.clear();
            assert_ne!(errors.read_line(&mut said).unwrap(), 0, "it has not said so");
        }
        let id = said.split(' ').nth(2).unwrap();
        let started = Path::new("/proc").join(id);
        if !kill {
            sleep(Duration::from_millis(300));
            assert!(child.try_wait().unwrap().is_none(), "it waits for the command");
            assert!(started.exists());
        }
        // The command ends when its input does.
        drop(child.stdin.take());
        assert_eq!(child.wait().unwrap().code(), Some(1));
        assert!(!started.exists(), "with --kill: {kill}");
    }
}
