//! `unwind stack` of live processes: what it shows, and that they continue.
#![cfg(test)]

mod command;
mod compiled;
mod mapped_files;
mod no_stop;
mod remapped;
#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use support::*;
use test_support::{Compiler, skip, tool};

const ECHO_CHAIN: [&str; 7] =
    ["receive", "serve", "descend", "descend", "descend", "descend", "main"];

fn send(target: &Target, signal: Signal) {
    kill(Pid::from_raw(target.id().try_into().unwrap()), signal).unwrap();
}

#[test]
fn each_method_that_applies_shows_the_chain_of_calls() {
    for (flags, methods) in
        [(FRAME_POINTERS, &["fp", "auto"][..]), (SFRAME, &["sframe", "auto"][..])]
    {
        let Some(program) = compile("chain", "echo.c", flags) else { continue };
        let target = Target::start(&program, &[]);
        for method in methods {
            let report = report_of(&target, &["--method", method]);
            assert_eq!(functions_to_main(&report), ECHO_CHAIN, "{method} {flags:?}");
        }
    }
}

#[test]
fn u11_a_program_without_a_c_library_has_complete_stacks() {
    const TABLES: &[&str] = &["-O1", "-fomit-frame-pointer", "-fno-stack-protector", "-static"];
    let Some(compiler) = Compiler::find(TABLES) else { return };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/own_start.c");
    let program = scratch("u11_own_start").join("program");
    compiler.compile(&source, &program, &["-nostartfiles"]);
    for arguments in [&[][..], &["one", "two"]] {
        let target = Target::start(&program, arguments);
        let report = report_of(&target, &[]);
        let thread = &threads(&report)[0];
        assert_eq!(functions(thread), ["waits", "works", "_start"], "{report:#}");
        assert_eq!(thread["end"]["complete"], true, "{report:#}");
    }
}

/// gold joins the tables of objects as bytes: their functions start elsewhere then.
#[test]
fn tables_that_no_linker_has_merged_are_not_used_and_the_user_is_told() {
    const GOLD: &[&str] =
        &["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-fuse-ld=gold"];
    for (assembler, is_told) in [("-Wa,--gsframe", true), ("-Wa,--gdwarf-5", false)] {
        let Some(program) = compile("joined", "joined.c", &[GOLD, &[assembler]].concat()) else {
            return;
        };
        let target = Target::start(&program, &[]);
        let report = report_of(&target, &[]);
        let names: Vec<_> = (0..10).map(|number| format!("f{number}")).collect();
        assert_eq!(functions_to_main(&report)[1..11], names, "{report:#}");
        assert_eq!(threads(&report)[0]["end"]["complete"], true, "{report:#}");
        let told = run(["stack", "--pid", &target.id().to_string()]).stderr;
        let told = String::from_utf8(told).unwrap();
        assert_eq!(told.contains("joined by a linker that does not know it"), is_told, "{told}");
    }
}

/// The image of the vDSO is in no file: it is read from the process.
#[test]
fn code_of_the_vdso_is_walked_by_a_table_made_of_its_image() {
    let Some(program) = compile("vdso", "clock.c", &["-O1", "-fomit-frame-pointer"]) else {
        return;
    };
    let target = Target::start_unchecked(&program);
    for method in ["auto", "cfi-sframe"] {
        // It is there most of the time.
        let in_vdso = (0..200)
            .map(|_| report_of(&target, &["--method", method]))
            .find(|report| threads(report)[0]["frames"][0]["object"] == "[vdso]");
        let report = in_vdso.expect("is in the vDSO at some stop");
        assert!(functions_to_main(&report).ends_with(&["ask", "main"]), "{report:#}");
        assert_eq!(threads(&report)[0]["frames"][1]["found_by"], "cfi", "{report:#}");
        assert_eq!(threads(&report)[0]["end"]["complete"], true, "{report:#}");
    }
}

#[test]
fn a_32_bit_process_is_walked_in_4_byte_slots() {
    let Some(program) = compile("chain32", "echo.c", FRAME_POINTERS_32) else { return };
    let target = Target::start(&program, &[]);
    let report = report_of(&target, &["--method", "fp"]);
    assert_eq!(functions_to_main(&report), ECHO_CHAIN);
    assert_eq!(threads(&report)[0]["arch"], "ia32");
}

/// Whether a thread waits, and is not stopped.
fn sleeps(task: &Path) -> bool {
    let status = fs::read(task.join("status")).unwrap_or_default();
    String::from_utf8_lossy(&status).contains("\nState:\tS")
}

#[test]
fn d8_the_help_names_the_system_calls_that_a_look_ends() {
    let Some(program) = compile("d8_waits", "waits.c", &["-O1", "-pthread"]) else { return };
    let mut target = Target::start(&program, &[]);
    let tasks = PathBuf::from(format!("/proc/{}/task", target.id()));
    let tasks: Vec<_> = fs::read_dir(tasks).unwrap().map(|task| task.unwrap().path()).collect();
    assert_eq!(tasks.len(), 14);
    let all_sleep = || tasks.iter().all(|task| sleeps(task));
    wait_until("all threads wait", all_sleep);
    report_of(&target, &[]);
    wait_until("all threads wait again", all_sleep);
    drop(target.input.take());
    let mut ended = Vec::new();
    loop {
        let line = target.read_line();
        match line.trim_end().split_once(": ") {
            Some((call, how)) => {
                assert_eq!(how, "EINTR", "{call}");
                ended.push(call.to_owned());
            }
            None => break,
        }
    }
    ended.sort_unstable();
    let calls = ["epoll_wait", "recv with a time limit", "semop", "semtimedop", "sigtimedwait"];
    assert_eq!(ended, [&calls[..], &["sigwaitinfo"]].concat());
    let help = String::from_utf8(run(["stack", "--help"]).stdout).unwrap();
    for call in ended {
        let name = if call.contains(' ') { "SO_RCVTIMEO" } else { &call };
        assert!(help.contains(name), "{name}: {help}");
    }
    assert!(help.contains("EINTR"), "{help}");
}

#[test]
fn d10_an_incomplete_stack_is_a_failure_where_the_user_wants_it() {
    let Some(program) = compile("d10_incomplete", "echo.c", SFRAME) else { return };
    let target = Target::start(&program, &[]);
    let id = target.id().to_string();
    let complete = run(["stack", "--fail-incomplete", "--pid", &id]);
    assert!(String::from_utf8(complete.stdout).unwrap().contains("\n  complete: "));
    for more in [&["--max-frames", "2"][..], &["--max-frames", "2", "--json"]] {
        let arguments = [&["stack", "--pid", &id], more].concat();
        run(&arguments);
        let output = unwind([&arguments[..], &["--fail-incomplete"]].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(9), "{more:?}: {}", stderr(&output));
        assert_eq!(stderr(&output), "unwind: 1 of 1 stack is incomplete\n");
        assert!(String::from_utf8(output.stdout).unwrap().contains("receive"));
    }
}

#[test]
fn an_interrupted_system_call_continues() {
    let Some(program) = compile("continues", "echo.c", FRAME_POINTERS) else { return };
    let mut target = Target::start(&program, &[]);
    for byte in 0..20 {
        target.wait_for_state("S");
        report_of(&target, &[]);
        assert!(target.echoes(byte), "after {byte} stops");
        assert_eq!(target.status("TracerPid"), "0");
    }
    assert_eq!(target.finish(), Some(0));
}

#[test]
fn a_stopped_process_is_shown_and_stays_stopped() {
    let Some(program) = compile("stopped", "echo.c", FRAME_POINTERS) else { return };
    let mut target = Target::start(&program, &[]);
    send(&target, Signal::SIGSTOP);
    target.wait_for_state("T");
    let report = report_of(&target, &[]);
    assert_eq!(functions_to_main(&report), ECHO_CHAIN);
    target.wait_for_state("T");
    send(&target, Signal::SIGCONT);
    assert!(target.echoes(b'x'));
    assert_eq!(target.finish(), Some(0));
}

#[test]
fn signals_that_arrive_during_the_stop_are_delivered_each_once() {
    let Some(program) = compile("signals", "signals.c", FRAME_POINTERS) else { return };
    let mut target = Target::start(&program, &[]);
    let id = target.id().to_string();
    let mut observer = unwind(["stack", "--pid", &id]);
    let mut sent = 0;
    for _ in 0..20 {
        let mut running = observer.stdout(std::process::Stdio::null()).spawn().unwrap();
        while running.try_wait().unwrap().is_none() {
            // SIGRTMIN + 3 as the C library counts.
            let status = Command::new("kill").args(["-37", &id]).status().unwrap();
            assert!(status.success());
            sent += 1;
        }
        assert!(running.wait().unwrap().success());
        send(&target, Signal::SIGUSR1);
    }
    drop(target.input.take());
    assert_eq!(target.read_line(), format!("1 {sent}\n"));
    assert!(sent >= 20);
}

#[test]
fn a_process_continues_when_the_command_is_killed_half_way() {
    let Some(program) = compile("killed", "echo.c", FRAME_POINTERS) else { return };
    // So deep that the walk takes its time.
    let mut target = Target::start(&program, &["100000"]);
    let id = target.id().to_string();
    let mut caught = 0;
    for byte in 0..10 {
        let mut observer = unwind(["stack", "--live", "--pid", &id, "--max-frames", "1000000"])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        wait_until("the stop", || {
            target.status("State").starts_with('t') || observer.try_wait().unwrap().is_some()
        });
        observer.kill().unwrap();
        caught += u32::from(observer.wait().unwrap().code().is_none());
        target.wait_for_state("S");
        assert_eq!(target.status("TracerPid"), "0");
        assert!(target.echoes(byte));
    }
    assert!(caught > 0, "the command was never killed half way");
    assert_eq!(target.finish(), Some(0));
}

#[test]
fn all_threads_are_shown_each_with_its_own_stack() {
    let Some(program) = compile("threads", "threads.c", FRAME_POINTERS) else { return };
    let target = Target::start(&program, &[]);
    // Some may still be on their way.
    let mut report = report_of(&target, &[]);
    wait_until("all threads are parked", || {
        let are_parked = threads(&report).iter().all(|thread| functions(thread)[0] == "park");
        if !are_parked {
            report = report_of(&target, &[]);
        }
        are_parked
    });
    let (first, others) = threads(&report).split_first().unwrap();
    assert_eq!(functions(first)[..2], ["park", "main"]);
    let mut depths: Vec<_> = others
        .iter()
        .map(|thread| {
            let names = functions(thread);
            let below = names.iter().position(|&name| name == "work").expect("reaches work");
            assert_eq!(names[0], "park");
            assert!(names[1..below].iter().all(|&name| name == "descend"));
            below - 2
        })
        .collect();
    depths.sort_unstable();
    assert_eq!(depths, (0..20).collect::<Vec<_>>());
}

#[test]
fn a_row_is_looked_up_once_for_all_threads() {
    let flags: &[&str] = &["-O1", "-fomit-frame-pointer", "-pthread"];
    let Some(program) = compile("threads_rows", "threads.c", flags) else { return };
    let target = Target::start(&program, &[]);
    // Some may still be on their way.
    wait_until("all threads are parked", || {
        threads(&report_of(&target, &[])).iter().all(|thread| functions(thread)[0] == "park")
    });
    let pid = target.id().to_string();
    let output = run(["stack", "--stats", "--pid", &pid]);
    let text = String::from_utf8(output.stderr).unwrap();
    let line = text.lines().find(|line| line.contains(" looked up, ")).unwrap();
    let numbers = line.split(' ').filter_map(|word| word.trim_end_matches(';').parse().ok());
    let [looked_up, kept, _]: [u64; 3] = numbers.collect::<Vec<_>>().try_into().unwrap();
    // Twenty threads, up to twenty calls deep, in a handful of functions.
    assert!(looked_up < 60 && kept > 100, "{line}");
}

#[test]
fn every_look_finds_every_thread() {
    let Some(program) = compile("threads_again", "threads.c", FRAME_POINTERS) else { return };
    let target = Target::start(&program, &[]);
    for look in 0..40 {
        let report = report_of(&target, &["--method", "fp"]);
        assert_eq!(threads(&report).len(), 21, "look {look}");
    }
}

#[test]
fn threads_that_come_and_go_do_no_harm() {
    let Some(program) = compile("churn", "churn.c", FRAME_POINTERS) else { return };
    let target = Target::start(&program, &[]);
    for _ in 0..30 {
        let report = report_of(&target, &[]);
        assert!(threads(&report).len() >= 5, "{report:#}");
    }
    assert_eq!(target.status("TracerPid"), "0");
    assert_eq!(target.finish(), Some(0));
}

#[test]
fn after_its_first_thread_has_ended_a_process_is_shown_by_the_others() {
    let Some(program) = compile("leader", "leader_exits.c", FRAME_POINTERS) else { return };
    let target = Target::start_unchecked(&program);
    target.wait_for_state("Z");
    // The other thread may still be in the call that said so.
    let tasks = fs::read_dir(format!("/proc/{}/task", target.id())).unwrap();
    let ids = tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse::<u32>().unwrap());
    let other = ids.into_iter().find(|&id| id != target.id()).unwrap();
    wait_until("its rest", || status_of(other, "State").starts_with('S'));
    let report = report_of(&target, &[]);
    let [thread] = threads(&report) else { panic!("not one thread: {report:#}") };
    assert_eq!(functions(thread)[..2], ["park", "survive"]);
    assert_ne!(thread["thread"], report["process"]);
}

#[test]
fn a_process_that_no_signal_wakes_is_given_up_and_continues() {
    let Some(program) = compile("vfork", "vfork.c", FRAME_POINTERS) else { return };
    let mut target = Target::start_unchecked(&program);
    target.wait_for_state("D");
    let text = fails(["stack", "--pid", &target.id().to_string()], 5);
    assert!(text.contains("cannot be stopped"), "{text}");
    assert_eq!(target.status("TracerPid"), "0");
    drop(target.input.take());
    assert_eq!(target.read_line(), "done\n");
    assert_eq!(target.finish(), Some(0));
}

#[test]
fn m1_code_without_a_file_is_walked_by_what_its_instructions_prove() {
    for flags in [FRAME_POINTERS, SFRAME_AND_FRAME_POINTERS] {
        let Some(program) = compile("generated", "generated.c", flags) else { continue };
        let target = Target::start(&program, &[]);
        let report = report_of(&target, &[]);
        assert_eq!(functions_to_main(&report), ["park", "?", "main"]);
        let frames = &threads(&report)[0]["frames"];
        assert_eq!(frames[1]["object"], "[anonymous]");
        // Its instructions say where its caller is.
        assert_eq!(frames[2]["found_by"], "code");
        assert_eq!(threads(&report)[0]["end"]["complete"], true);
    }
}

#[test]
fn the_id_of_a_thread_stands_for_its_process() {
    let Some(program) = compile("thread_id", "threads.c", FRAME_POINTERS) else { return };
    let target = Target::start(&program, &[]);
    let tasks = fs::read_dir(format!("/proc/{}/task", target.id())).unwrap();
    let names = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
    let thread = names.max_by_key(|name| name.parse::<u32>().unwrap()).unwrap();
    let report = report(&["--pid", &thread]);
    assert_eq!(report["process"], target.id());
    assert_eq!(threads(&report).len(), 21);
}

#[test]
fn a_signal_frame_leads_to_the_exact_pc_that_was_interrupted() {
    for (test, flags) in [("handler", FRAME_POINTERS), ("handler32", FRAME_POINTERS_32)] {
        for kind in ["-DPLAIN", "-DWITH_SIGINFO"] {
            let flags = [flags, &[kind]].concat();
            let Some(program) = compile(test, "handler.c", &flags) else { continue };
            let target = Target::start(&program, &[]);
            let report = report_of(&target, &["--method", "fp"]);
            let names = functions_to_main(&report);
            assert_eq!(names[..2], ["park", "handler"], "{flags:?}");
            assert_eq!(names[3..], ["interrupted", "outer", "main"], "{flags:?}");
            let frames = threads(&report)[0]["frames"].as_array().unwrap();
            let exact: Vec<_> = frames.iter().map(|frame| frame["exact"] == true).collect();
            assert_eq!(exact[..6], [true, false, false, true, false, false], "{flags:?}");
            assert_eq!(frames[3]["found_by"], "signal");
        }
    }
}

#[test]
fn a_frame_pointer_that_is_none_makes_no_stack_complete() {
    let Some(program) = compile("zeroes", "zeroes.c", &["-O1", "-fomit-frame-pointer"]) else {
        return;
    };
    let target = Target::start(&program, &[]);
    let report = report_of(&target, &["--method", "fp"]);
    let thread = &threads(&report)[0];
    assert_eq!(functions(thread), ["park"]);
    assert_eq!(thread["end"]["reason"], "frame-pointer-zero");
    assert_eq!(thread["end"]["complete"], false);
    let text = thread["end"]["text"].as_str().unwrap();
    assert!(text.starts_with("a zero"), "{text}");
}

#[test]
fn max_frames_ends_a_stack_that_has_more() {
    let Some(program) = compile("max_frames", "echo.c", FRAME_POINTERS) else { return };
    let target = Target::start(&program, &["30"]);
    let report = report_of(&target, &["--method", "fp", "--max-frames", "7"]);
    let thread = &threads(&report)[0];
    assert_eq!(functions(thread).len(), 7);
    assert_eq!(thread["end"]["reason"], "max-frames");
    assert_eq!(thread["end"]["complete"], false);
}

#[test]
fn a_process_is_watched_until_it_ends() {
    let Some(program) = compile("watch", "echo.c", SFRAME) else { return };
    let target = Target::start(&program, &[]);
    let id = target.id().to_string();
    let mut command = unwind(["stack", "--no-lines", "--watch", "1", "--pid", &id]);
    let mut watching = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines().map(Result::unwrap);
    let heading = format!("process {id} (program), 1 thread");
    for _ in 0..2 {
        assert!(lines.any(|line| line == heading));
        assert!(lines.any(|line| line == "  complete: outermost frame"));
    }
    drop(target);
    assert!(!lines.any(|line| line.contains("unwind: ")));
    assert_eq!(watching.wait().unwrap().code(), Some(0));
}
