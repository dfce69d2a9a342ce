//! Every committed input, and every one in `fuzz/artifacts`.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use std::{fs, thread, time::Instant};

use fuzz_targets::{
    TARGETS, Target,
    corpora::{self, Inputs},
};

/// Says which input it was if the target panics.
struct Input<'p>(&'p str, &'p str);

impl Drop for Input<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the input is {} of {}", self.1, self.0);
        }
    }
}

fn replay(target: &Target) -> usize {
    let start = Instant::now();
    let committed = corpora::committed(target.name).unwrap();
    assert!(!committed.is_empty(), "{} has no corpus", target.name);
    let artifacts = corpora::folder().join("artifacts").join(target.name);
    let found = corpora::read_folder(&artifacts).unwrap();
    for (name, bytes) in committed.iter().chain(&found) {
        let input = Input(target.name, name);
        (target.body)(bytes);
        drop(input);
    }
    let count = committed.len() + found.len();
    println!("{}: {count} inputs in {:.1?}", target.name, start.elapsed());
    count
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
fn archives_hold_what_was_packed_and_the_same_inputs_make_the_same_archive() {
    let inputs: Inputs = [("b", &[][..]), ("a", &[0; 1000]), ("c", b"text")]
        .map(|(name, bytes)| (name.to_owned(), bytes.to_vec()))
        .into();
    let archive = corpora::pack(&inputs).unwrap();
    assert_eq!(corpora::unpack(&archive).unwrap(), inputs);
    assert_eq!(corpora::pack(&inputs).unwrap(), archive);
    // Cut short, it is an error and not fewer inputs.
    assert!(corpora::unpack(&archive[..archive.len() / 2]).is_err());
}

#[test]
fn every_archive_and_every_folder_of_seeds_is_a_targets() {
    for folder in ["corpora", "seeds"] {
        for entry in fs::read_dir(corpora::folder().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let target = name.trim_end_matches(".tar.gz");
            assert!(TARGETS.iter().any(|known| known.name == target), "{folder}/{name}");
        }
    }
}

#[test]
fn every_target_has_a_fuzzer() {
    let root = corpora::folder();
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    for target in TARGETS {
        let name = target.name;
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} is not in the manifest");
        let fuzzer = fs::read_to_string(root.join(format!("fuzz_targets/{name}.rs"))).unwrap();
        assert!(fuzzer.contains(&format!("fuzz_targets::{name}(data)")), "{name}");
    }
}
