//! `unwind stack`: the calls that an interpreter executes.
#![cfg(test)]

#[path = "support/schema.rs"]
mod schema;
mod support;

use std::path::Path;
use std::process::{Command, Stdio};

use schema::Schema;
use serde_json::Value;
use support::*;
use test_support::tool;

/// A program in which Python calls C that calls Python, which sleeps.
const NESTED: &str = "\
import functools, time
class Outer:
    def method(self, depth):
        if depth:
            return self.method(depth - 1)
        return sorted([1], key=self.key)
    def key(self, value):
        return functools.reduce(lambda one, other: wait(), [1, 2])
def wait():
    print('ready', flush=True)
    time.sleep(600)
Outer().method(1)
";

fn python() -> Option<Target> {
    let mut command = Command::new(tool("python3")?);
    let target = Target::start_command(command.args(["-c", NESTED]));
    target.wait_for_state("S");
    Some(target)
}

/// The calls of a thread as `function:line`, each call of the evaluator apart.
fn calls(thread: &Value) -> Vec<Vec<String>> {
    let frames = thread["frames"].as_array().unwrap().iter();
    let runs = frames.filter_map(|frame| frame["interpreted"].as_array());
    let call = |call: &Value| {
        assert_eq!((&call["language"], &call["file"]), (&"python".into(), &"<string>".into()));
        let function = call["function"].as_str().unwrap();
        let function = function.rsplit(['.', '>']).find(|part| !part.is_empty()).unwrap();
        format!("{function}:{}", call["line"])
    };
    runs.map(|run| run.iter().map(call).collect()).collect()
}

/// What is expected of the program, innermost first.
const CALLS: [&str; 6] = ["wait:11", "<lambda:8", "key:8", "method:6", "method:5", "<module:12"];

fn names(thread: &Value) -> Vec<String> {
    calls(thread).concat()
}

#[test]
fn calls_of_python_stand_at_the_native_frames_that_execute_them() {
    let Some(target) = python() else { return };
    let report = report_of(&target, &[]);
    Schema::of("stack").check(&report, &["interpreted"]);
    let thread = &threads(&report)[0];
    assert_eq!(names(thread), CALLS);
    assert_eq!(thread["interpreted"]["complete"], true, "{thread:#}");
    assert_eq!(thread["end"]["complete"], true);
    // C functions stand between those that they call and those that call them.
    let frames = thread["frames"].as_array().unwrap();
    let place = |name: &str| {
        let is_it = |frame: &Value| {
            let calls = frame["interpreted"].as_array();
            let mut calls = calls.into_iter().flatten();
            let is_it =
                |call: &Value| call["function"].as_str().unwrap().rsplit('.').next() == Some(name);
            frame["function"] == name || calls.any(is_it)
        };
        frames.iter().position(is_it).unwrap_or_else(|| panic!("no {name}: {thread:#}"))
    };
    // A distribution may have taken the names off its interpreter.
    if ["functools_reduce", "builtin_sorted"].iter().all(|name| functions(thread).contains(name)) {
        let order = ["wait", "functools_reduce", "key", "builtin_sorted", "method"];
        assert!(order.map(place).is_sorted(), "{thread:#}");
    }
    let evaluators =
        frames.iter().filter(|frame| frame["function"] == "_PyEval_EvalFrameDefault").count();
    assert!(evaluators >= calls(thread).len(), "{thread:#}");
    // In place, and by a thread alone.
    for options in [&["--live"][..], &["--tid", &target.id().to_string()]] {
        assert_eq!(names(&threads(&report_of(&target, options))[0]), CALLS);
    }
}

#[test]
fn native_frames_are_the_same_with_calls_of_python_and_without() {
    let Some(target) = python() else { return };
    let native = report_of(&target, &["--native"]);
    let thread = &threads(&native)[0];
    assert_eq!((names(thread), &thread["interpreted"]), (Vec::new(), &Value::Null));
    let mut both = report_of(&target, &[]);
    for frame in both["threads"][0]["frames"].as_array_mut().unwrap() {
        frame.as_object_mut().unwrap().remove("interpreted");
    }
    assert_eq!(both["threads"][0]["frames"], thread["frames"]);
}

#[test]
fn text_has_calls_of_python_before_their_native_frames_or_alone() {
    let Some(target) = python() else { return };
    let id = target.id().to_string();
    let text = |option: &[&str]| {
        let output = run([&["stack", "--pid", &id][..], option].concat());
        String::from_utf8(output.stdout).unwrap()
    };
    let both = text(&[]);
    let wait = both.find(" python     wait at <string>:11\n").unwrap_or_else(|| panic!("{both}"));
    assert!(wait < both[wait..].find("_PyEval_EvalFrameDefault").map(|at| wait + at).unwrap());
    let alone = text(&["--interpreted"]);
    assert_eq!(alone.matches(" python ").count(), CALLS.len(), "{alone}");
    assert!(!alone.contains("#0"), "{alone}");
    assert!(!text(&["--native"]).contains(" python "));
}

#[test]
fn an_explanation_has_the_calls_of_python_at_the_same_frames() {
    let Some(target) = python() else { return };
    let id = target.id().to_string();
    let output = run(["explain", "--pid", &id, "--json"]);
    let explained: Value = serde_json::from_slice(&output.stdout).unwrap();
    Schema::of("explain").check(&explained, &["interpreted", "rbp…", "rsp…"]);
    let thread = &report_of(&target, &[])["threads"][0];
    assert_eq!(calls(&explained), calls(thread));
    assert_eq!(names(&explained), CALLS);
    assert_eq!(explained["interpreted"], thread["interpreted"]);
    let output = run(["explain", "--pid", &id]);
    let lines = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<_> = lines.lines().collect();
    let call = lines.iter().position(|line| line.ends_with("wait at <string>:11")).unwrap();
    let frame = lines[call..].iter().find(|line| line.trim_start().starts_with('#')).unwrap();
    assert!(frame.contains("_PyEval_EvalFrameDefault"), "{lines:#?}");
}

#[test]
fn calls_of_python_have_the_text_of_their_lines_where_the_file_is_there() {
    let folder = scratch("python_source");
    let program = folder.join("program.py");
    std::fs::write(&program, NESTED).unwrap();
    let Some(python) = tool("python3") else { return };
    let mut command = Command::new(python);
    // By its name alone: some versions have it as that, others with the folder.
    let target = Target::start_command(command.arg("program.py").current_dir(&folder));
    target.wait_for_state("S");
    let report = report_of(&target, &["--source"]);
    Schema::of("stack").check(&report, &["interpreted", "text"]);
    let frames = threads(&report)[0]["frames"].as_array().unwrap();
    let calls = frames.iter().filter_map(|frame| frame["interpreted"].as_array()).flatten();
    let texts: Vec<_> = calls.map(|call| call["text"].as_str().unwrap()).collect();
    let line = |number: usize| NESTED.lines().nth(number - 1).unwrap().trim();
    assert_eq!(texts, [11, 8, 8, 6, 5, 12].map(line));
    let id = target.id().to_string();
    let output = run(["stack", "--pid", &id, "--source", "--interpreted"]);
    let shown = String::from_utf8_lossy(&output.stdout);
    let shown: Vec<_> = shown.lines().collect();
    let call = shown.iter().position(|line| line.ends_with("program.py:11")).unwrap();
    assert_eq!(shown[call + 1].trim(), "time.sleep(600)");
    // Without being asked for there is none, and none of what has no file.
    std::fs::remove_file(&program).unwrap();
    for options in [&[][..], &["--source"]] {
        let report = report_of(&target, options);
        assert!(!report.to_string().contains("time.sleep(600)"), "{report:#}");
    }
}

#[test]
fn a_core_has_the_calls_of_python_that_its_process_had() {
    let Some(target) = python() else { return };
    let (Some(_), Some(gcore)) = (tool("gdb"), tool("gcore")) else { return };
    let prefix = scratch("python_core").join("core");
    let mut gcore = Command::new(gcore);
    let made = gcore.arg("-o").arg(&prefix).arg(target.id().to_string()).stdout(Stdio::null());
    assert!(made.status().unwrap().success());
    let core = format!("{}.{}", prefix.display(), target.id());
    let report = report(&["--core", &core]);
    assert_eq!(names(&threads(&report)[0]), CALLS);
    assert_eq!(threads(&report)[0]["interpreted"]["complete"], true);
}

#[test]
fn calls_of_python_are_those_that_it_tells_itself_at_the_same_stop() {
    let Some(python) = tool("python3") else { return };
    let stops = Path::new(env!("CARGO_MANIFEST_DIR")).join("../checks/interpreters/stops");
    let mut check = Command::new(python);
    let unwind = env!("CARGO_BIN_EXE_unwind");
    let output = check.arg(stops).args(["--stops", "20", "--unwind", unwind]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{told}{}", stderr(&output));
    assert!(told.contains("complete"), "{told}");
}

/// A program in which JavaScript calls builtin functions that call JavaScript, which waits.
const NODE: &str = "\
const fs = require('fs');
class Outer {
  method(depth) {
    return depth > 0 ? this.method(depth - 1) : [1].map((each) => this.key(each));
  }
  key(value) {
    fs.writeSync(new Error().stack && 1, 'ready\\n');
    return fs.readSync(0, Buffer.alloc(value));
  }
}
new Outer().method(1);
";

#[test]
fn calls_of_javascript_stand_at_the_native_frames_that_execute_them() {
    let Some(node) = tool("node") else { return };
    let mut command = Command::new(node);
    let target = Target::start_command(command.args(["-e", NODE]));
    target.wait_for_state("S");
    let report = report_of(&target, &[]);
    Schema::of("stack").check(&report, &["interpreted"]);
    let thread = &threads(&report)[0];
    assert_eq!(thread["interpreted"]["complete"], true, "{thread:#}");
    let frames = thread["frames"].as_array().unwrap().iter();
    let calls = frames.filter_map(|frame| frame["interpreted"].as_array()).flatten();
    let name = |call: &Value| {
        let function = call["function"].as_str().unwrap_or("");
        format!("{function}:{}", call["line"].as_u64().unwrap_or(0))
    };
    let own = calls.filter(|call| call["file"] == "[eval]" || call["kind"] == "builtin");
    let own: Vec<_> = own.map(name).collect();
    let expected = ["key:8", ":4", "map:0", "method:4", "method:4", ":11"];
    assert_eq!(own[..expected.len()], expected, "{thread:#}");
    // Without them native frames are the same.
    let native = report_of(&target, &["--native"]);
    let places = |report: &Value| {
        let frames = threads(report)[0]["frames"].as_array().unwrap().clone();
        frames.iter().map(|frame| frame["pc"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(places(&native), places(&report));
}

/// A function that calls once, and then handles bytecodes for ever without a call.
const INTERPRETED: &str = "\
const identity = value => value;
function spin() {
  let sum = identity(3);
  for (let i = 0; ; i++) {
    sum = sum * 31 + i | 0;
    sum = sum ^ i;
  }
}
require('fs').writeSync(1, 'ready\\n');
spin();
";

#[test]
fn a_function_that_is_interrupted_in_the_interpreter_has_no_line() {
    let Some(node) = tool("node") else { return };
    let mut command = Command::new(node);
    let options = ["--no-opt", "--no-sparkplug", "-e", INTERPRETED];
    let target = Target::start_command(command.args(options));
    let mut interrupted = 0;
    for _ in 0..200 {
        let report = report_of(&target, &[]);
        let frames = threads(&report)[0]["frames"].as_array().unwrap().clone();
        let innermost = frames[0]["function"].as_str().unwrap_or("").to_owned();
        let calls = frames.iter().filter_map(|frame| frame["interpreted"].as_array()).flatten();
        let Some(call) = calls.into_iter().find(|call| call["function"] == "spin") else {
            continue;
        };
        // What handles a bytecode calls nothing here.
        if innermost.starts_with("Builtins_") && innermost.ends_with("Handler") {
            assert_eq!((&call["line"], &call["start"]), (&Value::Null, &2.into()), "{innermost}");
            interrupted += 1;
        }
        if interrupted == 10 {
            return;
        }
    }
    panic!("{interrupted} stops in the interpreter");
}
