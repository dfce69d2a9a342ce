//! `unwind stack` of processes that do not hold still, or that lie: an answer
//! or an error in one line, soon, and a process that goes on.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::std_instead_of_core,
    clippy::unwrap_used,
    reason = "tests"
)]

mod support;

use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use support::*;

/// Far longer than a stack takes, also on a machine that is busy.
const SOON: Duration = Duration::from_secs(20);

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
    for round in 0..30_u32 {
        // From at once to some time after the command has started.
        let microseconds = (round * round * 20).to_string();
        let target = Target::start_command(Command::new(&program).args(["ends", &microseconds]));
        match look(target.id(), &[]) {
            Ok(_) => reports += 1,
            Err(_) => errors += 1,
        }
    }
    println!("{reports} reports, {errors} errors");
    assert_eq!(reports + errors, 30);
}

#[test]
fn a_process_that_executes_itself_forks_starts_threads_or_unmaps_code_goes_on() {
    for what in ["execs", "forks", "unmaps", "threads"] {
        let Some(target) = chaos(what, FRAME_POINTERS, &[what, "first", "of", "all"]) else {
            return;
        };
        let (mut reports, mut errors) = (0, Vec::new());
        for _ in 0..25 {
            match look(target.id(), &[]) {
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
