//! Names of files, sections, symbols, threads and events and the words of a peer reach a
//! terminal escaped, whichever command shows them.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod support;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use serde_json::json;
use test_support::{perf_record, skip, tool};
use testdata::{ElfBuilder, ElfSection, ElfSegment, files_note, perf_file, thread_note};

use support::*;

/// A title for the window, a second line, ESC [ in one character, what turns the order of
/// letters round, what is not seen, and a byte that is not UTF-8.
const NAME: &[u8] = b"\x1b]0;x\x07\nFORGED\xc2\x9b\xe2\x80\xae\xe2\x80\x8b\x7f\xff";
/// How it is shown.
const SHOWN: &str = r"\x1b]0;x\x07\nFORGED\xc2\x9b\xe2\x80\xae\xe2\x80\x8b\x7f\xff";

/// A directory of that name.
fn hostile_directory(test: &str) -> PathBuf {
    let path = scratch(test).join(OsStr::from_bytes(NAME));
    fs::create_dir(&path).unwrap();
    path
}

/// Runs the command. Returns what it printed to either output, which must hold nothing
/// that is not to be shown.
fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let mut text = String::new();
    for bytes in [output.stdout, output.stderr] {
        let bytes = String::from_utf8(bytes)
            .unwrap_or_else(|error| panic!("{command:?}: {}", error.as_bytes().escape_ascii()));
        let bad = |letter: char| {
            let is_control = letter.is_control() && !matches!(letter, '\n' | '\t');
            is_control || matches!(letter, '\u{202e}' | '\u{200b}' | '\u{fffd}')
        };
        assert!(!bytes.contains(bad), "{command:?}: {}", bytes.escape_debug());
        let is_forged = |line: &str| line.trim_start().starts_with("FORGED");
        assert!(!bytes.lines().any(is_forged), "{command:?}: {bytes}");
        text.push_str(&bytes);
    }
    text
}

/// As [`printed`]; the name has to be in it.
fn names<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> String {
    let mut command = unwind(arguments);
    let text = printed(&mut command);
    let json = SHOWN.replace('\\', r"\\");
    assert!(text.contains(SHOWN) || text.contains(&json), "{command:?}: {text}");
    text
}

fn os(text: &str) -> OsString {
    text.into()
}

#[test]
fn c9_a_file_that_is_not_there_is_named_escaped() {
    let path = Path::new("/nonexistent").join(OsStr::from_bytes(NAME));
    for before in [
        &["stack", "--core"][..],
        &["stack", "--core", env!("CARGO_BIN_EXE_unwind"), "--exe"],
        &["stack", "--"],
        &["guest", "--mem", "m", "--qmp"],
        &["guest", "--mem", "m", "--qmp", "q", "--symbols"],
        &["sframe", "dump"],
        &["sframe", "check"],
        &["sframe", "stat"],
        &["sframe", "build", "-o", "/dev/null"],
        &["sframe", "build", env!("CARGO_BIN_EXE_unwind"), "-o"],
        &["script"],
        &["merge", "-o", "/dev/null"],
    ] {
        let path = path.clone().into_os_string();
        let before = before.iter().map(|text| os(text));
        let arguments: Vec<_> = before.chain([path]).collect();
        if arguments.contains(&os("--exe")) {
            // A core is looked at first.
            printed(&mut unwind(arguments));
        } else {
            names(arguments);
        }
    }
    names([os("sframe"), os("find"), path.into(), os("0x1000")]);
}

#[test]
fn c9_a_file_that_is_not_what_was_asked_for_is_named_escaped() {
    let file = hostile_directory("c9_no_elf").join("file");
    fs::write(&file, "no ELF").unwrap();
    for before in [
        &["stack", "--core"][..],
        &["sframe", "dump"],
        &["sframe", "dump", "--json"],
        &["sframe", "check"],
        &["sframe", "stat"],
        &["sframe", "build", "-o", "/dev/null"],
        &["script"],
        &["script", "--json"],
        &["merge", "-o", "/dev/null"],
        &["guest", "--mem", "m", "--qmp"],
    ] {
        names(before.iter().map(|text| os(text)).chain([file.clone().into()]));
    }
    let library = file.with_file_name("library");
    fs::copy(c_library(), &library).unwrap();
    names([os("stack"), os("--core"), library.into()]);
}

#[test]
fn c9_a_wrong_command_line_is_shown_escaped() {
    let name = OsString::from_vec(NAME.into());
    // Clap does not show what is not UTF-8.
    let text = OsString::from_vec(NAME[..NAME.len() - 1].into());
    for before in [
        &[][..],
        &["stack", "--pid"],
        &["stack", "--method"],
        &["stack", "--core", "c", "--max-frames"],
        &["stack"],
        &["help"],
        &["sframe"],
        &["sframe", "find", "FILE"],
        &["script", "FILE", "-F"],
        &["guest", "--qmp", "q", "--mem", "m", "--hz"],
        &["guest", "--qmp", "q", "--mem", "m", "--symbols"],
    ] {
        for last in [&name, &text] {
            let option = [OsStr::new("--"), last].concat_os();
            for last in [last, &option] {
                let arguments = before.iter().map(|text| os(text)).chain([last.clone()]);
                let mut command = unwind(arguments);
                let shown = printed(&mut command);
                assert!(!shown.is_empty());
                assert_ne!(command.output().unwrap().status.code(), Some(0), "{shown}");
            }
        }
    }
    let shown = printed(&mut unwind([os("stack"), os("--method"), text]));
    assert!(shown.contains(SHOWN.trim_end_matches(r"\xff")), "{shown}");
}

/// Pieces of an argument put together.
trait ConcatOs {
    fn concat_os(self) -> OsString;
}

impl ConcatOs for [&OsStr; 2] {
    fn concat_os(self) -> OsString {
        let mut whole = self[0].to_owned();
        whole.push(self[1]);
        whole
    }
}

/// Puts `new` in the place of each `old` in a file.
fn patch(file: &Path, old: &[u8], new: &[u8]) {
    assert_eq!(old.len(), new.len());
    let mut bytes = fs::read(file).unwrap();
    let places: Vec<_> =
        (0..bytes.len() - old.len()).filter(|&at| bytes[at..].starts_with(old)).collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at..at + new.len()].copy_from_slice(new);
    }
    fs::write(file, bytes).unwrap();
}

#[test]
fn c9_names_of_a_process_its_threads_files_and_functions_are_shown_escaped() {
    let Some(program) = compile("c9_process", "echo.c", FRAME_POINTERS) else { return };
    // A function of seven letters.
    patch(&program, b"\0descend\0", b"\0\x1b]0;x\x07\n\0");
    patch(&program, b"\0receive\0", b"\0_Zr\x9b\xff\x0b\x7f\0");
    let directory = hostile_directory("c9_process_directory");
    // The name of the thread is its start.
    let copy = directory.join(OsStr::from_bytes(b"\x1b]0;x\x07\nab\x9b\xe2\x80\xae\xff"));
    copy_program(&program, &copy);
    let target = Target::start(&copy, &[]);
    let id = target.id().to_string();
    let text = printed(&mut unwind(["stack", "--pid", &id]));
    assert!(
        text.contains(&format!("process {id} (\\x1b]0;x\\x07\\nab\\x9b\\xe2\\x80\\xae\\xff), ")),
        "{text}"
    );
    assert!(text.contains(r"  \x1b]0;x\x07\n+0x"), "{text}");
    assert!(text.contains(r"  _Zr\x9b\xff\x0b\x7f+0x"), "{text}");
    names(["stack", "--pid", &id, "--json"]);
    // Now its file has another name: what is said of it names it, too.
    fs::remove_file(&copy).unwrap();
    names(["stack", "--pid", &id, "--json"]);

    let report: serde_json::Value = {
        let output = run(["stack", "--json", "--pid", &id]);
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let object = threads(&report)[0]["frames"][0]["object"].as_str().unwrap();
    assert!(object.contains(SHOWN), "{object}");

    copy_program(&program, &copy);
    let mut ended = vec![os("stack"), os("--after"), os("60000"), os("--")];
    ended.push(copy.into());
    // Its input is at its end, so it ends.
    let text = names(ended);
    assert!(text.contains("before 60000 ms were over"), "{text}");
}

#[test]
fn c9_names_of_sections_are_shown_escaped() {
    let table = fs::read(fixture("v3/x86_64/drap.O2-omit.exe.sframe.bin")).unwrap();
    let mut elf = ElfBuilder::new(ElfBuilder::EXECUTABLE);
    let offset = elf.put(&table);
    let names_of_sections = [&b"\0"[..], NAME, b"\0"].concat();
    let names_at = elf.put(&names_of_sections);
    let sframe = ElfSection {
        name: 1,
        // SHT_GNU_SFRAME
        kind: 0x6fff_fff4,
        addr: 0x40_0000,
        offset,
        size: table.len().try_into().unwrap(),
        ..ElfSection::default()
    };
    elf.section(sframe);
    let strings = ElfSection {
        kind: 3,
        offset: names_at,
        size: names_of_sections.len().try_into().unwrap(),
        ..ElfSection::default()
    };
    elf.names = elf.section(strings);
    let directory = hostile_directory("c9_sections");
    let file = directory.join("file");
    fs::write(&file, elf.finish()).unwrap();
    for arguments in [
        &["sframe", "dump"][..],
        &["sframe", "dump", "--json"],
        &["sframe", "check"],
        &["sframe", "check", "--json"],
        &["sframe", "stat"],
        &["sframe", "stat", "--json"],
    ] {
        names(arguments.iter().map(|text| os(text)).chain([file.clone().into()]));
    }
    let plain = scratch("c9_sections_plain").join("file");
    fs::copy(&file, &plain).unwrap();
    names([os("sframe"), os("dump"), plain.clone().into()]);
    names([os("sframe"), os("dump"), os("--json"), plain.into()]);
}

#[test]
fn c9_names_of_functions_and_archive_members_are_shown_escaped_beside_tables() {
    let Some(program) = compile("c9_functions", "echo.c", SFRAME) else { return };
    let hostile = program.with_file_name("hostile");
    fs::copy(&program, &hostile).unwrap();
    patch(&hostile, b"\0descend\0", b"\0\x1b]0;x\x07\n\0");
    patch(&hostile, b"\0receive\0", b"\0_Zr\x9b\xff\x0b\x7f\0");
    let [first, second] = [r"\x1b]0;x\x07\n", r"_Zr\x9b\xff\x0b\x7f"];
    let symbol = |name: &[u8]| OsString::from_vec(name.into());
    let mut commands = vec![
        vec![os("sframe"), os("dump"), hostile.clone().into()],
        vec![os("sframe"), os("dump"), os("--json"), hostile.clone().into()],
        vec![os("sframe"), os("diff"), program.clone().into(), hostile.clone().into()],
        vec![os("sframe"), os("diff"), os("--json"), program.into(), hostile.clone().into()],
    ];
    for more in [None, Some("--json")] {
        let names = [symbol(b"\x1b]0;x\x07\n"), symbol(b"_Zr\x9b\xff\x0b\x7f")];
        let start = ["sframe", "find"].into_iter().chain(more).map(os);
        commands.push(start.chain([hostile.clone().into()]).chain(names).collect());
    }
    for command in commands {
        let text = printed(&mut unwind(&command)).replace(r"\\", r"\");
        assert!(text.contains(first) && text.contains(second), "{command:?}: {text}");
    }
    let absent = [os("sframe"), os("find"), hostile.clone().into(), symbol(b"\x1b[m")];
    assert!(printed(&mut unwind(absent)).contains(r"\x1b[m"));

    let Some(ar) = tool("ar") else { return };
    // A newline ends the name of a member.
    let member = hostile.with_file_name(OsStr::from_bytes(b"m\x1b]0;x\x07\xe2\x80\xae\xff.o"));
    fs::copy(&hostile, &member).unwrap();
    let archive = hostile.with_file_name("archive.a");
    assert!(Command::new(ar).arg("rc").arg(&archive).arg(&member).status().unwrap().success());
    for before in [
        &["dump"][..],
        &["dump", "--json"],
        &["check"],
        &["check", "--json"],
        &["stat"],
        &["stat", "--json"],
    ] {
        let arguments = [os("sframe")].into_iter().chain(before.iter().map(|text| os(text)));
        let text = printed(&mut unwind(arguments.chain([archive.clone().into()])));
        let text = text.replace(r"\\", r"\");
        assert!(text.contains(r"m\x1b]0;x\x07\xe2\x80\xae\xff.o"), "{before:?}: {text}");
    }
}

#[test]
fn c9_names_of_threads_and_events_of_a_recording_are_shown_escaped() {
    let recording = perf_file("pfork.data");
    let directory = hostile_directory("c9_recording");
    for (number, (thread, shown)) in [
        (b"\x1b\n\x07", r"\x1b\n\x07"),
        (b"\xe2\x80\xae", r"\xe2\x80\xae"),
        (b"\xc2\x9b\xff", r"\xc2\x9b\xff"),
    ]
    .into_iter()
    .enumerate()
    {
        let file = directory.join(format!("{number}.perf.data"));
        fs::write(&file, &recording).unwrap();
        patch(&file, b"cpu-clock", b"\x1b]0;x\x07\nF\xff");
        patch(&file, b"t64\0", &[&thread[..], b"\0"].concat());
        let event = r"\x1b]0;x\x07\nF\xff";
        let text = printed(&mut unwind([os("script"), file.clone().into()]));
        assert!(text.contains(shown) && text.contains(event), "{}", &text[..1000]);
        for more in [&["--json"][..], &["-F", "comm,event"], &["--stats"], &["--deferred"]] {
            let more = more.iter().map(|text| os(text));
            printed(&mut unwind([os("script"), file.clone().into()].into_iter().chain(more)));
        }
        let merged = directory.join("merged");
        let arguments = [os("merge"), file.into(), os("-o"), merged.clone().into(), os("--stats")];
        printed(&mut unwind(arguments));
        printed(&mut unwind([os("script"), merged.into()]));
    }
}

#[test]
fn c9_names_of_mapped_files_and_their_functions_are_shown_escaped_once_in_a_script() {
    let Some(perf) = tool("perf") else { return };
    let Some(program) = compile("c9_script", "clock.c", FRAME_POINTERS) else { return };
    let directory = scratch("c9_script_directory").join(OsStr::from_bytes(b"\x1b]0;x\\y\xff"));
    fs::create_dir(&directory).unwrap();
    let copy = directory.join(OsStr::from_bytes(b"\xe2\x80\xaez"));
    patch(&program, b"\0ask\0", b"\0\x1b\x07\\\0");
    copy_program(&program, &copy);
    let shown = r"/\x1b]0;x\\y\xff/\xe2\x80\xaez";
    let data = directory.with_file_name("perf.data");
    let mut record = Command::new(&perf);
    record.args(["record", "-q", "-e", "cpu-clock:u", "-F", "1999", "--call-graph", "dwarf,4096"]);
    let recorded = perf_record(record.arg("-o").arg(&data).arg("timeout").arg("1").arg(&copy));
    if !data.exists() {
        return skip(&format!("perf cannot record here: {}", stderr(&recorded)));
    }
    let script = |more: &[&str]| {
        let more = more.iter().map(|text| os(text));
        let mut command = unwind([os("script"), data.clone().into()].into_iter().chain(more));
        // Where perf keeps copies of files.
        printed(command.env("PERF_BUILDID_DIR", "/nonexistent"))
    };
    let text = script(&[]);
    assert!(text.contains(&format!("{shown})\n")), "{text:.2000}");
    assert!(text.contains(r" \x1b\x07\\+0x"), "{text:.2000}");
    script(&["--json"]);
    // Now the file is not there, which each stack says.
    fs::remove_file(&copy).unwrap();
    let text = script(&[]);
    assert!(text.contains(&format!("{shown}: cannot open it")), "{text:.2000}");
    let json = script(&["--json"]);
    let reasons = json.lines().filter_map(|line| {
        let sample: serde_json::Value = serde_json::from_str(line).unwrap();
        sample["walk"]["incomplete"].as_str().map(str::to_owned)
    });
    assert!(reasons.into_iter().any(|reason| reason.contains(&format!("{shown}: cannot"))));
}

#[test]
fn c9_names_in_the_notes_of_a_core_are_shown_escaped() {
    let directory = scratch("c9_core");
    let name = [b"/", NAME].concat();
    let mut core = ElfBuilder::new(ElfBuilder::CORE);
    // `NT_PRPSINFO`: the id of the process at 24, its name at 40.
    let mut process = vec![0; 136];
    process[40..54].copy_from_slice(b"\x1b]0;x\x07\nab\x9b\xe2\x80\xae\xff");
    let mut notes = thread_note(7, 0x40_0010, 0, 0);
    notes.extend([5_u32, 136, 3].into_iter().flat_map(u32::to_le_bytes));
    notes.extend(b"CORE\0\0\0\0");
    notes.extend(process);
    notes.extend(files_note(&[(0x40_0000, 0x40_1000, 0, &name)]));
    let (offset, file_size) = (core.put(&notes), notes.len().try_into().unwrap());
    core.segments.push(ElfSegment { kind: 4, offset, file_size, ..ElfSegment::default() });
    let path = directory.join("core");
    fs::write(&path, core.finish()).unwrap();
    for more in [&[][..], &[os("--json")]] {
        let arguments = [os("stack"), os("--core"), path.clone().into()];
        let text = names(arguments.into_iter().chain(more.iter().cloned()));
        let program = r"\x1b]0;x\x07\nab\x9b\xe2\x80\xae\xff";
        let json = program.replace('\\', r"\\");
        assert!(text.contains(program) || text.contains(&json), "{text}");
    }
}

#[test]
fn c9_what_a_qmp_peer_says_is_shown_escaped() {
    let directory = scratch("c9_qmp");
    // Paths of sockets have a limit.
    let socket = std::env::temp_dir().join(format!("unwind-c9-{}", std::process::id()));
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    let mut forged = String::from_utf8(NAME[..NAME.len() - 1].into()).unwrap();
    forged.push('\u{2066}');
    let refusal = json!({ "error": { "class": &forged, "desc": &forged } });
    let peer = thread::spawn(move || {
        for refuses_at in 0..4 {
            let mut stream = listener.accept().unwrap().0;
            writeln!(stream, "{}", json!({ "QMP": { "version": &forged } })).unwrap();
            for (number, line) in BufReader::new(stream.try_clone().unwrap()).lines().enumerate() {
                if line.is_err() {
                    break;
                }
                let answer = match number {
                    number if number == refuses_at => refusal.clone(),
                    2 => json!({ "return": [{ "cpu-index": 0 }] }),
                    _ => {
                        json!({ "return": format!("{forged}{}", "FlatView #0\n Root memory region: system\n  0000000000000000-000000000000ffff (prio 0, ram): m\n") })
                    }
                };
                if writeln!(stream, "{answer}").is_err() {
                    break;
                }
            }
        }
    });
    let memory = directory.join("memory");
    fs::write(&memory, [0; 0x1_0000]).unwrap();
    let mut refusals = 0;
    for _ in 0..4 {
        let arguments =
            [os("guest"), os("--qmp"), socket.clone().into(), os("--mem"), memory.clone().into()];
        let text = printed(&mut unwind(arguments));
        refusals += usize::from(
            text.contains("QEMU refuses") && text.contains(SHOWN.trim_end_matches(r"\xff")),
        );
    }
    peer.join().unwrap();
    fs::remove_file(&socket).unwrap();
    assert!(refusals >= 2, "{refusals}");
}
