//! `unwind stack` against gdb, which finds frames by `.eh_frame`: the same
//! stops of real programs, seen by both.
//!
//! `UNWIND_ORACLE_STOPS` says how many stops of each program to make, and
//! `UNWIND_ORACLE_SEED` where; each has a default. The results are counted in a
//! table on standard error.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::std_instead_of_alloc,
    clippy::std_instead_of_core,
    clippy::unwrap_used,
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    reason = "tests"
)]

mod stops;
#[path = "../support/mod.rs"]
mod support;
mod tally;

use std::env;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use stops::{GdbFrame, GdbThread, Stop, UnwindReport};
use support::{FRAME_POINTERS, FRAME_POINTERS_32, SFRAME, Target, compile, scratch};
use tally::{Comparison, Tally, compare};

/// A number from the environment.
fn setting(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().expect("is a number"))
}

fn stops_wanted() -> u64 {
    setting("UNWIND_ORACLE_STOPS", 10)
}

fn seed() -> u64 {
    setting("UNWIND_ORACLE_SEED", 1)
}

/// Shows a table in spite of the capture of output by the test harness.
fn show(title: &str, tally: &Tally) {
    let text = format!("\n{title}, seed {}:\n{tally}\n", seed());
    std::io::stderr().write_all(text.as_bytes()).unwrap();
}

/// Stops a program after random numbers of single steps.
fn step(gdb: &Path, scratch: &Path, program: &Path, methods: &[&str]) -> Vec<Stop> {
    let stops = stops_wanted();
    // Start-up is many thousand steps, too many for each test run.
    let startup = if stops < 100 { 0 } else { stops / 10 };
    let job = json!({
        "program": program.to_str(),
        "methods": methods,
        "seed": seed(),
        "phases": { "start-up": startup, "main": stops, "exit": stops / 10 },
    });
    stops::run(gdb, scratch, job)
}

/// Compares what was found of a stop with one thread.
fn compare_only_thread(stop: &Stop, method: &str, last: usize) -> Comparison {
    let UnwindReport { threads, failed, .. } = &stop.unwind[method];
    assert_eq!(*failed, None, "{} step {}", stop.phase, stop.number);
    match (&stop.threads[..], &threads[..]) {
        ([gdb], [unwind]) => compare(gdb, unwind, last),
        _ => panic!("not one thread: {stop:?}"),
    }
}

/// Which frame is `main`.
fn main_frame(gdb: &GdbThread) -> Option<usize> {
    gdb.frames.iter().position(|frame| frame.name.as_deref() == Some("main"))
}

/// Tables of each version, written by each release: every stop in the program's
/// own code has to be right from the innermost frame to `main`.
#[test]
fn stops_between_any_two_instructions_of_a_program_with_tables_agree_with_gdb() {
    let Some(gdb) = testdata::tool("gdb") else { return };
    let mut tally = Tally::default();
    for version in ["v1", "v2", "v3"] {
        for name in ["drap", "recur"] {
            let program = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../testdata/sframe")
                .join(format!("{version}/x86_64/{name}.O2-omit.exe"))
                .canonicalize()
                .unwrap();
            let title = format!("{name}, {version}");
            if Command::new(&program).output().is_err() {
                testdata::skip(&format!("{title} does not run here"));
                continue;
            }
            let scratch = scratch(&format!("oracle-{name}-{version}"));
            let stops = step(&gdb, &scratch, &program, &["sframe", "auto"]);
            let methods = ["sframe", "auto"];
            add_steps(&mut tally, &title, &program, &stops, &methods, |gdb, main| {
                let names = gdb.frames[..main].iter().filter_map(|frame| frame.name.as_deref());
                if version != "v3" && names.into_iter().any(|name| name == LEFT_OUT) {
                    "left-out function"
                } else {
                    "own code"
                }
            });
        }
    }
    show("Stops after random numbers of single steps", &tally);
    // Some stops of the smaller program are in or below a left-out function.
    tally.assert_equal("own code", stops_wanted() * 3 / 4);
    tally.assert_short("left-out function", "sframe");
}

/// Counts stops of a program with one thread. `class` sorts those in its own
/// code, by the frames up to that of `main`.
fn add_steps(
    tally: &mut Tally,
    title: &str,
    program: &Path,
    stops: &[Stop],
    methods: &[&str],
    class: impl Fn(&GdbThread, usize) -> &'static str,
) {
    for stop in stops {
        let gdb = &stop.threads[0];
        let what = format!("{} step {}", stop.phase, stop.number);
        let is_own = gdb.frames[0].object.as_deref() == program.to_str();
        match main_frame(gdb) {
            Some(main) if is_own => {
                for method in methods {
                    let comparison = compare_only_thread(stop, method, main);
                    tally.add(title, class(gdb, main), method, &what, &comparison);
                }
            }
            // Little there has a table or keeps a frame pointer.
            main => {
                let last = main.unwrap_or(gdb.frames.len() - 1);
                let comparison = compare_only_thread(stop, "auto", last);
                tally.add(title, "start-up, exit", "auto", &what, &comparison);
            }
        }
    }
}

/// Its CFA is neither at the stack pointer nor at the frame pointer, which only
/// version 3 can say: the assembler leaves it out of the tables of the others.
const LEFT_OUT: &str = "align128_alloca";

/// Code that keeps a frame pointer: every stop outside of the leaves that have
/// no frame has to be right from the innermost frame to `main`.
fn check_frame_pointers(title: &str, flags: &[&str]) {
    let Some(gdb) = testdata::tool("gdb") else { return };
    let Some(program) = compile(&format!("oracle-{title}"), "shapes.c", flags) else { return };
    let directory = scratch(&format!("oracle-{title}-steps"));
    let stops = step(&gdb, &directory, &program, &["fp", "auto"]);
    let mut tally = Tally::default();
    add_steps(&mut tally, title, &program, &stops, &["fp", "auto"], |gdb, _| {
        match gdb.frames[0].name.as_deref() {
            Some(name) if name.starts_with("frameless_") => "frameless leaf",
            Some(name) if name.starts_with("__x86.get_pc_thunk") => "frameless leaf",
            _ => "own code",
        }
    });
    show("Stops after random numbers of single steps", &tally);
    // Some are in a frameless leaf.
    tally.assert_equal("own code", stops_wanted() * 3 / 4);
}

#[test]
fn stops_between_any_two_instructions_with_frame_pointers_agree_with_gdb() {
    // Else a function may do without its frame on some of its ways.
    check_frame_pointers("shapes64", &[FRAME_POINTERS, &["-fno-shrink-wrap"]].concat());
}

#[test]
fn stops_between_any_two_instructions_of_32_bit_code_agree_with_gdb() {
    check_frame_pointers("shapes32", FRAME_POINTERS_32);
}

/// Stops a running program again and again, and compares the stacks of all its
/// threads from the innermost to the outermost frame. `unwind` may know less of
/// them than gdb, but nothing else.
fn check_live(title: &str, command: &mut Command) {
    let Some(gdb) = testdata::tool("gdb") else { return };
    let target = Target::start_command(command);
    let methods = ["auto", "fp"];
    let job = json!({
        "pid": target.id(),
        "methods": methods,
        "seed": seed(),
        "stops": stops_wanted().div_ceil(4),
    });
    let stops = stops::run(&gdb, &scratch(&format!("oracle-live-{title}")), job);
    let mut tally = Tally::default();
    for stop in &stops {
        for method in methods {
            add_live(&mut tally, title, stop, method);
        }
    }
    show("Stops of a live process", &tally);
    assert!(!target.status("State").starts_with('Z'), "{title} has ended");
    tally.assert_not_differing();
}

fn add_live(tally: &mut Tally, title: &str, stop: &Stop, method: &str) {
    let UnwindReport { threads, warnings, failed } = &stop.unwind[method];
    assert_eq!(*failed, None, "{title}, stop {}", stop.number);
    assert_eq!(threads.len(), stop.threads.len(), "{title}, stop {}: {warnings:?}", stop.number);
    for gdb in &stop.threads {
        let what = format!("stop {} thread {}", stop.number, gdb.thread);
        let unwind = threads.iter().find(|unwind| unwind.thread == gdb.thread);
        let unwind = unwind.unwrap_or_else(|| panic!("{title}, {what} is missing"));
        // Above code without `.eh_frame` gdb has to guess.
        let guess = gdb.frames.iter().position(has_no_eh_frame);
        let class = if guess.is_some() { "generated code" } else { "compiled code" };
        let last = guess.unwrap_or(gdb.frames.len() - 1);
        tally.add(title, class, method, &what, &compare(gdb, unwind, last));
    }
}

/// Code that was generated: gdb knows no function there. Node copies what it has
/// of it beforehand from its file to another place.
fn has_no_eh_frame(frame: &GdbFrame) -> bool {
    frame.object.is_none() || frame.name.is_none()
}

#[test]
fn a_live_python_has_no_frame_that_gdb_contradicts() {
    let Some(python) = testdata::tool("python3") else { return };
    check_live("python3", Command::new(python).arg(program_source("busy.py")));
}

#[test]
fn a_live_node_has_no_frame_that_gdb_contradicts() {
    let Some(node) = testdata::tool("node") else { return };
    check_live("node", Command::new(node).arg(program_source("busy.js")));
}

#[test]
fn twenty_threads_with_frame_pointers_have_no_frame_that_gdb_contradicts() {
    let source = "twenty_threads.c";
    let Some(program) = compile("oracle-threads-fp", source, FRAME_POINTERS) else { return };
    check_live("20 threads, fp", &mut Command::new(program));
}

#[test]
fn twenty_threads_with_tables_have_no_frame_that_gdb_contradicts() {
    let source = "twenty_threads.c";
    let Some(program) = compile("oracle-threads-sframe", source, SFRAME) else { return };
    check_live("20 threads, sframe", &mut Command::new(program));
}

fn program_source(name: &str) -> String {
    format!("{}/tests/programs/{name}", env!("CARGO_MANIFEST_DIR"))
}
