//! Tables of several versions in one.

use sframe::{Abi, Builder, Error, Format, OmissionReason, Table, TableOffset};
use testdata::TableBuilder;

use crate::*;

#[test]
fn tables_of_several_versions_become_one() {
    let words = |offset| [testdata::Row::sp(0, &[offset])].to_vec();
    let tables: Vec<_> = (1..=3)
        .map(|version| {
            let start = i64::from(version) * 0x100;
            TableBuilder::amd64(version)
                .function(testdata::Function::new(start, 0x20, words(8 * i32::from(version))))
                .function(testdata::Function::new(start + 0x20, 0x20, words(80)).blocks(16))
                .build()
        })
        .collect();
    for format in [Format::V2, Format::V2Pcrel, Format::V3] {
        let mut builder = Builder::new(format, Abi::Amd64Little).unwrap();
        // The last first, each moved by 0x1000; the third's blocks are dropped.
        for table in tables.iter().rev() {
            let table = Table::parse(table).unwrap();
            let place =
                |fde: &sframe::Fde| (fde.range.start != 0x320).then(|| fde.range.start + 0x1000);
            builder.add_table(&table, place, none).unwrap();
        }
        let bytes = builder.finish(0, none).unwrap();
        let table = Table::parse(&bytes).unwrap();
        let starts: Vec<_> = table.fdes().map(|fde| fde.unwrap().range.start).collect();
        assert_eq!(starts, [0x1100, 0x1120, 0x1200, 0x1220, 0x1300]);
        for (pc, offset) in [(0x1100, 8), (0x1200, 16), (0x1300, 24), (0x1131, 80)] {
            let found = table.find(pc).unwrap().unwrap();
            assert_eq!(found.row(), Ok(sp(offset)), "at {pc:#x} of {format:?}");
        }
    }
}

#[test]
fn a_malformed_function_is_lost_and_the_others_are_merged() {
    let one = |start| testdata::Function::new(start, 8, [testdata::Row::sp(0, &[8])].to_vec());
    for version in [1, 2, 3] {
        // A reserved width of row starts, a reserved word size.
        let bad_type = one(0x110).with_info(0xf);
        let mut bad_word = one(0x120);
        bad_word.rows[0].info = 0x63;
        bad_word.rows[0].words.clear();
        let table = TableBuilder::amd64(version)
            .function(one(0x100))
            .function(bad_type)
            .function(bad_word)
            .function(one(0x130))
            .build();
        let table = Table::parse(&table).unwrap();
        let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
        let mut lost = Vec::new();
        let place = |fde: &sframe::Fde| Some(fde.range.start);
        builder.add_table(&table, place, |range| lost.push(range)).unwrap();
        assert_eq!(lost.len(), 2, "{lost:?}");
        assert!(matches!(lost[0].reason, OmissionReason::Malformed(Error::BadFreType { .. })));
        assert!(matches!(lost[1].reason, OmissionReason::Malformed(Error::BadWordSize { .. })));
        assert_eq!((lost[0].start, lost[1].start), (0x110, 0x120));
        let bytes = builder.finish(0, none).unwrap();
        assert_eq!(Table::parse(&bytes).unwrap().header().num_fdes, 2, "v{version}");
    }
}

#[test]
fn rows_outside_of_a_table_lose_their_function() {
    let one = |start| testdata::Function::new(start, 8, [testdata::Row::sp(0, &[8])].to_vec());
    let mut table = TableBuilder::amd64(2).function(one(0x100)).function(one(0x200)).build();
    table[28 + 8..][..4].copy_from_slice(&0xffff_u32.to_le_bytes());
    let table = Table::parse(&table).unwrap();
    let mut builder = Builder::new(Format::V2, Abi::Amd64Little).unwrap();
    let mut lost = Vec::new();
    builder.add_table(&table, |fde| Some(fde.range.start), |range| lost.push(range)).unwrap();
    let error = Error::RowsOutside { at: TableOffset(28), fre_offset: 0xffff };
    assert_eq!(lost.len(), 1);
    assert_eq!((lost[0].start, lost[0].reason), (0x100, OmissionReason::Malformed(error)));
    let bytes = builder.finish(0, none).unwrap();
    assert!(Table::parse(&bytes).unwrap().find(0x200).unwrap().is_some());
}

#[test]
fn a_merge_copies_a_bounded_number_of_shared_rows() {
    // 250 rows; then 700 functions that claim them too,
    // and one with a row of its own.
    let rows = (0..250).map(|n| testdata::Row::sp(n, &[if n % 2 == 0 { 8 } else { 16 }]));
    let mut table =
        TableBuilder::amd64(2).function(testdata::Function::new(0, 250, rows.collect()));
    for n in 1..=700_i64 {
        let row = testdata::Row::sp(0, &[8]);
        table = table.function(testdata::Function::new(n * 0x100, 250, vec![row]));
    }
    let own = [testdata::Row::sp(0, &[24])].to_vec();
    let mut table = table.function(testdata::Function::new(0x10_0000, 8, own)).build();
    for n in 1..=700 {
        table[28 + n * 20 + 8..][..8].copy_from_slice(&[0, 0, 0, 0, 250, 0, 0, 0]);
    }
    let table = Table::parse(&table).unwrap();
    let mut builder = Builder::new(Format::V2, Abi::Amd64Little).unwrap();
    let mut lost = Vec::new();
    builder.add_table(&table, |fde| Some(fde.range.start), |range| lost.push(range)).unwrap();
    assert!(lost.iter().all(|lost| lost.reason == OmissionReason::SharedRows), "{lost:?}");
    let bytes = builder.finish(0, none).unwrap();
    let merged = Table::parse(&bytes).unwrap();
    // 65,536 rows in any case.
    assert_eq!(lost.len(), 701 - 65_536 / 250);
    assert_eq!(merged.header().num_fres, 65_536 / 250 * 250 + 1);
    assert_eq!(merged.find(0x10_0000).unwrap().unwrap().row(), Ok(sp(24)));
}
