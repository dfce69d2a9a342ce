//! Each failure has its exit code and one clear line.
#![cfg(test)]

mod support;

use std::fs;
use std::process::{Command, Stdio};

use support::*;
use test_support::{skip, tool};

#[test]
fn no_such_process() {
    // Above the highest id that Linux gives.
    let text = fails(["stack", "--pid", "4194305"], 3);
    assert!(text.contains("no process 4194305"), "{text}");
}

#[test]
fn a_kernel_thread_has_no_stack() {
    // The parent of all kernel threads.
    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        let text = fails(["stack", "--pid", "2"], 5);
        assert!(text.contains("kernel thread"), "{text}");
    } else {
        skip("kernel threads are not to be seen here");
    }
}

#[test]
fn a_process_that_has_ended_is_said_to_have() {
    let mut ended = Command::new("true").stdin(Stdio::piped()).spawn().unwrap();
    wait_until("its end", || status_of(ended.id(), "State").starts_with('Z'));
    let text = fails(["stack", "--pid", &ended.id().to_string()], 6);
    assert!(text.contains("has ended"), "{text}");
    ended.wait().unwrap();
}

#[test]
fn a_process_of_another_user_is_not_permitted() {
    if !nix::unistd::geteuid().is_root() {
        return skip("only root can take another user's place");
    }
    let Some(setpriv) = tool("setpriv") else { return };
    // Where that user may execute it.
    let directory = public_directory("errors");
    let copy = directory.join("unwind");
    copy_program(env!("CARGO_BIN_EXE_unwind"), &copy);
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&setpriv);
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&copy);
        command.args(arguments).current_dir(&directory).output().unwrap()
    };
    let output = run(&["stack", "--pid", "1"]);
    // What to set, and what works without it.
    let record = ["record", "--duration", "1", "-o", "/dev/null"];
    for (whom, words) in [
        (&["--pid", "1"][..], "a process of another user"),
        (&["--all"], "kernel.perf_event_paranoid of 0 or less; a command or --pid of one's own"),
    ] {
        let refused = run(&[&record, whom].concat());
        let text = stderr(&refused);
        assert!(refused.status.code() == Some(4) && text.contains(words), "{text}");
        assert!(text.contains("CAP_PERFMON"), "{text}");
    }
    fs::remove_dir_all(&directory).unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("not permitted to stop process 1"), "{text}");
    assert!(text.contains("user id 0"), "{text}");
}

#[test]
fn a_process_that_another_traces_is_left_to_it() {
    let Some(program) = compile("traced", "echo.c", FRAME_POINTERS) else { return };
    let target = Target::start(&program, &[]);
    let pid = nix::unistd::Pid::from_raw(target.id().try_into().unwrap());
    nix::sys::ptrace::seize(pid, nix::sys::ptrace::Options::empty()).unwrap();
    let text = fails(["stack", "--pid", &target.id().to_string()], 4);
    assert!(text.contains(&format!("traced by process {}", std::process::id())), "{text}");
}

#[test]
fn no_such_file_or_command() {
    let text = fails(["stack", "--core", "/nonexistent/core"], 3);
    assert!(text.contains("/nonexistent/core"), "{text}");
    let text = fails(["stack", "--", "/nonexistent/command"], 3);
    assert!(text.contains("/nonexistent/command"), "{text}");
}

#[test]
fn d9_what_cannot_be_opened_or_read_is_said_in_the_systems_words_with_its_path() {
    let directory = scratch("d9_words");
    let path = directory.to_str().unwrap();
    let file = directory.join("file");
    fs::copy(env!("CARGO_BIN_EXE_unwind"), &file).unwrap();
    let file = file.to_str().unwrap();
    let guest = ["guest", "--qmp", "q", "--mem", "m", "--symbols"];
    // A file that no offset can be read of.
    let unreadable = "/proc/self/mem";
    for (before, path, code, words) in [
        (&["stack", "--core"][..], path, 1, "Is a directory (os error 21)"),
        (&["stack", "--core", file, "--exe"], path, 5, ""),
        (&["sframe", "dump"], path, 1, "Is a directory (os error 21)"),
        (&["sframe", "dump", "--raw"], path, 1, "Is a directory (os error 21)"),
        (&["sframe", "check"], path, 1, "Is a directory (os error 21)"),
        (&["sframe", "stat"], path, 1, "Is a directory (os error 21)"),
        (&["sframe", "build", "-o", "/dev/null"], path, 1, "Is a directory (os error 21)"),
        (&["sframe", "build", file, "-o"], path, 1, "Is a directory (os error 21)"),
        (&guest, path, 1, "Is a directory (os error 21)"),
        (&guest, "/nonexistent/x", 3, "No such file or directory (os error 2)"),
        (&["stack", "--core"], unreadable, 1, "Input/output error (os error 5)"),
        (&["sframe", "dump"], unreadable, 1, "Input/output error (os error 5)"),
        (&guest, unreadable, 1, "Input/output error (os error 5)"),
    ] {
        let text = fails(before.iter().chain([&path]), code);
        let named = if code == 5 { file } else { path };
        assert!(text.contains(named) && text.contains(words), "{before:?} {path}: {text}");
    }
}

#[test]
fn d9_a_process_that_proc_does_not_show_is_not_said_to_be_none() {
    let hidden = |commands: &str| {
        let script = format!("mount -t tmpfs none /proc && {commands}");
        let output = Command::new("unshare").args(["-m", "sh", "-c", &script]).output().unwrap();
        (output.status.code(), stderr(&output))
    };
    if hidden("true").0 != Some(0) {
        return skip("mounts cannot be changed here");
    }
    let unwind = env!("CARGO_BIN_EXE_unwind");
    let (code, text) = hidden(&format!("{unwind} stack --pid $$"));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("but /proc does not show it"), "{text}");
    let (code, text) = hidden(&format!("{unwind} stack --pid 4194305"));
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("there is no process 4194305"), "{text}");
}

#[test]
fn d9_a_stack_that_is_cut_names_the_option_that_shows_more() {
    let Some(program) = compile("d9_cut", "echo.c", FRAME_POINTERS) else { return };
    let target = Target::start(&program, &["20"]);
    let id = target.id().to_string();
    let output = run(["stack", "--pid", &id, "--max-frames", "5"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("  incomplete: there are more frames than --max-frames\n"), "{text}");
}

#[test]
fn d9_one_fault_is_not_called_faults() {
    let file = scratch("d9_one_fault").join("table");
    let mut table = fs::read(fixture("v3/x86_64/drap.O2-omit.exe.sframe.bin")).unwrap();
    // An unknown ABI.
    table[4] = 99;
    fs::write(&file, table).unwrap();
    let text = fails(["sframe", "check", "--raw", file.to_str().unwrap()], 1);
    assert!(text.ends_with(": 1 fault in its tables\n"), "{text}");
}

#[test]
fn d12_stack_alone_is_a_wrong_command_line() {
    for arguments in [&["stack"][..], &["stack", "--json"], &["stack", "--"]] {
        let output = unwind(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        let text = stderr(&output);
        for form in ["--pid <PID>", "--core <FILE>", "-- <COMMAND>..."] {
            assert!(text.contains(form), "{arguments:?}: {text}");
        }
    }
}

#[test]
fn d10_the_version_is_that_of_the_command_by_its_name() {
    let output = run(["-V"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, format!("unwind {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn c11_output_that_cannot_be_written_is_an_error_of_every_command() {
    let own = env!("CARGO_BIN_EXE_unwind");
    let table = fixture("v3/x86_64/drap.O2-omit.exe");
    let table = table.to_str().unwrap();
    let recording = perf_fixture("pfork.data");
    let recording = recording.to_str().unwrap();
    let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = sleeper.id().to_string();
    for arguments in [
        &["help"][..],
        &["--help"],
        &["-h"],
        &["-V"],
        &["--version"],
        &["help", "stack"],
        &["stack", "--help"],
        &["stack", "-h"],
        &["sframe", "help"],
        &["sframe", "help", "dump"],
        &["sframe", "dump", "--help"],
        &[],
        &["stack", "--pid", &pid],
        &["stack", "--json", "--pid", &pid],
        &["sframe", "dump", table],
        &["sframe", "dump", "--json", table],
        &["sframe", "check", table],
        &["sframe", "check", "--json", table],
        &["sframe", "stat", table],
        &["sframe", "stat", "--json", table],
        &["sframe", "find", table, "0x1000"],
        &["sframe", "find", "--json", table, "0x1000"],
        &["sframe", "build", own, "-o", "/dev/stdout"],
        &["script", recording],
        &["script", "--json", recording],
    ] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = unwind(arguments).stdout(full).output().unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
        assert!(text.contains("No space left on device"), "{arguments:?}: {text}");
    }
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}

#[test]
fn files_that_are_no_cores() {
    let directory = scratch("no_cores");
    let text = directory.join("text");
    fs::write(&text, "no ELF at all").unwrap();
    let message = fails(["stack", "--core", text.to_str().unwrap()], 5);
    assert!(message.contains("not an ELF file"), "{message}");

    let message = fails(["stack", "--core", env!("CARGO_BIN_EXE_unwind")], 5);
    assert!(message.contains("not a core file"), "{message}");

    // The header of a core file of AArch64.
    let mut header = vec![0; 64];
    header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    header[16..20].copy_from_slice(&[4, 0, 183, 0]);
    let foreign = directory.join("foreign");
    fs::write(&foreign, &header).unwrap();
    let message = fails(["stack", "--core", foreign.to_str().unwrap()], 5);
    assert!(message.contains("another machine (AArch64)"), "{message}");

    // One of x86-64 without anything in it.
    header[18] = 62;
    fs::write(&foreign, &header).unwrap();
    let message = fails(["stack", "--core", foreign.to_str().unwrap()], 5);
    assert!(message.contains("no thread"), "{message}");

    let message = fails(["stack", "--core", directory.to_str().unwrap()], 1);
    assert!(message.contains("directory"), "{message}");
}

#[test]
fn a_command_that_ends_too_early() {
    let text = fails(["stack", "--after", "60000", "--", "sh", "-c", "exit 3"], 6);
    assert!(text.contains("ended (exit status: 3)"), "{text}");
}

#[test]
fn a_wrong_command_line() {
    for arguments in [
        &["stack", "--pid", "0"][..],
        &["stack", "--pid", "1", "--core", "x"],
        &["stack", "--json"],
        &["stack", "--exe", "x"],
        &["stack", "--after", "5", "--pid", "1"],
        &["stack", "--kill", "--core", "x"],
        &["stack", "--exe", "x", "--pid", "1"],
        &["stack", "--exe", "x", "--", "true"],
        &["stack", "--method", "dwarf", "--pid", "1"],
        &["nonsense"],
    ] {
        let output = unwind(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    for arguments in [&["stack", "--kill", "--after", "0", "--", "sleep", "9"][..], &[]] {
        let mut command =
            unwind(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(command.stdout.take());
        let output = command.wait_with_output().unwrap();
        assert_eq!(stderr(&output), "");
        assert!(output.status.success());
    }
}

#[test]
fn every_exit_code_is_in_the_help() {
    let help = String::from_utf8(run(["--help"]).stdout).unwrap();
    let codes = help.split("Exit codes:").nth(1).expect("lists them");
    let listed: Vec<u8> = codes
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().next()?.parse().ok())
        .collect();
    let count = u8::try_from(listed.len()).unwrap();
    assert_eq!(listed, (0..count).collect::<Vec<u8>>());
    assert!(count > 6);
}
