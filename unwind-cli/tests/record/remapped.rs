//! Programs that have moved their code to memory without a file, at the same addresses.

use test_support::perf_record;

use super::*;

fn remapped(test: &str) -> Option<PathBuf> {
    support::compile(test, "remapped.c", WITHOUT_FRAME_POINTERS)
}

/// The program, which is ended when it has had a second of a CPU.
fn for_a_second<'a>(program: &'a str, how: &'a str) -> [&'a str; 5] {
    ["sh", "-c", "ulimit -t 1; exec \"$0\" \"$1\" 600", program, how]
}

fn report(data: &Path) -> (String, String) {
    let output = unwind(&["report", data.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

/// Most samples of a recording are in the code that was moved, and their stacks are known.
fn assert_known(data: &Path, ledger: &Value, what: &str) {
    let (complete, written) = (number(ledger, "complete"), number(ledger, "written"));
    assert!(written > 50 && complete * 100 > written * 95, "{what}: {ledger}");
    let samples = stacks(data);
    let callers = ["moved_outer", "main"];
    let is_known = |names: &&Vec<String>| {
        let inner = names.iter().position(|name| name == "moved_inner");
        inner.is_some_and(|at| names[at + 1..].iter().zip(callers).all(|(name, of)| name == of))
    };
    let known = samples.iter().filter(is_known).count();
    assert!(known * 10 > samples.len() * 8, "{what}: {known} of {}", samples.len());
}

#[test]
fn k9_code_that_a_recorded_program_has_moved_is_that_of_its_file() {
    let Some(program) = remapped("k9_record") else { return };
    let program = program.to_str().unwrap();
    let folder = support::scratch("k9_recordings");
    for how in ["mremap", "mmap"] {
        let data = folder.join(how);
        let Some(ledger) = record(&data, &[], &for_a_second(program, how)) else { return };
        assert_known(&data, &ledger, how);
        // What is there before the recording begins.
        let data = folder.join(format!("{how}.attached"));
        let mut command = Command::new(program);
        let target = support::Target::start_command(command.args([how, "60", "ready"]));
        let Some(ledger) = record_for(&data, &[], &target, 800) else { return };
        assert_known(&data, &ledger, &format!("{how}, attached"));
    }
}

#[test]
fn k9_other_code_in_that_place_has_no_names_of_the_file_in_a_recording() {
    let Some(program) = remapped("k9_record_other") else { return };
    let data = support::scratch("k9_other_recording").join("perf.data");
    let command = for_a_second(program.to_str().unwrap(), "other");
    let Some(ledger) = record(&data, &[], &command) else { return };
    assert!(number(&ledger, "written") > 50, "{ledger}");
    let (report, _) = report(&data);
    assert!(report.contains("main") && !report.contains("moved_"), "{report}");
}

#[test]
fn k9_in_a_recording_of_perfs_such_code_is_known_by_its_place_and_that_is_told() {
    let Some(program) = remapped("k9_perf") else { return };
    let Some(perf) = tool("perf") else { return };
    let data = support::scratch("k9_perf_recording").join("perf.data");
    let mut command = Command::new(perf);
    command.args(["record", "-q", "--call-graph", "dwarf,4096", "-o"]).arg(&data).arg(&program);
    let output = perf_record(command.args(["mmap", "1"]));
    if !output.status.success() {
        return skip(&text(&output.stderr));
    }
    let (report, told) = report(&data);
    assert!(report.contains("moved_outer"), "{report}");
    let lines: Vec<_> = told.lines().filter(|line| line.contains("by its place alone")).collect();
    assert_eq!(lines.len(), 1, "{told}");
}

#[test]
fn u4_node_with_its_code_on_huge_pages_is_known_as_it_is_without() {
    let Some(node) = tool("node") else { return };
    let folder = support::scratch("u4_node");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/busy.js");
    let mut shares = Vec::new();
    for option in ["--use-largepages=off", "--use-largepages=on"] {
        let data = folder.join(option);
        let mut command = Command::new(&node);
        command.arg(option).arg(&script).current_dir(&folder);
        let target = support::Target::start_command(&mut command);
        let process = target.id().to_string();
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
        let Some(ledger) = record_for(&data, &[], &target, 2_500) else { return };
        let code = maps.lines().filter(|line| line.contains(" r-xp "));
        let is_moved =
            code.take_while(|line| !line.contains(".so")).any(|line| line.ends_with(" 0 "));
        let (complete, written) = (number(&ledger, "complete"), number(&ledger, "written"));
        let samples = stacks(&data);
        let named = |names: &&Vec<String>| names.iter().any(|name| name.contains("node::Start"));
        let named = samples.iter().filter(named).count();
        shares.push((is_moved, complete * 100 / written, named * 100 / samples.len()));
    }
    let [(off, complete, named), (on, complete_on, named_on)] = shares[..] else {
        panic!("{shares:?}")
    };
    if off || !on {
        return skip("this node does not move its code");
    }
    // Without names and tables it was a tenth of the stacks.
    assert!(complete_on + 15 > complete, "{complete_on} % of {complete} %");
    assert!(named > 50 && named_on + 15 > named, "{named_on} % of {named} %");
}
