//! `unwind snapshot`: what it captures, and what it says when it cannot.

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

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::thread::{self, sleep};
use std::time::Duration;

use nix::sys::stat::Mode;
use unwind_snapshot::Recording;

use crate::support::resources::Run;
use crate::support::{FRAME_POINTERS, Target, compile, scratch};

/// A program that is busy until it is ended.
const BUSY: [&str; 3] = ["sh", "-c", "while :; do :; done"];

fn snapshot(output: &Path, options: &[&str], command: &[&str]) -> Output {
    let mut unwind = Command::new(env!("CARGO_BIN_EXE_unwind"));
    unwind.args(["snapshot", "--output"]).arg(output).args(options).arg("--").args(command);
    unwind.output().unwrap()
}

/// Captures five stacks of a busy program and looks at what must be right.
fn capture(test: &str, options: &[&str], whole: bool) {
    let path = scratch(test).join("stacks.snap");
    let options = [&["--count", "5", "--kill"], options].concat();
    let output = snapshot(&path, &options, &BUSY);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stderr).contains("5 snapshots"));

    let bytes = std::fs::read(&path).unwrap();
    let recording = Recording::parse(&bytes).unwrap();
    assert_eq!(recording.snapshots.len(), 5);
    assert!(recording.snapshots.is_sorted_by_key(|snapshot| snapshot.time));
    for snapshot in &recording.snapshots {
        assert_eq!((snapshot.stack_start, snapshot.is_whole), (snapshot.rsp(), whole));
        assert!(snapshot.stack.len() >= 64, "{} bytes of stack", snapshot.stack.len());
        // The code that it stood in was mapped from a file that is named.
        let space = recording.space_of(snapshot).unwrap();
        let mut mappings = space.mappings.iter();
        let mapping = mappings.find(|mapping| mapping.range.contains(&snapshot.rip)).unwrap();
        let image = recording.images[usize::try_from(mapping.image).unwrap()];
        assert!(image.path.starts_with(b"/") && !image.build_id.is_empty(), "{image:?}");
    }
}

#[test]
fn the_kernel_samples_a_command_from_its_first_instruction_on() {
    capture("snapshot-sampled", &["--rate", "4999", "--stack", "4096"], false);
}

#[test]
fn a_command_is_stopped_and_its_stacks_copied_to_their_ends() {
    capture("snapshot-whole", &["--rate", "500", "--whole"], true);
}

#[test]
fn a_program_that_does_nothing_leaves_no_snapshot_and_says_so() {
    let path = scratch("snapshot-none").join("stacks.snap");
    let output = snapshot(&path, &["--whole", "--rate", "1"], &["true"]);
    assert_eq!(output.status.code(), Some(6));
    assert!(String::from_utf8_lossy(&output.stderr).contains("before a snapshot was taken"));
}

#[test]
fn what_cannot_be_started_or_written_is_named() {
    let path = scratch("snapshot-errors").join("stacks.snap");
    let output = snapshot(&path, &[], &["/nonexistent"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent"));
    let output = snapshot(&path.join("below-a-file"), &[], &["true"]);
    assert!(matches!(output.status.code(), Some(1 | 3)));
    assert!(String::from_utf8_lossy(&output.stderr).contains("below-a-file"));
}

/// Far longer than a snapshot takes, also on a machine that is busy.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn c2_a_process_whose_snapshots_cannot_be_written_is_let_go_after_the_stated_time() {
    let directory = scratch("c2_snapshot_pipe");
    let pipe = directory.join("stacks.snap");
    nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    // Somebody has the pipe open, and never reads.
    let _reader = fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "echo ready; while :; do :; done"]);
    let target = Target::start_command(&mut command);
    let id = target.id().to_string();
    let output = pipe.to_str().unwrap();
    let options = ["--whole", "--hold-limit", "1", "--rate", "50000", "--count", "100000"];
    let arguments = ["snapshot", "--output", output, "--pid", &id];
    let cost = Run::new(arguments.into_iter().chain(options), 0).measure_within(SOON);
    assert_eq!(cost.status.code(), Some(1), "{cost:?}");
    let said = format!("unwind: process {id} was let go after 1 s");
    assert!(cost.stderr.starts_with(&said), "{}", cost.stderr);
    assert_eq!(cost.stderr.lines().count(), 1, "{}", cost.stderr);
    assert_eq!(target.status("TracerPid"), "0");
    target.wait_for_state("R");
}

#[test]
fn c2_a_snapshot_does_not_wait_for_what_has_taken_the_place_of_a_mapped_file() {
    let Some(program) = compile("c2_snapshot", "hostile.c", FRAME_POINTERS) else { return };
    for options in [&["--whole", "--count", "1"][..], &["--rate", "997"]] {
        let mapped = program.with_file_name("mapped");
        let _ = fs::remove_file(&mapped);
        fs::copy(&program, &mapped).unwrap();
        let arguments = ["replaces", mapped.to_str().unwrap(), "fifo"];
        let target = Target::start_command(Command::new(&program).args(arguments));
        let path = program.with_file_name("stacks.snap");
        let id = target.id().to_string();
        let snapshot = ["snapshot", "--output", path.to_str().unwrap(), "--pid", &id];
        // The kernel samples until the process ends.
        let ending = thread::spawn(move || {
            sleep(Duration::from_millis(500));
            let tracer = target.status("TracerPid");
            (tracer, target.finish())
        });
        let cost = Run::new(snapshot.iter().chain(options), 0).measure_within(SOON);
        assert_eq!(ending.join().unwrap(), ("0".into(), Some(0)), "{options:?}");
        let said = "the program ended, or slept, before a snapshot was taken";
        match cost.status.code() {
            Some(0) => assert!(fs::metadata(&path).unwrap().len() > 0),
            Some(6) => assert!(cost.stderr.contains(said), "{}", cost.stderr),
            _ => panic!("{options:?}: {cost:?}"),
        }
    }
}
