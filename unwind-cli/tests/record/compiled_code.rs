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
    let names = |command: &[&str]| {
        let output = unwind(&[command, &[data.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let (report, script) = (names(&["report", "--native"]), names(&["script"]));
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

/// The functions of `registered_work.c` that are in a stack.
fn compiled(stack: &[String]) -> Vec<&str> {
    let names = ["compare", "sorted", "recursive", "main"];
    stack.iter().map(String::as_str).filter(|name| names.contains(name)).collect()
}

/// Checks a recording of `registered_work.c`: the program has ended, and its code is in the recording alone.
fn check_registered(data: &Path, ledger: &Value) {
    let script = ["script", "--max-stack", "5000", "-F", "ip,sym,dso", data.to_str().unwrap()];
    let script = text(&unwind(&script).stdout);
    let all = split(&script);
    let main = |stack: &&Vec<String>| compiled(stack).len() > 1;
    let of_code: Vec<_> = all.iter().filter(main).collect();
    assert!(of_code.len() > 300, "{ledger}");
    let is_whole = |stack: &&&Vec<String>| stack.last().is_some_and(|name| name == "_start");
    let whole = of_code.iter().filter(is_whole).count();
    assert!(whole * 100 >= of_code.len() * 95, "{whole} of {}: {ledger}", of_code.len());
    for stack in of_code.iter().filter(is_whole) {
        let mut names = compiled(stack);
        // The compiler's own `main` calls that of the program.
        assert_eq!(names.split_off(names.len() - 2), ["main"; 2], "{stack:?}");
        let inner = names.iter().position(|&name| name == "recursive").unwrap_or(names.len());
        let (inner, recursive) = names.split_at(inner);
        assert!(recursive.iter().all(|&name| name == "recursive"), "{stack:?}");
        match inner {
            [] => assert!(recursive.len() <= 4, "{stack:?}"),
            ["sorted"] | ["compare", "sorted"] => assert_eq!(recursive.len(), 4, "{stack:?}"),
            _ => panic!("{stack:?}"),
        }
    }
    // What of it has no name is in no file.
    let unknown = script.lines().filter(|line| line.ends_with("[unknown] ([unknown])")).count();
    assert!(unknown * 20 <= of_code.len(), "{unknown} of {}: {ledger}", of_code.len());
}

fn check_lines(data: &Path) {
    let is_deep =
        |line: &String| line.contains(";recursive;sorted;") && line.contains(";compare;inlined ");
    assert!(folded(data, &[]).iter().any(is_deep));
    let page = text(&unwind(&["report", "--format", "html", data.to_str().unwrap()]).stdout);
    assert!(page.contains("registered_work.c\",\"newer\":false,\"text\":["), "{page}");
}

#[test]
fn m1_objects_that_a_compiler_registers_have_rows_names_and_lines_in_recordings() {
    let (Some(clang), Some(executor)) = (tool("clang-19"), tool("lli-19")) else { return };
    let folder = support::scratch("m1_registered_recording");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/registered_work.c");
    let program = folder.join("work.bc");
    let mut command = Command::new(clang);
    command.args(["-O1", "-g", "-fomit-frame-pointer", "-emit-llvm", "-c", "-o"]);
    assert!(command.args([&program, &source]).status().unwrap().success());
    // By MCJIT there is a dump, too.
    let dumps = format!("JITDUMPDIR={}", folder.to_str().unwrap());
    let (executor, program) = (executor.to_str().unwrap(), program.to_str().unwrap());
    let run = |kind: &'static str| ["env", &dumps, executor, kind, program];
    let data = folder.join("copied.data");
    let Some(ledger) = record(&data, &["--engine", "perf"], &run("--jit-kind=mcjit")) else {
        return;
    };
    check_registered(&data, &ledger);
    check_lines(&data);
    // Another file has them, too, and stacks are walked again by them.
    let kept = folder.join("kept.data");
    let options = ["--engine", "perf", "--keep-stacks"];
    let Some(ledger) = record(&kept, &options, &run("--jit-kind=orc")) else { return };
    check_registered(&kept, &ledger);
    let data = folder.join("walked.data");
    let walked = super::in_kernel::walked_by(
        super::in_kernel::recorder(),
        &data,
        &[],
        &run("--jit-kind=orc"),
    );
    walked.iter().for_each(|ledger| check_registered(&data, ledger));
}
