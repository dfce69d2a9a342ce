//! Calls of Python in recordings, read by the BPF program in the task.

use super::in_kernel::{recorder, walked_by};
use super::schema::Schema;
use super::*;
use test_support::Compiler;

const FLAGS: &[&str] = &["-O1"];

/// Recursion, a generator, and C that calls Python back.
const CHAIN: &str = "\
import sys, time
def leaf(value):
    total = 0
    for number in range(300):
        total += number * value
    return total
class Worker:
    def key(self, value):
        return leaf(value)
    def rows(self):
        for _ in range(3):
            yield sorted([3, 1, 2], key=self.key)
    def dive(self, depth):
        if depth:
            return self.dive(depth - 1)
        return list(self.rows())
def main():
    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        Worker().dive(4)
main()
";

/// From the outermost in.
const CALLS: [&str; 10] =
    ["<module>", "main", "dive", "dive", "dive", "dive", "dive", "rows", "key", "leaf"];

/// Stacks of a report, from the outermost frame in, with how often each was seen.
pub(super) fn folded(data: &Path, options: &[&str]) -> Vec<(Vec<String>, u64)> {
    let all = [&["report", "--format", "folded", data.to_str().unwrap()], options].concat();
    let output = unwind(&all);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let line = |line: &str| {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        (stack.split(';').map(str::to_owned).collect(), count.parse().unwrap())
    };
    text(&output.stdout).lines().map(line).collect()
}

/// The function of a call, without classes around it.
fn call(frame: &str) -> Option<&str> {
    frame.strip_suffix("_[p]")?.rsplit('.').next()
}

pub(super) fn is_complete(stack: &[String]) -> bool {
    !stack.iter().any(|frame| frame.starts_with("[incomplete"))
}

/// A program with the names of an interpreter, of a version that is to come.
const UNKNOWN: &str = "\
unsigned long Py_Version = 0x03630000;
char _PyRuntime[1 << 16], PyCode_Type[64], PyUnicode_Type[64];
__attribute__((noinline)) long _PyEval_EvalFrameDefault(long rounds) {
    volatile long sum = 0;
    while (rounds--) sum += rounds;
    return sum;
}
int main(void) { return _PyEval_EvalFrameDefault(300000000) == 1; }
";

#[test]
fn a_version_of_python_that_is_not_known_is_told() {
    let Some(compiler) = Compiler::find(&["-O1", "-rdynamic"]) else { return };
    let folder = support::scratch("record_unknown_python");
    let (source, program) = (folder.join("python3.99.c"), folder.join("python3.99"));
    fs::write(&source, UNKNOWN).unwrap();
    compiler.compile(&source, &program, &[]);
    let data = folder.join("perf.data");
    let mut command = recorder();
    command
        .args(["record", "--engine", "bpf", "-F", "999", "-o"])
        .arg(&data)
        .arg("--")
        .arg(&program);
    let told = text(&command.output().unwrap().stderr);
    if told.contains("stacks cannot be walked in the kernel") {
        return skip(&told);
    }
    let line = "unwind: frames of CPython 3.99 are not shown: this version is not known\n";
    assert_eq!(told.matches(line).count(), 1, "{told}");
}

#[test]
fn calls_of_python_stand_in_recordings_at_the_frames_that_execute_them() {
    let Some(python) = tool("python3") else { return };
    let data = support::scratch("record_python").join("perf.data");
    let command = [python.to_str().unwrap(), "-c", CHAIN, "4"];
    let Some(ledger) = walked_by(recorder(), &data, &["-F", "999"], &command) else { return };
    let stacks = folded(&data, &["--no-inlined"]);
    let (mut all, mut whole) = (0, 0);
    for (stack, count) in &stacks {
        let calls: Vec<_> = stack.iter().filter_map(|frame| call(frame)).collect();
        if calls.last() != Some(&"leaf") {
            continue;
        }
        all += count;
        if !is_complete(stack) {
            continue;
        }
        whole += count;
        assert_eq!(calls, CALLS, "{stack:?}");
        // What an evaluator executes comes next, further in.
        let inner = stack.windows(2).filter(|pair| pair[0].starts_with("_PyEval_EvalFrameDefault"));
        let mut inner = inner.peekable();
        assert!(inner.peek().is_some());
        assert!(inner.all(|pair| call(&pair[1]).is_some()), "{stack:?}");
    }
    assert!(all > 200 && whole * 100 >= all * 95, "{whole} of {all}: {ledger}");
    // None that lacks calls is complete, whichever function it is in.
    for (stack, _) in stacks.iter().filter(|(stack, _)| is_complete(stack)) {
        let mut pairs = stack.windows(2);
        let lacks = pairs.any(|pair| {
            pair[0].starts_with("_PyEval_EvalFrameDefault")
                && call(&pair[1]).is_none()
                && pair[1] != "_Py_CheckFunctionResult"
        });
        assert!(!lacks, "{stack:?}");
    }
    // Functions that are inlined in the evaluator's stand between it and its calls: none stands after these.
    let without = |stacks: &[(Vec<String>, u64)]| {
        let calls = |stack: &Vec<String>| {
            stack.iter().filter(|frame| call(frame).is_some()).cloned().collect::<Vec<_>>()
        };
        let mut counts = std::collections::BTreeMap::new();
        for (stack, count) in stacks {
            *counts.entry(calls(stack)).or_insert(0) += count;
        }
        counts
    };
    let with_inlined = folded(&data, &[]);
    assert_eq!(without(&with_inlined), without(&stacks));
    // Either kind alone.
    let native = folded(&data, &["--native"]);
    assert!(native.iter().all(|(stack, _)| stack.iter().all(|frame| call(frame).is_none())));
    let alone = folded(&data, &["--interpreted"]);
    let is_call = |frame: &String| call(frame).is_some() || frame.starts_with('[');
    for (stack, _) in &alone {
        // Below why it is not complete, and the thread.
        let frames = stack.iter().skip(usize::from(!is_complete(stack)) + 1);
        assert!(frames.clone().all(is_call), "{stack:?}");
    }
    let count = |stacks: &[(Vec<String>, u64)]| stacks.iter().map(|(_, count)| count).sum::<u64>();
    assert_eq!((count(&native), count(&alone)), (count(&stacks), count(&stacks)));
    the_script_has_the_same(&data, &stacks);
    let table = unwind(&["report", "--interpreted", "--top", "1000", data.to_str().unwrap()]);
    // A function whose process ended before it was read has no file.
    let others = ["%  [no call of", "%  [unknown python function]"];
    let is_call = |line: &&str| {
        line.contains(" (python: ") || others.iter().any(|other| line.contains(other))
    };
    let table = text(&table.stdout);
    let mut rows = table.lines().skip(1).take_while(|line| !line.is_empty());
    assert!(rows.all(|line| is_call(&line)), "{table}");
    let merged = data.with_file_name("merged.data");
    let merge = unwind(&["merge", data.to_str().unwrap(), "-o", merged.to_str().unwrap()]);
    assert_eq!((merge.status.code(), text(&merge.stderr)), (Some(0), String::new()));
    let sorted = |data| {
        let mut stacks = folded(data, &["--no-inlined"]);
        stacks.sort();
        stacks
    };
    assert_eq!(sorted(&merged), sorted(&data));
}

/// Checks that the script of a recording and an explanation of a sample have the calls of its report.
fn the_script_has_the_same(data: &Path, reported: &[(Vec<String>, u64)]) {
    use std::collections::BTreeMap;
    let data = data.to_str().unwrap();
    let script = |options: &[&str]| {
        let output = unwind(&[&["script", data][..], options].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let unknown = "[unknown python function]";
    let name = |call: &Value| call["function"].as_str().unwrap_or(unknown).to_owned();
    let json = script(&["--calls", "--json"]);
    let samples: Vec<Value> =
        json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let schema = Schema::of("script");
    samples.iter().for_each(|line| schema.check(line, &["calls", "calls_left_out"]));
    let samples: Vec<_> = samples.iter().filter(|line| line["type"] == "sample").collect();
    let calls_of = |sample: &Value| sample["calls"].as_array().unwrap().clone();
    let mut scripted = BTreeMap::new();
    for sample in samples.iter().filter(|sample| sample["account"].is_null()) {
        let calls: Vec<_> = calls_of(sample).iter().rev().map(name).collect();
        *scripted.entry(calls).or_insert(0) += 1;
    }
    let mut of_report = BTreeMap::new();
    for (stack, count) in reported.iter().filter(|(stack, _)| is_complete(stack)) {
        let calls = stack.iter().filter_map(|frame| frame.strip_suffix("_[p]").map(str::to_owned));
        *of_report.entry(calls.collect::<Vec<_>>()).or_insert(0) += count;
    }
    assert_eq!(scripted, of_report);
    // The text has a line for each, which perf has not, and says which stacks are not complete.
    let (plain, with_calls) = (script(&[]), script(&["--calls"]));
    let is_call = |line: &&str| line.contains("_[p] (");
    assert_eq!(plain.lines().filter(is_call).count(), 0);
    let all_calls: usize = samples.iter().map(|sample| calls_of(sample).len()).sum();
    assert_eq!(with_calls.lines().filter(is_call).count(), all_calls);
    let without: Vec<_> = with_calls.lines().filter(|line| !is_call(line)).collect();
    assert_eq!(without, plain.lines().collect::<Vec<_>>());
    let told = plain.lines().filter(|line| line.trim_start().starts_with("(incomplete: ")).count();
    // A gap has a mark at its frame.
    let has_word = |sample: &&&Value| !sample["account"].is_null() && sample["account"] != "gap";
    let incomplete = samples.iter().filter(has_word).count();
    assert_eq!(told, incomplete);
    // An explanation has them at the same frame.
    let is_whole =
        |sample: &&Value| sample["account"].is_null() && calls_of(sample).len() == CALLS.len();
    let whole = samples.iter().position(is_whole).unwrap();
    let sample = format!("{data}@{}", whole + 1);
    let output = unwind(&["explain", "--json", &sample]);
    let explained: Value = serde_json::from_slice(&output.stdout).unwrap();
    Schema::of("explain").check(&explained, &[]);
    let frames = explained["frames"].as_array().unwrap().iter();
    let frames = frames.filter(|frame| frame["kernel"] == false).enumerate();
    let explained = frames.flat_map(|(place, frame)| {
        let calls = frame["interpreted"].as_array().unwrap().iter();
        calls.map(move |call| (place, call["function"].clone(), call["line"].clone()))
    });
    let scripted = calls_of(samples[whole]).into_iter().map(|call| {
        let place = usize::try_from(call["place"].as_u64().unwrap()).unwrap();
        (place, call["function"].clone(), call["line"].clone())
    });
    assert_eq!(explained.collect::<Vec<_>>(), scripted.collect::<Vec<_>>());
}

#[test]
fn calls_of_python_are_not_read_where_they_are_not_wanted() {
    let Some(python) = tool("python3") else { return };
    let data = support::scratch("record_python_native").join("perf.data");
    let command = [python.to_str().unwrap(), "-c", CHAIN, "1"];
    let Some(ledger) = walked_by(recorder(), &data, &["--native"], &command) else { return };
    let stacks = folded(&data, &[]);
    assert!(stacks.iter().all(|(stack, _)| stack.iter().all(|frame| call(frame).is_none())));
    let (all, complete) =
        (ledger["written"].as_u64().unwrap(), ledger["complete"].as_u64().unwrap());
    assert!(complete * 100 >= all * 90, "{ledger}");
    assert!(ledger["incomplete"].get("interpreted-calls").is_none(), "{ledger}");
}

#[test]
fn copies_of_stacks_have_no_calls_of_python() {
    let Some(python) = tool("python3") else { return };
    let data = support::scratch("record_python_copies").join("perf.data");
    let command = [python.to_str().unwrap(), "-c", CHAIN, "1"];
    let Some(_) = record(&data, &["--engine", "perf"], &command) else { return };
    let stacks = folded(&data, &[]);
    assert!(stacks.iter().all(|(stack, _)| stack.iter().all(|frame| call(frame).is_none())));
    assert!(stacks.iter().any(|(stack, _)| is_complete(stack)));
}

/// How many stacks with a function are complete, and how many lack calls of Python.
fn with(stacks: &[(Vec<String>, u64)], function: &str) -> (u64, u64) {
    let count = |mark: Option<&str>| {
        let counts = stacks.iter().filter(|(stack, _)| {
            let found = stack.iter().find(|frame| frame.starts_with("[incomplete"));
            stack.iter().any(|name| name == function) && found.map(String::as_str) == mark
        });
        counts.map(|(_, count)| count).sum()
    };
    (count(None), count(Some("[incomplete: interpreted-calls]")))
}

#[test]
fn a_thread_in_the_midst_of_calls_has_no_complete_stack_without_their_evaluator() {
    let flags = [FLAGS, &["-DSTANDS_ALONE"]].concat();
    let Some(program) = support::compile("record_interpreter", "interpreter.c", &flags) else {
        return;
    };
    let data = program.with_file_name("perf.data");
    let run = [program.to_str().unwrap()];
    let Some(ledger) = walked_by(recorder(), &data, &["-F", "999"], &run) else { return };
    let stacks = folded(&data, &[]);
    let (complete, lacking) = with(&stacks, "part_of_it");
    assert!(complete == 0 && lacking > 50, "{complete} {lacking}: {ledger}");
    for function in ["without_calls", "_PyEval_EvalFrameDefault"] {
        let (complete, lacking) = with(&stacks, function);
        assert!(complete > 50 && lacking == 0, "{function} {complete} {lacking}: {ledger}");
    }
    let called = with(&stacks, "call_[p]");
    assert_eq!(called, with(&stacks, "_PyEval_EvalFrameDefault"));
}

#[test]
fn stacks_in_more_files_of_python_than_there_is_room_for_lack_calls() {
    const ROOM: usize = 64;
    let Some(program) = support::compile("record_interpreters", "interpreters.c", FLAGS) else {
        return;
    };
    let Some(compiler) = Compiler::find(FLAGS) else { return };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/interpreter.c");
    let library = program.with_file_name("library.so");
    compiler.compile(&source, &library, &["-shared", "-fPIC"]);
    let copy = |number: usize| {
        let to = program.with_file_name(format!("{number}.so"));
        std::fs::copy(&library, &to).unwrap();
        to.to_str().unwrap().to_owned()
    };
    let copies: Vec<String> = (0..ROOM + 8).map(copy).collect();
    let data = program.with_file_name("perf.data");
    let run: Vec<_> =
        [program.to_str().unwrap()].into_iter().chain(copies.iter().map(String::as_str)).collect();
    let Some(ledger) = walked_by(recorder(), &data, &["-F", "999"], &run) else { return };
    let (complete, lacking) = with(&folded(&data, &[]), "without_calls");
    assert!(complete > lacking && lacking * 30 > complete, "{complete} {lacking}: {ledger}");
}
