//! Code that compilers make while a program runs: its names, and its stacks.

use super::*;

#[test]
fn d14_code_of_a_compiler_has_the_names_that_the_compiler_has_told() {
    let Some(node) = tool("node") else { return };
    let folder = support::scratch("record_node");
    let data = folder.join("perf.data");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/busy.js");
    let mut command = Command::new(node);
    command.arg("--perf-basic-prof").arg(script).stdout(Stdio::null()).current_dir(&folder);
    let target = support::Target::start_command(&mut command);
    let process = target.id().to_string();
    let Some(ledger) = record_for(&data, &["--trust-fp"], &target, 2_000) else { return };
    drop(target);
    let map = format!("/tmp/perf-{process}.map");
    let names = |command: &str| {
        let output = unwind(&[command, data.to_str().unwrap()]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let (report, script) = (names("report"), names("script"));
    fs::remove_file(&map).unwrap();
    assert!(number(&ledger, "complete") > 100, "{ledger}");
    assert!(report.contains("busy.js:"), "{report}");
    let is_named = |line: &str| line.contains("busy.js:") && line.ends_with(&format!("({map})"));
    assert!(script.lines().any(is_named), "{script:.2000}");
}

#[test]
fn d14_stacks_through_code_of_v8_are_complete_where_frame_pointers_are_those_of_its_frames() {
    let Some(node) = tool("node") else { return };
    let folder = support::scratch("record_v8");
    let data = folder.join("perf.data");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/busy.js");
    let mut command = Command::new(node);
    let target = support::Target::start_command(command.arg(script).current_dir(&folder));
    let Some(ledger) = record_for(&data, &["--keep-stacks"], &target, 2_000) else { return };
    drop(target);
    let samples = |options: &[&str]| {
        let output = unwind(&[&["script", "--json", data.to_str().unwrap()], options].concat());
        let lines = text(&output.stdout);
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["type"] == "sample").collect::<Vec<_>>()
    };
    let (own, trusted) = (samples(&[]), samples(&["--trust-fp"]));
    let (mut complete, mut gaps) = (0, 0);
    for (own, trusted) in own.iter().zip(&trusted) {
        // The frames are the same; what is a guess is not called complete.
        assert_eq!(own["chain"], trusted["chain"]);
        complete += u64::from(own["walk"]["complete"] == true);
        gaps += u64::from(own["walk"]["gaps"].as_array().is_some_and(|gaps| !gaps.is_empty()));
    }
    // While it ran its code could be read, which proves more.
    let (then, written) = (number(&ledger, "complete"), number(&ledger, "written"));
    assert!(complete <= then && then * 100 > written * 90, "{complete}: {ledger}");
    let all = u64::try_from(own.len()).unwrap();
    assert!(all > 50 && complete * 10 > all * 3 && gaps > 0, "{complete} of {all}, {gaps}");
}

#[test]
fn d14_code_that_a_dump_tells_of_has_its_names_and_rows() {
    let Some(node) = tool("node") else { return };
    let folder = support::scratch("record_dump");
    let data = folder.join("perf.data");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/jit.js");
    // The dump is in the folder, and has rows of code that is optimized.
    let mut command = support::unwind(["record", "--keep-stacks", "-o"]);
    command.arg(&data).arg("--").arg(node).args(["--perf-prof", "--perf-prof-unwinding-info"]);
    let output = command.arg("--interpreted-frames-native-stack").arg(script);
    let output = output.current_dir(&folder).output().unwrap();
    let told = text(&output.stderr);
    if told.contains("lets no sampling event be opened") {
        skip(&told);
        return;
    }
    assert!(output.status.success(), "{told}");
    let data = data.to_str().unwrap();
    let report = text(&unwind(&["report", data]).stdout);
    let is_named = |line: &str| {
        line.contains("JS:*innermost ") && line.contains("/jit-") && line.ends_with(".dump)")
    };
    assert!(report.lines().any(is_named), "{report}");
    let script = text(&unwind(&["script", "-F", "ip,sym", data]).stdout);
    let lines: Vec<&str> = script.lines().collect();
    let optimized = lines.iter().filter(|line| line.contains(" JS:*innermost ")).count();
    let is_followed = |pair: &&[&str]| {
        pair[0].contains(" JS:*innermost ")
            && pair[1].contains(" JS:")
            && pair[1].contains("middle")
    };
    let with_row = lines.windows(2).filter(is_followed).count();
    assert!(optimized > 30 && with_row * 2 > optimized, "{with_row} of {optimized}");
    // Without the dump nothing is known of the same code.
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "dump") {
            fs::remove_file(path).unwrap();
        }
    }
    let report = text(&unwind(&["report", data]).stdout);
    assert!(!report.contains("JS:*innermost"), "{report}");
}

fn made_code(test: &str) -> Option<PathBuf> {
    let flags = ["-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"];
    support::compile(test, "made_code.c", &flags)
}

fn folded(data: &Path, options: &[&str]) -> Vec<String> {
    let arguments = [&["report", "--format", "folded", data.to_str().unwrap()], options].concat();
    let output = unwind(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn m1_code_that_a_program_has_made_is_proved_by_its_instructions() {
    let Some(program) = made_code("m1_framed") else { return };
    let data = support::scratch("m1_framed_recording").join("perf.data");
    let command = [program.to_str().unwrap(), "framed", "1"];
    let Some(ledger) = record(&data, &[], &command) else { return };
    let (complete, written) = (number(&ledger, "complete"), number(&ledger, "written"));
    assert!(written > 100 && complete * 100 >= written * 98, "{ledger}");
    let through = "main;caller;";
    let stacks = folded(&data, &[]);
    let samples = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    let right: u64 =
        stacks.iter().filter(|line| line.contains(through)).map(|line| samples(line)).sum();
    assert!(right * 10 > written * 9, "{stacks:#?}");
}

#[test]
fn m2_a_stack_with_a_gap_stands_at_its_place_with_a_mark_there() {
    let Some(program) = made_code("m2_jumps") else { return };
    let data = support::scratch("m2_jumps_recording").join("perf.data");
    let command = [program.to_str().unwrap(), "jumps", "1"];
    let Some(ledger) = record(&data, &[], &command) else { return };
    let gaps = ledger["incomplete"]["gap"].as_u64().unwrap_or(0);
    assert!(gaps * 10 > number(&ledger, "written") * 8, "{ledger}");
    // `caller` itself is missing: the frame pointer is its own.
    let at_place = folded(&data, &[]);
    let is_marked = |line: &&String| line.contains("main;[callers may be missing];");
    assert!(at_place.iter().any(|line| is_marked(&line)), "{at_place:#?}");
    assert!(!at_place.iter().any(|line| line.contains("[incomplete: gap]")), "{at_place:#?}");
    let apart = folded(&data, &["--gaps-apart"]);
    assert!(apart.iter().any(|line| line.starts_with("[incomplete: gap]")), "{apart:#?}");
    assert!(!apart.iter().any(|line| is_marked(&line)), "{apart:#?}");
}
