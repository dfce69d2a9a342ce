//! Stacks with functions that a uretprobe watches, whose return addresses are the kernel's.
#![cfg(test)]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{FRAME_POINTERS, Target, compile, functions, report_of, run, stderr, threads};
use test_support::skip;

const WITHOUT_FRAME_POINTERS: &[&str] =
    &["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

/// The program that watches itself; `None` where the kernel lets it not.
fn watched(test: &str, flags: &[&str]) -> Option<PathBuf> {
    let program = compile(test, "uretprobe.c", flags)?;
    let mut probe = Command::new(&program);
    let probe = probe.arg("0.01").stdin(Stdio::null()).output().unwrap();
    if probe.status.code() == Some(77) {
        skip(&format!("no uprobes: {}", stderr(&probe)));
        return None;
    }
    assert!(probe.status.success(), "{}", stderr(&probe));
    Some(program)
}

#[test]
fn g17_a_stack_ends_at_a_function_that_a_uretprobe_watches_and_says_so() {
    for (flags, methods) in
        [(FRAME_POINTERS, &["auto", "fp"][..]), (WITHOUT_FRAME_POINTERS, &["auto", "cfi"])]
    {
        let Some(program) = watched("uretprobe_stack", flags) else { return };
        let target = Target::start(&program, &[]);
        for method in methods {
            let report = report_of(&target, &["--method", method]);
            let thread = &threads(&report)[0];
            let end = &thread["end"];
            assert_eq!((&end["complete"], &end["reason"]), (&false.into(), &"return-probe".into()));
            assert!(end["text"].as_str().unwrap().contains("a return probe's"), "{end}");
            assert_eq!(functions(thread).last(), Some(&"watched"), "{report:#}");
        }
    }
}

/// The functions of each sample of a recording of the program that was taken where it spends
/// its time; the ledger.
fn record(program: &Path, options: &[&str]) -> Option<(Vec<Vec<String>>, Value)> {
    let data = program.with_file_name("perf.data");
    let (data, program) = (data.to_str().unwrap(), program.to_str().unwrap());
    let mut arguments = vec!["record", "--json", "-o", data];
    arguments.extend(options);
    arguments.extend(["--", program, "0.3"]);
    let recorded = run(&arguments);
    if stderr(&recorded).contains("lets no sampling event be opened") {
        skip(&stderr(&recorded));
        return None;
    }
    assert!(recorded.status.success(), "{}", stderr(&recorded));
    let output = String::from_utf8(recorded.stdout).unwrap();
    let ledger = output.lines().find(|line| line.starts_with('{')).unwrap();
    let script = run(["script", "-F", "ip,sym", data]);
    assert!(script.status.success(), "{}", stderr(&script));
    let script = String::from_utf8(script.stdout).unwrap();
    let stacks = script.split("\n\n").map(|block| {
        // Lines in parentheses are no frames.
        let frames = block.lines().filter(|line| !line.trim_start().starts_with('('));
        let names = frames.filter_map(|line| line.split_whitespace().nth(1));
        names.skip_while(|&name| name != "innermost").map(str::to_owned).collect::<Vec<_>>()
    });
    let stacks = stacks.filter(|stack| !stack.is_empty()).collect();
    Some((stacks, serde_json::from_str(ledger).unwrap()))
}

const CHAIN: [&str; 5] = ["innermost", "watched", "watched", "caller", "main"];

#[test]
fn g17_a_walk_goes_through_watched_functions_by_the_kernels_chain() {
    let test = "uretprobe_record";
    let Some(program) = watched(test, FRAME_POINTERS) else { return };
    for options in [&["--uretprobes"][..], &["--uretprobes", "--keep-stacks"]] {
        let Some((stacks, ledger)) = record(&program, options) else { return };
        assert!(stacks.len() > 20, "{ledger}");
        for stack in &stacks {
            let parts = stack.iter().filter(|&name| name == "innermost").count();
            assert!(parts == 1 || options.len() == 2, "the kernel's chain is in the file, too");
            // The last part is the walk's, if the stacks are kept.
            let walk = stack.rsplit(|name| name == "_start").find(|part| !part.is_empty());
            assert_eq!(walk.unwrap().get(..5).unwrap(), CHAIN, "{options:?}");
        }
        assert_eq!(ledger["incomplete"].get("return-probe"), None, "{ledger}");
    }
    // Without it stacks end there, which shows.
    let Some((stacks, ledger)) = record(&program, &[]) else { return };
    assert!(stacks.iter().all(|stack| stack == &CHAIN[..2]), "{stacks:?}");
    let incomplete = ledger["incomplete"]["return-probe"].as_u64().unwrap();
    assert!(usize::try_from(incomplete).unwrap() >= stacks.len(), "{ledger}");
}

#[test]
fn g17_the_kernels_chain_is_not_taken_for_what_it_cannot_know() {
    // Without frame pointers its chain has other words, or none.
    let Some(program) = watched("uretprobe_no_fp", WITHOUT_FRAME_POINTERS) else { return };
    let Some((stacks, ledger)) = record(&program, &["--uretprobes"]) else { return };
    assert!(stacks.iter().all(|stack| stack == &CHAIN[..2]), "{stacks:?}");
    let incomplete = ledger["incomplete"]["return-probe"].as_u64().unwrap();
    assert!(usize::try_from(incomplete).unwrap() >= stacks.len(), "{ledger}");
}
