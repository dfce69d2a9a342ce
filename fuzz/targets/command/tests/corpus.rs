//! Every committed input, and every one in `fuzz/artifacts`.
#![cfg(test)]

use fuzz_command::TARGETS;
use test_support::fuzz_target::{check_fuzzers, replay, replay_short};

#[test]
fn every_target_takes_its_corpus() {
    assert!(replay(TARGETS) > TARGETS.len());
}

#[test]
fn every_target_takes_no_bytes_and_few() {
    replay_short(TARGETS);
}

#[test]
fn every_target_has_a_fuzzer() {
    check_fuzzers("fuzz_command", TARGETS);
}
