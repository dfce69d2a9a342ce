//! The index: the same answers as without it, whatever memory it has.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, clippy::as_conversions, reason = "tests")]

use sframe::Table;
use testdata::{Function, Row, TableBuilder, addresses, malformed_sections, sections};

/// Compares all answers at `pcs`, with an index of `words` words. Returns
/// whether there is one.
fn compare(table: &Table<'_>, pcs: &[u64], words: usize) -> bool {
    let mut memory = vec![0xdead_beef; words];
    let indexed = table.index(&mut memory);
    assert_eq!(indexed.table().addr(), table.addr());
    for &pc in pcs {
        let expected = table.find(pc);
        assert_eq!(indexed.find(pc), expected, "{words} words, {pc:#x}");
        let row = expected.and_then(|found| found.map(|found| found.row()).transpose());
        assert_eq!(indexed.find_row(pc), row, "{words} words, {pc:#x}");
    }
    indexed.is_indexed()
}

/// Addresses in and around functions, and far from them.
fn pcs(table: &Table<'_>) -> Vec<u64> {
    let ranges = (0..table.header().num_fdes).filter_map(|index| table.range(index));
    let mut pcs = addresses(ranges.map(|range| (range.start, range.size)));
    pcs.extend([0, 1, u64::MAX, 1 << 63, (1 << 63) - 1, table.addr()]);
    pcs
}

#[test]
fn every_section_has_the_same_answers_in_any_memory() {
    let mut indexed = 0;
    for fixture in sections() {
        let table = Table::parse(&fixture.bytes).unwrap().at(fixture.addr);
        let pcs: Vec<u64> = pcs(&table).into_iter().step_by(3).collect();
        let full = table.index_len();
        for words in [0, 1, 2, 5, full, full + 100] {
            indexed += u32::from(compare(&table, &pcs, words));
        }
    }
    assert!(indexed > 50, "only {indexed}");
}

#[test]
fn damaged_sections_have_the_same_answers_or_errors() {
    for fixture in sections().into_iter().filter(|fixture| fixture.bytes.len() < 180) {
        let mut bytes = fixture.bytes.clone();
        for at in 28..bytes.len() {
            let original = bytes[at];
            for change in [1, 0x80] {
                bytes[at] = original ^ change;
                let table = Table::parse(&bytes).unwrap();
                let pcs: Vec<u64> = pcs(&table).into_iter().step_by(17).collect();
                compare(&table, &pcs, table.index_len().min(1000));
            }
            bytes[at] = original;
        }
    }
    for fixture in malformed_sections() {
        let Ok(table) = Table::parse(&fixture.bytes) else { continue };
        compare(&table, &pcs(&table), table.index_len().min(1000));
    }
}

/// A table of functions of many sizes, some with very many rows.
fn large(version: u8, flags: u8) -> TableBuilder {
    let mut table = TableBuilder { flags, ..TableBuilder::amd64(version) };
    let mut start = -0x20_0000_i64;
    for i in 0..400_i64 {
        let rows = match i % 40 {
            7 => 63,
            8 => 64,
            9 => 65,
            10 => 900,
            _ => 1 + i % 9,
        };
        let mark = i as i32 % 100;
        let rows: Vec<Row> =
            (0..rows as u32).map(|row| Row::sp(row * 3, &[mark, row as i32])).collect();
        let size = rows.len() as u32 * 3 + (i % 17) as u32;
        // Some of size zero, alone, between others or at the start of one.
        if i % 50 == 3 {
            table = table.function(Function::new(start, 0, vec![Row::sp(0, &[1])]));
        }
        table = table.function(Function::new(start, size, rows));
        start += i64::from(size) + if i % 13 == 0 { 0x3000 } else { i % 5 };
    }
    table
}

#[test]
fn large_tables_have_the_same_answers_with_granules_and_checkpoints() {
    for (version, flags) in [(1, 1), (2, 5), (3, 5)] {
        let bytes = large(version, flags).build();
        let table = Table::parse(&bytes).unwrap().at(0x40_0000);
        let pcs: Vec<u64> = pcs(&table).into_iter().step_by(7).collect();
        let full = table.index_len();
        for words in [2, 20, full / 2, full] {
            assert!(compare(&table, &pcs, words), "{words} words");
        }
        assert!(!compare(&table, &pcs, 1));
    }
}

#[test]
fn a_table_that_is_not_sorted_is_put_in_order() {
    for version in [1, 2, 3] {
        let mut builder = large(version, 0);
        builder.functions.reverse();
        builder.functions.rotate_left(123);
        let bytes = builder.build();
        let table = Table::parse(&bytes).unwrap();
        let pcs: Vec<u64> = pcs(&table).into_iter().step_by(41).collect();
        let functions = builder.functions.len();
        // A word for each function, and granules.
        assert!(!compare(&table, &pcs, functions + 1));
        assert!(compare(&table, &pcs, functions + 2));
        assert!(compare(&table, &pcs, table.index_len()));
    }
}

#[test]
fn what_has_no_order_has_no_index() {
    let function = |start, size| Function::new(start, size, vec![Row::sp(0, &[start as i32 & 63])]);
    let build =
        |flags, functions| TableBuilder { flags, functions, ..TableBuilder::amd64(3) }.build();
    for (what, bytes) in [
        ("lies", build(1, vec![function(0x100, 16), function(0x40, 16), function(0x200, 16)])),
        ("overlaps", build(0, vec![function(0x100, 0x40), function(0x120, 16), function(0, 16)])),
        ("wraps", build(4, vec![function(i64::MAX - 7, 16), function(0, 16)])),
        ("is empty", build(1, vec![])),
    ] {
        let table = Table::parse(&bytes).unwrap();
        assert!(!compare(&table, &pcs(&table), 1000), "{what}");
    }
    // Functions of size zero overlap no others, wherever they are.
    let zero = vec![
        function(0x200, 16),
        function(0x100, 0x40),
        function(0x120, 0),
        function(0x100, 0),
        function(0, 16),
    ];
    let bytes = build(0, zero);
    let table = Table::parse(&bytes).unwrap();
    assert!(compare(&table, &pcs(&table), 1000));
    // Overlaps in a sorted table are found as they are without an index.
    let sorted = build(1, vec![function(0x100, 0x40), function(0x120, 16), function(0x200, 16)]);
    let table = Table::parse(&sorted).unwrap();
    assert!(compare(&table, &pcs(&table), 1000));
}

#[test]
fn functions_far_apart_fit_in_few_granules() {
    let function = |start: i64| Function::new(start, 16, vec![Row::sp(0, &[8])]);
    let table = TableBuilder::amd64(3)
        .function(function(-0x4000_0000_0000_0000))
        .function(function(-0x1000))
        .function(function(0x7000_0000_0000));
    let bytes = table.build();
    let table = Table::parse(&bytes).unwrap();
    let mut pcs = pcs(&table);
    pcs.extend([0xc000_0000_0000_0008, 0x7000_0000_0000, 0x6fff_ffff_ffff]);
    for words in [2, 3, 4, 100, 4096] {
        assert!(compare(&table, &pcs, words));
    }
}

#[test]
fn a_bad_row_is_an_error_for_those_after_it_only() {
    let mut rows: Vec<Row> = (0..300).map(|row| Row::sp(row, &[8])).collect();
    rows[200].info = 0x63;
    rows[200].words.clear();
    let mut function = Function::new(0, 300, rows);
    function.info = 2;
    let bytes = TableBuilder::amd64(2).function(function).build();
    let table = Table::parse(&bytes).unwrap();
    assert!(compare(&table, &(0..310).collect::<Vec<_>>(), table.index_len()));
    assert!(table.find(199).is_ok() && table.find(200).is_err() && table.find(299).is_err());
}

#[test]
fn an_index_asks_for_no_more_words_than_the_table_has_bytes() {
    let far = |start: i64| Function::new(start, 16, vec![Row::sp(0, &[8])]);
    let rows: Vec<Row> = (0..400).map(|row| Row::sp(row, &[])).collect();
    let apart = TableBuilder::amd64(3).function(far(-1 << 60)).function(far(1 << 60)).build();
    let mut shared = TableBuilder { flags: 0, ..TableBuilder::amd64(2) };
    for i in 0..400 {
        let rows = if i == 0 { rows.clone() } else { Vec::new() };
        shared = shared.function(Function::new(i * 0x1000, 400, rows));
    }
    let mut shared = shared.build();
    for entry in 0..400 {
        // All functions have the rows of the first.
        shared[28 + entry * 20 + 8..][..8].copy_from_slice(&[0, 0, 0, 0, 0x90, 1, 0, 0]);
        shared[28 + entry * 20 + 16] = 1;
    }
    for bytes in [apart, shared] {
        let table = Table::parse(&bytes).unwrap();
        let full = table.index_len();
        assert!(full <= bytes.len() + 2, "{full} words for {} bytes", bytes.len());
        assert!(compare(&table, &pcs(&table)[..100], full));
    }
}
