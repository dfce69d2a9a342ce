//! Recordings of other people's machines, kernels and versions of perf: counts and texts equal
//! perf's.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use test_support::tool;

use crate::files::{text, unwind};

/// The recordings, and how many samples perf 6.1 finds of each event of them.
const RECORDINGS: [(&str, &[(&str, u64)]); 6] = [
    ("lpd-sleep.compressed.pipe.data", &[("cycles:P", 8)]),
    ("quipper-branch-4.14", &[("cycles:ppp", 13)]),
    ("quipper-piped.ctx_switch_namespaces-4.14", &[("cycles", 7)]),
    (
        "quipper-piped.lost_samples-4.4",
        &[("branches:ppH", 14), ("cycles:ppH", 98), ("instructions:ppH", 79)],
    ),
    ("quipper-piped.no_attr_ids-4.14", &[("cycles", 7)]),
    ("quipper-piped.target.throttled-3.4", &[("cycles", 228)]),
];

/// What perf and the command are asked for: not for names, since perf 6.1 gives addresses of other
/// kernels the names of the kernel that it runs on, and the command gives none.
const SHOWN: [&str; 4] = ["script", "--ns", "-F", "comm,tid,time,event,ip"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/perf-foreign")
}

fn shown(file: &Path) -> String {
    let output = unwind(&[&SHOWN[..], &["--layout", "6.1", file.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{file:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Samples by event, by the lines that are shown of them: `comm tid time: event: ip`.
fn by_event(lines: &str) -> BTreeMap<&str, u64> {
    let mut counts = BTreeMap::new();
    for line in lines.lines().filter(|line| !line.is_empty()) {
        let (_, event) = line.trim_end().split_once(": ").unwrap();
        let (event, _) = event.rsplit_once(": ").unwrap();
        *counts.entry(event.trim()).or_default() += 1;
    }
    counts
}

#[test]
fn d5_recordings_of_other_people_are_shown_as_perf_shows_them() {
    for (name, events) in RECORDINGS {
        let file = folder().join(name);
        let own = shown(&file);
        let of_perf = fs::read_to_string(folder().join(format!("{name}.6.1.txt"))).unwrap();
        assert_eq!(own, of_perf, "{name}");
        assert_eq!(by_event(&own), events.iter().copied().collect(), "{name}");
    }
}

#[test]
fn d5_reports_of_other_peoples_recordings_have_as_many_samples_as_perf_finds() {
    for (name, events) in RECORDINGS {
        let file = folder().join(name);
        for &(event, count) in events {
            let arguments = ["report", "--format", "folded", "--event", event];
            let output = unwind(&[&arguments[..], &[file.to_str().unwrap()]].concat());
            assert!(output.status.success(), "{name}: {}", text(&output.stderr));
            let lines = text(&output.stdout);
            let samples = lines.lines().map(|line| {
                let (_, samples) = line.rsplit_once(' ').unwrap();
                samples.parse::<u64>().unwrap()
            });
            assert_eq!(samples.sum::<u64>(), count, "{name}, {event}");
            // No kernel's address has a name of the kernel that runs here.
            let is_named = |line: &str| line.contains("srso_") || line.contains("__entry_text_end");
            assert!(!lines.lines().any(is_named), "{name}: {lines}");
        }
    }
}

#[test]
fn d5_the_perf_of_this_machine_shows_the_same_of_other_peoples_recordings() {
    let Some(perf) = tool("perf") else { return };
    let version = text(&Command::new(&perf).arg("--version").output().unwrap().stdout);
    if !version.contains(" 6.1") {
        eprintln!("skipped: the stored texts are of perf 6.1, and this is {version}");
        return;
    }
    for (name, _) in RECORDINGS {
        let file = folder().join(name);
        let mut command = Command::new(&perf);
        command.env("HOME", "/nonexistent").args(SHOWN).arg("-i").arg(&file);
        assert_eq!(shown(&file), text(&command.output().unwrap().stdout), "{name}");
    }
}
