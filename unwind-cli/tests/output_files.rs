//! Each command that writes a file writes all of it or leaves what was there.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod support;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use support::{fixture, perf_fixture, scratch, stderr, unwind, wait_until};

/// What was in a file before.
const OLD: &[u8] = b"what was there before";

/// The commands that write a file, but for its name, and whether the file is a program.
fn writers(folder: &Path) -> Vec<(Vec<String>, bool)> {
    let program = fixture("v3/x86_64/recur.O2-omit.exe");
    let plain = folder.with_extension("plain");
    // Without its table, so that one can be put into it.
    let mut bytes = fs::read(&program).unwrap();
    let at = bytes.windows(8).position(|name| name == b".sframe\0").unwrap();
    bytes[at + 1] = b'S';
    let segment = bytes.windows(4).position(|kind| kind == [0x54, 0xe5, 0x74, 0x64]).unwrap();
    bytes[segment..segment + 4].fill(0);
    fs::write(&plain, bytes).unwrap();
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o755)).unwrap();
    let recording = perf_fixture("pfork.data");
    let name = |path: &Path| path.to_str().unwrap().to_owned();
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let mut writers = vec![
        ([words("sframe build"), vec![name(&program), "-o".into()]].concat(), false),
        ([words("sframe build --embed"), vec![name(&plain), "-o".into()]].concat(), true),
        ([words("merge"), vec![name(&recording), "-o".into()]].concat(), false),
    ];
    for format in ["text", "folded", "svg", "html", "speedscope", "firefox", "pprof", "otlp"] {
        let report = words(&format!("report --format {format}"));
        writers.push(([report, vec![name(&recording), "-o".into()]].concat(), false));
    }
    writers
}

/// Runs a command by a shell that prepares something, with `$1` as the name of its output.
fn prepared(before: &str, arguments: &[String], output: &Path) -> Output {
    let script = format!("{before}; f=$1; shift; exec \"$@\" \"$f\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh"]).arg(output).arg(env!("CARGO_BIN_EXE_unwind"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn names(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into()).collect()
}

#[test]
fn n6_a_write_that_fails_leaves_the_old_file() {
    let folder = scratch("n6_fails");
    let file = folder.join("file");
    for (arguments, _) in writers(&folder) {
        fs::write(&file, OLD).unwrap();
        // No file may have a byte more than none.
        let output = prepared("trap '' XFSZ; ulimit -f 0", &arguments, &file);
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {told}");
        assert!(told.contains("File too large"), "{arguments:?}: {told}");
        assert_eq!(fs::read(&file).unwrap(), OLD, "{arguments:?}");
        assert_eq!(names(&folder), [Path::new("file")], "{arguments:?}");
        // The same command writes it where it can.
        let output = prepared(":", &arguments, &file);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        assert_ne!(fs::read(&file).unwrap(), OLD, "{arguments:?}");
        assert_eq!(names(&folder), [Path::new("file")], "{arguments:?}");
    }
}

#[test]
fn n6_a_link_that_was_planted_leads_nowhere() {
    let folder = scratch("n6_planted");
    let (file, victim) = (folder.join("file"), folder.join("victim"));
    fs::write(&victim, OLD).unwrap();
    for (arguments, _) in writers(&folder).into_iter().take(4) {
        // Its process and so the name of its partial file were known.
        let plant = "ln -sf victim \"$1.$$.partial\"";
        let output = prepared(plant, &arguments, &file);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        assert_eq!(fs::read(&victim).unwrap(), OLD, "{arguments:?}");
        assert!(!file.symlink_metadata().unwrap().is_symlink(), "{arguments:?}");
    }
}

#[test]
fn n6_a_file_has_the_permissions_of_any_and_a_copy_of_a_program_is_one() {
    let folder = scratch("n6_permissions");
    for (arguments, is_program) in writers(&folder).into_iter().take(4) {
        let file = folder.join("file");
        let output = prepared("umask 027", &arguments, &file);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        let mode = file.metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, if is_program { 0o750 } else { 0o640 }, "{arguments:?}");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o604)).unwrap();
        assert!(prepared("umask 077", &arguments, &file).status.success());
        let mode = file.metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, 0o604, "{arguments:?}");
        fs::remove_file(&file).unwrap();
    }
    // Those of a folder of tables can be read by whom the folder is for.
    let recording = perf_fixture("pfork.data");
    let tables = folder.join("tables");
    let arguments = ["report", "--format", "parquet", recording.to_str().unwrap(), "-o"];
    let output = prepared("umask 022", &arguments.map(str::to_owned), &tables);
    assert!(output.status.success(), "{}", stderr(&output));
    let mut folders = vec![tables];
    let mut modes = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let metadata = entry.metadata().unwrap();
            if metadata.is_dir() {
                folders.push(entry.path());
            } else {
                modes.push(metadata.permissions().mode() & 0o7777);
            }
        }
    }
    assert_eq!(modes, [0o644; 4]);
}

#[test]
fn n6_a_merge_that_is_killed_leaves_the_old_file() {
    let folder = scratch("n6_killed");
    let file = folder.join("file");
    fs::write(&file, OLD).unwrap();
    let mut merge = unwind(["merge", "-", "-o", file.to_str().unwrap()]);
    let mut merge = merge.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The header of pipe form: what comes after it is waited for.
    let mut header = b"PERFILE2".to_vec();
    header.extend(16_u64.to_le_bytes());
    merge.stdin.as_mut().unwrap().write_all(&header).unwrap();
    wait_until("a new file beside the old one", || names(&folder).len() == 2);
    assert_eq!(fs::read(&file).unwrap(), OLD);
    merge.kill().unwrap();
    merge.wait().unwrap();
    assert_eq!(fs::read(&file).unwrap(), OLD);
}

#[test]
fn n6_pipes_and_standard_output_are_written_to_as_they_are() {
    let recording = perf_fixture("pfork.data");
    let recording = recording.to_str().unwrap();
    let folder = scratch("n6_pipes");
    let (fifo, file) = (folder.join("fifo"), folder.join("file"));
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let report = ["report", "--format", "folded", recording, "-o"];
    let expected = unwind(["report", "--format", "folded", recording]).output().unwrap().stdout;
    assert!(!expected.is_empty());
    let mut writer = unwind(report).arg(&fifo).stderr(Stdio::null()).spawn().unwrap();
    let mut piped = Vec::new();
    fs::File::open(&fifo).unwrap().read_to_end(&mut piped).unwrap();
    assert!(writer.wait().unwrap().success());
    assert_eq!(piped, expected);
    // What a shell has written to its output before stays.
    fs::write(&file, b"before\n").unwrap();
    let output = fs::File::options().append(true).open(&file).unwrap();
    assert!(unwind(report).arg("/dev/stdout").stdout(output).output().unwrap().status.success());
    assert_eq!(fs::read(&file).unwrap(), [&b"before\n"[..], &expected].concat());
    let full = unwind(report).arg("/dev/full").output().unwrap();
    assert_eq!(full.status.code(), Some(1));
    assert!(stderr(&full).contains("/dev/full: No space left on device"), "{}", stderr(&full));
}

#[test]
fn n6_a_recording_into_a_pipe_ends_before_its_command_is_started() {
    let folder = scratch("n6_recording_into_a_pipe");
    let started = folder.join("started");
    for output in ["-", "/dev/stdout"] {
        let mut record = unwind(["record", "-o", output, "--", "touch", started.to_str().unwrap()]);
        // Standard output is a pipe.
        let ended = record.current_dir(&folder).output().unwrap();
        let told = stderr(&ended);
        if told.contains("lets no sampling event be opened") {
            println!("skipped: {told}");
            return;
        }
        assert_eq!((ended.status.code(), ended.stdout.len()), (Some(2), 0), "{told}");
        assert!(told.contains("name a file by -o"), "{told}");
        assert!(!started.exists() && !folder.join("-").exists());
    }
}
