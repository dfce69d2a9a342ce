//! Files, lines and inlined functions of `unwind stack`.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::*;
use test_support::{skip, tool};

const DEBUG: &[&str] = &["-x", "c++", "-O2", "-g", "-fno-reorder-functions"];

/// The JSON of `unwind stack` with these arguments more.
fn report_with_lines(target: &Target, arguments: &[&str]) -> Value {
    let id = target.id().to_string();
    let output = run(["stack", "--json", "--pid", &id].iter().chain(arguments));
    serde_json::from_slice(&output.stdout).expect("is JSON")
}

/// The line of the source with this comment.
fn line_of(comment: &str) -> u64 {
    let source = include_str!("programs/inlined.cpp");
    let line = source.lines().position(|line| line.ends_with(&format!("// {comment}")));
    u64::try_from(line.unwrap_or_else(|| panic!("no {comment}"))).unwrap() + 1
}

/// Function and line, innermost first, of all that is inlined in a frame and of itself.
fn places(frame: &Value) -> Vec<(&str, u64)> {
    let inlined = frame["inlined"].as_array().unwrap().iter().chain([frame]);
    inlined
        .map(|place| (place["function"].as_str().unwrap(), place["line"].as_u64().unwrap_or(0)))
        .collect()
}

fn frames(report: &Value) -> &[Value] {
    let [thread] = threads(report) else { panic!("not one thread: {report:#}") };
    thread["frames"].as_array().unwrap()
}

/// Checks the first two frames of the program, all of which is known.
fn check(report: &Value) {
    let frames = frames(report);
    let wanted = [
        ("shapes::park(long)", line_of("parks")),
        ("long shapes::twice<long>(long)", line_of("calls park")),
        ("shapes::area(int, long)", line_of("calls twice")),
    ];
    assert_eq!(places(&frames[0]), wanted, "{report:#}");
    assert_eq!(places(&frames[1]), [("main", line_of("calls area"))]);
    for file in [&frames[1]["file"], &frames[0]["inlined"][0]["file"]] {
        assert!(file.as_str().unwrap().ends_with("tests/programs/inlined.cpp"), "{file}");
    }
}

#[test]
fn functions_that_are_inlined_are_named_and_are_no_frames() {
    let Some(program) = compile("lines", "inlined.cpp", DEBUG) else { return };
    let target = Target::start(&program, &[]);
    let whole = report_with_lines(&target, &[]);
    check(&whole);
    assert_eq!(whole["warnings"], Value::Array(Vec::new()), "{whole:#}");

    let plain = report_with_lines(&target, &["--no-lines", "--short"]);
    assert_eq!(frames(&plain).len(), frames(&whole).len());
    let pcs = |report: &Value| -> Vec<Value> {
        frames(report).iter().map(|frame| frame["pc"].clone()).collect()
    };
    assert_eq!(pcs(&plain), pcs(&whole));
    assert_eq!(places(&frames(&plain)[0]), [("shapes::area", 0)]);

    let id = target.id().to_string();
    let text = String::from_utf8(run(["stack", "--pid", &id]).stdout).unwrap();
    let at = |comment| format!("inlined.cpp:{}", line_of(comment));
    for (start, end) in [
        ("inlined    shapes::park(long) at /", at("parks")),
        ("inlined    long shapes::twice<long>(long) at /", at("calls park")),
        ("registers  shapes::area(int, long)+0x", at("calls twice")),
        ("main+0x", at("calls area")),
    ] {
        let is_it = |line: &str| line.contains(start) && line.ends_with(&end);
        assert!(text.lines().any(is_it), "{start} {end}: {text}");
    }
}

/// Runs one of binutils; `false` if it is not there.
fn binutils(program: &str, arguments: &[&Path]) -> bool {
    let Some(program) = tool(program) else { return false };
    assert!(Command::new(program).args(arguments).status().unwrap().success());
    true
}

/// Splits a program into one without symbols and a file with them beside it.
fn split(program: &Path) -> Option<PathBuf> {
    let debug = program.with_extension("debug");
    let keep = Path::new("--only-keep-debug");
    let link = PathBuf::from(format!("--add-gnu-debuglink={}", debug.display()));
    let is_done = binutils("objcopy", &[keep, program, &debug])
        && binutils("objcopy", &[Path::new("--strip-all"), &link, program]);
    is_done.then_some(debug)
}

#[test]
fn what_was_stripped_off_is_found_by_link_and_by_build_id() {
    let with_id = [DEBUG, &["-Wl,--build-id=0x0123456789abcdef"]].concat();
    let Some(program) = compile("lines_split", "inlined.cpp", &with_id) else { return };
    let Some(debug) = split(&program) else { return };
    let directory = program.parent().unwrap();
    let target = Target::start(&program, &[]);
    check(&report_with_lines(&target, &[]));

    // Below the directory beside it.
    let beside = directory.join(".debug");
    fs::create_dir(&beside).unwrap();
    fs::rename(&debug, beside.join("program.debug")).unwrap();
    check(&report_with_lines(&target, &[]));

    // By its build id, below a directory of the user's, and as a sysroot has it.
    let by_id = directory.join("kept/usr/lib/debug/.build-id/01");
    fs::create_dir_all(&by_id).unwrap();
    fs::rename(beside.join("program.debug"), by_id.join("23456789abcdef.debug")).unwrap();
    let none = report_with_lines(&target, &[]);
    assert_eq!(frames(&none)[0]["function"], Value::Null, "{none:#}");
    let debug_dir = directory.join("kept/usr/lib/debug");
    check(&report_with_lines(&target, &["--debug-dir", debug_dir.to_str().unwrap()]));
    let sysroot = directory.join("kept");
    check(&report_with_lines(&target, &["--sysroot", sysroot.to_str().unwrap()]));
}

/// The `.dwo` file of a program in its directory.
fn dwo_of(program: &Path) -> PathBuf {
    let files = fs::read_dir(program.parent().unwrap()).unwrap();
    let mut files = files.map(|entry| entry.unwrap().path());
    files.find(|path| path.extension().is_some_and(|end| end == "dwo")).expect("a .dwo file")
}

#[test]
fn what_the_compiler_has_put_into_files_of_their_own_is_found_there_and_beside_the_program() {
    let options = [DEBUG, &["-gsplit-dwarf"]].concat();
    let Some(program) = compile("lines_dwo", "inlined.cpp", &options) else { return };
    let dwo = dwo_of(&program);
    check(&report_with_lines(&Target::start(&program, &[]), &[]));

    let other = program.parent().unwrap().join("other");
    fs::create_dir(&other).unwrap();
    let moved = other.join("program");
    fs::rename(&program, &moved).unwrap();
    let beside = other.join(dwo.file_name().unwrap());
    fs::rename(&dwo, &beside).unwrap();
    let target = Target::start(&moved, &[]);
    check(&report_with_lines(&target, &[]));

    // One of another program, one that is damaged, and one that is never written to.
    let outer = |report: &Value| frames(report)[0]["function"].clone();
    let is_alone = |report: &Value| {
        assert_eq!(outer(report), "shapes::area(int, long)", "{report:#}");
        assert_eq!(frames(report)[0]["inlined"], Value::Array(Vec::new()), "{report:#}");
    };
    let whole = fs::read(&beside).unwrap();
    let Some(strange) = compile("lines_dwo_other", "names.cpp", &options) else { return };
    fs::copy(dwo_of(&strange), &beside).unwrap();
    is_alone(&report_with_lines(&target, &[]));
    fs::write(&beside, &whole[..whole.len() / 2]).unwrap();
    is_alone(&report_with_lines(&target, &[]));
    fs::remove_file(&beside).unwrap();
    is_alone(&report_with_lines(&target, &[]));
    nix::unistd::mkfifo(&beside, nix::sys::stat::Mode::S_IRWXU).unwrap();
    is_alone(&report_with_lines(&target, &[]));
}

#[test]
fn files_of_units_may_be_packed_into_one_beside_the_program() {
    let Some(dwp) = tool("dwp") else { return };
    // Of the older version: binutils 2.40 cannot pack the newer one.
    let options = [DEBUG, &["-gdwarf-4", "-gsplit-dwarf"]].concat();
    let Some(program) = compile("lines_dwp", "inlined.cpp", &options) else { return };
    assert!(Command::new(dwp).arg("-e").arg(&program).status().unwrap().success());
    fs::remove_file(dwo_of(&program)).unwrap();
    check(&report_with_lines(&Target::start(&program, &[]), &[]));
}

#[test]
fn what_dwz_has_put_into_a_common_file_is_found_by_its_link() {
    let Some(dwz) = tool("dwz") else { return };
    let Some(program) = compile("lines_dwz", "inlined.cpp", DEBUG) else { return };
    let directory = program.parent().unwrap();
    // Two files that are alike have all in common.
    let twin = directory.join("twin");
    fs::copy(&program, &twin).unwrap();
    let common = directory.join("common");
    let mut command = Command::new(dwz);
    let output = command.args(["-q", "-m"]).arg(&common).arg(&program).arg(&twin).output().unwrap();
    assert!(output.status.success() && common.exists(), "{output:?}");
    let target = Target::start(&program, &[]);
    check(&report_with_lines(&target, &[]));
    // Another file has another build id.
    fs::copy(&program, &common).unwrap();
    let without = report_with_lines(&target, &[]);
    assert_eq!(frames(&without)[0]["function"], "shapes::area(int, long)", "{without:#}");
    assert!(!without.to_string().contains("shapes::park"), "{without:#}");
}

#[test]
fn what_was_stripped_off_is_asked_of_a_server_on_request_only() {
    let Some(_) = tool("debuginfod-find") else { return };
    let Some(python) = tool("python3") else { return };
    let with_id = [DEBUG, &["-Wl,--build-id=0xfedcba9876543210"]].concat();
    let Some(program) = compile("lines_server", "inlined.cpp", &with_id) else { return };
    let Some(debug) = split(&program) else { return };
    let directory = program.parent().unwrap();
    let (_server, url) = serve(&python, &debug, "fedcba9876543210");
    let target = Target::start(&program, &[]);
    let id = target.id().to_string();
    let stack = |arguments: &[&str], urls: &str| {
        let mut command = unwind(["stack", "--json", "--pid", &id].iter().chain(arguments));
        command.env("DEBUGINFOD_URLS", urls).env("HOME", directory);
        command.env("DEBUGINFOD_CACHE_PATH", directory.join("cache")).output().unwrap()
    };
    let json = |output: &Output| serde_json::from_slice::<Value>(&output.stdout).unwrap();
    let none = json(&stack(&[], &url));
    assert_eq!(frames(&none)[0]["function"], Value::Null, "{none:#}");
    check(&json(&stack(&["--debuginfod"], &url)));
    // It is said, and the target is let go, if nobody can be asked.
    let output = stack(&["--debuginfod"], "");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("DEBUGINFOD_URLS names none"));
    let explain = |arguments: &[&str]| {
        let mut command = unwind(["explain", "--json", "--pid", &id].iter().chain(arguments));
        command.env("DEBUGINFOD_URLS", &url).env("HOME", directory);
        command.env("DEBUGINFOD_CACHE_PATH", directory.join("explain-cache")).output().unwrap()
    };
    let function = |report: &Value| report["frames"][0]["function"].clone();
    assert_eq!(function(&json(&explain(&[]))), Value::Null);
    assert_ne!(function(&json(&explain(&["--debuginfod"]))), Value::Null);
}

#[test]
fn a_report_asks_a_server_for_names_on_request_only() {
    let Some(_) = tool("debuginfod-find") else { return };
    let Some(python) = tool("python3") else { return };
    let with_id = [DEBUG, &["-O1", "-Wl,--build-id=0xfedcba9876543211"]].concat();
    let Some(program) = compile("lines_report", "nested.c", &with_id) else { return };
    let Some(debug) = split(&program) else { return };
    let (_server, url) = serve(&python, &debug, "fedcba9876543211");
    let data = program.with_file_name("perf.data");
    let mut record = unwind(["record", "-o", data.to_str().unwrap(), "--"]);
    let output = record.arg(&program).arg("0.3").output().unwrap();
    if stderr(&output).contains("lets no sampling event be opened") {
        return skip(&stderr(&output));
    }
    let report = |arguments: &[&str], urls: &str| {
        let arguments = [&["report", data.to_str().unwrap()], arguments].concat();
        let mut command = unwind(arguments);
        command.env("DEBUGINFOD_URLS", urls).env("HOME", program.parent().unwrap());
        command.output().unwrap()
    };
    let has_names = |output: &Output| String::from_utf8_lossy(&output.stdout).contains("innermost");
    assert!(!has_names(&report(&[], &url)));
    assert!(has_names(&report(&["--debuginfod"], &url)));
    assert_eq!(report(&["--debuginfod"], "").status.code(), Some(2));
}

/// Starts a server that has this file for a build id. Returns it with its address.
fn serve(python: &Path, debug: &Path, build_id: &str) -> (Server, String) {
    let served = debug.with_file_name("served");
    let at = served.join("buildid").join(build_id);
    fs::create_dir_all(&at).unwrap();
    fs::rename(debug, at.join("debuginfo")).unwrap();
    let mut server = Command::new(python);
    server.args(["-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory"]);
    server.arg(&served).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Server(server.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let port = line.split_whitespace().skip_while(|&word| word != "port").nth(1).unwrap();
    (server, format!("http://127.0.0.1:{port}"))
}

/// A server that is ended with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_file_that_a_debug_link_leads_to_by_mistake_is_refused_and_told() {
    let Some(program) = compile("lines_wrong", "inlined.cpp", DEBUG) else { return };
    let Some(debug) = split(&program) else { return };
    let mut bytes = fs::read(&debug).unwrap();
    bytes.push(0);
    fs::write(&debug, bytes).unwrap();
    // Of another program, too.
    let target = Target::start(&program, &[]);
    let report = report_with_lines(&target, &[]);
    assert_eq!(frames(&report)[0]["function"], Value::Null);
    let warnings = report["warnings"].as_array().unwrap();
    let told = |warning: &Value| {
        let warning = warning.as_str().unwrap();
        warning.contains("program.debug is not used: its checksum") && warning.contains("debuglink")
    };
    assert!(warnings.iter().any(told), "{report:#}");
}

#[test]
fn dwarf_that_takes_too_much_to_read_is_left_out_and_told() {
    let Some(program) = compile("lines_deep", "deep_lines.c", &["-O1"]) else { return };
    let target = Target::start(&program, &[]);
    let started = Instant::now();
    let report = report_with_lines(&target, &[]);
    assert!(started.elapsed() < Duration::from_secs(120));
    assert_eq!(functions_to_main(&report), ["main"]);
    assert_eq!(threads(&report)[0]["end"]["complete"], true, "{report:#}");
    let warnings = report["warnings"].as_array().unwrap();
    let told = |warning: &Value| {
        let warning = warning.as_str().unwrap();
        warning.contains("program: lines: its DWARF is damaged, or takes more than")
    };
    assert!(warnings.iter().any(told), "{report:#}");
}
