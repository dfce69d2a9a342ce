//! Calls of JavaScript in recordings: the BPF program reads what V8's frames have, in the task.

use super::in_kernel::{recorder, walked_by};
use super::in_kernel_python::{folded, is_complete};
use super::*;

/// Recursion, a generator, and a builtin function that calls back.
const CHAIN: &str = "\
function leaf(value) {
  let total = 0;
  for (let number = 0; number < 2000; number++) total = (total * 31 + number * value) | 0;
  return total;
}
class Job {
  key(value) { return leaf(value); }
  *rows() { for (let i = 0; i < 3; i++) yield [3, 1, 2].map(value => this.key(value)); }
  dive(depth) { return depth ? this.dive(depth - 1) : [...this.rows()]; }
}
function main(end) {
  const job = new Job();
  for (let i = 0; i < 50; i++) job.dive(4);
  if (Date.now() < end) setImmediate(main, end);
}
main(Date.now() + 4000);
";

/// From the outermost in, without functions of node's and V8's own.
const CALLS: [&str; 10] =
    ["main", "dive", "dive", "dive", "dive", "dive", "rows", "<anonymous:8>", "key", "leaf"];

/// The function of a call.
fn call(frame: &str) -> Option<&str> {
    frame.strip_suffix("_[js]")
}

/// What V8 may be executing as well, where it does not keep which functions are inlined.
const MARK: &str = "[or a function inlined in it]";

/// Stacks, from the outermost frame in, each with how often it was seen.
type Folded = Vec<(Vec<String>, u64)>;

/// Runs node with these options on a script beside its recording. Returns the stacks, each with how often it was seen,
/// and the ledger.
fn recorded(test: &str, options: &[&str], script: &str) -> Option<(Folded, Value)> {
    let node = tool("node")?;
    let folder = support::scratch(test);
    let (data, path) = (folder.join("perf.data"), folder.join("chain.js"));
    std::fs::write(&path, script).unwrap();
    let run = [&[node.to_str().unwrap()], options, &[path.to_str().unwrap()]].concat();
    let ledger = walked_by(recorder(), &data, &["-F", "999"], &run)?;
    Some((folded(&data, &["--no-inlined"]), ledger))
}

/// The calls of the program's own functions.
fn own(stack: &[String]) -> Vec<&str> {
    stack.iter().filter_map(|frame| call(frame)).filter(|name| CALLS.contains(name)).collect()
}

/// Those that end in the innermost function: how many there are, and how many of them are complete. These have all
/// calls, and each stack has them at their frames.
fn check(stacks: &Folded, ledger: &Value) -> (u64, u64) {
    let (mut all, mut whole) = (0, 0);
    for (stack, count) in stacks {
        let own = own(stack);
        // Whatever is executed, no call between two is missing.
        let is_whole = is_complete(stack) && !stack.iter().any(|frame| is_mark(frame));
        assert!(!is_whole || CALLS.starts_with(&own), "{stack:?}");
        if own.last() != Some(&"leaf") {
            continue;
        }
        all += count;
        assert!(!is_whole || own == CALLS, "{stack:?}");
        // Further out than a gap all of them are there.
        if is_complete(stack) && !stack.iter().any(|frame| frame == MARK) {
            assert!(own.starts_with(&CALLS[..7]), "{stack:?}");
            whole += count;
        }
    }
    check_trampolines(stacks);
    assert!(all > 100, "{all}: {ledger}");
    (all, whole)
}

/// Whether something says that there may be others.
fn is_mark(frame: &str) -> bool {
    frame == MARK || frame.starts_with("[callers")
}

/// In complete stacks the interpreter's native frame comes before the call that it executes.
fn check_trampolines(stacks: &Folded) {
    for (stack, _) in stacks.iter().filter(|(stack, _)| is_complete(stack)) {
        let mut pairs = stack.windows(2);
        let lacks = pairs.any(|pair| {
            // One that was interrupted before its frame stood has not begun to execute a call.
            let is_innermost = pair[1].ends_with("_[k]");
            pair[0] == "Builtins_InterpreterEntryTrampoline"
                && call(&pair[1]).is_none()
                && !is_innermost
        });
        assert!(!lacks || stack.iter().any(|frame| is_mark(frame)), "{stack:?}");
    }
}

#[test]
fn calls_of_compiled_javascript_stand_in_recordings_with_those_that_are_inlined() {
    let recorded = recorded("in_kernel_v8", &["--detailed-line-info"], CHAIN);
    let Some((stacks, ledger)) = recorded else { return };
    let (all, whole) = check(&stacks, &ledger);
    assert!(whole * 100 >= all * 90, "{whole} of {all}: {ledger}");
    // Where a function is inlined no native frame stands between it and its caller.
    let is_inlined = |(stack, _): &&(Vec<String>, u64)| {
        stack.windows(2).any(|pair| pair == ["key_[js]", "leaf_[js]"])
    };
    let inlined: u64 = stacks.iter().filter(is_inlined).map(|(_, count)| count).sum();
    assert!(inlined > 50, "{inlined}: {ledger}");
}

#[test]
fn what_may_be_inlined_is_marked_at_its_place() {
    let Some((stacks, ledger)) = recorded("in_kernel_v8_inlined", &[], CHAIN) else { return };
    let told = number(&ledger, "inlined_calls");
    assert!(told > 100, "{ledger}");
    let (complete, written) = (number(&ledger, "complete"), number(&ledger, "written"));
    assert!(complete * 100 >= written * 90, "{ledger}");
    let marked = stacks.iter().filter(|(stack, _)| stack.iter().any(|frame| frame == MARK));
    let mut count = 0;
    let has_gap = |stack: &[String]| stack.iter().any(|frame| frame.starts_with("[callers"));
    for (stack, times) in marked.filter(|(stack, _)| is_complete(stack)) {
        count += if has_gap(stack) { 0 } else { *times };
        let at = stack.iter().rposition(|frame| frame == MARK).unwrap();
        assert!(call(&stack[at - 1]).is_some(), "{stack:?}");
        let own = own(stack);
        assert!(CALLS.starts_with(&own) || own.is_empty(), "{stack:?}");
    }
    assert_eq!(count, told, "{ledger}");
}

#[test]
fn calls_that_are_interpreted_or_compiled_one_by_one_stand_in_recordings() {
    for (name, option) in [("ignition", "--no-sparkplug"), ("sparkplug", "--always-sparkplug")] {
        let options = ["--no-opt", option];
        let recorded = recorded(&format!("in_kernel_v8_{name}"), &options, CHAIN);
        let Some((stacks, ledger)) = recorded else { return };
        let (all, whole) = check(&stacks, &ledger);
        // Instructions of V8's own builtin functions prove no frame where they end with jumps by a register.
        assert!(whole * 100 >= all * 90, "{name} {whole} of {all}: {ledger}");
    }
}

/// Recursion that is too deep for its calls to have room beside a copy of their stack.
const DEEP: &str = "\
function dive(depth) {
  if (depth) return dive(depth - 1);
  let sum = 0;
  for (let number = 0; number < 100000; number++) sum = (sum * 31 + number) | 0;
  return sum;
}
const end = Date.now() + 2000;
while (Date.now() < end) dive(420);
";

#[test]
fn a_stack_whose_calls_have_no_room_is_there_without_some() {
    let recorded = recorded("in_kernel_v8_deep", &["--no-opt", "--no-sparkplug"], DEEP);
    let Some((stacks, ledger)) = recorded else { return };
    let (written, unmatched) = (number(&ledger, "written"), number(&ledger, "unmatched"));
    assert!(written > 200 && unmatched * 50 <= written, "{ledger}");
    let count = |stack: &[String]| stack.iter().filter(|frame| *frame == "dive_[js]").count();
    let deep = stacks.iter().filter(|(stack, _)| count(stack) > 100);
    // On a busy machine copies fill the ring.
    assert!(deep.map(|(_, times)| times).sum::<u64>() > 50, "{ledger}");
    check_trampolines(&stacks);
}

/// Small functions that call themselves, of which many samples are in the first and last instructions: in JavaScript,
/// and in WebAssembly (`(func (export "f") (param i32) (result i32) ...)`).
const RECURSION: [(&str, &str); 2] = [
    ("fib_[js]", "\
function fib(number) { return number < 2 ? number : fib(number - 1) + fib(number - 2); }
function main(end) { while (Date.now() < end) fib(18); }
main(Date.now() + 3000);
"),
    ("[wasm function]_[wasm]", "\
const bytes = Buffer.from('AGFzbQEAAAABBgFgAX8BfwMCAQAHBQEBZgAACh4BHAAgAEECSAR/IAAFIABBAWsQACAAQQJrEABqCws=', 'base64');
const { f } = new WebAssembly.Instance(new WebAssembly.Module(bytes)).exports;
function main(end) { while (Date.now() < end) f(18); }
main(Date.now() + 3000);
"),
];

#[test]
fn calls_that_begin_or_end_are_known() {
    for (place, (name, script)) in RECURSION.iter().enumerate() {
        let test = format!("in_kernel_v8_recursion_{place}");
        let Some((stacks, ledger)) = recorded(&test, &["--detailed-line-info"], script) else {
            return;
        };
        let (mut all, mut whole) = (0, 0);
        for (stack, count) in &stacks {
            let Some(at) = stack.iter().position(|frame| frame == name) else { continue };
            all += count;
            if !is_complete(stack) {
                continue;
            }
            whole += count;
            assert!(stack[..at].iter().any(|frame| frame == "main_[js]"), "{stack:?}");
            // Each native frame of compiled code executes a call.
            let native = |frame: &String| frame == "[compiled code]";
            let lacks = stack.windows(2).any(|pair| native(&pair[0]) && !pair[1].ends_with(']'));
            assert!(!lacks && !stack.last().is_some_and(native), "{stack:?}");
            let last = stack.iter().rposition(|frame| frame == name);
            let between = &stack[at..last.unwrap_or(at)];
            assert!(
                !between.windows(2).any(|pair| native(&pair[0]) && native(&pair[1])),
                "{stack:?}"
            );
        }
        assert!(all > 300 && whole * 100 >= all * 95, "{name}: {whole} of {all}: {ledger}");
    }
}
