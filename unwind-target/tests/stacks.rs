//! Stacks of processes and core files, and names of addresses, as a program gets them.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::sleep;
use std::time::Duration;

use test_support::{Compiler, skip, tool};
use unwind_target::{
    Core, HoldLimit, Method, Naming, Process, Stacks, Symbolizer, TargetError, ThreadStack,
    WalkOptions,
};

/// A program that sleeps at a known place; it is ended with this value.
struct Sleeping {
    program: PathBuf,
    child: Child,
}

impl Sleeping {
    fn start(test: &str) -> Option<Self> {
        let compiler = Compiler::find(&["-O1", "-g", "-pthread", "-fno-optimize-sibling-calls"])?;
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        fs::create_dir_all(&folder).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/chain.c");
        let program = folder.join("chain");
        compiler.compile(&source, &program, &[]);
        let mut child = Command::new(&program).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let sleeping = Self { program, child };
        // It is about to sleep.
        while sleeping.state(sleeping.worker()) != "S" {
            sleep(Duration::from_millis(1));
        }
        Some(sleeping)
    }

    fn id(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// The thread that sleeps at the known place.
    fn worker(&self) -> i32 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.id())).unwrap();
        let ids = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
        ids.map(|id| id.parse::<i32>().unwrap()).find(|&id| id != self.id()).unwrap()
    }

    /// The letter by which the kernel says what a thread does.
    fn state(&self, thread: i32) -> String {
        let stat = fs::read_to_string(format!("/proc/{}/task/{thread}/stat", self.id())).unwrap();
        stat.rsplit_once(')').unwrap().1.split_whitespace().next().unwrap().to_owned()
    }
}

impl Drop for Sleeping {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The functions of a stack that are of the program, with those that are inlined.
fn own_functions(thread: &ThreadStack) -> Vec<String> {
    let of_frame = thread.frames.iter().flat_map(|frame| {
        let inlined = frame.symbol.source.inlined.iter().map(|inlined| &inlined.function);
        let functions = inlined.chain([&frame.symbol.function]).flatten().map(ToString::to_string);
        let is_own = frame.symbol.object_name().is_some_and(|name| name.to_string() == "chain");
        functions.filter(move |_| is_own).collect::<Vec<_>>()
    });
    of_frame.collect()
}

fn check_worker(stacks: &Stacks) {
    let [thread] = stacks.threads.as_slice() else { panic!("{stacks:#?}") };
    assert_eq!(own_functions(thread), ["inlined", "innermost", "outer", "work"], "{stacks:#?}");
    assert!(thread.end.complete, "{}", thread.end);
    let inlined = thread.frames.iter().flat_map(|frame| &frame.symbol.source.inlined).next();
    assert!(inlined.unwrap().to_string().ends_with("chain.c:7"), "{inlined:?}");
    let innermost = thread.frames.iter().find(|frame| !frame.symbol.source.inlined.is_empty());
    let text = innermost.unwrap().symbol.to_string();
    assert!(text.starts_with("innermost+0x") && text.ends_with("chain.c:11"), "{text}");
    assert_eq!(stacks.warnings, [""; 0]);
}

#[test]
fn a_process_has_the_stacks_of_its_threads_in_each_way() {
    let Some(sleeping) = Sleeping::start("ways") else { return };
    let worker = WalkOptions::new().thread(sleeping.worker());
    let process = Process::new(sleeping.id()).options(worker.clone());
    check_worker(&process.stacks().unwrap());
    check_worker(&process.clone().in_place().stacks().unwrap());
    // A thread that was not stopped may have run.
    let without = process.clone().without_stop().stacks().unwrap();
    assert_eq!(own_functions(&without.threads[0])[0], "inlined");
    assert!(!without.threads[0].end.complete && without.no_stop);
    // It continues.
    assert_eq!(sleeping.state(sleeping.worker()), "S");

    let all = Process::new(sleeping.id()).stacks().unwrap();
    let ids: Vec<_> = all.threads.iter().map(|thread| thread.id).collect();
    assert_eq!(ids, [sleeping.id(), sleeping.worker()]);
    assert!(own_functions(&all.threads[0]).contains(&"main".to_owned()), "{all:#?}");

    let short = worker.clone().max_frames(2).method(Method::Cfi);
    let stacks = Process::new(sleeping.id()).options(short).stacks().unwrap();
    assert_eq!((stacks.threads[0].frames.len(), stacks.method), (2, Method::Cfi));
    assert!(!stacks.threads[0].end.complete);

    let plain = process.naming(Naming::plain()).stacks().unwrap();
    assert_eq!(own_functions(&plain.threads[0]), ["innermost", "outer", "work"]);
}

#[test]
fn what_cannot_be_looked_at_is_a_typed_error() {
    let mut child = Command::new("true").spawn().unwrap();
    let id = i32::try_from(child.id()).unwrap();
    child.wait().unwrap();
    let error = Process::new(id).stacks().unwrap_err();
    assert!(matches!(error, TargetError::NoSuchProcess(gone) if gone == id) && error.is_gone());
    let own = i32::try_from(std::process::id()).unwrap();
    assert!(matches!(Process::new(own).stacks(), Err(TargetError::OwnProcess)));
    assert!(matches!(Core::new("/").stacks(), Err(TargetError::Input(_))));
    let Some(sleeping) = Sleeping::start("errors") else { return };
    let options = WalkOptions::new().thread(i32::MAX);
    let error = Process::new(sleeping.id()).options(options).stacks().unwrap_err();
    assert!(matches!(error, TargetError::NoSuchThread(i32::MAX)), "{error}");
    let error = Core::new(&sleeping.program).stacks().unwrap_err();
    assert!(matches!(error, TargetError::NotACore { .. }), "{error}");
}

#[test]
fn a_process_is_let_go_when_its_time_is_over_and_that_is_an_error() {
    static LET_GO: AtomicI32 = AtomicI32::new(0);
    let Some(sleeping) = Sleeping::start("limit") else { return };
    let limit = HoldLimit::new(Duration::from_millis(200))
        .on_late(|process, _| LET_GO.store(process, Ordering::SeqCst));
    let walked = Process::new(sleeping.id()).in_place().hold_limit(limit).walk();
    let error = match walked {
        Ok(mut walked) => {
            while LET_GO.load(Ordering::SeqCst) == 0 {
                sleep(Duration::from_millis(1));
            }
            // It continues although the walk was not released; it may be on its way back to sleep.
            let state = sleeping.state(sleeping.worker());
            assert!(["R", "S"].contains(&&*state), "{state}");
            walked.release().unwrap_err()
        }
        // To stop it took as long, on a machine with other work.
        Err(error) => error,
    };
    assert!(matches!(error, TargetError::LetGo { process, .. } if process == sleeping.id()));
}

#[test]
fn a_core_has_the_stacks_that_the_process_had_and_json_has_its_threads() {
    let Some(sleeping) = Sleeping::start("core") else { return };
    if tool("gdb").is_none() {
        return;
    }
    let Some(gcore) = tool("gcore") else { return };
    let prefix = sleeping.program.with_file_name("made");
    let made = Command::new(gcore).arg("-o").arg(&prefix).arg(sleeping.id().to_string()).output();
    assert!(made.unwrap().status.success());
    let core = Core::new(format!("{}.{}", prefix.display(), sleeping.id()));
    let options = WalkOptions::new().thread(sleeping.worker());
    check_worker(&core.clone().options(options).stacks().unwrap());
    let stacks = core.program(&sleeping.program).stacks().unwrap();
    let json = serde_json::to_value(&stacks).unwrap();
    assert_eq!(json["threads"].as_array().unwrap().len(), 2);
    let functions = json["threads"].as_array().unwrap().iter().map(|thread| {
        let frames = thread["frames"].as_array().unwrap();
        frames.iter().any(|frame| frame["function"] == "outer")
    });
    assert_eq!(functions.filter(|&has| has).count(), 1, "{json:#}");
}

/// Is asked for below.
#[inline(never)]
fn asked() -> u64 {
    let own: fn() -> u64 = asked;
    let text = format!("{own:p}");
    u64::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap()
}

#[test]
fn addresses_of_the_own_process_have_functions_files_and_lines() {
    let symbolizer = Symbolizer::of_own_process().unwrap();
    let found = symbolizer.find(&[asked(), 1]);
    let [symbol, nothing] = found.symbols.as_slice() else { panic!("{found:?}") };
    assert_eq!(symbol.function.as_ref().unwrap().to_string(), "stacks::asked");
    assert_eq!(symbol.function_offset, Some(0));
    assert!(symbol.source.file.as_ref().unwrap().to_string().ends_with("stacks.rs"));
    assert!(symbol.source.line.is_some());
    assert_eq!(nothing.to_string(), "??");
    // As one after a call it is of what is before it, and keeps its own offset.
    let after = symbolizer.find_return_addresses(&[asked() + 1]);
    let [after] = after.symbols.as_slice() else { panic!("{after:?}") };
    assert_eq!((&after.function, after.function_offset), (&symbol.function, Some(1)));
    assert_eq!(after.source.line, symbol.source.line);
}

#[test]
fn lines_are_the_same_if_another_process_reads_them() {
    let Some(sleeping) = Sleeping::start("apart") else { return };
    // `cargo test` builds the examples, but not for one test alone.
    let tests = std::env::current_exe().unwrap();
    let example = tests.parent().and_then(Path::parent).unwrap().join("examples/stack");
    if !example.exists() {
        return skip("the example `stack` is not built");
    }
    let output = Command::new(example).arg(sleeping.id().to_string()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stacks = Process::new(sleeping.id()).stacks().unwrap();
    let mut expected = String::new();
    for thread in &stacks.threads {
        expected += &format!("thread {}\n", thread.id);
        for frame in &thread.frames {
            for inlined in &frame.symbol.source.inlined {
                expected += &format!("  inlined {inlined}\n");
            }
            expected += &format!("  {:#x} {}\n", frame.pc, frame.symbol);
        }
        expected += &format!("  {}\n", thread.end);
    }
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}
