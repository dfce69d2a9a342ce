//! Tests that bound how much is done to write a table, in steps of bounded time.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

extern crate std;

use alloc::vec::Vec;
use core::ops::Range;

use testdata::{Function, Row, TableBuilder};
use unwind_cfi::CfiSection;

use crate::{
    format::header::Abi,
    read::table::Table,
    write::{builder::Builder, function::Format, work_counter::count},
};

/// A table whose functions all have the rows of the first one.
fn shared(version: u8, functions: u32, rows: u32) -> Vec<u8> {
    // In V3 flexible ones, which take more than a glance.
    let row = |start| match version {
        3 => Row::fp(start, &[0x39, i32::try_from(8 + start % 2 * 8).unwrap()]),
        _ => Row::sp(start, &[i32::try_from(8 + start % 2 * 8).unwrap()]),
    };
    let mut first = Function::new(0, 0x8000, (0..rows).map(row).collect());
    if version == 3 {
        first = first.flexible();
    }
    let mut table = TableBuilder::amd64(version).function(first);
    for index in 1..i64::from(functions) {
        table = table.function(Function::new(index * 0x1_0000, 0x8000, Vec::new()));
    }
    let mut bytes = table.build();
    let (size, at) = if version == 3 { (16, 12) } else { (20, 8) };
    for index in 1..usize::try_from(functions).unwrap() {
        let entry = &mut bytes[28 + size * index..][..size];
        entry[at..at + 4].fill(0);
        if version != 3 {
            entry[12..16].copy_from_slice(&rows.to_le_bytes());
            // As wide as the rows of the first.
            entry[16] = 1;
        }
    }
    bytes
}

#[test]
fn a_merge_takes_at_most_96_steps_a_byte() {
    let mut most = 0;
    for (functions, rows) in [(1, 4000), (100, 4000), (1000, 4000), (2000, 400), (4000, 8000)] {
        for version in [2, 3] {
            let bytes = shared(version, functions, rows);
            let table = Table::parse(&bytes).unwrap();
            let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
            let steps = count(|| {
                builder.add_table(&table, |fde| Some(fde.range.start), |_| {}).unwrap();
            });
            assert!(steps >= usize::try_from(rows).unwrap(), "{steps} of {rows} rows");
            // Of a small table 65,536 rows may be looked at in any case.
            most = most.max(steps.saturating_sub(6 * 0x1_0000) / bytes.len());
        }
    }
    std::println!("{most} steps a byte");
    assert!((4..=96).contains(&most), "{most}");
}

/// An entry of few bytes: its CIE, where it starts, its length and
/// instructions. Addresses and lengths have two bytes.
fn small_fde(bytes: &mut Vec<u8>, cie: usize, start: u16, instructions: &[u8]) {
    let len = u32::try_from(8 + instructions.len()).unwrap();
    bytes.extend(len.to_le_bytes());
    bytes.extend(u32::try_from(bytes.len() - cie).unwrap().to_le_bytes());
    bytes.extend(start.to_le_bytes());
    bytes.extend(0x40_u16.to_le_bytes());
    bytes.extend(instructions);
}

/// A CIE for such entries.
fn small_cie(bytes: &mut Vec<u8>, instructions: &[u8]) -> usize {
    let at = bytes.len();
    // Version 1, augmentation "R", code by 1, data by -8, RA 16, absolute u16.
    let body = [1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x02];
    let len = u32::try_from(4 + body.len() + instructions.len()).unwrap();
    bytes.extend(len.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes.extend(instructions);
    at
}

/// CFA = rsp+8, RA at CFA-8.
const RULES: [u8; 5] = [0x0c, 7, 8, 0x90, 1];

/// How many FDEs there are at least, their CIE's and their own instructions.
fn one_cie(fdes: usize, cie: &[u8], fde: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let cie = small_cie(&mut bytes, &[&RULES, cie].concat());
    for index in 0..fdes {
        // No augmentation data, then the instructions.
        let start = u16::try_from(index * 0x40 % 0x1_0000).unwrap();
        small_fde(&mut bytes, cie, start, &[&[0], fde].concat());
    }
    bytes
}

/// Each FDE has a CIE of its own, in an order that neither ascends nor
/// descends.
fn own_cies(count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let cies: Vec<usize> = (0..count).map(|_| small_cie(&mut bytes, &RULES)).collect();
    for index in 0..count {
        let start = u16::try_from(index % 0x400 * 0x40).unwrap();
        small_fde(&mut bytes, cies[index * 7919 % count], start, &[0]);
    }
    bytes
}

/// The steps of a conversion for 100 bytes, of the ranges of code as well, and
/// how many functions there were.
fn cost(table: CfiSection<'_>, ranges: usize) -> (usize, u64) {
    let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
    let mut fdes = 0;
    let steps = count(|| {
        let report = builder.add_cfi(table, |_| {}).unwrap();
        fdes = report.fdes - report.unusable;
        builder.finish(0, |_| {}).unwrap();
    });
    (steps * 100 / (table.len() + 16 * ranges), fdes)
}

#[test]
fn a_conversion_takes_at_most_32_steps_a_byte() {
    let remember = [0x0a; 256];
    // CFA = rsp and 40 times 1
    let expression = [&[0x0f, 82, 0x77, 0][..], &[0x23, 1].repeat(40)].concat();
    let moves = [0x41, 0x0e, 16, 0x41, 0x0e, 8].repeat(8);
    let odd = [0x41, 0x09, 16, 5, 0x41, 0x09, 16, 4].repeat(8);
    let nest = [0x0a, 0x0b].repeat(40);
    for (name, bytes) in [
        ("states that a cie leaves", one_cie(20_000, &remember, &[])),
        ("many instructions of one cie", one_cie(10_000, &[0x0e, 16].repeat(60_000), &[])),
        ("many small entries", one_cie(50_000, &[], &[])),
        ("rows", one_cie(3_000, &[], &moves)),
        ("flexible rows", one_cie(3_000, &[], &odd)),
        ("states", one_cie(3_000, &[], &nest)),
        ("expressions", one_cie(2_000, &[], &expression)),
        ("cies", own_cies(20_000)),
    ] {
        let (most, fdes) = cost(CfiSection::eh_frame(&bytes, 0), 0);
        std::println!("{name}: {most} steps for 100 bytes, {fdes} entries");
        assert!((10..=3200).contains(&most) && fdes >= 2_000, "{name}: {most}, {fdes} entries");
    }
}

#[test]
fn ranges_of_code_are_searched_where_they_ascend() {
    let bytes = one_cie(20_000, &[], &[]);
    let ranges: Vec<Range<u64>> = (0..20_000).map(|at| at * 4..at * 4 + 3).collect();
    let table = CfiSection::eh_frame(&bytes, 0).code(&ranges);
    let (most, fdes) = cost(table, ranges.len());
    assert!((10..=3200).contains(&most) && fdes == 20_000, "{most}, {fdes} entries");
}
