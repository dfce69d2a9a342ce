//! `unwind stack` against gdb, which finds frames by `.eh_frame`: the same
//! stops of real programs, seen by both.
//!
//! `UNWIND_ORACLE_STOPS` says how many stops of each program to make, and
//! `UNWIND_ORACLE_SEED` where; each has a default, of stops a smaller one than `.ci/run` has. The results are counted in a
//! table on standard error.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]
#![allow(missing_docs, missing_debug_implementations, unreachable_pub, reason = "tests")]

mod claims;
mod linkers;
mod live;
mod sources;
mod stops;
#[path = "../support/mod.rs"]
mod support;
mod tally;

use std::env;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use claims::Claims;
use serde_json::json;
use sources::{CPLUSPLUS, CPLUSPLUS_PART, RUST, RUST_PART, long_source};
use stops::{GdbFrame, GdbThread, Stop, UnwindReport};
use support::{FRAME_POINTERS, FRAME_POINTERS_32, SFRAME, Target, compile, scratch};
use tally::{Comparison, Tally, compare};

/// A number from the environment.
fn setting(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().expect("is a number"))
}

fn stops_wanted() -> u64 {
    setting("UNWIND_ORACLE_STOPS", 4)
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
fn step(witnesses: &Witnesses, scratch: &Path, program: &Path, methods: &[&str]) -> Vec<Stop> {
    let stops = stops_wanted();
    // Start-up is many thousand steps, too many for each test run.
    let startup = if stops < 100 { 0 } else { stops / 10 };
    let job = json!({
        "program": program.to_str(),
        "methods": methods,
        "seed": seed(),
        "phases": { "start-up": startup, "main": stops, "exit": stops / 10 },
        "eu_stack": witnesses.eu_stack.to_str(),
    });
    stops::run(&witnesses.gdb, scratch, job)
}

/// The programs that `unwind` is held against.
struct Witnesses {
    gdb: PathBuf,
    eu_stack: PathBuf,
}

impl Witnesses {
    fn find() -> Option<Self> {
        Some(Self { gdb: test_support::tool("gdb")?, eu_stack: test_support::tool("eu-stack")? })
    }
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
    let Some(witnesses) = Witnesses::find() else { return };
    let (mut tally, mut claims) = (Tally::default(), Claims::default());
    for version in ["v1", "v2", "v3"] {
        for name in ["drap", "recur"] {
            let program = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../testdata/sframe")
                .join(format!("{version}/x86_64/{name}.O2-omit.exe"))
                .canonicalize()
                .unwrap();
            let title = format!("{name}, {version}");
            if Command::new(&program).output().is_err() {
                test_support::skip(&format!("{title} does not run here"));
                continue;
            }
            let scratch = scratch(&format!("oracle-{name}-{version}"));
            let stops = step(&witnesses, &scratch, &program, &["sframe", "auto"]);
            let methods = ["sframe", "auto"];
            add_claims(&mut claims, &title, &stops);
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
    // Some stops of the smaller program are in or below a left-out function, and it has
    // no more than some 300 steps.
    tally.assert_equal("own code", (stops_wanted() * 3 / 4).min(200));
    tally.assert_short("left-out function", "sframe");
    tally.assert_not_differing("left-out function");
    check_claims(&claims);
}

/// Counts what is claimed of each stack.
fn add_claims(claims: &mut Claims, title: &str, stops: &[Stop]) {
    for stop in stops {
        for (method, report) in &stop.unwind {
            for unwind in &report.threads {
                let is_it = |gdb: &&GdbThread| gdb.thread == unwind.thread || is_only(stop, report);
                let Some(gdb) = stop.threads.iter().find(is_it) else { continue };
                claims.add(title, method, stop, unwind, gdb);
            }
        }
    }
}

/// Whether both see one thread: in a core file it may have another number.
fn is_only(stop: &Stop, report: &UnwindReport) -> bool {
    stop.threads.len() == 1 && report.threads.len() == 1
}

/// Shows what is claimed, and checks that it is so.
fn check_claims(claims: &Claims) {
    let text = format!("\nStacks that say that they are complete, seed {}:\n{claims}\n", seed());
    std::io::stderr().write_all(text.as_bytes()).unwrap();
    claims.assert_true();
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
    let Some(witnesses) = Witnesses::find() else { return };
    let Some(program) = compile(&format!("oracle-{title}"), "shapes.c", flags) else { return };
    let directory = scratch(&format!("oracle-{title}-steps"));
    let stops = step(&witnesses, &directory, &program, &["fp", "auto"]);
    let (mut tally, mut claims) = (Tally::default(), Claims::default());
    add_claims(&mut claims, title, &stops);
    add_steps(&mut tally, title, &program, &stops, &["fp", "auto"], |gdb, _| {
        let name = gdb.frames[0].name.as_deref().unwrap_or("?");
        if name.starts_with("frameless_") || name.starts_with("__x86.get_pc_thunk") {
            "frameless leaf"
        } else {
            "own code"
        }
    });
    show("Stops after random numbers of single steps", &tally);
    // Some are in a frameless leaf.
    tally.assert_equal("own code", stops_wanted() * 3 / 4);
    check_claims(&claims);
}

/// Code that is mostly entries and exits: every stop in it has to be right where
/// there is call frame information, and no stack may say that it is complete and
/// lack a frame.
fn check_epilogues(title: &str, compiler: &[&str], has_tables: bool) {
    let Some(witnesses) = Witnesses::find() else { return };
    let name = format!("oracle-{title}");
    let source = program_source("epilogues.c");
    let program = match compiler {
        ["musl-gcc", flags @ ..] => {
            let Some(musl) = test_support::tool("musl-gcc") else { return };
            let program = scratch(&name).join("program");
            let done = Command::new(musl).args(flags).arg(source).arg("-o").arg(&program).status();
            assert!(done.unwrap().success(), "{title}");
            program
        }
        flags => match compile(&name, "epilogues.c", flags) {
            Some(program) => program,
            None => return,
        },
    };
    let directory = scratch(&format!("{name}-steps"));
    let stops = step(&witnesses, &directory, &program, &["auto", "fp"]);
    let (mut tally, mut claims) = (Tally::default(), Claims::default());
    add_claims(&mut claims, title, &stops);
    let class = if has_tables { "own code" } else { "without tables" };
    add_steps(&mut tally, title, &program, &stops, &["auto"], |_, _| class);
    show("Stops after random numbers of single steps", &tally);
    check_claims(&claims);
    if has_tables {
        // The others are in the C library, most of them in its sort.
        tally.assert_equal(class, stops_wanted() / 4);
    }
}

#[test]
fn stops_in_entries_and_exits_agree_with_gdb() {
    check_epilogues("epilogues64", &["-O2", "-fomit-frame-pointer"], true);
}

#[test]
fn stops_in_entries_and_exits_of_code_with_frame_pointers_agree_with_gdb() {
    check_epilogues("epilogues64-fp", &["-O2", "-fno-omit-frame-pointer"], true);
}

#[test]
fn stops_in_32_bit_code_without_frame_pointers_agree_with_gdb() {
    check_epilogues("epilogues32", &["-m32", "-O2", "-fomit-frame-pointer"], true);
}

#[test]
fn stops_in_32_bit_code_with_frame_pointers_agree_with_gdb() {
    check_epilogues("epilogues32-fp", &["-m32", "-O2", "-fno-omit-frame-pointer"], true);
}

#[test]
fn stops_in_code_of_another_c_library_claim_no_more_than_they_found() {
    check_epilogues("epilogues-musl", &["musl-gcc", "-O2", "-static"], false);
    check_epilogues("epilogues-musl-fp", &["musl-gcc", "-O2", "-fno-omit-frame-pointer"], false);
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

fn program_source(name: &str) -> String {
    format!("{}/tests/programs/{name}", env!("CARGO_MANIFEST_DIR"))
}
