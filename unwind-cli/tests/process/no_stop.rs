//! Stacks of a process that is not stopped.

use nix::sys::ptrace;
use nix::sys::wait::waitpid;

use super::*;

const TABLES: &[&str] = &["-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread"];

/// The ids of threads with the names of their functions, ascending.
fn stacks(report: &Value) -> Vec<(u64, Vec<&str>)> {
    let threads = threads(report).iter();
    let mut stacks: Vec<_> =
        threads.map(|thread| (thread["thread"].as_u64().unwrap(), functions(thread))).collect();
    stacks.sort_unstable();
    stacks
}

/// Starts `waits.c`, and waits until all its threads do.
fn start_waits(program: &Path) -> Target {
    let target = Target::start(program, &[]);
    let tasks = PathBuf::from(format!("/proc/{}/task", target.id()));
    let tasks: Vec<_> = fs::read_dir(tasks).unwrap().map(|task| task.unwrap().path()).collect();
    assert_eq!(tasks.len(), 14);
    wait_until("all threads wait", || tasks.iter().all(|task| sleeps(task)));
    target
}

fn reason(thread: &Value) -> &str {
    thread["end"]["reason"].as_str().unwrap()
}

#[test]
fn threads_that_sleep_are_shown_as_by_a_stop_and_no_system_call_of_theirs_ends() {
    let Some(program) = compile("no_stop", "waits.c", TABLES) else { return };
    let mut target = start_waits(&program);
    let looks: Vec<_> = (0..20).map(|_| report_of(&target, &["--no-stop"])).collect();
    drop(target.input.take());
    assert_eq!(target.read_line(), "end\n", "no call has ended");

    let target = start_waits(&program);
    let stopped = report_of(&target, &[]);
    assert_eq!(stopped["no_stop"], false);
    // In an order of their own: the ids of threads begin again when there are no higher ones.
    let names = |report| {
        let mut names: Vec<_> = stacks(report).into_iter().map(|(_, names)| names).collect();
        names.sort_unstable();
        names
    };
    for report in &looks {
        assert_eq!(names(report), names(&stopped));
        assert_eq!(report["no_stop"], true);
        for thread in threads(report) {
            assert_eq!(reason(thread), "outermost");
            assert_eq!(thread["end"]["complete"], false);
        }
    }
}

#[test]
fn stacks_without_a_stop_are_marked_in_the_text() {
    let Some(program) = compile("no_stop_text", "waits.c", TABLES) else { return };
    let target = start_waits(&program);
    let id = target.id().to_string();
    let output = run(["stack", "--no-stop", "--pid", &id, "--tid", &id]);
    let text = String::from_utf8(output.stdout).unwrap();
    let (heading, rest) = text.split_once('\n').unwrap();
    assert!(heading.ends_with(", 1 thread, not stopped"), "{text}");
    assert!(rest.ends_with("\n  incomplete: outermost frame; taken without a stop\n"), "{text}");
}

/// The thread sleeps now below one chain of calls, now below another one: a stack with frames
/// of both would be of two times.
#[test]
fn a_thread_that_did_not_sleep_or_ran_meanwhile_has_no_frames() {
    let Some(program) = compile("no_stop_naps", "naps.c", TABLES) else { return };
    let target = Target::start(&program, &[]);
    let mut seen = std::collections::BTreeMap::new();
    let is_seen = |seen: &std::collections::BTreeMap<String, u32>| {
        ["left", "right", "changed", "running"].iter().all(|what| seen.contains_key(*what))
    };
    let mut looks = 0;
    while looks < 200 || !is_seen(&seen) && looks < 2000 {
        looks += 1;
        let report = report_of(&target, &["--no-stop"]);
        assert_eq!(threads(&report).len(), 3, "{report:#}");
        let ended = threads(&report).iter().filter(|thread| reason(thread) == "running");
        assert!(ended.count() >= 1, "one thread never sleeps: {report:#}");
        for thread in threads(&report) {
            assert_eq!(thread["end"]["complete"], false);
            let names = functions(thread);
            let what = match reason(thread) {
                reason @ ("running" | "changed") => {
                    assert!(names.is_empty(), "{thread:#}");
                    reason
                }
                _ if names.contains(&"main") => continue,
                _ => {
                    let turns: Vec<_> =
                        names.iter().filter(|name| matches!(**name, "left" | "right")).collect();
                    assert!(names.contains(&"start_thread"), "{names:?}");
                    // Between two turns the thread sleeps nowhere.
                    assert_eq!(turns.len(), 10, "{names:?}");
                    assert!(turns.iter().all(|name| *name == turns[0]), "{names:?}");
                    *turns[0]
                }
            };
            *seen.entry(what.to_owned()).or_insert(0) += 1;
        }
    }
    println!("{looks} looks: {seen:?}");
    assert!(is_seen(&seen), "{seen:?}");
}

/// `/proc` does not tell the frame pointer.
#[test]
fn a_walk_that_needs_an_unknown_register_ends_there() {
    let Some(program) = compile("no_stop_fp", "echo.c", FRAME_POINTERS) else { return };
    let target = Target::start(&program, &[]);
    let report = report_of(&target, &["--no-stop"]);
    let [thread] = threads(&report) else { panic!("not one thread: {report:#}") };
    assert_eq!(functions(thread), ["receive"]);
    assert_eq!(reason(thread), "step");
    assert_eq!(thread["end"]["complete"], false);
}

#[test]
fn a_32_bit_process_that_sleeps_is_shown() {
    let flags = &["-m32", "-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread"];
    let Some(program) = compile("no_stop_32", "waits.c", flags) else { return };
    let target = start_waits(&program);
    let report = report_of(&target, &["--no-stop"]);
    assert!(threads(&report).iter().all(|thread| thread["arch"] == "ia32"), "{report:#}");
    assert_eq!(stacks(&report), stacks(&report_of(&target, &[])));
}

#[test]
fn a_process_that_another_tracer_holds_is_shown() {
    let Some(program) = compile("no_stop_traced", "waits.c", TABLES) else { return };
    let target = start_waits(&program);
    let before = report_of(&target, &["--no-stop"]);
    let id = Pid::from_raw(target.id().try_into().unwrap());
    ptrace::seize(id, ptrace::Options::empty()).unwrap();
    ptrace::interrupt(id).unwrap();
    waitpid(id, None).unwrap();
    fails(["stack", "--pid", &id.to_string()], 4);
    let report = report_of(&target, &["--no-stop"]);
    ptrace::detach(id, None).unwrap();
    assert_eq!(stacks(&report), stacks(&before));
}

#[test]
fn a_process_that_may_not_be_read_is_refused_with_its_owner() {
    if !nix::unistd::geteuid().is_root() {
        return skip("only root can take another user's place");
    }
    let Some(setpriv) = tool("setpriv") else { return };
    let Some(program) = compile("no_stop_refused", "echo.c", TABLES) else { return };
    let target = Target::start(&program, &[]);
    let directory = public_directory("no-stop-refused");
    let unwind = directory.join("unwind");
    copy_program(env!("CARGO_BIN_EXE_unwind"), &unwind);
    let mut command = Command::new(setpriv);
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&unwind);
    command.args(["stack", "--no-stop", "--pid", &target.id().to_string()]);
    let output = command.output().unwrap();
    fs::remove_dir_all(&directory).unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let text = stderr(&output);
    assert!(text.contains("not permitted to read the stacks of process"), "{text}");
    assert!(text.contains("which runs under user id 0"), "{text}");
}

#[test]
fn what_is_no_process_with_a_stack_is_named_without_a_stop_too() {
    fails(["stack", "--no-stop", "--pid", "4194304"], 3);
    // The second process of a machine is its kernel's; elsewhere it may be anything.
    if fs::read("/proc/2/comm").is_ok_and(|name| name == b"kthreadd\n") {
        fails(["stack", "--no-stop", "--pid", "2"], 5);
    }
}
