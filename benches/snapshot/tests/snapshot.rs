//! The tool `snapshot`: what it captures, and what it says when it cannot.

#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use std::fs;
use std::io::{BufRead as _, BufReader, Cursor, Read as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use linux_perf_data::linux_perf_event_reader::constants::{PERF_REG_X86_IP, PERF_REG_X86_SP};
use linux_perf_data::linux_perf_event_reader::{EventRecord, Mmap2FileId};
use linux_perf_data::{PerfFileReader, PerfFileRecord};
use nix::sys::stat::Mode;
use test_support::Compiler;
use unwind_snapshot::Recording;

/// Far longer than a capture takes, also on a machine that is busy.
const SOON: Duration = Duration::from_secs(120);

/// A program that is busy until it is ended.
const BUSY: [&str; 3] = ["sh", "-c", "echo ready; while :; do :; done"];

fn scratch(test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn tool(output: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_snapshot"));
    command.arg("--output").arg(output).args(options);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn snapshot(output: &Path, options: &[&str], command: &[&str]) -> Output {
    within(SOON, tool(output, options).arg("--").args(command))
}

/// Runs a command that has to end in time.
fn within(limit: Duration, command: &mut Command) -> Output {
    let mut child = command.spawn().unwrap();
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > limit {
            child.kill().unwrap();
            panic!("{command:?} has not ended in {limit:?}");
        }
        sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A program that runs and has said that it is ready; killed at the end.
struct Target(Child);

impl Target {
    fn start(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut target = Self(child);
        let mut line = String::new();
        BufReader::new(target.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        target
    }

    fn id(&self) -> String {
        self.0.id().to_string()
    }

    fn status(&self, name: &str) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":"));
        line.unwrap().trim().to_owned()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_command_is_stopped_and_its_stacks_copied_to_their_ends() {
    let path = scratch("snapshot-whole").join("stacks.snap");
    let output = snapshot(&path, &["--count", "5", "--kill", "--rate", "500", "--whole"], &BUSY);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("5 snapshots"));

    let bytes = fs::read(&path).unwrap();
    let recording = Recording::parse(&bytes).unwrap();
    assert_eq!(recording.snapshots.len(), 5);
    assert!(recording.snapshots.is_sorted_by_key(|snapshot| snapshot.time));
    for snapshot in &recording.snapshots {
        assert_eq!((snapshot.stack_start, snapshot.is_whole), (snapshot.rsp(), true));
        assert!(snapshot.stack.len() >= 64, "{} bytes of stack", snapshot.stack.len());
        // The code that it stood in was mapped from a file that is named.
        let space = recording.space_of(snapshot).unwrap();
        let mut mappings = space.mappings.iter();
        let mapping = mappings.find(|mapping| mapping.range.contains(&snapshot.rip)).unwrap();
        let image = recording.images[usize::try_from(mapping.image).unwrap()];
        assert!(image.path.starts_with(b"/") && !image.build_id.is_empty(), "{image:?}");
    }
}

/// Looks at five samples of a busy program, in a file that another reader reads.
fn check_perf_data(path: &Path) {
    let bytes = fs::read(path).unwrap();
    let [printed, _, merged] =
        unwind_cli::read_perf_data(&bytes).expect("`unwind script` reads it");
    assert!(printed > 0 && merged > 0);
    let PerfFileReader { mut perf_file, mut record_iter } =
        PerfFileReader::parse_file(Cursor::new(bytes)).unwrap();
    let mut mapped: Vec<Range<u64>> = Vec::new();
    let mut times = Vec::new();
    while let Some(record) = record_iter.next_record(&mut perf_file).unwrap() {
        let PerfFileRecord::EventRecord { record, .. } = record else { continue };
        match record.parse().unwrap() {
            EventRecord::Mmap2(map) => {
                let Mmap2FileId::BuildId(id) = map.file_id else { continue };
                assert!(!id.is_empty());
                mapped.push(map.address..map.address + map.length);
            }
            EventRecord::Sample(sample) => {
                let registers = sample.user_regs.unwrap();
                let (_, len) = sample.user_stack.unwrap();
                assert!((64..=4096).contains(&len), "{len} bytes of stack");
                assert!(registers.get(PERF_REG_X86_SP).is_some());
                // The code that it stood in was mapped from a file with a build id.
                let rip = registers.get(PERF_REG_X86_IP).unwrap();
                assert!(mapped.iter().any(|range| range.contains(&rip)), "{rip:#x}");
                times.push(sample.timestamp.unwrap());
            }
            _ => {}
        }
    }
    assert_eq!(times.len(), 5);
    assert!(times.is_sorted());
}

const FIVE: [&str; 6] = ["--count", "5", "--rate", "4999", "--stack", "4096"];

#[test]
fn d6_samples_of_a_command_are_a_perf_data_with_registers_and_stacks() {
    let path = scratch("snapshot-sampled").join("perf.data");
    let output = snapshot(&path, &[&FIVE[..], &["--kill"]].concat(), &BUSY);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("5 snapshots"));
    check_perf_data(&path);
}

#[test]
fn d6_samples_of_a_process_are_a_perf_data_with_registers_and_stacks() {
    let path = scratch("snapshot-process").join("perf.data");
    let target = Target::start(Command::new(BUSY[0]).args(&BUSY[1..]));
    let output = within(SOON, tool(&path, &FIVE).args(["--pid", &target.id()]));
    assert!(output.status.success(), "{}", text(&output));
    check_perf_data(&path);
}

#[test]
fn snapshots_between_two_that_are_kept_are_left_out() {
    let path = scratch("snapshot-skip").join("perf.data");
    let options = [&FIVE[..], &["--kill", "--skip", "3"]].concat();
    let output = snapshot(&path, &options, &BUSY);
    assert!(text(&output).contains("5 snapshots"), "{}", text(&output));
    check_perf_data(&path);
}

#[test]
fn a_program_that_does_nothing_leaves_no_snapshot_and_says_so() {
    let path = scratch("snapshot-none").join("stacks.snap");
    let output = snapshot(&path, &["--whole", "--rate", "1"], &["true"]);
    assert_eq!(output.status.code(), Some(6));
    assert!(text(&output).contains("before a snapshot was taken"));
}

#[test]
fn what_cannot_be_started_or_written_is_named() {
    let path = scratch("snapshot-errors").join("stacks.snap");
    for options in [&[][..], &["--whole"]] {
        let output = snapshot(&path, options, &["/nonexistent"]);
        assert_eq!(output.status.code(), Some(3));
        assert!(text(&output).contains("/nonexistent"));
        let output = snapshot(&path.join("below-a-file"), options, &["true"]);
        assert!(matches!(output.status.code(), Some(1 | 3)));
        assert!(text(&output).contains("below-a-file"));
    }
}

#[test]
fn c9_names_are_shown_escaped() {
    let path = scratch("snapshot-escaped").join("stacks.snap");
    let output = snapshot(&path, &[], &["/none\x1b[31m"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output).contains("/none\\u{1b}[31m"), "{}", text(&output));
}

#[test]
fn d9_a_process_that_does_not_run_is_said_to_be_none() {
    let path = scratch("snapshot-no-process").join("stacks.snap");
    for options in [&[][..], &["--whole"]] {
        let output = within(SOON, tool(&path, options).args(["--pid", "4194305"]));
        assert_eq!(output.status.code(), Some(3), "{}", text(&output));
        assert!(text(&output).contains("there is no process 4194305"), "{}", text(&output));
    }
}

#[test]
fn c2_a_process_whose_snapshots_cannot_be_written_is_let_go_after_the_stated_time() {
    let directory = scratch("c2_snapshot_pipe");
    let pipe = directory.join("stacks.snap");
    nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    // A process has the pipe open, and never reads.
    let _reader = fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    let target = Target::start(Command::new(BUSY[0]).args(&BUSY[1..]));
    let options = ["--whole", "--hold-limit", "1", "--rate", "50000", "--count", "100000"];
    let output = within(SOON, tool(&pipe, &options).args(["--pid", &target.id()]));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = format!("process {} was let go after 1 s", target.id());
    assert!(text(&output).contains(&said), "{}", text(&output));
    assert_eq!(text(&output).lines().count(), 1, "{}", text(&output));
    assert_eq!(target.status("TracerPid"), "0");
    let started = Instant::now();
    while !target.status("State").starts_with('R') {
        assert!(started.elapsed() < SOON, "{}", target.status("State"));
    }
}

#[test]
fn c2_a_snapshot_does_not_wait_for_what_has_taken_the_place_of_a_mapped_file() {
    let flags = ["-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread"];
    let Some(compiler) = Compiler::find(&flags) else { return };
    let program = scratch("c2_snapshot").join("program");
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../unwind-cli/tests/programs/hostile.c");
    compiler.compile(&source, &program, &[]);
    for options in [&["--whole", "--count", "1"][..], &["--rate", "997"]] {
        let mapped = program.with_file_name("mapped");
        let _ = fs::remove_file(&mapped);
        fs::copy(&program, &mapped).unwrap();
        let arguments = ["replaces", mapped.to_str().unwrap(), "fifo"];
        let mut target = Target::start(Command::new(&program).args(arguments));
        let path = program.with_file_name("stacks.snap");
        let mut child = tool(&path, options).args(["--pid", &target.id()]).spawn().unwrap();
        // The kernel samples until the process ends.
        sleep(Duration::from_millis(500));
        let started = Instant::now();
        while target.status("TracerPid") != "0" {
            assert!(started.elapsed() < SOON, "{options:?}: it is held");
        }
        drop(target.0.stdin.take());
        assert_eq!(target.0.wait().unwrap().code(), Some(0), "{options:?}");
        let started = Instant::now();
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(started.elapsed() < SOON, "{options:?}"),
            }
            sleep(Duration::from_millis(5));
        };
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        match status.code() {
            Some(0) => assert!(fs::metadata(&path).unwrap().len() > 0),
            Some(6) => assert!(said.contains("ended, or slept, before a snapshot was taken")),
            code => panic!("{options:?}: {code:?} {said}"),
        }
    }
}
