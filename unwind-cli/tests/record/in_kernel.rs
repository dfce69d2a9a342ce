//! `unwind record --engine bpf`: stacks that the kernel's BPF program walks.

use std::sync::{Mutex, PoisonError};

use super::*;

fn deferral(test: &str) -> Option<PathBuf> {
    let flags = ["-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread"];
    support::compile(test, "deferral.c", &flags)
}

/// One after the other: until its tables are there each program has its stacks copied, and on a machine that is
/// busy that takes long.
pub(super) static ALONE: Mutex<()> = Mutex::new(());

/// The command.
pub(super) fn recorder() -> Command {
    Command::new(env!("CARGO_BIN_EXE_unwind"))
}

/// Records a program beside whose file the recording is; `None` where the kernel does not load the program that
/// walks, or not run it later.
pub(super) fn walked(program: &Path, options: &[&str], arguments: &[&str]) -> Option<Value> {
    let run = [&[program.to_str().unwrap()], arguments].concat();
    walked_by(recorder(), &program.with_file_name("perf.data"), options, &run)
}

/// Has a recorder record a command; `None` likewise.
pub(super) fn walked_by(
    mut recorder: Command,
    data: &Path,
    options: &[&str],
    run_command: &[&str],
) -> Option<Value> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let start = ["record", "--engine", "bpf", "--json", "-o", data.to_str().unwrap()];
    let all = [&start, options, &["--"], run_command].concat();
    recorder.current_dir(data.parent().unwrap());
    let output = run(recorder, &all);
    let told = text(&output.stderr);
    if told.contains("stacks cannot be walked in the kernel") {
        skip(&told);
        return None;
    }
    let ledger = ledger_of(&all, output)?;
    check_sums(&ledger);
    if walks(&ledger, "deferred") == 0 && walks(&ledger, "copied") == 0 {
        skip("this kernel walks no stack later");
        return None;
    }
    Some(ledger)
}

pub(super) fn walks(ledger: &Value, field: &str) -> u64 {
    number(&ledger["walks"], field)
}

/// The stacks in which there is a function of this name.
pub(super) fn with<'s>(stacks: &'s [Vec<String>], name: &str) -> Vec<&'s Vec<String>> {
    stacks.iter().filter(|stack| stack.iter().any(|found| found == name)).collect()
}

/// The names of a stack that are of the program.
pub(super) fn own<'s>(stack: &'s [String], names: &[&str]) -> Vec<&'s str> {
    stack.iter().map(String::as_str).filter(|name| names.contains(name)).collect()
}

#[test]
fn a_chain_without_frame_pointers_is_walked_at_once_once_its_tables_are_there() {
    let Some(program) = nested("in_kernel_chain") else { return };
    let Some(ledger) = walked(&program, &["-F", "1999"], &["2"]) else { return };
    let (written, complete) = (number(&ledger, "written"), number(&ledger, "complete"));
    assert!(written > 500 && complete * 100 >= written * 99, "{ledger}");
    assert!(walks(&ledger, "at_once") * 2 > written, "{ledger}");
    let stacks = stacks(&program.with_file_name("perf.data"));
    let deep = with(&stacks, "innermost");
    assert!(deep.len() > 300);
    for stack in deep {
        let count = |name: &str| stack.iter().filter(|&found| found == name).count();
        let counts = ["innermost", "nested", "main"].map(count);
        assert_eq!(counts, [1, 11, 1], "{stack:?}");
    }
}

#[test]
fn samples_of_one_system_call_share_the_walk_before_its_end() {
    let Some(program) = deferral("in_kernel_shared") else { return };
    let Some(ledger) = walked(&program, &["-F", "1999"], &["read", "2"]) else { return };
    let (written, complete) = (number(&ledger, "written"), number(&ledger, "complete"));
    assert!(complete * 100 >= written * 99, "{ledger}");
    assert!(walks(&ledger, "shared") > 100 && walks(&ledger, "deferred") > 10, "{ledger}");
    let stacks = stacks(&program.with_file_name("perf.data"));
    let names = ["reads", "reads_all", "main"];
    let reading = with(&stacks, "reads");
    assert!(reading.len() > 300, "{}", reading.len());
    assert!(reading.iter().all(|stack| own(stack, &names) == names), "{reading:?}");
}

#[test]
fn pages_of_a_stack_that_are_absent_are_brought_in_unless_that_is_not_wanted() {
    let Some(program) = deferral("in_kernel_absent") else { return };
    let Some(ledger) = walked(&program, &[], &["absent", "3"]) else { return };
    let stacks = stacks(&program.with_file_name("perf.data"));
    let inside = with(&stacks, "drops");
    let is_whole = |stack: &&&Vec<String>| {
        stack.iter().filter(|&name| name == "descends").count() == 301
            && stack.iter().any(|name| name == "on_own_stack")
    };
    let whole = inside.iter().filter(is_whole).count();
    // Until the tables are there stacks are copied, as far as a record has room.
    let copied = usize::try_from(walks(&ledger, "copied")).unwrap();
    assert!(whole > 50 && whole + copied >= inside.len(), "{whole} of {} {ledger}", inside.len());
    let Some(ledger) = walked(&program, &["--no-fault"], &["absent", "2"]) else { return };
    let absent = ledger["incomplete"]["stack-not-resident"].as_u64().unwrap_or(0);
    assert!(absent * 2 > number(&ledger, "written"), "{ledger}");
}

#[test]
fn frames_beyond_the_limit_are_told() {
    let Some(program) = deferral("in_kernel_deep") else { return };
    let Some(ledger) = walked(&program, &["-F", "1999"], &["deep", "12000"]) else { return };
    let cut = ledger["incomplete"]["frame-limit"].as_u64().unwrap_or(0);
    assert!(cut > 20, "{ledger}");
    let stacks = stacks(&program.with_file_name("perf.data"));
    let most = stacks.iter().map(Vec::len).max();
    assert!(most.is_some_and(|most| (2_048..2_300).contains(&most)), "{most:?}");
}

#[test]
fn a_walk_leads_over_the_frame_of_a_signal() {
    let Some(program) = deferral("in_kernel_signal") else { return };
    let Some(ledger) = walked(&program, &["-F", "1999"], &["handled", "2"]) else { return };
    let (written, complete) = (number(&ledger, "written"), number(&ledger, "complete"));
    assert!(complete * 100 >= written * 99, "{ledger}");
    let stacks = stacks(&program.with_file_name("perf.data"));
    let handled = with(&stacks, "handles");
    assert!(handled.len() > 200, "{}", handled.len());
    // Signals also come while the program ends.
    let interrupted = ["handles", "computes", "main"];
    let is_whole = |stack: &&&Vec<String>| {
        let at = stack.iter().position(|name| name == "handles").unwrap();
        own(&stack[at..], &interrupted) == interrupted
    };
    let whole = handled.iter().filter(is_whole).count();
    assert!(whole * 100 > handled.len() * 95, "{whole} of {}", handled.len());
}

#[test]
fn processes_that_execute_others_are_all_in_the_ledger() {
    let Some(program) = deferral("in_kernel_executes") else { return };
    let options = ["-F", "4999"];
    let Some(ledger) = walked(&program, &options, &["executes", "300"]) else { return };
    let (written, complete) = (number(&ledger, "written"), number(&ledger, "complete"));
    let ended = ["executed-another", "thread-ended"];
    let ended: u64 = ended.iter().filter_map(|why| ledger["incomplete"][why].as_u64()).sum();
    assert!(written > 300 && (complete + ended) * 100 >= written * 95, "{ledger}");
}

#[test]
fn threads_that_come_and_go_have_their_stacks() {
    let Some(program) = many("in_kernel_threads") else { return };
    let Some(ledger) = walked(&program, &["-F", "4999"], &["threads", "500"]) else { return };
    let (written, complete) = (number(&ledger, "written"), number(&ledger, "complete"));
    // Where the tables come late, as on a busy machine, copies fill the ring.
    let without_room = ledger["incomplete"]["no-room"].as_u64().unwrap_or(0);
    let whole = (complete + without_room) * 100 >= written * 97;
    assert!(written > 200 && whole && complete * 2 > written, "{ledger}");
}

#[test]
fn what_the_engine_cannot_do_is_refused_before_anything_runs() {
    let data = support::scratch("in_kernel_refused").join("perf.data");
    let path = data.to_str().unwrap();
    let refused = |engine, option, told: String, code| {
        let output =
            unwind(&["record", "--engine", engine, option, "-o", path, "--", "echo", "it ran"]);
        let told = format!("unwind: {told}\n");
        assert_eq!((text(&output.stderr), output.status.code()), (told, Some(code)));
        assert!(output.stdout.is_empty() && !data.exists());
    };
    for option in ["--keep-stacks", "--stack-bytes=4096", "--uretprobes"] {
        for engine in ["bpf", "module"] {
            let (name, _) = option.split_once('=').unwrap_or((option, ""));
            refused(engine, option, format!("{name} is for --engine perf"), 2);
        }
    }
    let hint = "; --engine perf walks copies of stacks";
    for (option, what) in [
        ("--off-cpu", "waits"),
        ("--event=cpu-clock,faults", "several events"),
        ("--no-fault", "without page faults"),
    ] {
        refused("module", option, format!("the Linux module does not record {what}{hint}"), 2);
    }
    if !Path::new("/dev/unwind").exists() {
        let told = "the Linux module of unwind is not loaded: there is no /dev/unwind; once it is installed, as \
                    docs/linux-module.md says, `modprobe unwind` loads it";
        refused("module", "--json", format!("{told}{hint}"), 3);
    }
}

/// The lines of a program's output that begin with one of `names`: that, and the numbers after it.
fn told(output: &str, names: &[&str]) -> Vec<(String, Vec<u64>)> {
    let lines = output.lines().filter_map(|line| line.split_once(' '));
    let numbers = |rest: &str| rest.split(' ').map(|word| word.parse().unwrap()).collect();
    let own = lines.filter(|(name, _)| names.contains(name));
    own.map(|(name, rest)| (name.to_owned(), numbers(rest))).collect()
}

#[test]
fn the_waits_of_each_thread_and_its_computing_are_all_of_its_time_by_either_engine() {
    if !nix::unistd::geteuid().is_root() {
        return skip("samples of the kernel need root");
    }
    let flags = ["-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread"];
    let Some(program) = support::compile("in_kernel_waits", "three_waits.c", &flags) else {
        return;
    };
    let data = program.with_file_name("perf.data");
    let names = ["sleeper", "locker", "reader"];
    for engine in ["perf", "bpf"] {
        let arguments = ["record", "--engine", engine, "--off-cpu", "--json", "-o"];
        let arguments = [&arguments[..], &[data.to_str().unwrap(), "--"]].concat();
        let output = unwind(&[&arguments[..], &[program.to_str().unwrap()]].concat());
        if text(&output.stderr).contains("stacks cannot be walked in the kernel") {
            return skip(&text(&output.stderr));
        }
        let printed = text(&output.stdout);
        let Some(ledger) = ledger_of(&arguments, output) else { return };
        let waits = &ledger["off_cpu"];
        assert_eq!((number(waits, "without_sample"), number(waits, "without_end")), (0, 0));
        let script = unwind(&["script", "-F", "comm,event,period,ip,sym", data.to_str().unwrap()]);
        let script = text(&script.stdout);
        let waits: Vec<(&str, u64, &str)> = script
            .split("\n\n")
            .filter_map(|block| {
                let (head, stack) = block.trim_start().split_once('\n')?;
                let words: Vec<&str> = head.split_whitespace().collect();
                let [name, period, "offcpu-time:"] = words[..] else { return None };
                Some((name, period.parse().unwrap(), stack))
            })
            .collect();
        for (name, numbers) in told(&printed, &names) {
            let [wall, cpu] = numbers[..] else { panic!("{name} {numbers:?}") };
            let own = || waits.iter().filter(|(found, ..)| *found == name);
            let waited: u64 = own().map(|(_, period, _)| period).sum();
            assert!(
                (waited + cpu).abs_diff(wall) * 100 < wall,
                "{engine} {name} {waited} {cpu} {wall}"
            );
            let function = name.replace("er", "s");
            let inside: u64 = own()
                .filter(|(.., stack)| stack.contains(&function) && stack.contains("start_thread"))
                .map(|(_, period, _)| period)
                .sum();
            assert!(
                inside * 100 > waited * 90,
                "{engine} {name}: {inside} of {waited} in {function}"
            );
        }
    }
}

#[test]
fn samples_of_threads_that_come_later_are_of_their_event() {
    let Some(program) = deferral("in_kernel_events") else { return };
    let options = ["-e", "page-faults,minor-faults", "-c", "1"];
    let Some(ledger) = walked(&program, &options, &["touches", "2000"]) else { return };
    // Both count the same faults. Not all fit into the ring while stacks are copied.
    let events = ledger["events"].as_array().unwrap();
    let written: Vec<u64> = events.iter().map(|event| number(event, "written")).collect();
    let [first, second] = written[..] else { panic!("{ledger}") };
    assert!(first > 300 && first.abs_diff(second) * 5 < first, "{ledger}");
}
