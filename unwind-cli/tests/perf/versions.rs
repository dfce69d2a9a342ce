//! What two versions of perf print of one recording of `unwind record`.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use test_support::skip;

use crate::files::text;
use crate::here::{Recorder, SORTING};

/// What each line of a frame has; the other lines tell of the sample.
const FIELDS: &str = "comm,pid,tid,time,event,period,ip,sym,symoff,dso";

/// The oldest and the newest perf of this machine, if there are two.
fn perfs() -> Option<[PathBuf; 2]> {
    let mut found = BTreeMap::new();
    for folder in env::split_paths(&env::var_os("PATH")?) {
        let perf = folder.join("perf");
        if let Ok(output) = Command::new(&perf).arg("--version").output() {
            // `perf version 6.1.192`
            let version = text(&output.stdout);
            let numbers = version.split(|other: char| !other.is_ascii_digit());
            let numbers: Vec<u32> = numbers.filter_map(|number| number.parse().ok()).collect();
            found.entry(numbers).or_insert(perf);
        }
    }
    let (oldest, newest) = (found.pop_first(), found.pop_last());
    let both = oldest.zip(newest).map(|((_, oldest), (_, newest))| [oldest, newest]);
    if both.is_none() {
        eprintln!("skipped: no two versions of perf: .ci/debian-perf installs the newest one");
    }
    both
}

/// What a perf prints, and what it says beside that.
fn printed(perf: &Path, data: &Path, arguments: &[&str]) -> (String, String) {
    let mut command = Command::new(perf);
    command.env("HOME", data.parent().unwrap()).args(arguments).arg("-i").arg(data);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{perf:?} {arguments:?}: {}", text(&output.stderr));
    let lines = text(&output.stdout);
    let lines: Vec<String> = lines.lines().map(without_plt_names).collect();
    (lines.join("\n"), text(&output.stderr))
}

/// Without what is before `@plt` in names that perf makes itself: which function an entry of the
/// procedure linkage table is for, older versions do not find in each layout of the table.
fn without_plt_names(line: &str) -> String {
    let is_end = |at: char| at.is_whitespace() || at == ';';
    let mut without = String::new();
    let mut left = line;
    while let Some((before, after)) = left.split_once("@plt") {
        without += &before[..before.rfind(is_end).map_or(0, |at| at + 1)];
        without += "@plt";
        left = after;
    }
    without + left
}

#[test]
fn d14_names_of_linkage_tables_are_passed() {
    for (line, passed) in [
        ("4c0 memcpy@@GLIBC_2.14@plt+0x0 (libc.so.6)", "4c0 @plt+0x0 (libc.so.6)"),
        ("4c0 @plt+0x0 (libc.so.6)", "4c0 @plt+0x0 (libc.so.6)"),
        ("12 main;qsort@plt;compare", "12 main;@plt;compare"),
        ("main+0x1 (program)", "main+0x1 (program)"),
    ] {
        assert_eq!(without_plt_names(line), passed);
    }
}

/// The fields of a line, whose first is an address if it is one of a frame.
fn fields(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// perf 6.1 prints where in its file an address of user code is, newer ones the address itself,
/// of all recordings: from the one to the other is as far for all addresses of a file.
fn assert_alike(old: &str, new: &str) {
    assert_eq!(old.lines().count(), new.lines().count());
    let mut biases: BTreeMap<(String, String), u64> = BTreeMap::new();
    let (mut process, mut frames) = (String::new(), 0);
    for (old, new) in old.lines().zip(new.lines()) {
        let (old, new) = (fields(old), fields(new));
        if old.len() == new.len() && !old.is_empty() && old[0] != new[0] {
            let [in_file, addr] =
                [old[0], new[0]].map(|addr| u64::from_str_radix(addr, 16).unwrap());
            assert_eq!(old[1..], new[1..]);
            let file = old.last().unwrap().to_string();
            let bias = biases.entry((process.clone(), file)).or_insert(addr - in_file);
            assert_eq!((*bias, *bias % 4096), (addr - in_file, 0), "{old:?} {new:?}");
            frames += 1;
        } else {
            assert_eq!(old, new);
            // `name 17/17 12.345678: ...`
            process = old.get(1).map_or(process, |&thread| thread.to_string());
        }
    }
    assert!(frames > 100, "{frames} addresses");
}

#[test]
fn d14_two_versions_of_perf_print_a_recording_alike() {
    let Some([oldest, newest]) = perfs() else { return };
    let Some(recorder) = Recorder::new("d14_alike") else { return };
    let flags = ["-O2", "-fomit-frame-pointer"];
    let Some(program) = recorder.compile("sorting", SORTING, &flags) else { return };
    let data = recorder.folder.join("unwind.data");
    for options in [&[][..], &["-z0"], &["--off-cpu"]] {
        let mut record = Command::new(env!("CARGO_BIN_EXE_unwind"));
        record.args(["record", "-F", "1999", "-o"]).arg(&data).args(options).arg("--");
        let output = record.arg(&program).output().unwrap();
        let told = text(&output.stderr);
        if told.contains("lets no sampling event be opened") {
            return skip(&told);
        }
        assert!(output.status.success(), "{told}");
        // Whether functions are shown that are inlined is another matter of versions: 6.1 shows
        // them in stacks alone that it has walked itself.
        let script = ["script", "--no-inline", "-F", FIELDS];
        let [(old, old_told), (new, new_told)] =
            [&oldest, &newest].map(|perf| printed(perf, &data, &script));
        assert_alike(&old, &new);
        assert_eq!((old_told, new_told), (String::new(), String::new()), "{options:?}");
        let report =
            ["report", "--stdio", "--no-children", "--no-inline", "-g", "folded,0.1,caller"];
        // Those of the same share are in any order, and each run ends in a tip, one of many.
        let lines = |perf: &PathBuf| -> Vec<String> {
            let (out, _) = printed(perf, &data, &report);
            let lines = out.lines().filter(|line| !line.starts_with("# (Tip"));
            let mut lines: Vec<String> = lines.map(str::to_owned).collect();
            lines.sort_unstable();
            lines
        };
        let (old, new) = (lines(&oldest), lines(&newest));
        assert_eq!(old.len(), new.len(), "{options:?}");
        for (old, new) in old.iter().zip(&new) {
            assert_eq!(old, new, "{options:?}");
        }
        assert!(old.iter().any(|line| line.contains("compare")), "{options:?}");
    }
}
