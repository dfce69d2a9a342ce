//! A command that is started ends, and treats signals, as it would by itself.

use std::os::unix::process::CommandExt as _;
use std::process::Child;
use std::time::Instant;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::*;

/// The signals from 1 on that a process has blocked, ignores, and handles, a bit each, as it sees it.
fn signals_by(program: &str, arguments: &[&str]) -> Vec<u64> {
    let mut command = Command::new("env");
    command.args(["--default-signal", "--block-signal=USR2", "--ignore-signal=PIPE,USR1", program]);
    let output = run(command, &[arguments, &["grep", "^Sig[BIC]", "/proc/self/status"]].concat());
    // `unwind stack` has standard output for its own.
    let text = [text(&output.stdout), text(&output.stderr)].concat();
    // Those above 31 are the C library's own for its threads, or unused.
    let mask = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    let masks = text.lines().filter(|line| line.starts_with("Sig")).filter_map(mask);
    masks.map(|mask| mask & 0x7fff_ffff).collect()
}

#[test]
fn n7_a_command_has_the_signals_of_its_caller() {
    let directory = support::scratch("n7_signals");
    let data = directory.join("profile.data");
    let by_itself = signals_by("env", &[]);
    // Blocked: USR2, 12. Ignored: USR1, 10, and PIPE, 13.
    assert!(matches!(by_itself[..], [0x800, 0x1200, _]), "{by_itself:x?}");
    let unwind = env!("CARGO_BIN_EXE_unwind");
    let recorded = signals_by(unwind, &["record", "-o", data.to_str().unwrap(), "--"]);
    if recorded.is_empty() {
        skip("no recording is allowed here");
    } else {
        assert_eq!(recorded, by_itself);
    }
    assert_eq!(signals_by(unwind, &["stack", "--after", "1", "--"]), by_itself);
}

#[test]
fn n7_what_ends_a_command_ends_it_while_it_is_recorded() {
    let data = support::scratch("n7_timeout").join("profile.data");
    let started = Instant::now();
    let command = ["timeout", "1", "sleep", "90"];
    if record(&data, &[], &command).is_some() {
        assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
    }
}

/// Starts a recording of a shell that would run for long, in a group of processes of its own, and
/// waits until it runs.
fn start_long(test: &str, at_end: &str) -> Option<(Child, PathBuf)> {
    let directory = support::scratch(test);
    let (data, runs) = (directory.join("profile.data"), directory.join("runs"));
    let script = format!(
        "trap ': > {0}.ended; {at_end}' TERM INT; : > {0}; while :; do :; done",
        runs.display()
    );
    // Who runs this test in the background may have its SIGINT ignored, and a shell sets no trap then.
    let mut child = Command::new("env")
        .args(["--default-signal=INT,TERM", env!("CARGO_BIN_EXE_unwind")])
        .args(["record", "-o", data.to_str().unwrap(), "--", "sh", "-c", &script])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    while !runs.exists() {
        if child.try_wait().unwrap().is_some() {
            skip("no recording is allowed here");
            return None;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    // It has samples of its loop then.
    std::thread::sleep(std::time::Duration::from_millis(300));
    Some((child, data))
}

/// What the recorder told, after the command has ended by its own trap and the file is whole.
fn check_end(child: Child, data: &Path) {
    let output = child.wait_with_output().unwrap();
    let told = text(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("sh: exit status: 3"), "{told}");
    assert!(data.with_file_name("runs.ended").exists());
    let report = unwind(&["report", data.to_str().unwrap()]);
    assert!(report.status.success(), "{}", text(&report.stderr));
    assert!(text(&report.stdout).contains('%'), "{}", text(&report.stdout));
}

#[test]
fn n7_ctrl_c_ends_the_command_and_the_recording_is_whole() {
    let Some((child, data)) = start_long("n7_ctrl_c", "exit 3") else { return };
    let group = Pid::from_raw(i32::try_from(child.id()).unwrap());
    killpg(group, Signal::SIGINT).unwrap();
    check_end(child, &data);
}

#[test]
fn n7_a_signal_to_the_recorder_alone_is_passed_on_to_the_command() {
    let Some((child, data)) = start_long("n7_term", "sleep 1; exit 3") else { return };
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGTERM).unwrap();
    check_end(child, &data);
}

#[test]
fn n7_a_command_that_continues_after_a_signal_is_recorded_until_the_next() {
    let Some((child, data)) = start_long("n7_continues", "trap - TERM") else { return };
    let recorder = Pid::from_raw(i32::try_from(child.id()).unwrap());
    kill(recorder, Signal::SIGTERM).unwrap();
    support::wait_until("the signal", || data.with_file_name("runs.ended").exists());
    let before = fs::metadata(&data).unwrap().len();
    support::wait_until("more samples", || fs::metadata(&data).unwrap().len() > before);
    kill(recorder, Signal::SIGTERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = unwind(&["report", data.to_str().unwrap()]);
    assert!(report.status.success(), "{}", text(&report.stderr));
}

#[test]
fn s1_a_refused_recording_leaves_one_message_and_no_command() {
    let directory = support::scratch("s1_refused");
    let (data, made) = (directory.join("no/such/profile.data"), directory.join("made"));
    for _ in 0..20 {
        let arguments =
            ["record", "-o", data.to_str().unwrap(), "--", "touch", made.to_str().unwrap()];
        let output = unwind(&arguments);
        let told = text(&output.stderr);
        if told.contains("lets no sampling event be opened") {
            skip(&told);
            return;
        }
        let refused =
            format!("unwind: {}: No such file or directory (os error 2)\n", data.display());
        assert_eq!((output.status.code(), told), (Some(3), refused));
        assert!(!made.exists());
    }
}
