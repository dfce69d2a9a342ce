//! `unwind script` and `merge` over samples with registers and a copy of the stack, and
//! the text of `perf script` for recordings whose program is here: `testdata/perf-walk`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::files::{Scratch, done, text, unwind};

/// Where the recorded program was, and has to be.
const PROGRAM: &str = "/tmp/unwind-walk-fixture/walk";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/perf-walk").join(name)
}

fn recording(name: &str) -> String {
    fixture(&format!("{name}.data")).to_str().unwrap().to_owned()
}

/// The program at its place, for one test at a time, also of those that run elsewhere on the machine.
struct Placed(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>, File);

impl Placed {
    /// Puts `bytes` there, or takes away what is.
    fn new(bytes: Option<&[u8]>) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        fs::create_dir_all(Path::new(PROGRAM).parent().unwrap()).unwrap();
        let others = File::create(Path::new(PROGRAM).with_file_name("lock")).unwrap();
        others.lock().unwrap();
        let _ = fs::remove_file(PROGRAM);
        if let Some(bytes) = bytes {
            fs::write(PROGRAM, bytes).unwrap();
        }
        Self(guard, others)
    }

    fn program() -> Self {
        Self::new(Some(&fs::read(fixture("walk")).unwrap()))
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        let _ = fs::remove_file(PROGRAM);
        let _ = self.1.unlock();
    }
}

/// The samples of a recording as JSON.
fn samples(arguments: &[&str]) -> Vec<Value> {
    let json = done(&[&["script", "--json"], arguments].concat());
    let lines = json.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["type"] == "sample").collect()
}

#[test]
fn d5_text_is_that_of_perf_script_of_either_version_for_each_list_of_fields() {
    let _placed = Placed::program();
    for name in ["dwarf", "fp", "plain"] {
        for version in ["6.1", "7.2"] {
            let expected = fs::read_to_string(fixture(&format!("{name}.{version}.txt"))).unwrap();
            let mut compared = 0;
            for part in expected.split("==").skip(1) {
                let (options, expected) = part.split_once('\n').unwrap();
                let options: Vec<&str> = options.split_whitespace().collect();
                let recording = recording(name);
                let arguments = [&["script", "--layout", version], &options[..], &[&recording]];
                assert_eq!(done(&arguments.concat()), expected, "{name} {version} {options:?}");
                compared += 1;
            }
            assert_eq!(compared, 5);
        }
    }
}

/// Programs that are compiled and recorded here and now, by the perf of this machine.
#[test]
fn d5_text_of_programs_recorded_here_is_that_of_perf_script() {
    let Some(perf) = test_support::tool("perf") else { return };
    let version = text(&Command::new(&perf).arg("--version").output().unwrap().stdout);
    let layout = if version.contains(" 6.1") { "6.1" } else { "7.2" };
    let Some(compiler) = test_support::Compiler::find(&["-O2"]) else { return };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("d5_text_of_programs");
    fs::create_dir_all(&folder).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/sorting.c");
    let program = folder.join("sorting");
    compiler.compile(&source, &program, &[]);
    for graph in [&["--call-graph", "dwarf,16384"][..], &["-g"], &[]] {
        let data = folder.join("perf.data");
        let mut record = Command::new(&perf);
        record.env("HOME", &folder).args(["record", "-q", "-e", "cpu-clock:u", "-F", "997", "-o"]);
        let record = test_support::perf_record(record.arg(&data).args(graph).arg(&program));
        if !record.status.success() {
            println!("skipped: perf cannot record here: {}", text(&record.stderr));
            return;
        }
        let expected = Command::new(&perf)
            .env("HOME", &folder)
            .args(["script", "--no-inline", "-i"])
            .arg(&data)
            .output()
            .unwrap();
        let found = done(&["script", "--layout", layout, data.to_str().unwrap()]);
        let blocks =
            |text: &str| -> Vec<String> { text.split("\n\n").map(str::to_owned).collect() };
        let (expected, found) = (blocks(&text(&expected.stdout)), blocks(&found));
        assert_eq!(found.len(), expected.len(), "{graph:?}");
        let mut equal = 0;
        for (found, expected) in found.iter().zip(&expected) {
            // Parentheses at the start of a line: this stack is marked. perf 6.1 takes `_init`
            // for longer than it is.
            if found.contains("\t                 (") || expected.contains(" _init+") {
                continue;
            }
            assert_eq!(found, expected, "{graph:?}");
            equal += 1;
        }
        assert!(equal * 10 >= 9 * expected.len(), "{equal} of {} are unmarked", expected.len());
    }
}

#[test]
fn a7_samples_with_registers_and_stack_bytes_are_walked_to_the_outermost_frame() {
    let _placed = Placed::program();
    let samples = samples(&[&recording("dwarf")]);
    assert!(samples.len() > 10);
    let expected = fs::read_to_string(fixture("dwarf.7.2.txt")).unwrap();
    let listing = expected.split("==").nth(1).unwrap();
    let blocks = listing.split("\n\n").filter(|block| block.contains("cpu-clock"));
    for (sample, block) in samples.iter().zip(blocks) {
        assert_eq!(sample["end"], "walked");
        assert_eq!(sample["walk"]["complete"], true, "{sample}");
        assert_eq!(sample["walk"]["incomplete"], Value::Null);
        let user = sample["chain"].as_array().unwrap().last().unwrap();
        assert_eq!(user["context"], "user");
        // perf prints the last byte of a call in place of the address after it.
        let ips = user["ips"].as_array().unwrap().iter().enumerate().map(|(index, ip)| {
            let ip = u64::from_str_radix(ip.as_str().unwrap().trim_start_matches("0x"), 16);
            ip.unwrap() - u64::from(index != 0)
        });
        let addresses = block
            .lines()
            .filter(|line| line.starts_with('\t'))
            .map(|line| u64::from_str_radix(line.split_whitespace().next().unwrap(), 16).unwrap());
        assert!(ips.eq(addresses), "{sample}\n{block}");
    }
}

#[test]
fn the_rows_of_all_walks_are_counted_and_most_are_kept() {
    let _placed = Placed::program();
    let merged = Scratch::new(&[]);
    let recording = recording("dwarf");
    for arguments in [
        vec!["script", "--stats", &recording],
        vec!["script", "--stats", "--json", &recording],
        vec!["merge", "--stats", &recording, "-o", merged.name()],
    ] {
        let notes = text(&unwind(&arguments).stderr);
        let line = notes.lines().find(|line| line.contains(" looked up, ")).unwrap();
        let numbers = line.split(' ').filter_map(|word| word.parse::<u64>().ok());
        let [looked_up, kept, _]: [u64; 3] = numbers.collect::<Vec<_>>().try_into().unwrap();
        assert!(looked_up > 0 && kept > looked_up, "{line}");
    }
    // Nothing is walked of other recordings.
    let plain = fixture("plain.data");
    let notes = text(&unwind(&["script", "--stats", plain.to_str().unwrap()]).stderr);
    assert!(!notes.contains(" looked up, "), "{notes}");
}

#[test]
fn a7_a_sample_whose_file_is_gone_or_replaced_says_so_and_is_not_complete() {
    let recording = recording("dwarf");
    let mut other = fs::read(fixture("walk")).unwrap();
    let id = other.windows(4).position(|bytes| bytes == b"GNU\0").unwrap() + 4;
    other[id] ^= 1;
    for (bytes, reason) in [
        (None, "/tmp/unwind-walk-fixture/walk: cannot open it"),
        (Some(&other[..]), "it is not the file that was mapped: the build ids differ"),
        (Some(b"text"), "not an ELF file"),
    ] {
        let _placed = Placed::new(bytes);
        for sample in samples(&[&recording]) {
            assert_eq!(sample["walk"]["complete"], false);
            let incomplete = sample["walk"]["incomplete"].as_str().unwrap();
            assert!(incomplete.contains(reason), "{incomplete}");
            assert!(!sample["chain"].as_array().unwrap().last().unwrap()["ips"].is_null());
        }
        let text = without_names(&recording);
        assert!(text.contains("(incomplete: ") && text.contains(reason), "{text}");
        assert!(!text.contains("+0x") && text.contains(" [unknown] (/tmp/unwind-walk-fixture"));
    }
}

#[test]
fn c2_a_file_that_a_recording_names_cannot_hold_the_command_up() {
    let _placed = Placed::new(None);
    assert!(Command::new("mkfifo").arg(PROGRAM).status().unwrap().success());
    let text = without_names(&recording("dwarf"));
    assert!(text.contains("it is not a regular file"), "{text}");
}

/// What is shown of a recording whose program cannot be used, which is told once.
fn without_names(recording: &str) -> String {
    let output = unwind(&["script", recording]);
    let told = text(&output.stderr);
    assert!(output.status.success() && told.lines().count() == 1, "{told}");
    assert!(told.contains("functions of /tmp/unwind-walk-fixture/walk have no names: "), "{told}");
    text(&output.stdout)
}

#[test]
fn a7_a_merge_has_walked_stacks_in_the_place_of_registers_and_stack_bytes() {
    let _placed = Placed::program();
    let merged = Scratch::new(&[]);
    let output = unwind(&["merge", &recording("dwarf"), "-o", merged.name()]);
    assert!(output.status.success());
    let notes = text(&output.stderr);
    assert!(notes.contains("stacks were walked"), "{notes}");
    assert!(!notes.contains("not complete"), "{notes}");
    let walked = samples(&[&recording("dwarf")]);
    let recorded = samples(&[merged.name()]);
    assert_eq!(walked.len(), recorded.len());
    for (walked, recorded) in walked.iter().zip(&recorded) {
        assert_eq!(recorded["end"], "inline");
        for key in ["comm", "pid", "tid", "time", "event", "ip"] {
            assert_eq!(walked[key], recorded[key]);
        }
        let ips = |sample: &Value| -> Vec<Value> {
            let parts = sample["chain"].as_array().unwrap().iter();
            parts.flat_map(|part| part["ips"].as_array().unwrap().clone()).collect()
        };
        assert_eq!(ips(walked), ips(recorded));
    }
    let file = fs::read(recording("dwarf")).unwrap();
    assert!(merged.bytes().len() < file.len(), "without stack bytes it is shorter");
    // perf takes it for a recording by frame pointers.
    if let Some(perf) = test_support::tool("perf") {
        let arguments = ["script", "-F", "ip", "-i", merged.name()];
        let listing = text(&Command::new(perf).args(arguments).output().unwrap().stdout);
        assert_eq!(listing.split("\n\n").count(), walked.len() + 1);
        let lines = listing.lines().filter(|line| line.starts_with('\t')).count();
        let frames = |sample: &Value| sample["chain"][0]["ips"].as_array().unwrap().len();
        assert_eq!(lines, walked.iter().map(frames).sum::<usize>());
    }
    // In pipe form, too.
    let pipe = Scratch::new(&crate::files::Parts::of(&file).to_pipe());
    let output = unwind(&["merge", pipe.name(), "-o", "-"]);
    assert!(output.status.success());
    let from_pipe = Scratch::new(&output.stdout);
    assert_eq!(samples(&[from_pipe.name()]).len(), walked.len());
}

#[test]
fn d5_a_stack_that_is_cut_by_max_stack_says_how_many_frames_are_left_out() {
    let _placed = Placed::program();
    for name in ["dwarf", "fp"] {
        let whole = done(&["script", "-F", "ip", &recording(name)]);
        let cut = done(&["script", "-F", "ip", "--max-stack", "2", &recording(name)]);
        for (whole, cut) in whole.split("\n\n").zip(cut.split("\n\n")) {
            let whole: Vec<&str> = whole.lines().skip(1).collect();
            let cut: Vec<&str> = cut.lines().skip(1).collect();
            match whole.len() {
                0..=2 => assert_eq!(whole, cut),
                len => {
                    assert_eq!(cut[..2], whole[..2]);
                    let frames = if len == 3 { "frame" } else { "frames" };
                    let mark = format!("({} more {frames}; see --max-stack)", len - 2);
                    assert_eq!((cut.len(), cut[2].trim()), (3, &*mark));
                }
            }
        }
    }
    for sample in samples(&["--max-stack", "2", &recording("dwarf")]) {
        let ips = sample["chain"][0]["ips"].as_array().unwrap().len();
        assert!(ips == 2 && sample["left_out"].as_u64().unwrap() > 2, "{sample}");
    }
}

#[test]
fn d5_k1_a_kernel_of_another_build_id_has_no_names_and_the_user_is_told() {
    // Only the record of its mapping has the id in pipe form.
    let pipe = Scratch::new(&crate::files::Parts::of(&testdata::perf_file("pfork.data")).to_pipe());
    for form in [pipe.name(), testdata::perf_files("data")[0].to_str().unwrap()] {
        let output = unwind(&["script", form]);
        let (text, told) = (text(&output.stdout), text(&output.stderr));
        let of_kernel = "unwind: functions of the kernel have no names: ";
        assert!(told.starts_with(of_kernel), "{told}");
        assert_eq!(told.matches("functions of the kernel").count(), 1, "{told}");
        let kernel: Vec<&str> = text.lines().filter(|line| line.contains("\tffffffff")).collect();
        assert!(kernel.len() > 100, "{}", kernel.len());
        for line in kernel {
            assert!(line.ends_with(" [unknown] ([kernel.kallsyms])"), "{line}");
        }
    }
}
