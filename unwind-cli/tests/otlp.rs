//! `unwind record --otlp`: what a receiver gets, by the official protobufs.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod support;

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver as Receives, channel};

use serde_json::Value;
use test_support::{skip, tool};

/// A receiver that is ended with the test.
struct Receiver {
    child: Child,
    /// What it prints, read at once: it does not answer while its pipe is full.
    lines: Receives<String>,
    url: String,
}

impl Receiver {
    /// A receiver that answers with a status and refuses `rejected` profiles. `None` where there are
    /// no protobufs of OpenTelemetry for Python.
    fn start(status: u16, rejected: u8) -> Option<Self> {
        let python: PathBuf = match std::env::var_os("UNWIND_PYTHON") {
            Some(python) => python.into(),
            None => tool("python3")?,
        };
        let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/otlp_server.py");
        let mut command = Command::new(python);
        command.arg(server).args([status.to_string(), rejected.to_string()]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (put, lines) = channel();
        let mut receiver = Self { child, lines, url: String::new() };
        let output = BufReader::new(receiver.child.stdout.take().unwrap());
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| put.send(line))
        });
        let Ok(port) = receiver.lines.recv() else {
            skip("no protobufs of OpenTelemetry for Python");
            return None;
        };
        receiver.url = format!("http://127.0.0.1:{port}");
        Some(receiver)
    }

    /// What it has received next.
    fn next(&self) -> Value {
        serde_json::from_str(&self.lines.recv().unwrap()).unwrap()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Records a program for a receiver. `None` where the kernel allows no samples.
fn record(test: &str, url: &str, options: &[&str]) -> Option<(Output, PathBuf)> {
    let flags = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
    let program = support::compile(test, "nested.c", &flags)?;
    let data = program.with_file_name("perf.data");
    let mut command = support::unwind(["record", "--json", "--otlp", url, "-o"]);
    command.arg(&data).args(options).arg("--").arg("sh").arg("-c");
    let output = command.arg(format!("{} 0.5 >&2", program.display())).output().unwrap();
    if stderr(&output).contains("lets no sampling event be opened") {
        skip(&stderr(&output));
        return None;
    }
    Some((output, data))
}

#[test]
fn d15_a_receiver_of_opentelemetry_gets_each_sample_once_with_its_stack_and_the_ledger() {
    let Some(receiver) = Receiver::start(200, 0) else { return };
    let Some((output, data)) = record("otlp", &receiver.url, &[]) else { return };
    assert!(output.status.success(), "{}", stderr(&output));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let got = receiver.next();
    assert_eq!(got["path"], "/v1development/profiles");
    assert_eq!(got["type"], "samples");
    let samples = got["samples"].as_array().unwrap();
    let sum: u64 = samples.iter().map(|sample| sample["count"].as_u64().unwrap()).sum();
    assert_eq!(sum, told["written"].as_u64().unwrap() + told["lost"].as_u64().unwrap());
    assert_eq!(got["ledger"]["unwind.ledger.complete"], told["complete"]);
    let most = samples.iter().max_by_key(|sample| sample["count"].as_u64()).unwrap();
    let names: Vec<&str> =
        most["stack"].as_array().unwrap().iter().map(|frame| frame[0].as_str().unwrap()).collect();
    assert!(names.starts_with(&["innermost", "nested", "nested"]), "{names:?}");
    assert!(names.contains(&"main") && names.contains(&"_start"), "{names:?}");
    let innermost = &most["stack"][0];
    assert!(innermost[1].as_str().unwrap().ends_with("/program"), "{innermost}");
    assert_eq!(innermost[2]["profile.frame.type"], "native");
    assert_eq!(innermost[2]["unwind.found"], "sampled");
    assert_eq!(most["stack"][1][2]["unwind.found"], "cfi");
    assert_eq!(most["thread"]["thread.name"], "program");
    assert!(!got["host"]["host.name"].as_str().unwrap().is_empty());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let age = now.as_nanos().abs_diff(got["time"].as_u64().unwrap().into());
    assert!(age < 600_000_000_000, "{got}");
    // The same is written as a file.
    let output = support::run(["report", "--format", "otlp", data.to_str().unwrap()]);
    assert!(memchr::memmem::find(&output.stdout, b"innermost").is_some());
}

#[test]
fn d15_each_part_of_a_recording_is_sent() {
    let Some(receiver) = Receiver::start(200, 0) else { return };
    let options = ["--every", "1", "--duration", "2"];
    let url = format!("{}/v1development/profiles", receiver.url);
    let Some((output, _)) = record("otlp_parts", &url, &options) else { return };
    assert!(output.status.success(), "{}", stderr(&output));
    let parts = String::from_utf8_lossy(&output.stdout).lines().count();
    let ids: std::collections::BTreeSet<String> =
        (0..parts).map(|_| receiver.next()["id"].to_string()).collect();
    assert_eq!(ids.len(), parts);
}

#[test]
fn d15_a_receiver_that_takes_its_time_holds_up_no_part() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (go, wait) = channel::<()>();
    let receiver = std::thread::spawn(move || {
        // The request stays without an answer until then.
        let (first, _) = listener.accept().unwrap();
        let is_asked = wait.recv().is_ok();
        drop(first);
        is_asked
    });
    let flags = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
    let Some(program) = support::compile("otlp_slow", "nested.c", &flags) else { return };
    let data = program.with_file_name("perf.data");
    let mut command = support::unwind(["record", "--json", "--every", "1", "--duration", "20"]);
    command.args(["--otlp", &url, "-o"]).arg(&data).args(["--", "sh", "-c"]);
    command.arg(format!("exec {} 20 >&2", program.display()));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut recorder = command.spawn().unwrap();
    let mut lines = BufReader::new(recorder.stdout.take().unwrap()).lines().map_while(Result::ok);
    let parts = lines.by_ref().take(2).count();
    if parts == 0 {
        let told = stderr(&recorder.wait_with_output().unwrap());
        assert!(told.contains("lets no sampling event be opened"), "{told}");
        return skip(&told);
    }
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(recorder.id().try_into().unwrap()),
        nix::sys::signal::Signal::SIGINT,
    )
    .unwrap();
    assert_eq!(parts, 2);
    go.send(()).unwrap();
    assert!(receiver.join().unwrap());
    let more = lines.count();
    let output = recorder.wait_with_output().unwrap();
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    // None was received, which is told. A part without samples has nothing to send.
    let unsent = told.matches(" is not sent: ").count();
    assert!((parts..=parts + more).contains(&unsent), "{told}");
    assert_eq!(told.matches(" is not sent: timeout").count(), 0, "{told}");
}

#[test]
fn d15_what_a_receiver_does_not_take_is_told_and_the_file_is_there() {
    for (status, rejected, why) in [(503, 0, "status 503"), (200, 1, "no \\x1b[31mroom")] {
        let Some(receiver) = Receiver::start(status, rejected) else { return };
        let Some((output, data)) = record("otlp_refused", &receiver.url, &[]) else { return };
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(why), "{told}");
        support::run(["report", data.to_str().unwrap()]);
    }
    for url in ["https://localhost:4318", "localhost", "file:///etc/passwd"] {
        let output = support::unwind(["record", "--otlp", url, "--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    }
}
