//! How frames were found: what a recording keeps of it, and what is shown.

use std::fs;
use std::path::Path;
use std::process::Command;

use test_support::tool;

use crate::page::data_of;
use crate::{recording, report, text};

/// How many frames of all samples were found in each way, by its word.
fn frames_by_way(data: &Path) -> Vec<(String, u64)> {
    // Without the copies of files that are kept by their build ids.
    let mut command = Command::new(env!("CARGO_BIN_EXE_unwind"));
    command.args(["report", "--format", "html"]).arg(data);
    command.env("PERF_BUILDID_DIR", data.with_file_name("none"));
    let page = data_of(&command.output().unwrap().stdout);
    let ways = page["found"].as_array().unwrap().iter();
    ways.map(|way| (way["word"].as_str().unwrap().to_owned(), way["frames"].as_u64().unwrap()))
        .collect()
}

fn count(ways: &[(String, u64)], word: &str) -> u64 {
    ways.iter().find(|(found, _)| found == word).unwrap().1
}

#[test]
fn d15_how_frames_were_found_is_known_when_their_files_are_gone() {
    let Some(data) = recording("report_ways", b"nested", &[]) else { return };
    let ways = frames_by_way(&data);
    // Those above the end of the chain of calls have some ten, and others some.
    assert!(count(&ways, "cfi") > 5 * count(&ways, "sampled"), "{ways:?}");
    assert_eq!(count(&ways, "fp"), 0, "{ways:?}");
    fs::remove_file(data.with_file_name("nested")).unwrap();
    assert_eq!(frames_by_way(&data), ways);
    // After a merge samples are in another order, and so is what is known of them.
    let merged = data.with_file_name("merged.data");
    let merge = crate::unwind(&["merge", data.to_str().unwrap(), "-o", merged.to_str().unwrap()]);
    assert!(merge.status.success(), "{}", text(&merge.stderr));
    assert_eq!(frames_by_way(&merged), ways);
}

#[test]
fn d15_pprof_shows_the_stacks_with_a_frame_that_was_found_in_one_way() {
    let Some(data) = recording("report_ways_pprof", b"nested", &[]) else { return };
    let Some(go) = tool("go") else { return };
    let pprof = data.with_file_name("profile.pb.gz");
    fs::write(&pprof, report(&data, "pprof")).unwrap();
    let top = |focus: &str| {
        let mut command = Command::new(&go);
        command.args(["tool", "pprof", "-top", &format!("-tagfocus=found={focus}")]);
        text(&command.arg(&pprof).output().unwrap().stdout)
    };
    assert!(top("cfi").contains("innermost"), "{}", top("cfi"));
    assert!(!top("lbr").contains("innermost"), "{}", top("lbr"));
}
