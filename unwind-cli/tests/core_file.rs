//! `unwind stack --core`: cores of the kernel and of a debugger, whole and
//! damaged.
#![cfg(test)]

mod support;

use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use support::resources::Run;
use support::*;
use test_support::{Compiler, skip, tool};
use testdata::{ElfBuilder, ElfSegment, files_note, thread_note};

const CRASH_CHAIN: [&str; 3] = ["load", "middle", "main"];

/// Lets a program crash and returns the core file that the kernel wrote.
fn crash(program: &Path) -> Option<PathBuf> {
    let directory = program.parent().unwrap();
    let status = Command::new("sh")
        .args(["-c", "ulimit -c unlimited && exec \"$0\""])
        .arg(program)
        .current_dir(directory)
        .status()
        .unwrap();
    assert!(!status.success(), "the program has to crash");
    let mut files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let core = files.find(|path| path.file_name().unwrap().to_string_lossy().starts_with("core"));
    if core.is_none() {
        skip("the kernel writes core files elsewhere, see core(5)");
    }
    core
}

/// Makes a core file of a running program by gdb.
fn gcore(target: &Target, directory: &Path) -> Option<PathBuf> {
    tool("gdb")?;
    let gcore = tool("gcore")?;
    let prefix = directory.join("gcore");
    let output =
        Command::new(gcore).arg("-o").arg(&prefix).arg(target.id().to_string()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    Some(format!("{}.{}", prefix.display(), target.id()).into())
}

fn report_of_core(core: &Path, arguments: &[&str]) -> Value {
    report(&[&["--core", core.to_str().unwrap()], arguments].concat())
}

/// What a core and the process that it was made of have to agree on.
fn comparable(report: &Value) -> Vec<(Value, Value, Value, Value)> {
    let mut threads: Vec<_> = threads(report)
        .iter()
        .map(|thread| {
            let part = |name: &str| thread[name].clone();
            (part("thread"), part("arch"), part("frames"), part("end"))
        })
        .collect();
    threads.sort_by_key(|thread| thread.0.as_i64());
    threads
}

#[test]
fn a_core_of_the_kernel_shows_the_thread_that_crashed() {
    for (test, flags, method, arch) in [
        ("crash_fp", FRAME_POINTERS, "fp", "x86-64"),
        ("crash_sframe", SFRAME, "sframe", "x86-64"),
        ("crash_32", FRAME_POINTERS_32, "fp", "ia32"),
    ] {
        let Some(program) = compile(test, "crash.c", flags) else { continue };
        let Some(core) = crash(&program) else { continue };
        let report = report_of_core(&core, &["--method", method]);
        assert_eq!(functions_to_main(&report), CRASH_CHAIN, "{test}");
        let thread = &threads(&report)[0];
        assert_eq!((&thread["arch"], &thread["signal"]), (&arch.into(), &11.into()));
        assert_eq!(report["program"], "program");
        assert_eq!(report["warnings"].as_array().unwrap().len(), 0, "{report:#}");
    }
}

#[test]
fn a_call_through_a_null_pointer_has_its_callers() {
    let without: &[&str] = &["-O2", "-fomit-frame-pointer"];
    let jumps: &[&str] = &["-O2", "-fomit-frame-pointer", "-DJUMPS"];
    for (test, flags, gaps, chain) in [
        ("calls_nothing", without, 0, &["caller", "middle", "main"][..]),
        ("calls_nothing_32", FRAME_POINTERS_32, 0, &["caller", "middle", "main"]),
        // A jump leaves no trace, and what has jumped there may have been called by a function that is gone.
        ("calls_nothing_jumps", jumps, 1, &["middle", "main"]),
    ] {
        let Some(program) = compile(test, "calls_nothing.c", flags) else { continue };
        let Some(core) = crash(&program) else { continue };
        let report = report_of_core(&core, &[]);
        let thread = &threads(&report)[0];
        let frames = thread["frames"].as_array().unwrap();
        assert_eq!(
            (&frames[0]["pc"], &thread["signal"]),
            (&"0x0".into(), &11.into()),
            "{report:#}"
        );
        assert_eq!(functions_to_main(&report)[1..], *chain, "{report:#}");
        let after_gap = frames.iter().filter(|frame| frame["after_gap"] == true).count();
        // Of 32-bit code a zero below the stack pointer leaves a doubt.
        let may_doubt = test == "calls_nothing_32" && after_gap == 1;
        assert!(after_gap == gaps || may_doubt, "{report:#}");
        assert_eq!(thread["end"]["complete"], after_gap == 0, "{report:#}");
        let explained = run(["explain", "--core", core.to_str().unwrap()]);
        let text = String::from_utf8(explained.stdout).unwrap();
        assert!(text.contains("by the call that led to where there is no code"), "{text}");
    }
}

#[test]
fn the_signal_is_shown_in_the_thread_that_got_it() {
    let Some(program) = compile("crash_thread", "crash_thread.c", FRAME_POINTERS) else { return };
    let Some(core) = crash(&program) else { return };
    let report = report_of_core(&core, &["--method", "fp"]);
    let with_signal = |thread: &&Value| !thread["signal"].is_null();
    let crashed: Vec<_> = threads(&report).iter().filter(with_signal).collect();
    let [thread] = crashed[..] else { panic!("not one thread: {report:#}") };
    assert_eq!(functions(thread)[..2], ["load", "work"]);
    assert_eq!(threads(&report).len(), 3);
}

#[test]
fn a_core_of_gdb_equals_the_process_that_it_was_made_of() {
    for (test, source, flags) in [
        ("gcore_threads", "threads.c", FRAME_POINTERS),
        ("gcore_sframe", "echo.c", SFRAME),
        ("gcore_32", "echo.c", FRAME_POINTERS_32),
    ] {
        let Some(program) = compile(test, source, flags) else { continue };
        let target = Target::start(&program, &[]);
        let Some(core) = gcore(&target, program.parent().unwrap()) else { continue };
        let (live, dead) = (report_of(&target, &[]), report_of_core(&core, &[]));
        assert_eq!(comparable(&live), comparable(&dead), "{test}");
    }
}

#[test]
fn code_that_the_core_leaves_out_is_read_from_the_program() {
    // Signal frames are known by their code, which is in the C library and in
    // no core.
    let Some(program) = compile("core_code", "handler.c", FRAME_POINTERS) else { return };
    let target = Target::start(&program, &[]);
    let Some(core) = gcore(&target, program.parent().unwrap()) else { return };
    let report = report_of_core(&core, &["--method", "fp"]);
    let names = functions_to_main(&report);
    assert_eq!(names[3..], ["interrupted", "outer", "main"]);
}

#[test]
fn exe_names_the_program_where_it_has_moved_and_another_one_is_refused() {
    let Some(program) = compile("core_exe", "crash.c", SFRAME) else { return };
    let Some(core) = crash(&program) else { return };
    let moved = program.with_file_name("moved");
    fs::rename(&program, &moved).unwrap();

    let without = report_of_core(&core, &["--method", "sframe"]);
    assert_eq!(functions(&threads(&without)[0]), ["?"]);
    let warnings = without["warnings"].to_string();
    assert!(warnings.contains("program"), "{warnings}");

    let exe = moved.to_str().unwrap();
    let with = report_of_core(&core, &["--method", "sframe", "--exe", exe]);
    assert_eq!(functions_to_main(&with), CRASH_CHAIN);

    // Without a list of the files that were mapped, which old kernels leave out.
    hide_note(&core, 0x4649_4c45);
    let without_list = report_of_core(&core, &["--method", "sframe", "--exe", exe]);
    assert_eq!(functions_to_main(&without_list), CRASH_CHAIN);

    let Some(other) = compile("core_other", "echo.c", SFRAME) else { return };
    let Some(core) = crash_again(&moved, &program) else { return };
    let arguments = ["stack", "--core", core.to_str().unwrap(), "--exe"];
    let text = fails(arguments.into_iter().chain([other.to_str().unwrap()]), 5);
    assert!(text.contains("the build ids differ"), "{text}");
}

#[test]
fn the_files_of_a_core_of_another_machine_are_below_its_sysroot() {
    let Some(program) = compile("crash_sysroot", "crash.c", FRAME_POINTERS) else { return };
    let Some(core) = crash(&program) else { return };
    let root = program.with_file_name("root");
    // As a link that is right in that machine.
    let link = root.join(program.strip_prefix("/").unwrap());
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    fs::create_dir_all(root.join("programs")).unwrap();
    fs::rename(&program, root.join("programs/moved")).unwrap();
    std::os::unix::fs::symlink("/programs/moved", &link).unwrap();
    let root = root.to_str().unwrap();
    let core = core.to_str().unwrap();
    // Nothing is kept by its build id, as a file of this machine may be that is the same.
    let mut command = support::unwind(["stack", "--json", "--core", core, "--sysroot", root]);
    let output = command.env("PERF_BUILDID_DIR", program.with_file_name("none")).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(functions_to_main(&report), CRASH_CHAIN);
    let explained = run(["explain", "--core", core, "--sysroot", root, "--no-lines"]);
    let explained = String::from_utf8_lossy(&explained.stdout);
    assert!(explained.contains("middle"), "{explained}");
    // No file of this machine is taken for one of that.
    let libc = |report: &Value| report.to_string().contains("libc.so.6");
    assert!(libc(&report) && !report.to_string().contains("__libc_start_main"), "{report:#}");
    let without = report_of_core(Path::new(core), &["--method", "fp"]);
    assert!(!without.to_string().contains("middle"), "{without:#}");
}

fn crash_again(moved: &Path, program: &Path) -> Option<PathBuf> {
    fs::copy(moved, program).unwrap();
    for entry in fs::read_dir(program.parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().starts_with("core") {
            fs::remove_file(path).unwrap();
        }
    }
    crash(program)
}

#[test]
fn a_program_that_was_replaced_since_is_not_used() {
    let Some(program) = compile("core_replaced", "crash.c", SFRAME) else { return };
    let Some(core) = crash(&program) else { return };
    let Some(other) = compile("core_replacement", "echo.c", SFRAME) else { return };
    fs::copy(&other, &program).unwrap();
    let report = report_of_core(&core, &[]);
    assert_eq!(threads(&report)[0]["frames"][0]["function"], Value::Null);
    let warnings = report["warnings"].to_string();
    assert!(warnings.contains("the build ids differ"), "{warnings}");
}

/// Gives all notes of a kind in a 64-bit core another kind.
fn hide_note(core: &Path, kind: u32) {
    let bytes = fs::read(core).unwrap();
    let pattern: Vec<u8> = [kind.to_le_bytes().as_slice(), b"CORE\0"].concat();
    let at = bytes.windows(pattern.len()).position(|window| window == pattern).unwrap();
    let file = fs::OpenOptions::new().write(true).open(core).unwrap();
    file.write_all_at(&[0xff; 4], at.try_into().unwrap()).unwrap();
}

#[test]
fn a_cut_core_gives_what_it_has_or_an_error() {
    let Some(program) = compile("core_cut", "crash.c", FRAME_POINTERS) else { return };
    let Some(core) = crash(&program) else { return };
    let bytes = fs::read(&core).unwrap();
    let cut = core.with_file_name("cut");
    let mut file = fs::File::create(&cut).unwrap();
    // Each length inside the headers and the first notes, then some.
    let lengths = (0..4096).step_by(37).chain((4096..bytes.len()).step_by(20_011));
    let mut written = 0;
    let mut shown = 0;
    for len in lengths {
        file.seek(SeekFrom::Start(written)).unwrap();
        file.write_all(&bytes[usize::try_from(written).unwrap()..len]).unwrap();
        written = len.try_into().unwrap();
        let output = unwind(["stack", "--core", cut.to_str().unwrap()]).output().unwrap();
        let text = stderr(&output);
        match output.status.code() {
            Some(0) => {
                assert!(text.contains("is cut off"), "{len}: {text}");
                shown += 1;
            }
            Some(5) => assert_eq!(text.lines().count(), 1, "{len}: {text}"),
            other => panic!("{len}: {other:?} {text}"),
        }
    }
    assert!(shown > 0, "the notes are in front, so a stack was to be had");
}

#[test]
fn any_part_of_a_core_may_be_wrong() {
    let Some(program) = compile("core_wrong", "crash.c", FRAME_POINTERS) else { return };
    let Some(core) = crash(&program) else { return };
    let bytes = fs::read(&core).unwrap();
    // Headers and notes, which the kernel puts in front.
    let front = 0x1800.min(bytes.len());
    let damaged = core.with_file_name("damaged");
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..200 {
        let mut bytes = bytes.clone();
        for _ in 0..=round % 4 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let at = usize::try_from(random >> 16).unwrap() % front;
            bytes[at] = random.to_le_bytes()[0];
        }
        fs::write(&damaged, &bytes).unwrap();
        let output = unwind(["stack", "--core", damaged.to_str().unwrap()]).output().unwrap();
        let text = stderr(&output);
        assert!(matches!(output.status.code(), Some(0 | 5)), "round {round}: {text}");
    }
}

#[test]
fn c2_what_a_core_names_is_never_waited_for() {
    let directory = scratch("c2_core");
    let fifo = directory.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for name in [fifo.to_str().unwrap(), "/dev/ptmx", "/dev/zero", "/"] {
        let mut core = ElfBuilder::new(ElfBuilder::CORE);
        let files = files_note(&[(0x40_0000, 0x40_1000, 0, name.as_bytes())]);
        let notes = [thread_note(7, 0x40_0000, 0, 0), files].concat();
        let (offset, file_size) = (core.put(&notes), notes.len().try_into().unwrap());
        core.segments.push(ElfSegment { kind: 4, offset, file_size, ..ElfSegment::default() });
        let path = directory.join("core");
        let cost = Run::of_file(&path, &core.finish(), &["stack", "--core", "FILE"])
            .measure_within(Duration::from_secs(120));
        assert_eq!(cost.status.code(), Some(0), "{name}: {cost:?}");
        let said = format!("{name}: it is not a regular file");
        assert!(cost.stderr.contains(&said), "{}", cost.stderr);
    }
}

/// Why a file that is not there cannot be used.
const MISSING: &str = "cannot open it: No such file or directory (os error 2)";

/// The file's build id in hexadecimal digits, as binutils know it.
fn build_id(file: &Path) -> String {
    let readelf = tool("readelf").expect("binutils come with the compiler");
    let output = Command::new(readelf).arg("--notes").arg(file).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let id = text.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
    id.expect("it has a build id").into()
}

/// The only line about a file on standard error of `unwind stack --core`, which is no
/// failure.
fn said_of(core: &Path, file: &Path) -> String {
    let output = run(["stack".as_ref(), "--core".as_ref(), core.as_os_str()]);
    let text = stderr(&output);
    let start = format!("unwind: {}: ", file.display());
    let lines: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(&start)).collect();
    let [line] = lines[..] else { panic!("not one line of {}: {text}", file.display()) };
    line.into()
}

#[test]
fn a6_a_program_that_is_missing_is_named_with_its_build_id_and_the_option_for_it() {
    let flags = [SFRAME, &["-Wl,--build-id=sha1"]].concat();
    let Some(program) = compile("a6_missing", "crash.c", &flags) else { return };
    let id = build_id(&program);
    let Some(core) = crash(&program) else { return };
    let moved = program.with_file_name("moved");
    fs::rename(&program, &moved).unwrap();
    let hint = format!("; give the program that has build id {id}, which the core was made of");
    assert_eq!(said_of(&core, &program), format!("{MISSING}{hint}, by --exe"));
    // As it says.
    let report = report_of_core(&core, &["--exe", moved.to_str().unwrap()]);
    assert_eq!(functions_to_main(&report), CRASH_CHAIN);
    assert_eq!(report["warnings"].as_array().unwrap().len(), 0, "{report:#}");
}

#[test]
fn a6_a_program_that_is_another_one_by_now_is_named_with_both_build_ids() {
    let flags = [SFRAME, &["-Wl,--build-id=sha1"]].concat();
    let Some(program) = compile("a6_replaced", "crash.c", &flags) else { return };
    let Some(other) = compile("a6_replacement", "echo.c", &flags) else { return };
    let (id, id_of_other) = (build_id(&program), build_id(&other));
    let Some(core) = crash(&program) else { return };
    fs::remove_file(&program).unwrap();
    fs::copy(&other, &program).unwrap();
    let said = said_of(&core, &program);
    let why = "it is not the file that was mapped: the build ids differ, its own is";
    let hint = "give the program that has build id";
    let by = "which the core was made of, by --exe";
    assert_eq!(said, format!("{why} {id_of_other}; {hint} {id}, {by}"));
}

#[test]
fn a6_a_program_without_a_build_id_is_not_the_one_that_had_one() {
    let Some(program) =
        compile("a6_had_id", "crash.c", &[SFRAME, &["-Wl,--build-id=sha1"]].concat())
    else {
        return;
    };
    let Some(other) =
        compile("a6_has_none", "echo.c", &[SFRAME, &["-Wl,--build-id=none"]].concat())
    else {
        return;
    };
    let Some(core) = crash(&program) else { return };
    fs::remove_file(&program).unwrap();
    let file = other.to_str().unwrap();
    let error = fails(["stack", "--core", core.to_str().unwrap(), "--exe", file], 5);
    assert!(error.contains(file), "{error}");
    fs::copy(&other, &program).unwrap();
    assert!(said_of(&core, &program).starts_with("it is not the file that was mapped"));
    let report = report_of_core(&core, &[]);
    assert_eq!(threads(&report)[0]["frames"][0]["function"], Value::Null);
}

#[test]
fn a6_a_program_without_a_build_id_is_asked_for_without_one() {
    let flags = [SFRAME, &["-Wl,--build-id=none"]].concat();
    let Some(program) = compile("a6_no_id", "crash.c", &flags) else { return };
    let Some(core) = crash(&program) else { return };
    fs::remove_file(&program).unwrap();
    let hint = "give the program that the core was made of by --exe";
    assert_eq!(said_of(&core, &program), format!("{MISSING}; {hint}"));
}

#[test]
fn a6_a_library_that_is_missing_is_named_with_its_build_id_and_no_option() {
    let Some(compiler) = Compiler::find(SFRAME) else { return };
    let directory = scratch("a6_library");
    let (library, program) = (directory.join("libcrash.so"), directory.join("program"));
    let source = directory.join("library.c");
    fs::write(&source, "int load(int *from) { return *from; }\n").unwrap();
    compiler.compile(&source, &library, &["-shared", "-fPIC", "-Wl,--build-id=sha1"]);
    let source = directory.join("program.c");
    fs::write(&source, "int load(int *);\nint main(void) { return load(0) + 1; }\n").unwrap();
    compiler.compile(&source, &program, &["-Wl,--no-as-needed", library.to_str().unwrap()]);
    let Some(core) = crash(&program) else { return };
    let id = build_id(&library);
    fs::remove_file(&library).unwrap();
    let said = said_of(&core, &library);
    assert_eq!(said, format!("{MISSING}; the one that was mapped has build id {id}"));
}

#[test]
fn a6_a_core_from_standard_input_is_read_as_from_its_file() {
    let Some(program) = compile("a6_stdin", "crash.c", SFRAME) else { return };
    let Some(core) = crash(&program) else { return };
    let by_name = run(["stack".as_ref(), "--core".as_ref(), core.as_os_str()]);
    assert!(String::from_utf8_lossy(&by_name.stdout).contains("main"));

    // A file has places to read from, a pipe has none.
    let file = fs::File::open(&core).unwrap();
    let from_file = unwind(["stack", "--core", "-"]).stdin(file).output().unwrap();
    let bytes = fs::read(&core).unwrap();
    let from_pipe = Run::new(["stack", "--core", "-"], bytes.len()).stdin(bytes.clone()).measure();
    assert!(from_file.status.success(), "{}", stderr(&from_file));
    assert!(from_pipe.status.success(), "{}", from_pipe.stderr);
    assert_eq!(from_file.stdout, by_name.stdout);
    assert_eq!(from_pipe.stdout.as_bytes(), by_name.stdout);

    // A pipe that has a name is an argument like any other.
    let fifo = core.with_file_name("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let (named, to) = (core.clone(), fifo.clone());
    let writer = std::thread::spawn(move || fs::copy(named, to).unwrap());
    let from_fifo = run(["stack".as_ref(), "--core".as_ref(), fifo.as_os_str()]);
    writer.join().unwrap();
    assert_eq!(from_fifo.stdout, by_name.stdout);
}

#[test]
fn a_core_that_is_compressed_by_zstd_is_read_and_a_cut_one_is_refused() {
    let Some(zstd) = test_support::tool("zstd") else { return };
    let Some(program) = compile("core_zstd", "crash.c", SFRAME) else { return };
    let Some(core) = crash(&program) else { return };
    let whole = run(["stack".as_ref(), "--core".as_ref(), core.as_os_str()]);
    let compressed = core.with_file_name("core.zst");
    let done = Command::new(zstd).args(["-q", "-f", "-o"]).arg(&compressed).arg(&core).status();
    assert!(done.unwrap().success());
    let arguments = ["stack".as_ref(), "--core".as_ref(), compressed.as_os_str()];
    assert_eq!(run(arguments).stdout, whole.stdout);

    // As programs write it that compress on several CPUs: frames one after another.
    let mut bytes = fs::read(&compressed).unwrap();
    let len = bytes.len();
    let extra = zstd_of(b"more");
    bytes.extend(extra);
    fs::write(&compressed, &bytes).unwrap();
    assert_eq!(run(arguments).stdout, whole.stdout);

    // Before each frame, and at the end, may be others that are skipped.
    let skipped = [&0x184d_2a53_u32.to_le_bytes()[..], &3_u32.to_le_bytes(), b"any"].concat();
    fs::write(&compressed, [&skipped, &bytes[..], &skipped].concat()).unwrap();
    assert_eq!(run(arguments).stdout, whole.stdout);

    fs::write(&compressed, &bytes[..len / 2]).unwrap();
    let error = fails(arguments, 5);
    assert!(error.contains("core.zst: it is compressed by zstd, and cut off"), "{error}");
}

/// A frame of zstd with a few bytes as they are.
fn zstd_of(bytes: &[u8]) -> Vec<u8> {
    // Magic, one byte of length, one raw block that is the last.
    let len = u8::try_from(bytes.len()).unwrap();
    let block = u32::from(len) << 3 | 1;
    [&[0x28, 0xb5, 0x2f, 0xfd, 0x20, len], &block.to_le_bytes()[..3], bytes].concat()
}

#[test]
fn a6_standard_input_without_a_whole_core_is_said_so() {
    let Some(program) = compile("a6_stdin_cut", "crash.c", SFRAME) else { return };
    let Some(core) = crash(&program) else { return };
    let mut bytes = fs::read(&core).unwrap();
    bytes.truncate(bytes.len() - 4096);
    let cut = Run::new(["stack", "--core", "-"], bytes.len()).stdin(bytes).measure();
    assert_eq!(cut.status.code(), Some(0), "{}", cut.stderr);
    assert!(cut.stderr.contains("unwind: -: ") || cut.stderr.contains("- is cut off"), "{cut:?}");

    for (input, said) in [
        (Vec::new(), "unwind: -: "),
        (b"not a core".to_vec(), "unwind: -: not an ELF file"),
        (fs::read(&program).unwrap(), "unwind: - is not a core file"),
    ] {
        let run = Run::new(["stack", "--core", "-"], input.len()).stdin(input).measure();
        assert_eq!(run.status.code(), Some(5), "{}", run.stderr);
        assert!(run.stderr.starts_with(said), "{}", run.stderr);
        assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    }
}
