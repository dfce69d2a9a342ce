//! After how many lookups an index of a table has paid for itself.
//!
//! ```text
//! cargo run --release --package unwind-sframe --features write --example index_pays
//! ```
//!
//! Tables of functions of 64 bytes with three rows each; random addresses. Once as every linker
//! writes them, and once without the flag that says that the functions ascend: then a lookup without an
//! index looks at one after another. Times are the shortest of some turns.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "an example"
)]

use std::hint::black_box;
use std::time::Instant;

use sframe::{Abi, Builder, Format, Function, Table};
use unwind_core::{CfaRule, RegRule, Row};

const TEXT: u64 = 0x10_0000;
const FUNCTION: u32 = 64;
/// Where the flags of a table are, and which says that its functions ascend.
const FLAGS: usize = 3;
const SORTED: u8 = 1;

fn table(functions: u64) -> Vec<u8> {
    let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
    let row = |offset| Row::new(CfaRule::sp(offset), RegRule::Offset(-8), RegRule::SameValue);
    for number in 0..functions {
        let start = TEXT + number * u64::from(FUNCTION);
        let rows =
            [(0, row(8)), (4, row(16 + 8 * i32::try_from(number % 13).unwrap())), (60, row(8))];
        builder.add(&Function::new(start, FUNCTION, &rows), |lost| panic!("{lost}")).unwrap();
    }
    builder.finish(TEXT, |lost| panic!("{lost}")).unwrap()
}

/// The shortest time of some turns, in nanoseconds.
fn shortest(turns: u32, mut work: impl FnMut()) -> f64 {
    let turn = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64() * 1e9
    };
    (0..turns).map(turn).fold(f64::INFINITY, f64::min)
}

fn main() {
    println!(
        "| functions | ascend | lookup, ns | with an index, ns | index made, us | pays after, lookups |"
    );
    println!("|--:|---|--:|--:|--:|--:|");
    for functions in [1_000_u64, 10_000, 100_000, 1_000_000] {
        for ascends in [true, false] {
            let mut bytes = table(functions);
            assert_eq!(bytes[FLAGS] & SORTED, SORTED);
            if !ascends {
                bytes[FLAGS] &= !SORTED;
            }
            let table = Table::parse(&bytes).unwrap().at(TEXT);
            let mut memory = vec![0; table.index_len()];
            let made = shortest(5, || {
                let mut memory = vec![0; black_box(&table).index_len()];
                assert!(black_box(table.index(&mut memory)).is_indexed());
            });
            let indexed = table.index(&mut memory);
            let count = if ascends { 20_000 } else { 2_000_000 / functions + 20 };
            let mut state = 1_u64;
            let mut random = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                TEXT + (state >> 20) % (functions * u64::from(FUNCTION))
            };
            let pcs: Vec<u64> = (0..count).map(|_| random()).collect();
            for &pc in &pcs {
                assert_eq!(indexed.find_row(pc), table.find_row(pc));
            }
            let per = |time: f64| time / pcs.len() as f64;
            let plain = per(shortest(20, || {
                pcs.iter().for_each(|&pc| _ = black_box(table.find_row(black_box(pc))));
            }));
            let with = per(shortest(20, || {
                pcs.iter().for_each(|&pc| _ = black_box(indexed.find_row(black_box(pc))));
            }));
            let pays =
                if with < plain { format!("{:.0}", made / (plain - with)) } else { "never".into() };
            let ascend = if ascends { "yes" } else { "no" };
            println!(
                "| {functions} | {ascend} | {plain:.1} | {with:.1} | {:.1} | {pays} |",
                made / 1e3
            );
        }
    }
}
