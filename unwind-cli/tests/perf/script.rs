//! `unwind script` against `perf script` and the independent decoder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use testdata::{perf_files, perf_text};

use crate::files::{FIELDS, Scratch, done, perf_data, plain, text, unwind};
use crate::listing::{Block, blocks, decoded, late, with_cookies};

/// The recordings that `perf` made.
fn perf_recordings() -> Vec<PathBuf> {
    perf_files("data")
}

#[test]
fn unmerged_text_is_that_of_perf_script() {
    for path in perf_recordings() {
        let name = path.to_str().unwrap();
        let found = done(&plain(&["--no-merge-callchains", name]));
        assert_eq!(found, perf_text(&path, "script-nomerge.txt"), "{name}");
    }
}

#[test]
fn merged_text_is_that_of_perf_script_but_for_samples_that_perf_cannot_merge() {
    for path in perf_recordings() {
        let name = path.to_str().unwrap();
        let late = late(&blocks(&perf_text(&path, "script-nomerge.txt")));
        let truth = decoded(&path);
        let is_exact = |block: &Block| {
            let key = block.key();
            !late.contains(&key) && truth[&key].iter().all(|sample| sample.end != "unmatched")
        };
        let expected = blocks(&perf_text(&path, "script-merge.txt"));
        let found = blocks(&done(&plain(&[name])));
        assert_eq!(found.len(), expected.len(), "{name}");
        // The same text in the same order.
        let exact = |blocks: &[Block]| -> Vec<Block> {
            blocks.iter().filter(|block| is_exact(block)).cloned().collect()
        };
        assert_eq!(exact(&found), exact(&expected), "{name}");
        assert!(!late.is_empty(), "{name} has samples that perf cannot merge");
        // perf prints their cookie in the place of the stack.
        for block in found.iter().filter(|block| late.contains(&block.key())) {
            let perf = expected.iter().find(|perf| perf.key() == block.key()).unwrap();
            let (_, kernel) = perf.ips.split_last().unwrap();
            assert_eq!(&block.ips[..kernel.len()], kernel);
            assert!(block.ips.len() > kernel.len(), "{name}: {block:?} has its stack");
        }
    }
}

/// A perf of 7.2 or newer can be named to be compared with on all recordings.
#[test]
fn text_is_that_of_a_perf_at_hand() {
    let Some(perf) = std::env::var_os("UNWIND_NEWER_PERF") else {
        println!("skipped: UNWIND_NEWER_PERF names no perf of 7.2 or newer");
        return;
    };
    for path in perf_recordings().into_iter().chain(perf_files("raw")) {
        let file = Scratch::new(&perf_data(&path));
        let listing = |merge| {
            let arguments =
                ["script", merge, "--ns", "--max-stack", "1024", "-F", FIELDS, "-i", file.name()];
            text(&Command::new(&perf).args(arguments).output().unwrap().stdout)
        };
        let unmerged = listing("--no-merge-callchains");
        let found = done(&plain(&["--no-merge-callchains", file.name()]));
        assert_eq!(found, unmerged, "{}", path.display());
        let truth = decoded(&path);
        let is_unmatched =
            |block: &Block| truth[&block.key()].iter().any(|sample| sample.end == "unmatched");
        let merged = blocks(&listing("--merge-callchains"));
        // Samples that perf could have merged, but did not or only later.
        let unmerged = blocks(&unmerged);
        let mut left = late(&unmerged);
        left.extend(with_cookies(&merged, &unmerged));
        let exact = |mut blocks: Vec<Block>| {
            blocks.retain(|block| is_unmatched(block) || !left.contains(&block.key()));
            blocks
        };
        let mut expected = exact(merged);
        // A sample without its stack ends in its cookie there.
        for block in expected.iter_mut().filter(|block| is_unmatched(block)) {
            block.ips.pop();
        }
        let found = exact(blocks(&done(&plain(&[file.name()]))));
        assert_eq!(found.len(), expected.len(), "{}", path.display());
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found, expected, "{}", path.display());
        }
    }
}

#[test]
fn every_sample_has_the_chain_that_the_independent_decoder_finds() {
    for path in perf_recordings().into_iter().chain(perf_files("raw")) {
        let file = Scratch::new(&perf_data(&path));
        let mut truth: BTreeMap<_, Vec<Vec<String>>> = decoded(&path)
            .into_iter()
            .map(|(key, samples)| (key, samples.iter().map(|sample| sample.ips()).collect()))
            .collect();
        for block in blocks(&done(&plain(&[file.name()]))) {
            let samples = truth.get_mut(&block.key()).unwrap();
            let same = samples.iter().position(|ips| *ips == block.ips);
            samples.remove(same.unwrap_or_else(|| panic!("{}: {block:?}", path.display())));
        }
        let missing = truth.values().map(Vec::len).sum::<usize>();
        assert_eq!(missing, 0, "{}", path.display());
    }
}

#[test]
fn a_forked_child_keeps_to_its_own_stacks_and_gets_its_name() {
    let path = perf_recordings().into_iter().find(|path| path.ends_with("pfork.data")).unwrap();
    let found = blocks(&done(&plain(&[path.to_str().unwrap()])));
    let expected = blocks(&perf_text(&path, "script-merge.txt"));
    let tids = |blocks: &[Block]| -> BTreeMap<u32, usize> {
        let mut tids = BTreeMap::new();
        for block in blocks {
            *tids.entry(block.key().0).or_default() += 1;
        }
        tids
    };
    assert_eq!(tids(&found), tids(&expected));
    assert_eq!(tids(&found).len(), 5, "the parent and four children");
    // Names at the start of a line are those that perf gives.
    let names = |blocks: &[Block]| -> BTreeMap<(u32, u64), String> {
        let name = |block: &Block| block.head.split_whitespace().next().unwrap().to_owned();
        blocks.iter().map(|block| (block.key(), name(block))).collect()
    };
    assert_eq!(names(&found), names(&expected));
    let children: BTreeSet<String> = names(&found).into_values().collect();
    assert_eq!(children, BTreeSet::from(["t32".to_owned(), "t64".to_owned()]), "some called exec");
}

#[test]
fn fields_are_chosen_as_in_perf_script() {
    let path = perf_recordings().into_iter().find(|path| path.ends_with("pfork.data")).unwrap();
    let script = |fields: &str| {
        let name = path.to_str().unwrap();
        done(&["script", "--no-merge-callchains", "--ns", "-F", fields, name])
    };
    let first = |fields: &str, lines: usize| -> String {
        script(fields).split_inclusive('\n').take(lines).collect()
    };
    // What perf 7.2 prints.
    assert_eq!(first("comm,time", 1), "       perf-exec   143.953239207: \n");
    assert_eq!(first("comm,ip", 2), "perf-exec \n\tffffffff81683deb\n");
    assert_eq!(first("ip", 2), "\n\tffffffff81683deb\n");
    assert_eq!(first("tid,time", 1), "    200   143.953239207: \n");
    assert_eq!(first("pid,ip", 2), "    200 \n\tffffffff81683deb\n");
    assert_eq!(first("comm,event,pid", 1), "       perf-exec     200 cpu-clock: \n");
    let stack = |fields: &str| {
        let listing = script(fields);
        let line = listing.lines().find(|line| line.contains("DEFERRED")).unwrap();
        line.to_owned()
    };
    assert_eq!(stack("comm,ip"), "t64 DEFERRED CALLCHAIN [cookie: 2f700000001]");
    let with_time = "             t64   143.959809688: DEFERRED CALLCHAIN [cookie: 2f700000001]";
    assert_eq!(stack("comm,time"), with_time);
    let refused = unwind(&["script", "-F", "comm,iregs", path.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2));
    let error = text(&refused.stderr);
    assert!(error.contains("comm,tid,pid,time,cpu,event,period,ip,sym,symoff,dso"), "{error}");
}

#[test]
fn json_has_every_sample_with_its_end_and_parts() {
    for path in perf_files("raw") {
        let file = Scratch::new(&perf_data(&path));
        let json = done(&["script", "--json", "--max-stack", "1024", file.name()]);
        let lines: Vec<Value> =
            json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&lines[0]["type"], &lines[0]["schema"]), (&"recording".into(), &1.into()));
        let last = lines.last().unwrap();
        assert_eq!((&last["type"], &last["error"]), (&"end".into(), &Value::Null));
        let mut truth = decoded(&path);
        let mut ends = BTreeMap::<String, u64>::new();
        for sample in &lines[1..lines.len() - 1] {
            assert_eq!(sample["type"], "sample");
            let end = sample["end"].as_str().unwrap();
            *ends.entry(end.to_owned()).or_default() += 1;
            assert_eq!(sample["reason"].is_string(), end == "unmatched");
            let tid = u32::try_from(sample["tid"].as_i64().unwrap()).unwrap();
            let key = (tid, sample["time"].as_u64().unwrap());
            let words: Vec<String> = sample["chain"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|part| {
                    let context = part["context"].as_str().unwrap().replace('-', "_");
                    let ips = part["ips"].as_array().unwrap().iter();
                    let ips =
                        ips.map(|ip| ip.as_str().unwrap().trim_start_matches("0x").to_owned());
                    [format!("<{}>", context.to_uppercase())].into_iter().chain(ips)
                })
                .collect();
            // Merged chains have the user mark; a mark without a cookie makes
            // a sample unmatched here, and plain for the decoder.
            let matches = |decoded: &crate::listing::Decoded| {
                let marks = decoded.words.iter().map(|word| match (word.as_str(), end) {
                    ("<USER_DEFERRED>", "merged") => "<USER>",
                    (word, _) => word,
                });
                marks.eq(words.iter().map(String::as_str))
                    && match decoded.end.as_str() {
                        "plain" => end == "inline" || sample["reason"] == "no-cookie",
                        decoded => decoded == end,
                    }
            };
            let samples = truth.get_mut(&key).unwrap();
            let found = samples.iter().position(matches);
            samples.remove(found.unwrap_or_else(|| panic!("{sample}\n{samples:?}")));
        }
        let count = |name: &str| last["counts"][name].as_u64().unwrap();
        for end in ["inline", "merged", "unmatched"] {
            assert_eq!(count(end), ends.get(end).copied().unwrap_or(0), "{}", path.display());
        }
        assert_eq!(count("samples"), ends.values().sum::<u64>());
    }
}

#[test]
fn stats_say_what_became_of_the_samples() {
    let path = perf_files("raw").into_iter().find(|path| path.ends_with("lost.raw")).unwrap();
    let file = Scratch::new(&perf_data(&path));
    let output = unwind(&["script", "--stats", file.name()]);
    assert!(output.status.success());
    let stats = text(&output.stderr);
    let expected = ["259 samples: 177 merged, 82 unmatched, 0 not deferred", "74 stacks:"];
    for line in expected {
        assert!(stats.contains(line), "{stats}");
    }
    assert!(stats.contains("2023 records lost by the recorder"), "{stats}");
}
