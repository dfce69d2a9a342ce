//! `unwind record --engine bpf`: programs as people have them.

use super::in_kernel::{own, recorder, walked, walked_by, walks, with};
use super::*;
use test_support::Compiler;

const FLAGS: &[&str] = &["-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
const FLAGS_32: &[&str] = &["-m32", "-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

fn kinds(test: &str, flags: &[&str]) -> Option<PathBuf> {
    support::compile(test, "kinds.c", flags)
}

/// Checks that there are stacks, and how many percent of them are complete at least, not counting those that
/// have one of these reasons.
fn check_share(ledger: &Value, least: u64, percent: u64, but: &[&str]) {
    let count = |why: &&str| ledger["incomplete"][why].as_u64().unwrap_or(0);
    let excused: u64 = but.iter().map(count).sum();
    let stacks = number(ledger, "written") - number(ledger, "kernel_only");
    let complete = number(ledger, "complete");
    assert!(stacks > least && (complete + excused) * 100 >= stacks * percent, "{ledger}");
}

/// Checks that the kernel walks once it has the tables, which are late where other programs want the CPUs too.
fn check_walks(ledger: &Value) {
    let walked = number(ledger, "written") - walks(ledger, "copied");
    assert!(walked > 200 && walked * 4 > number(ledger, "written"), "{ledger}");
}

/// Whether each stack in a handler leads over the kernel's frame to what it has interrupted.
fn check_handlers(program: &Path) {
    let stacks = stacks(&program.with_file_name("perf.data"));
    let handled = with(&stacks, "handles");
    let is_whole = |stack: &&&Vec<String>| {
        let at = stack.iter().position(|name| name == "handles").unwrap();
        own(&stack[at..], &["handles", "lasts", "main"]) == ["handles", "lasts", "main"]
    };
    let whole = handled.iter().filter(is_whole).count();
    assert!(whole > 20 && whole * 100 >= handled.len() * 90, "{whole} of {}", handled.len());
    // What a handler returns to was not called: its name is that of the first byte.
    let report = unwind(&["report", program.with_file_name("perf.data").to_str().unwrap()]);
    let report = text(&report.stdout);
    // That of 32-bit programs is the kernel's, of which only they have the file.
    assert!(report.contains("  __restore_rt (") || report.contains("[vdso32]"), "{report}");
}

#[test]
fn the_signal_frames_of_32_bit_programs_are_walked_in_the_kernel_and_in_copies() {
    for kind in ["signals", "told"] {
        let Some(program) = kinds(&format!("in_kernel_32_bit_{kind}"), FLAGS_32) else { return };
        let options = ["-F", "1999"];
        let data = program.with_file_name("perf.data");
        let run = [program.to_str().unwrap(), kind, "60"];
        let copying = [&options[..], &["--engine", "perf"]].concat();
        let Some(ledger) = record(&data, &copying, &run) else { return };
        check_share(&ledger, 100, 99, &["executed-another"]);
        check_handlers(&program);
        let Some(ledger) = walked(&program, &options, &run[1..]) else { return };
        check_share(&ledger, 100, 99, &["executed-another"]);
        check_walks(&ledger);
        check_handlers(&program);
    }
}

#[test]
fn a_recorder_in_a_pid_namespace_has_the_stacks_of_its_programs() {
    let Some(program) = kinds("in_kernel_namespace", FLAGS) else { return };
    let Some(unshare) = tool("unshare") else { return };
    let data = program.with_file_name("perf.data");
    let inside = ["--pid", "--fork", "--mount-proc"];
    let is_allowed = Command::new(&unshare).args(inside).arg("true").status().unwrap().success();
    if !is_allowed {
        return skip("no pid namespace can be made");
    }
    let options = ["-F", "1999"];
    let Some(_) = walked(&program, &options, &["signals", "10"]) else { return };
    let mut command = Command::new(unshare);
    command.args(inside).arg(env!("CARGO_BIN_EXE_unwind"));
    let run = [program.to_str().unwrap(), "signals", "60"];
    let ledger = walked_by(command, &data, &options, &run).expect("it walks outside");
    check_share(&ledger, 100, 99, &["executed-another"]);
    check_handlers(&program);
    let output = unwind(&["script", "-F", "tid", data.to_str().unwrap()]);
    let threads: Vec<u32> = text(&output.stdout).split_whitespace().flat_map(str::parse).collect();
    assert!(threads.len() > 100 && threads.iter().all(|&it| (1..100).contains(&it)), "{threads:?}");
}

#[test]
fn a_program_in_a_container_is_recorded_from_outside() {
    let test = "in_kernel_container";
    let Some(program) = kinds(test, &[FLAGS, &["-static"]].concat()) else { return };
    let Some(unshare) = tool("unshare") else { return };
    let folder = program.parent().unwrap();
    let data = folder.join("perf.data");
    let root = format!("--root={}", folder.display());
    let unshare = unshare.to_str().unwrap();
    let container = [unshare, "--mount", "--pid", "--fork", &root, "/program", "signals", "60"];
    let Some(ledger) = walked_by(recorder(), &data, &["-F", "1999"], &container) else { return };
    check_share(&ledger, 100, 99, &["executed-another"]);
    check_handlers(&program);
}

#[test]
fn a_program_whose_file_is_gone_or_another_one_is_walked_by_its_own_table() {
    for (test, then) in [("in_kernel_removed", ""), ("in_kernel_rebuilt", "cp /bin/true \"$0\";")] {
        let Some(program) = kinds(test, FLAGS) else { return };
        let data = program.with_file_name("perf.data");
        let script = format!("\"$0\" signals 60 & sleep 0.01; rm \"$0\"; {then} wait");
        let run = ["sh", "-c", &script, program.to_str().unwrap()];
        let Some(ledger) = walked_by(recorder(), &data, &["-F", "1999"], &run) else { return };
        check_share(&ledger, 100, 99, &["executed-another"]);
        check_walks(&ledger);
    }
}

#[test]
fn the_code_that_the_kernel_lends_to_programs_has_a_table() {
    let Some(program) = kinds("in_kernel_vdso", FLAGS) else { return };
    let Some(ledger) = walked(&program, &["-F", "1999"], &["clock", "60"]) else { return };
    check_share(&ledger, 100, 99, &[]);
    let stacks = stacks(&program.with_file_name("perf.data"));
    let asking = with(&stacks, "asks");
    let is_whole = |stack: &&&Vec<String>| own(stack, &["asks", "lasts", "main"]).len() == 3;
    let whole = asking.iter().filter(is_whole).count();
    assert!(whole > 100 && whole * 100 >= asking.len() * 99, "{whole} of {}", asking.len());
}

#[test]
fn a_library_that_comes_and_goes_is_walked_wherever_it_is() {
    let Some(program) = kinds("in_kernel_loads", FLAGS) else { return };
    let Some(compiler) = Compiler::find(FLAGS) else { return };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/kinds.c");
    let library = program.with_file_name("library.so");
    compiler.compile(&source, &library, &["-shared", "-fPIC"]);
    let run = ["loads", "6000", library.to_str().unwrap()];
    let Some(ledger) = walked(&program, &["-F", "1999"], &run) else { return };
    check_share(&ledger, 100, 99, &[]);
    check_walks(&ledger);
    let stacks = stacks(&program.with_file_name("perf.data"));
    let working = with(&stacks, "works");
    assert!(working.len() > 50 && working.iter().all(|stack| stack.contains(&"main".to_owned())));
}

#[test]
fn a_library_that_is_written_over_is_walked_by_its_own_table() {
    let Some(program) = kinds("in_kernel_written_over", FLAGS) else { return };
    let Some(compiler) = Compiler::find(FLAGS) else { return };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/kinds.c");
    let [library, other] = ["library.so", "other.so"].map(|name| program.with_file_name(name));
    compiler.compile(&source, &library, &["-shared", "-fPIC"]);
    compiler.compile(&source, &other, &["-shared", "-fPIC", "-O0", "-fstack-protector-all"]);
    for file in [&library, &other] {
        fs::File::options().write(true).open(file).unwrap().set_len(1 << 20).unwrap();
    }
    let (library, other) = (library.to_str().unwrap(), other.to_str().unwrap());
    let script = "\"$0\" loads 6000 \"$1\"; cat \"$2\" > \"$1\"; exec \"$0\" loads 6000 \"$1\"";
    let run = ["sh", "-c", script, program.to_str().unwrap(), library, other];
    let data = program.with_file_name("perf.data");
    let Some(ledger) = walked_by(recorder(), &data, &["-F", "1999"], &run) else { return };
    check_share(&ledger, 100, 98, &[]);
    let stacks = stacks(&data);
    let working = with(&stacks, "works");
    let whole = working.iter().filter(|stack| stack.contains(&"main".to_owned())).count();
    // By the table of what was there before they would be copied.
    assert!(walks(&ledger, "copied") * 3 < number(&ledger, "written"), "{ledger}");
    assert!(whole > 100 && whole * 100 >= working.len() * 99, "{whole} of {}", working.len());
}

#[test]
fn processes_that_live_some_milliseconds_have_their_stacks() {
    let Some(program) = kinds("in_kernel_short", FLAGS) else { return };
    let Some(ledger) = walked(&program, &["-F", "1999"], &["processes", "200"]) else { return };
    check_share(&ledger, 100, 98, &[]);
    check_walks(&ledger);
}

#[test]
fn interpreters_and_runtimes_are_complete_or_have_a_reason() {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/programs");
    let folder = support::scratch("in_kernel_runtimes");
    // Stacks that are copied, until the table of Python is there, have no calls; compiled code has no table.
    let kinds = [
        ("python3", "work.py", "8", ["interpreted-calls"].as_slice()),
        ("node", "work.js", "60", &["gap", "frame-pointer-below-stack", "interpreted-calls"]),
    ];
    for (name, source, rounds, reasons) in kinds {
        let Some(interpreter) = tool(name) else { continue };
        let data = folder.join(format!("{name}.data"));
        let source = programs.join(source);
        let run = [interpreter.to_str().unwrap(), source.to_str().unwrap(), rounds];
        let Some(ledger) = walked_by(recorder(), &data, &["-F", "999"], &run) else { return };
        check_share(&ledger, 50, 97, &[reasons, &["executed-another"]].concat());
        let lacking = ledger["incomplete"]["interpreted-calls"].as_u64().unwrap_or(0);
        assert!(lacking <= walks(&ledger, "copied"), "{ledger}");
    }
}

#[test]
fn goroutines_are_walked_in_the_kernel_to_their_start() {
    let Some(go) = tool("go") else { return };
    let program = support::scratch("in_kernel_go").join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/goroutine.go");
    let build = Command::new(go)
        .args([Path::new("build"), Path::new("-o"), &program, &source])
        .env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-cache"))
        .envs([("GO111MODULE", "off"), ("CGO_ENABLED", "0")])
        .status();
    assert!(build.unwrap().success(), "go build");
    let rounds = "r".repeat(1500);
    let Some(ledger) = walked(&program, &["-F", "1999"], &[&rounds]) else { return };
    check_share(&ledger, 100, 97, &["other-stack"]);
    check_walks(&ledger);
    let stacks = stacks(&program.with_file_name("perf.data"));
    let working = with(&stacks, "main.computes");
    let is_whole = |stack: &&&Vec<String>| {
        let count = |name: &str| stack.iter().filter(|&found| found == name).count();
        count("main.descends") == 11 && count("runtime.goexit.abi0") == 1
    };
    let whole = working.iter().filter(is_whole).count();
    assert!(whole > 100 && whole * 100 >= working.len() * 97, "{whole} of {}", working.len());
}

/// Records `expressions.c` with these arguments, and checks that the kernel finds this chain.
fn check_changes_of_stacks(test: &str, arguments: &str, expected: &[&str]) {
    let Some(program) = support::compile(test, "expressions.c", FLAGS) else { return };
    let data = program.with_file_name("perf.data");
    // It is ended when it has had two seconds of a CPU.
    let script = format!("ulimit -t 2; exec \"$0\" {arguments}");
    let run = ["sh", "-c", &script, program.to_str().unwrap()];
    let Some(ledger) = walked_by(recorder(), &data, &["-F", "999"], &run) else { return };
    check_walks(&ledger);
    let stacks = stacks(&data);
    let working = with(&stacks, "end");
    let is_whole = |stack: &&&Vec<String>| {
        let at = stack.iter().position(|name| name == "end").unwrap();
        stack[at..].iter().take(expected.len()).eq(expected)
    };
    let whole = working.iter().filter(is_whole).count();
    // Those before its table is there are copied, of which this stack is not the last.
    let walked = number(&ledger, "written") - walks(&ledger, "copied");
    assert!(u64::try_from(whole).unwrap() + 5 >= walked, "{whole} of {}: {ledger}", working.len());
}

#[test]
fn u3_the_kernel_walks_from_stack_to_stack_by_expressions() {
    let expected = [
        "end", "aligned", "on_high", "switched", "on_low", "switched", "third", "chained",
        "second", "aligned", "first", "main",
    ];
    check_changes_of_stacks("in_kernel_expressions", "works switches", &expected);
}

#[test]
fn u3_a_function_that_asks_for_a_larger_stack_has_its_callers() {
    let flags = &["-O1", "-fomit-frame-pointer", "-fno-pie", "-no-pie"];
    let Some(program) = support::compile("in_kernel_stack_check", "stack_check.c", flags) else {
        return;
    };
    let Some(ledger) = walked(&program, &["-F", "999"], &["runs"]) else { return };
    // Until there is a table stacks are copied, and walked by the same rules.
    check_share(&ledger, 100, 98, &["executed-another"]);
    let expected = ["grows", "caml_call_realloc_stack", "function", "calls", "main"];
    let stacks = stacks(&program.with_file_name("perf.data"));
    let grows = with(&stacks, "grows");
    let whole = grows.iter().filter(|stack| own(stack, &expected) == expected).count();
    assert!(whole > 200 && whole * 100 >= grows.len() * 98, "{whole} of {}: {ledger}", grows.len());
}

#[test]
fn u3_the_kernel_walks_from_stack_to_stack_by_a_register_that_calls_preserve() {
    let expected = [
        "end",
        "saves",
        "kept_high",
        "lent",
        "calls_high",
        "saves",
        "kept_low",
        "lent",
        "kept",
        "main",
    ];
    check_changes_of_stacks("in_kernel_kept_cfa", "works switches keeps", &expected);
}
