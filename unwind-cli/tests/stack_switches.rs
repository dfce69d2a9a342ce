//! Stacks of threads that run on another stack than they were called on.
#![cfg(test)]

mod support;

use std::process::Command;

use support::*;

/// A Go program, with C in it.
fn go_program(test: &str) -> Option<std::path::PathBuf> {
    let go = test_support::tool("go")?;
    test_support::Compiler::find(&[])?;
    let directory = scratch(test);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/switches.go");
    let program = directory.join("program");
    let done = Command::new(go)
        .args(["build", "-o"])
        .args([program.as_os_str(), source.as_ref()])
        .env("GOCACHE", directory.join("cache"))
        .env("GO111MODULE", "off")
        .env("CGO_ENABLED", "1")
        .status();
    assert!(done.unwrap().success(), "go build");
    Some(program)
}

/// The functions of the goroutine by Go's own unwinder, which the program writes first.
fn functions_by_go(target: &mut Target) -> Vec<String> {
    let mut functions = Vec::new();
    assert!(target.read_line().starts_with("goroutine 1 [running"));
    loop {
        let line = target.read_line();
        if line == "\n" {
            return functions;
        }
        if !line.starts_with('\t') {
            functions.push(line.rsplit_once('(').unwrap().0.to_owned());
        }
    }
}

/// The functions of the stack of the first thread after the one of this name, and whether it
/// is complete.
fn functions_after(target: &Target, name: &str) -> Option<(Vec<String>, bool)> {
    let id = target.id().to_string();
    let report = report_of(target, &["--tid", &id]);
    let thread = &threads(&report)[0];
    let names = functions(thread);
    let at = names.iter().position(|&function| function == name)?;
    let after = names.iter().skip(at).skip(1).map(|&name| name.to_owned()).collect();
    Some((after, thread["end"]["complete"] == true))
}

#[test]
fn a5_a_goroutine_that_is_in_c_has_the_callers_that_go_finds() {
    let Some(program) = go_program("switches-c") else { return };
    let mut target = Target::start_command(Command::new(program).arg("c"));
    let expected = functions_by_go(&mut target);
    assert_eq!(expected.len(), 4, "{expected:?}");
    wait_until("the thread sleeps in C", || {
        functions_after(&target, "runtime.asmcgocall.abi0").is_some()
    });
    let (found, is_complete) = functions_after(&target, "runtime.asmcgocall.abi0").unwrap();
    let (c, goroutine) = found.split_at(2);
    assert_eq!(c, ["runtime.cgocall", "main._Cfunc_sleep_in_c.abi0"]);
    let (goroutine, start) = goroutine.split_at(expected.len());
    assert_eq!(goroutine, expected);
    assert_eq!(
        (start, is_complete),
        (["runtime.main", "runtime.goexit.abi0"].map(str::to_owned).as_slice(), true)
    );
}

#[test]
fn a5_a_goroutine_whose_thread_runs_on_the_system_stack_has_the_callers_that_go_finds() {
    let Some(program) = go_program("switches-system") else { return };
    let mut target = Target::start_command(Command::new(program).arg("system"));
    let expected = functions_by_go(&mut target);
    wait_until("a stack on the system stack", || {
        let mut is_seen = false;
        if let Some((found, is_complete)) = functions_after(&target, "runtime.systemstack.abi0") {
            // It may also be in the middle of another of the runtime's functions, or execute one of the
            // runtime's own goroutines.
            let Some(main) = found.iter().position(|name| name.starts_with("main.")) else {
                let are_own = found.iter().all(|name| name.starts_with("runtime."));
                assert!(is_complete && are_own, "{found:?}");
                return false;
            };
            assert!(found[..main].iter().all(|name| name.starts_with("runtime.")), "{found:?}");
            let (goroutine, start) = found[main..].split_at(expected.len());
            assert_eq!((goroutine, is_complete), (expected.as_slice(), true));
            assert_eq!(start, ["runtime.main", "runtime.goexit.abi0"]);
            is_seen = true;
        }
        is_seen
    });
}

#[test]
fn a5_a_goroutine_that_asks_for_the_time_has_the_callers_that_go_finds() {
    let Some(program) = go_program("switches-clock") else { return };
    let mut target = Target::start_command(Command::new(program).arg("clock"));
    let expected = functions_by_go(&mut target);
    let start = ["time.Now"].into_iter().chain(expected.iter().map(String::as_str));
    let callers: Vec<&str> = start.chain(["runtime.main", "runtime.goexit.abi0"]).collect();
    let mut seen = 0;
    wait_until("stacks in the kernel's code for the time", || {
        let report = report_of(&target, &[]);
        for thread in threads(&report) {
            let names = functions(thread);
            // At the place 0 it may not have switched yet.
            if let Some(at) = names.iter().position(|name| *name == "time.now") {
                let after = names.get(at + 1..).unwrap();
                assert_eq!((after, &thread["end"]["complete"]), (callers.as_slice(), &true.into()));
                seen += usize::from(at > 0);
            }
        }
        seen >= 10
    });
}

#[test]
fn a5_a_thread_that_waits_for_goroutines_ends_where_go_says() {
    let Some(program) = go_program("switches-idle") else { return };
    let target = Target::start_command(Command::new(program).arg("c"));
    wait_until("an idle thread", || {
        let report = report_of(&target, &[]);
        let idle = threads(&report)
            .iter()
            .find(|thread| functions(thread).last() == Some(&"runtime.mcall"));
        idle.is_some_and(|idle| {
            assert_eq!(idle["end"]["complete"], true);
            assert_eq!(idle["end"]["reason"], "outermost");
            true
        })
    });
}

#[test]
fn a5_a_recording_says_where_the_stack_before_was_not_copied() {
    let Some(program) = go_program("switches-record") else { return };
    let data = program.with_file_name("data");
    let [data, program] = [&data, &program].map(|path| path.to_str().unwrap());
    // It is ended when it has had a second of the CPUs.
    let command = ["sh", "-c", "ulimit -t 1; exec \"$0\" system", program];
    let recorded = unwind(["record", "--json", "-o", data, "--"].iter().chain(&command));
    let recorded = { recorded }.output().unwrap();
    if stderr(&recorded).contains("lets no sampling event be opened") {
        return test_support::skip(&stderr(&recorded));
    }
    let text = String::from_utf8_lossy(&recorded.stdout);
    let ledger = text.lines().find(|line| line.starts_with("{\"")).unwrap();
    let ledger: serde_json::Value = serde_json::from_str(ledger).unwrap();
    let lost = ledger["incomplete"]["other-stack"].as_u64().unwrap();
    assert!(lost > 10, "{ledger}");
    let text = run(["script", data]).stdout;
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    let is_switch = |line: &&str| line.contains(" runtime.systemstack.abi0+");
    let is_end = |line: &str| line.trim_start() == "(incomplete: other-stack)";
    let last = lines.windows(2).filter(|pair| is_switch(&pair[0]) && is_end(pair[1])).count();
    let all = lines.iter().copied().filter(is_switch).count();
    // A sample may be taken before the switch.
    assert!(last * 10 >= all * 9 && last > 10, "{last} of {all}");
}

#[test]
fn a5_an_explanation_has_the_row_that_leads_to_the_stack_before() {
    let Some(program) = compile("switches-explain", "switches.c", &["-O1", "-no-pie"]) else {
        return;
    };
    let target = Target::start(&program, &[]);
    let id = target.id().to_string();
    let text = run(["explain", "--no-lines", "--stack-switch", "call_on", "--pid", &id]).stdout;
    let text = String::from_utf8(text).unwrap();
    let row = text.lines().find(|line| line.contains("on another stack, RA = [CFA-8]"));
    assert!(row.unwrap().ends_with("by the instructions that lead to the stack before"), "{text}");
    assert!(text.contains("complete: "), "{text}");
}

#[test]
fn a5_functions_that_the_user_names_are_followed_to_the_stack_that_they_came_from() {
    let Some(program) = compile("switches", "switches.c", &["-O1", "-fno-pie", "-no-pie"]) else {
        return;
    };
    let target = Target::start(&program, &[]);
    let expected = ["pause", "on_other_stack", "call_on", "caller", "main"];
    let named = report_of(&target, &["--stack-switch", "other", "--stack-switch", "call_on"]);
    assert_eq!(functions_to_main(&named), expected);
    assert_eq!(threads(&named)[0]["end"]["complete"], true);
    assert_eq!(threads(&named)[0]["frames"][3]["found_by"], "code");
    let unnamed = report_of(&target, &[]);
    assert_ne!(threads(&unnamed)[0]["end"]["complete"], true);
    assert_ne!(functions(&threads(&unnamed)[0]).get(3), Some(&"caller"));
}
