//! `unwind guest` and `unwind record --guest` before a stock Linux kernel that QEMU emulates, with user code that keeps no frame pointers.
//!
//! `UNWIND_LINUX_KERNEL=$(.ci/debian-kernel) cargo test -p unwind-cli --test linux_guest`
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

#[path = "support/archive.rs"]
mod archive;
mod support;

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use test_support::tool;

use archive::Archive;

/// How often the guest is looked at in each way.
const SAMPLES: u32 = 30;

/// What the program calls, outermost first.
const CHAIN: [&str; 5] = ["_start", "main", "work", "outer", "mid"];

/// The files that a program is linked with.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

/// A guest that runs, until this is dropped.
struct Guest {
    qemu: Child,
    directory: PathBuf,
    kernel: PathBuf,
    program: PathBuf,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

impl Guest {
    /// Boots the kernel; `None` where there is none to boot.
    fn boot() -> Option<Self> {
        let Some(kernel) = env::var_os("UNWIND_LINUX_KERNEL") else {
            eprintln!("skipped: UNWIND_LINUX_KERNEL names no kernel: .ci/debian-kernel gets one");
            return None;
        };
        let qemu = tool("qemu-system-x86_64")?;
        // Where it is loaded is known for the files that are named.
        let flags =
            ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-no-pie", "-rdynamic"];
        let program = support::compile("linux_guest_load", "../linux_guest/load.c", &flags)?;
        let directory = support::scratch("linux_guest");
        let mut archive = Archive::default();
        archive.add_program("init", &program);
        for path in libraries(&program) {
            archive.add_file(&path);
        }
        fs::write(directory.join("initrd"), archive.finish()).unwrap();
        let file = |name: &str| directory.join(name).display().to_string();
        let mut command = Command::new(qemu);
        command.args(["-machine", "q35,memory-backend=ram", "-accel", "tcg", "-cpu", "max"]);
        let ram = format!("memory-backend-file,id=ram,size=256M,mem-path={},share=on", file("ram"));
        command.args(["-m", "256M", "-smp", "2", "-object", &ram]);
        command.args(["-display", "none", "-nodefaults", "-no-reboot"]);
        command.args(["-append", "console=ttyS0 panic=-1 no_timer_check pti=on"]);
        command.arg("-kernel").arg(&kernel).args(["-initrd", &file("initrd")]);
        command.args(["-serial", &format!("file:{}", file("console"))]);
        command.args(["-qmp", &format!("unix:{},server=on,wait=off", file("qmp"))]);
        command.args(["-gdb", &format!("unix:{},server=on,wait=off", file("gdb"))]);
        let qemu = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let guest = Self { qemu, directory, kernel: kernel.into(), program };
        let begun = Instant::now();
        while !guest.console().contains("READY") || guest.tasks().len() < 2 {
            assert!(begun.elapsed() < Duration::from_secs(300), "{}", guest.console());
            sleep(Duration::from_millis(100));
        }
        Some(guest)
    }

    fn console(&self) -> String {
        let bytes = fs::read(self.directory.join("console")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Has QEMU execute commands, each with its arguments.
    fn qmp(&self, commands: &[Value]) {
        let socket = UnixStream::connect(self.directory.join("qmp")).unwrap();
        let mut answers = BufReader::new(&socket).lines().map(Result::unwrap);
        let capabilities = json!({ "execute": "qmp_capabilities" });
        for command in [&capabilities].into_iter().chain(commands) {
            writeln!(&socket, "{command}").unwrap();
            let answer =
                answers.find(|line| line.starts_with(r#"{"return"#) || line.contains("error"));
            assert!(answer.as_ref().is_some_and(|line| !line.contains("error")), "{answer:?}");
        }
    }

    /// What `unwind` says of the vCPUs.
    fn vcpus(&self, arguments: &[&str], files: &[(&str, &Path)]) -> Value {
        let mut arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        for (option, path) in
            files.iter().chain(&[("--symbols", &*self.kernel), ("--symbols", &*self.program)])
        {
            arguments.extend([(*option).to_owned(), path.to_str().unwrap().to_owned()]);
        }
        let output = support::run(arguments);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["vcpus"].clone()
    }

    /// Runs the command, with the guest's socket.
    fn look(&self, more: &[&str]) -> String {
        let qmp = self.directory.join("qmp");
        let output =
            support::run(["guest", "--qmp", qmp.to_str().unwrap()].iter().chain(more).copied());
        String::from_utf8(output.stdout).unwrap()
    }

    /// Stacks, outermost frame first, each with how often it was seen.
    fn profile(&self, files: &[&str]) -> Vec<(Vec<String>, u32)> {
        let samples = SAMPLES.to_string();
        let folded = self.look(&[&["--hz", "5", "--sample", &samples], files].concat());
        let stacks = folded.lines().map(|line| {
            let (stack, count) = line.rsplit_once(' ').unwrap();
            (stack.split(';').map(str::to_owned).collect(), count.parse().unwrap())
        });
        stacks.collect()
    }

    /// The processes of the program by what each has printed: its number, and its name.
    fn tasks(&self) -> Vec<(u64, String)> {
        let console = self.console();
        let lines = console.lines().filter_map(|line| line.strip_prefix("TASK "));
        let task = |line: &str| {
            let (pid, name) = line.trim_end().split_once(' ')?;
            Some((pid.parse().ok()?, name.to_owned()))
        };
        lines.filter_map(task).collect()
    }
}

/// Holds stacks against what the program does; `files` are given to the command.
fn check(guest: &Guest, files: &[&str]) {
    let (mut stacks, mut entered, mut complete) = (0, 0, 0);
    for (stack, count) in guest.profile(files) {
        stacks += count;
        if stack[1] == "[incomplete]" {
            continue;
        }
        complete += count;
        let frames = stack.iter().map(String::as_str);
        let is_unnamed = |frame: &str| frame.starts_with("0x") || frame.contains("[kernel]+");
        if stack[0] == "[user]" {
            let is_kernel = stack.iter().any(|frame| frame == "[kernel]");
            entered += if is_kernel { count } else { 0 };
            let user = frames.clone().take_while(|frame| *frame != "[kernel]");
            let known: Vec<_> = user.filter(|frame| CHAIN.contains(frame)).collect();
            // Each of them may be where the program is.
            assert!(CHAIN.starts_with(&known) && known.len() > 1, "{stack:?}");
            let kernel = frames.skip_while(|frame| *frame != "[kernel]");
            let unnamed = kernel.clone().find(|frame| files.is_empty() && is_unnamed(frame));
            assert_eq!(unnamed, None, "{stack:?}");
        }
    }
    assert_eq!(stacks, 2 * SAMPLES);
    // The others are at the kernel's entry, which has saved no registers there, where an emulator
    // stops often.
    assert!(entered > SAMPLES / 2, "{entered} of {stacks}");
    assert!(complete * 3 > stacks * 2, "{complete} of {stacks}");
}

/// QEMU's dump of a stopped guest is that guest, and its stub for gdb tells the same of it.
fn a_dump_and_a_stub_have_the_same_stacks(guest: &Guest) {
    let (core, ram) = (guest.directory.join("core"), guest.directory.join("ram"));
    let to = format!("file:{}", core.display());
    let dump = json!({ "paging": false, "protocol": to });
    let dump = json!({ "execute": "dump-guest-memory", "arguments": dump });
    guest.qmp(&[json!({ "execute": "stop" }), dump]);
    let qmp = guest.directory.join("qmp");
    let mut stopped = guest.vcpus(&["guest", "--json"], &[("--qmp", &qmp), ("--mem", &ram)]);
    let dumped = guest.vcpus(&["stack", "--json"], &[("--core", &core)]);
    // A dump does not say whether a CPU waits.
    for vcpu in stopped.as_array_mut().unwrap() {
        vcpu["halted"] = json!(false);
        assert!(!vcpu["frames"].as_array().unwrap().is_empty(), "{vcpu}");
    }
    assert_eq!(dumped, stopped);
    fs::remove_file(core).unwrap();
    let gdb = guest.directory.join("gdb");
    let stub = guest.vcpus(&["guest", "--json"], &[("--gdb", &gdb)]);
    assert_eq!(stub, stopped);
    // It runs now, and a connection stops it.
    let stub = guest.vcpus(&["guest", "--json"], &[("--gdb", &gdb)]);
    assert_eq!(stub.as_array().unwrap().len(), stopped.as_array().unwrap().len());
    // A recording by it ends as others do.
    let file = guest.directory.join("stub.data");
    let mut command = support::unwind(["record", "--guest", "--json", "-F", "5", "--gdb"]);
    let command = command.arg(&gdb).arg("-o").arg(&file).stdout(Stdio::piped());
    let recorder = command.stderr(Stdio::piped()).spawn().unwrap();
    // Stops are written once a second.
    let is_begun = || fs::metadata(&file).is_ok_and(|file| file.len() > 0);
    let begun = Instant::now();
    while !is_begun() {
        assert!(begun.elapsed() < Duration::from_secs(300));
        sleep(Duration::from_millis(50));
    }
    sleep(Duration::from_secs(3));
    kill(Pid::from_raw(recorder.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    let output = recorder.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let ledger: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(ledger["guest"]["stops"].as_u64().unwrap() > 0, "{ledger}");
}

/// Records the guest, and holds what is read of the recording against what the guest executes.
fn check_recording(guest: &Guest, symbols: &[&Path]) {
    let (qmp, file) = (guest.directory.join("qmp"), guest.directory.join("perf.data"));
    let (qmp, file) = (qmp.to_str().unwrap(), file.to_str().unwrap());
    let how =
        ["record", "--guest", "--qmp", qmp, "--duration", "3", "-F", "10", "--json", "-o", file];
    let symbols = symbols.iter().flat_map(|file| ["--symbols", file.to_str().unwrap()]);
    let output = support::run(how.into_iter().chain(symbols));
    let ledger: Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |name: &str| ledger[name].as_u64().unwrap();
    let incomplete = ledger["incomplete"].as_object().unwrap().values();
    let incomplete: u64 = incomplete.map(|count| count.as_u64().unwrap()).sum();
    let written = number("written");
    assert_eq!(number("complete") + incomplete + number("kernel_only"), written, "{ledger}");
    let stops = &ledger["guest"];
    assert_eq!(stops["stops"].as_u64(), Some(written / 2), "{ledger}");
    let [median, maximum] =
        ["median_nanoseconds", "maximum_nanoseconds"].map(|name| stops[name].as_u64().unwrap());
    assert!(0 < median && median <= maximum, "{ledger}");

    let text = |arguments: &[&str]| {
        let output = support::run(arguments.iter().copied());
        String::from_utf8(output.stdout).unwrap()
    };
    let (mut all, mut whole, mut entered) = (0, 0, 0);
    for line in text(&["report", file, "--format", "folded"]).lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let count: u64 = count.parse().unwrap();
        all += count;
        let frames: Vec<_> = stack.split(';').collect();
        let Some(main) = frames.iter().position(|frame| *frame == "main") else { continue };
        if frames.iter().any(|frame| frame.starts_with("[incomplete")) {
            continue;
        }
        whole += count;
        let known: Vec<_> =
            frames[main..].iter().copied().filter(|frame| CHAIN.contains(frame)).collect();
        assert!(CHAIN[1..].starts_with(&known), "{line}");
        entered +=
            if frames.iter().any(|frame| frame.starts_with("do_syscall_64")) { count } else { 0 };
        // Those of the kernel have names, each.
        let unnamed = frames.iter().find(|frame| frame.contains("[guest.kernel"));
        assert_eq!(unnamed, None, "{line}");
    }
    assert_eq!(all, written);
    assert!(2 * whole > written && entered > 0, "{whole}, {entered} of {written}");

    let script = text(&["script", file]);
    for name in [" main+0x", " do_syscall_64+0x", "([guest.kernel.kallsyms])"] {
        assert!(script.contains(name), "{name}: {script}");
    }
    let Some(perf) = tool("perf") else { return };
    let perf = Command::new(perf)
        .args(["script", "--guestkallsyms", "/dev/null", "-F", "comm,tid,ip,sym", "-i", file])
        .output()
        .unwrap();
    let perf = String::from_utf8_lossy(&perf.stdout);
    assert!(perf.contains("\tffffffff"), "{perf}");
    for (pid, _) in guest.tasks() {
        assert!(perf.contains(&format!(" {pid} ")), "{perf}");
    }
}

/// Holds the threads that the command names against those that the guest has.
fn check_tasks(guest: &Guest) {
    let tasks = guest.tasks();
    assert_eq!(tasks.len(), 2, "{}", guest.console());
    let mut seen = 0;
    for _ in 0..8 {
        let report: Value = serde_json::from_str(&guest.look(&["--json"])).unwrap();
        assert_eq!(report["warnings"], json!([]));
        for vcpu in report["vcpus"].as_array().unwrap() {
            let task = &vcpu["task"];
            let comm = task["comm"].as_str().unwrap();
            let pid = task["pid"].as_u64().unwrap();
            assert_eq!(task["tid"].as_u64(), Some(pid), "{task}");
            let is_known = tasks.iter().any(|known| *known == (pid, comm.to_owned()));
            // Those that the program makes have the name of the one that made them.
            let is_child = tasks.iter().any(|(_, name)| name == comm);
            let is_user = vcpu["privilege"] == "user" || !vcpu["user"].is_null();
            assert!(is_known || is_child || !is_user, "{task}");
            assert!(pid != 0 || comm.starts_with("swapper/"), "{task}");
            seen += u32::from(is_known);
        }
    }
    assert!(seen > 6, "{seen}");
}

#[test]
fn a_stock_kernels_stack_leads_to_the_user_code_that_has_entered_it() {
    let Some(guest) = Guest::boot() else { return };
    check(&guest, &[]);
    check_tasks(&guest);
    let ram = guest.directory.join("ram");
    let files = [&ram, &guest.kernel, &guest.program].map(|path| path.to_str().unwrap());
    let [ram, kernel, program] = files;
    check(&guest, &["--mem", ram, "--symbols", kernel, "--symbols", program]);
    check_recording(&guest, &[]);
    check_recording(&guest, &[&guest.kernel, &guest.program]);
    a_dump_and_a_stub_have_the_same_stacks(&guest);
}
