//! `unwind explain`: what it says of stacks of which all is known.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::*;
use test_support::{Compiler, skip, tool};

/// No function keeps a frame pointer; the rows are in `.eh_frame`.
const CALL_FRAMES: &[&str] = &["-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

fn explain(target: &Target) -> String {
    let id = target.id().to_string();
    String::from_utf8(run(["explain", "--no-lines", "--pid", &id]).stdout).unwrap()
}

/// What is said of each frame, from its line on.
fn frames(text: &str) -> Vec<&str> {
    let starts: Vec<_> = text.match_indices("\n  #").map(|(at, _)| at).collect();
    let ends = starts.iter().copied().skip(1).chain([text.len()]);
    starts.iter().copied().zip(ends).map(|(start, end)| &text[start..end]).collect()
}

/// The words after a label, such as `row`.
fn said<'t>(frame: &'t str, label: &str) -> Vec<&'t str> {
    let lines = frame.lines().filter_map(|line| line.strip_prefix("       "));
    lines.filter_map(|line| Some(line.strip_prefix(label)?.trim_start())).collect()
}

/// The entries of a program as readelf lists them: offset, that of the CIE, start and end.
fn entries(program: &Path) -> Option<Vec<[u64; 4]>> {
    let readelf = tool("readelf")?;
    let output = Command::new(readelf).arg("--debug-dump=frames").arg(program).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let hex = |digits: &str| u64::from_str_radix(digits, 16).unwrap();
    let entry = |line: &str| {
        let (before, after) = line.split_once(" FDE cie=")?;
        let (cie, code) = after.split_once(" pc=")?;
        let (start, end) = code.split_once("..")?;
        Some([hex(before.split(' ').next()?), hex(cie), hex(start), hex(end)])
    };
    Some(text.lines().filter_map(entry).collect())
}

#[test]
fn a_row_is_where_readelf_has_it_and_what_is_read_leads_to_the_next_frame() {
    let Some(program) = compile("explain", "echo.c", CALL_FRAMES) else { return };
    let Some(entries) = entries(&program) else { return };
    let target = Target::start(&program, &[]);
    let text = explain(&target);
    assert!(text.contains("\ncomplete: outermost frame\n"), "{text}");
    let frames = frames(&text);
    assert!(frames.len() > 4, "{text}");

    let mut of_program = 0;
    for (number, frame) in frames.iter().enumerate() {
        let (_, pc) = frame.split_once("0x").unwrap();
        let pc = &pc[..16];
        if let Some(before) = number.checked_sub(1) {
            let read = said(frames[before], "read");
            let found = read.iter().find_map(|read| read.split_once(", the return address"));
            let (_, value) = found.expect("reads it").0.split_once(" -> 0x").unwrap();
            assert_eq!(format!("{value:0>16}"), pc, "{frame}");
            let checked = said(frames[before], "checked");
            assert!(checked.iter().any(|checked| checked.contains("is code of /")), "{frame}");
        }
        if !said(frame, "module").iter().any(|path| path.contains("/explain/program")) {
            continue;
        }
        of_program += 1;
        let from = said(frame, "from");
        let entry = entries.iter().find(|[at, cie, ..]| {
            from.iter().any(|from| {
                from.starts_with(&format!(".eh_frame: FDE at {at:#x} and CIE at {cie:#x} "))
            })
        });
        let [_, _, start, end] = entry.unwrap_or_else(|| panic!("{entries:x?}: {frame}"));
        assert!(frame.contains(&format!("FDE of {start:#x}..{end:#x}, row of 0x")), "{frame}");
    }
    assert!(of_program > 2, "{text}");
}

#[test]
fn a_row_of_sframe_is_explained_by_its_entry() {
    let Some(program) = compile("explain_sframe", "echo.c", SFRAME) else { return };
    let target = Target::start(&program, &[]);
    let text = explain(&target);
    let with_row = frames(&text).into_iter().find(|frame| {
        said(frame, "from").iter().any(|from| from.starts_with(".sframe: FDE at 0x"))
    });
    let frame = with_row.unwrap_or_else(|| panic!("{text}"));
    let row = said(frame, "row")[0];
    assert!(row.starts_with("CFA = r") && row.ends_with("by .sframe"), "{frame}");
    assert!(row.contains("RA = [CFA-8]"), "{frame}");
}

/// Explains a process that waits where the row says this in place of the truth.
fn wrong(test: &str, words: &str) -> Option<(Target, String)> {
    let compiler = Compiler::find(CALL_FRAMES)?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/wrong_rows.c");
    let program = scratch(test).join("program");
    compiler.compile(&source, &program, &[&format!("-DWRONG={words}")]);
    let target = Target::start(&program, &[]);
    let text = explain(&target);
    Some((target, text))
}

/// What gdb itself shows of the stack.
fn backtrace(target: &Target) -> Option<String> {
    let id = target.id().to_string();
    let output = Command::new(tool("gdb")?)
        .args(["-nx", "-batch", "-p", &id, "-ex", "backtrace"])
        .output()
        .unwrap();
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&stderr(&output));
    Some(text)
}

#[test]
fn a_row_that_leads_to_no_return_address_is_told_and_what_gdb_makes_of_it() {
    let name = "explain_not_code";
    let Some((target, text)) = wrong(name, ".cfi_def_cfa_offset 16") else { return };
    assert!(text.contains("row        CFA = rsp+16, RA = [CFA-8]"), "{text}");
    assert!(text.contains("a byte before it, is NOT code\n"), "{text}");
    assert!(text.contains("\nincomplete: return address 0x"), "{text}");
    assert!(text.contains("does not lead to code\n"), "{text}");
    let (_, gdb) = text.split_once("\ngdb: shows one more frame, ").unwrap();
    let (frame, _) = gdb.split_once(", and").unwrap();
    if let Some(shown) = backtrace(&target) {
        assert!(shown.contains(&format!("#1  {frame}")), "{frame}: {shown}");
    }
}

#[test]
fn a_row_that_leads_to_no_memory_is_told_and_what_gdb_says() {
    let name = "explain_unreadable";
    let Some((target, text)) = wrong(name, ".cfi_def_cfa 7, 0x70000000") else { return };
    assert!(text.contains("CFA = rsp+1879048192, RA = [CFA-8]"), "{text}");
    assert!(text.contains("\nincomplete: memory is not readable at 0x"), "{text}");
    let (_, gdb) = text.split_once("\ngdb: ").unwrap();
    assert!(gdb.starts_with("Backtrace stopped: Cannot access memory at address 0x"), "{gdb}");
    if let Some(shown) = backtrace(&target) {
        assert!(shown.contains(gdb.trim_end()), "{gdb}: {shown}");
    }
}

#[test]
fn u9_a_row_that_leads_back_is_told_and_nothing_of_gdb() {
    let name = "explain_back";
    let Some((_target, text)) = wrong(name, ".cfi_def_cfa_offset -16") else { return };
    assert!(text.contains("\nincomplete: no progress: cfa 0x"), "{text}");
    // What gdb shows of it are words of the stack, some of which it takes for frames.
    assert!(text.contains("\ngdb: not compared"), "{text}");
}

#[test]
fn u9_nothing_is_said_of_gdb_where_it_was_not_compared() {
    // Code without call frame information, whose frame pointer is that of another function.
    let Some(program) = compile("explain_bare", "bare_code.c", FRAME_POINTERS) else { return };
    let target = Target::start(&program, &["none"]);
    let text = explain(&target);
    assert!(text.contains("\nincomplete: "), "{text}");
    assert!(!text.contains("wrong frames"), "{text}");
    // Rows that lead nowhere and that gdb does not have.
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/nowhere.c");
    let Some(compiler) = Compiler::find(FRAME_POINTERS) else { return };
    let program = scratch("explain_nowhere").join("program");
    compiler.compile(&source, &program, &["-O1", "-fno-asynchronous-unwind-tables"]);
    let text = explain(&Target::start(&program, &[]));
    assert!(text.contains("\nincomplete: ") && text.contains("\ngdb: not compared"), "{text}");
}

#[test]
fn a_thread_that_starts_in_the_loader_is_complete_for_all_commands() {
    for (test, options) in [("explain_start", &[][..]), ("explain_start_32", &["-m32"])] {
        let Some(gdb) = tool("gdb") else { return };
        let Some(program) = compile(test, "echo.c", options) else { continue };
        // At the first instruction, at the call, and in what is called.
        for steps in 0..3 {
            let core = program.with_file_name(format!("core.{steps}"));
            let mut gdb = Command::new(&gdb);
            gdb.args(["-nx", "-batch", "-ex", "starti"]);
            gdb.args((0..steps).flat_map(|_| ["-ex", "stepi"]));
            gdb.arg("-ex").arg(format!("generate-core-file {}", core.display()));
            let output = gdb.arg("--args").arg(&program).arg("one").output().unwrap();
            assert!(core.exists(), "{}", stderr(&output));
            let core = core.to_str().unwrap();
            let stack = String::from_utf8(run(["stack", "--no-lines", "--core", core]).stdout);
            let text = String::from_utf8(run(["explain", "--no-lines", "--core", core]).stdout);
            let (stack, text) = (stack.unwrap(), text.unwrap());
            assert!(stack.contains("complete: outermost frame"), "{steps}: {stack}");
            assert!(text.contains("by the start of a program"), "{steps}: {text}");
            assert!(text.contains("complete: outermost frame"), "{steps}: {text}");
        }
    }
}

#[test]
fn a_thread_is_chosen_by_its_id_and_another_is_refused() {
    let Some(program) = compile("explain_thread", "threads.c", FRAME_POINTERS) else { return };
    let target = Target::start(&program, &[]);
    let whole = report_of(&target, &[]);
    let id = target.id().to_string();
    for thread in threads(&whole) {
        let thread = thread["thread"].to_string();
        let text = run(["explain", "--no-lines", "--pid", &id, "--tid", &thread]).stdout;
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with(&format!("thread {thread} ")), "{text}");
        assert_eq!(text.matches("\nthread ").count(), 0, "{text}");

        let one = report_of(&target, &["--tid", &thread]);
        let [only] = threads(&one) else { panic!("{one:#}") };
        assert_eq!(only["thread"].to_string(), thread);
    }
    let text = String::from_utf8(run(["explain", "--pid", &id]).stdout).unwrap();
    assert!(text.starts_with(&format!("thread {id} ")), "{text}");
    for command in ["stack", "explain"] {
        let error = fails([command, "--pid", &id, "--tid", "1"], 3);
        assert!(error.contains("no thread 1"), "{error}");
    }
}

/// Records a program that calls itself. `None` where the kernel allows no samples.
fn recording(test: &str, options: &[&str]) -> Option<PathBuf> {
    let program = compile(test, "nested.c", CALL_FRAMES)?;
    let data = program.with_file_name("perf.data");
    let mut record = unwind(["record", "-o", data.to_str().unwrap()].iter().chain(options));
    let output = record.arg("--").arg(&program).arg("0.2").output().unwrap();
    if stderr(&output).contains("lets no sampling event be opened") {
        skip(&stderr(&output));
        return None;
    }
    assert!(output.status.success(), "{}", stderr(&output));
    Some(data)
}

/// The addresses of the user part of each sample, as `unwind script` has them.
fn chains(data: &Path) -> Vec<Vec<String>> {
    let output = run(["script", "--json", data.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let samples = lines.filter(|line| line["type"] == "sample");
    let user = |sample: Value| {
        let parts = sample["chain"].as_array().unwrap().clone();
        let user = parts.into_iter().filter(|part| part["context"] == "user");
        let ips = user.flat_map(|part| part["ips"].as_array().unwrap().clone());
        ips.map(|ip| ip.as_str().unwrap().to_owned()).collect()
    };
    samples.map(user).collect()
}

fn explained(data: &Path, number: usize) -> Value {
    let output = run(["explain", "--json", &format!("{}@{number}", data.display())]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)))
}

#[test]
fn a_sample_with_its_stack_is_walked_as_in_reports_and_each_word_is_told() {
    let Some(data) = recording("explain_kept", &["--keep-stacks"]) else { return };
    let chains = chains(&data);
    let last = chains.len();
    let first = chains.iter().position(|chain| !chain.is_empty()).unwrap() + 1;
    // At the end of the chain of calls; others are where it asks for the time.
    let deep: Vec<usize> = (1..=last).filter(|number| chains[number - 1].len() > 12).collect();
    let at = |quarter: usize| deep[deep.len() * quarter / 4];
    let mut read_addresses = 0;
    // The first is mostly in the loader.
    for number in [first, at(1), at(2), at(3)] {
        let all = explained(&data, number);
        let frames = all["frames"].as_array().unwrap();
        let pcs: Vec<&str> = frames.iter().map(|frame| frame["pc"].as_str().unwrap()).collect();
        assert_eq!(pcs, chains[number - 1], "{all:#}");
        let count = format!("in reports: complete, {} frames", frames.len());
        assert_eq!(all["account"], count, "{all:#}");
        assert_eq!((&all["schema"], &all["end"]["complete"]), (&1.into(), &true.into()));
        for (frame, next) in frames.iter().zip(&frames[1..]) {
            let steps = frame["steps"].as_array().unwrap();
            // Least significant byte first.
            let is_next = |bytes: &str| {
                let bytes: Vec<&str> =
                    bytes.as_bytes().chunks(2).map(|b| str::from_utf8(b).unwrap()).collect();
                let word: String = bytes.into_iter().rev().collect();
                u64::from_str_radix(&word, 16).is_ok_and(|word| next["pc"] == format!("{word:#x}"))
            };
            let reads = steps.iter().filter(|step| step["what"] == "read");
            let mut words = reads.filter_map(|step| step["bytes"].as_str());
            read_addresses += usize::from(words.any(is_next));
            assert!(steps.iter().any(|step| step["what"] == "row"), "{frame:#}");
        }
    }
    assert!(read_addresses > 20, "{read_addresses}");
    let text = run(["explain", &format!("{}@{last}", data.display())]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.starts_with(&format!("sample {last} of ")), "{text}");
}

#[test]
fn samples_of_generated_code_are_walked_as_in_reports() {
    let Some(node) = tool("node") else { return };
    let folder = scratch("explain_node");
    let data = folder.join("perf.data");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/jit.js");
    // Code that is optimized has rows in the dump; all else of V8 has frame pointers.
    let mut command = unwind(["record", "--keep-stacks", "-o"]);
    command.arg(&data).arg("--").arg(node).args(["--perf-prof", "--perf-prof-unwinding-info"]);
    let output = command.arg(script).current_dir(&folder).output().unwrap();
    if stderr(&output).contains("lets no sampling event be opened") {
        skip(&stderr(&output));
        return;
    }
    assert!(output.status.success(), "{}", stderr(&output));
    let chains = chains(&data);
    let (mut by_dump, mut complete) = (0, 0);
    for number in (1..=8).map(|part| part * chains.len() / 8) {
        if chains[number - 1].is_empty() {
            continue;
        }
        let all = explained(&data, number);
        let frames = all["frames"].as_array().unwrap();
        let pcs: Vec<&str> = frames.iter().map(|frame| frame["pc"].as_str().unwrap()).collect();
        assert_eq!(pcs, chains[number - 1], "{all:#}");
        let is_complete = all["end"]["complete"] == true;
        let account = all["account"].as_str().unwrap();
        assert_eq!(is_complete, account.starts_with("in reports: complete"), "{all:#}");
        complete += usize::from(is_complete);
        let steps = frames.iter().flat_map(|frame| frame["steps"].as_array().unwrap());
        let is_of_dump = |step: &&Value| step["what"] == "row" && step["by"] == "dump";
        by_dump += usize::from(steps.filter(is_of_dump).count() > 0);
    }
    assert!(complete > 1 && by_dump > 1, "{complete} {by_dump}");
}

#[test]
fn a_sample_without_its_stack_is_explained_by_what_the_recording_keeps() {
    let Some(data) = recording("explain_not_kept", &[]) else { return };
    let chains = chains(&data);
    let number = chains.iter().position(|chain| chain.len() > 12).unwrap() + 1;
    let all = explained(&data, number);
    let frames = all["frames"].as_array().unwrap();
    let user: Vec<&Value> = frames.iter().filter(|frame| frame["kernel"] == false).collect();
    let pcs: Vec<&str> = user.iter().map(|frame| frame["pc"].as_str().unwrap()).collect();
    assert_eq!(pcs, chains[number - 1]);
    assert_eq!(all["account"], "in the ledger: complete");
    assert_eq!((&user[0]["found_by"], &user[1]["found_by"]), (&"sampled".into(), &"cfi".into()));
    for frame in &user {
        assert_eq!(frame["place"]["section"], ".eh_frame", "{frame:#}");
        assert!(frame["row"].as_str().unwrap().contains("RA"), "{frame:#}");
    }
    for (name, code) in [(format!("@{}", chains.len() + 1), 3), ("@0".into(), 2), ("".into(), 2)] {
        let output = unwind(["explain", &format!("{}{name}", data.display())]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{name}: {}", stderr(&output));
    }
}
