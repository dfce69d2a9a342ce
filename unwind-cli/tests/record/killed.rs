//! A recorder that is killed loses the last second at most.

use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;

fn killed(pid: u32) {
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL).unwrap();
}

/// The milliseconds that a process has run.
fn cpu_time(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    text.split(' ').next().unwrap().parse::<u64>().unwrap() / 1_000_000
}

/// A process that never ends by itself.
fn busy() -> Child {
    let script = ["-c", "while :; do :; done"];
    Command::new("sh").args(script).stdin(Stdio::null()).spawn().unwrap()
}

/// A recorder of a process, which has its first samples.
fn recorder(data: &Path, options: &[&str], process: u32) -> Option<Child> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unwind"));
    command.args(["record", "-o", data.to_str().unwrap(), "--pid", &process.to_string()]);
    let mut child = command.args(options).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    // More than its header.
    while fs::metadata(data).is_ok_and(|file| file.len() < 4_096) || !data.exists() {
        if child.try_wait().unwrap().is_some() {
            skip("no recording is allowed here");
            return None;
        }
        assert!(begun.elapsed().as_secs() < 60, "nothing is written");
        sleep(Duration::from_millis(20));
    }
    Some(child)
}

/// The samples of a recording, by its ledger.
fn samples_of(data: &Path) -> (u64, String) {
    let output = unwind(&["report", data.to_str().unwrap()]);
    let (shown, told) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{told}");
    let line = shown.lines().find(|line| line.ends_with(" samples:")).unwrap();
    (line.split(' ').next().unwrap().parse().unwrap(), told)
}

#[test]
fn n1_what_is_older_than_a_second_is_read_when_the_recorder_was_killed() {
    let directory = support::scratch("n1_killed");
    for (name, options) in
        [("compressed", &[][..]), ("plain", &["-z", "0"]), ("stacks", &["--keep-stacks"])]
    {
        let data = directory.join(name);
        let mut busy = busy();
        let Some(mut recorder) = recorder(&data, options, busy.id()) else {
            busy.kill().unwrap();
            busy.wait().unwrap();
            return;
        };
        let start = cpu_time(busy.id());
        sleep(Duration::from_millis(800));
        let ran = cpu_time(busy.id()) - start;
        sleep(Duration::from_secs(1));
        killed(recorder.id());
        recorder.wait().unwrap();
        busy.kill().unwrap();
        busy.wait().unwrap();
        let (samples, told) = samples_of(&data);
        // 999 of a second of CPU time.
        assert!(samples >= ran * 9 / 10, "{name}: {samples} samples of {ran} ms");
        let is_told = told.contains("the recorder was ended before it could finish the file");
        assert!(is_told && told.contains(data.to_str().unwrap()), "{told}");
        let script = unwind(&["script", data.to_str().unwrap()]);
        assert!(script.status.success(), "{}", text(&script.stderr));
        let heads = text(&script.stdout);
        let heads = heads.lines().filter(|line| line.starts_with("sh ")).count();
        assert_eq!(u64::try_from(heads).unwrap(), samples, "{name}");
        let Some(perf) = tool("perf") else { continue };
        let output =
            run(Command::new(perf), &["script", "-F", "comm", "-i", data.to_str().unwrap()]);
        let by_perf = text(&output.stdout).lines().filter(|line| line.trim() == "sh").count();
        assert_eq!(u64::try_from(by_perf).unwrap(), samples, "{name}: {}", text(&output.stderr));
    }
}

#[test]
fn n1_a_file_that_is_finished_says_nothing_of_an_end_that_is_missing() {
    let data = support::scratch("n1_finished").join("profile.data");
    let Some(ledger) = record(&data, &[], &["timeout", "2", "sh", "-c", "while :; do :; done"])
    else {
        return;
    };
    let (samples, told) = samples_of(&data);
    assert_eq!(samples, number(&ledger, "written") + number(&ledger, "lost"));
    assert!(!told.contains("finish"), "{told}");
}
