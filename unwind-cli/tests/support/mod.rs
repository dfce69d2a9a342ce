//! What the tests of the command share: programs to look at, and the command.
#![allow(clippy::arithmetic_side_effects, reason = "tests")]
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    reason = "each test file uses a part"
)]

pub mod resources;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use test_support::Compiler;

/// Every function keeps a frame pointer, and calls at its end stay calls.
pub const FRAME_POINTERS: &[&str] =
    &["-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread"];
/// Likewise, as a 32-bit program at a fixed address.
pub const FRAME_POINTERS_32: &[&str] =
    &["-m32", "-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-no-pie"];
/// No function keeps a frame pointer; the tables are in `.sframe`.
pub const SFRAME: &[&str] =
    &["-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-Wa,--gsframe", "-pthread"];

/// Every function keeps a frame pointer, and there are tables.
pub const SFRAME_AND_FRAME_POINTERS: &[&str] =
    &["-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-Wa,--gsframe"];

/// A directory of one test's own.
pub fn scratch(test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// A directory that every user may read.
pub fn public_directory(test: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("unwind-{test}-{}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A file of the shared fixtures.
pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/sframe").join(path)
}

/// A recording of the shared fixtures.
pub fn perf_fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/perf").join(name)
}

/// The C library that this very test runs with.
pub fn c_library() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.ends_with("/libc.so.6")).unwrap();
    line.split_whitespace().last().unwrap().into()
}

/// Programs and libraries to make tables of: those that are always there, and
/// what `UNWIND_PROGRAMS` names, separated by `:`.
pub fn programs() -> Vec<PathBuf> {
    let own = PathBuf::from(env!("CARGO_BIN_EXE_unwind"));
    let fixtures = ["v1", "v2", "v3"].into_iter().flat_map(|version| {
        ["drap", "recur"].map(|name| fixture(&format!("{version}/x86_64/{name}.O2-omit.exe")))
    });
    let named = std::env::var_os("UNWIND_PROGRAMS").unwrap_or_default();
    let named = std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty());
    [own, c_library()].into_iter().chain(fixtures).chain(named).collect()
}

/// Compiles one of the programs into a test's directory; `None` without a
/// compiler for it.
pub fn compile(test: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let compiler = Compiler::find(flags)?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let program = scratch(test).join("program");
    compiler.compile(&source, &program, &[]);
    Some(program)
}

/// Copies a program that is to be executed, by a process of its own: a child of another test, until it
/// executes its own program, would have the copy open for writing, too.
pub fn copy_program(from: impl AsRef<Path>, to: &Path) {
    assert!(Command::new("cp").arg(from.as_ref()).arg(to).status().unwrap().success());
}

/// A running program that is killed when the test ends.
pub struct Target {
    child: Child,
    pub input: Option<ChildStdin>,
    pub output: BufReader<ChildStdout>,
}

impl Target {
    /// Starts a program and waits until it says that it is ready and sleeps.
    pub fn start(program: &Path, arguments: &[&str]) -> Self {
        let target = Self::start_command(Command::new(program).args(arguments));
        target.wait_for_state("S");
        target
    }

    /// Starts a program and waits until it says that it is ready.
    pub fn start_unchecked(program: &Path) -> Self {
        Self::start_command(&mut Command::new(program))
    }

    pub fn start_command(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // A child of another test may still have the program open that was written a
        // moment ago: until it executes its own.
        let mut child = None;
        wait_until("the program is no longer written to", || match command.spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => false,
            started => {
                child = Some(started.expect("starts"));
                true
            }
        });
        let mut child = child.unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut target = Self { child, input, output };
        assert_eq!(target.read_line(), "ready\n");
        target
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    /// Sends a byte to a program that sends it back.
    pub fn echoes(&mut self, byte: u8) -> bool {
        let mut back = [0];
        self.input.as_mut().unwrap().write_all(&[byte]).unwrap();
        self.output.read_exact(&mut back).is_ok() && back == [byte]
    }

    /// Ends its input and returns its exit code.
    pub fn finish(mut self) -> Option<i32> {
        drop(self.input.take());
        self.child.wait().unwrap().code()
    }

    /// A line of `/proc/PID/status`, without its name.
    pub fn status(&self, name: &str) -> String {
        status_of(self.id(), name)
    }

    /// Runs a command that samples this program, which stands still until the command has opened its
    /// events: however late it is, it has the rest of the program's time.
    pub fn sampled_by(&self, command: &mut Command) -> Output {
        let id = Pid::from_raw(self.id().try_into().unwrap());
        kill(id, Signal::SIGSTOP).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut sampler = command.spawn().unwrap();
        let process = sampler.id();
        wait_until("its events are open", || {
            has_events(process) || sampler.try_wait().unwrap().is_some()
        });
        kill(id, Signal::SIGCONT).unwrap();
        sampler.wait_with_output().unwrap()
    }

    /// A command that ends when the first thread has had as many more milliseconds of a CPU, or has
    /// ended.
    pub fn wait_for_cpu(&self, milliseconds: u32) -> Vec<String> {
        wait_for_cpu(self.id(), milliseconds)
    }

    /// Waits until the state of the first thread is one of these letters.
    pub fn wait_for_state(&self, letters: &str) {
        wait_until(&format!("state {letters}"), || {
            self.status("State").starts_with(|letter| letters.contains(letter))
        });
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn status_of(task: u32, name: &str) -> String {
    // Its name may be anything.
    let status = fs::read(format!("/proc/{task}/status")).unwrap();
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":"));
    line.unwrap().trim().to_owned()
}

/// A command that ends when a thread has had as many more milliseconds of a CPU, or has ended: on a busy
/// machine it gets less than the time by the clock.
pub fn wait_for_cpu(thread: u32, milliseconds: u32) -> Vec<String> {
    let script = "read ran rest < \"$0\"; end=$((ran + $1 * 1000000))
        while read ran rest < \"$0\" && [ \"$ran\" -lt \"$end\" ]; do sleep 0.02; done 2> /dev/null; true";
    let times = format!("/proc/{thread}/schedstat");
    ["sh", "-c", script, &times, &milliseconds.to_string()].map(str::to_owned).to_vec()
}

/// Whether a process has events of the kernel open, by which it samples others.
pub fn has_events(process: u32) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    let is_event = |path: PathBuf| path.to_string_lossy().contains("[perf_event]");
    files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(is_event))
}

pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(120), "waited in vain for {what}");
        sleep(Duration::from_millis(1));
    }
}

/// The command, not yet started.
pub fn unwind<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unwind"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs the command, which has to succeed.
pub fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    let output = unwind(arguments).output().unwrap();
    assert!(output.status.success(), "{:?}: {}", output.status, stderr(&output));
    output
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs the command, which has to fail with this code and one line.
pub fn fails<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>, code: i32) -> String {
    let output = unwind(arguments).output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("unwind: "), "{text}");
    text
}

/// The JSON of `unwind stack` with these arguments more, without files and lines: those take
/// longer than all else.
pub fn report(arguments: &[&str]) -> Value {
    let output = run(["stack", "--json", "--no-lines"].iter().chain(arguments));
    serde_json::from_slice(&output.stdout).expect("is JSON")
}

pub fn report_of(target: &Target, arguments: &[&str]) -> Value {
    let id = target.id().to_string();
    report(&[&["--pid", &id], arguments].concat())
}

/// The threads of a report.
pub fn threads(report: &Value) -> &[Value] {
    report["threads"].as_array().unwrap()
}

/// The names of a thread's functions, innermost first; `?` for none.
pub fn functions(thread: &Value) -> Vec<&str> {
    let frames = thread["frames"].as_array().unwrap().iter();
    frames.map(|frame| frame["function"].as_str().unwrap_or("?")).collect()
}

/// The first functions of the only thread up to `main`.
pub fn functions_to_main(report: &Value) -> Vec<&str> {
    let [thread] = threads(report) else { panic!("not one thread: {report:#}") };
    let mut names = functions(thread);
    let main = names.iter().position(|&name| name == "main");
    names.truncate(main.unwrap_or_else(|| panic!("no main: {thread:#}")) + 1);
    names
}
