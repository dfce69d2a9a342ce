//! Every input of the committed corpora, and every one in `fuzz/artifacts`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::arithmetic_side_effects, reason = "tests")]

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Instant,
};

use fuzz_targets::{TARGETS, Target};

/// Says which input it was if the target panics.
struct Input<'p>(&'p Path);

impl Drop for Input<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the input is {}", self.0.display());
        }
    }
}

fn inputs(directory: &str, target: &Target) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(directory);
    let Ok(entries) = fs::read_dir(root.join(target.name)) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn replay(target: &Target) -> usize {
    let start = Instant::now();
    let corpus = inputs("corpus", target);
    assert!(!corpus.is_empty(), "{} has no corpus", target.name);
    let paths = [corpus, inputs("artifacts", target)].concat();
    for path in &paths {
        let input = Input(path);
        (target.body)(&fs::read(path).unwrap());
        drop(input);
    }
    println!("{}: {} inputs in {:.1?}", target.name, paths.len(), start.elapsed());
    paths.len()
}

#[test]
fn every_target_takes_its_corpus() {
    let (first, second) = TARGETS.split_at(TARGETS.len() / 2);
    let both = thread::scope(|scope| {
        let other = scope.spawn(|| second.iter().map(replay).sum::<usize>());
        first.iter().map(replay).sum::<usize>() + other.join().unwrap()
    });
    assert!(both > TARGETS.len());
}

#[test]
fn every_target_takes_no_bytes_and_few() {
    for target in TARGETS {
        for len in 0..40 {
            for byte in [0, 1, 0x7f, 0xff] {
                (target.body)(&vec![byte; len]);
            }
        }
    }
}

#[test]
fn every_target_has_a_fuzzer() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    for target in TARGETS {
        let name = target.name;
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} is not in the manifest");
        let fuzzer = fs::read_to_string(root.join(format!("fuzz_targets/{name}.rs"))).unwrap();
        assert!(fuzzer.contains(&format!("fuzz_targets::{name}(data)")), "{name}");
    }
}
