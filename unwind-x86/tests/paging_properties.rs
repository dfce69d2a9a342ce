//! Page walks of arbitrary tables against a plain model.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, clippy::as_conversions, reason = "tests")]

mod paging_model;

use std::collections::BTreeSet;

use paging_model::{Reached, check};
use proptest::prelude::*;
use unwind_x86::paging::{Level, PagingMode};

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn walks_and_reads_agree_with_the_model(data in prop::collection::vec(any::<u8>(), 0..200)) {
        check(&data);
    }
}

#[test]
fn the_comparison_reaches_every_page_size_and_every_fault() {
    // A fixed sequence of bytes (xorshift), so that this does not depend on
    // luck.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    let reached: BTreeSet<Reached> = (0..20_000)
        .map(|_| {
            let data: Vec<u8> = (0..120).map(|_| next()).collect();
            check(&data)
        })
        .collect();
    let pages = [
        (PagingMode::Off, 1 << 32),
        (PagingMode::TwoLevel, 4 << 10),
        (PagingMode::TwoLevel, 4 << 20),
        (PagingMode::Pae, 4 << 10),
        (PagingMode::Pae, 2 << 20),
        (PagingMode::FourLevel, 4 << 10),
        (PagingMode::FourLevel, 2 << 20),
        (PagingMode::FourLevel, 1 << 30),
        (PagingMode::FiveLevel, 4 << 10),
        (PagingMode::FiveLevel, 2 << 20),
        (PagingMode::FiveLevel, 1 << 30),
    ];
    let mut expected: BTreeSet<Reached> =
        pages.into_iter().map(|(mode, size)| Reached::Page(mode, size)).collect();
    expected.insert(Reached::NotLinear);
    for level in [Level::Pt, Level::Pd, Level::Pdpt, Level::Pml4, Level::Pml5] {
        expected.extend([
            Reached::NotPresent(level),
            Reached::Reserved(level),
            Reached::Supervisor(level),
            Reached::Table(level),
        ]);
    }
    let differ: Vec<_> = reached.symmetric_difference(&expected).collect();
    assert!(differ.is_empty(), "{differ:?}");
}
