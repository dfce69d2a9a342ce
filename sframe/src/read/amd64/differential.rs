//! The fast reader beside the general one, which it may say nothing other than.

extern crate alloc;
use alloc::vec::Vec;

use testdata::{Function, Row, TableBuilder, sections};

use crate::{
    error::Error,
    read::{amd64::table::FastLookup, bisect::Ascending, lookup::Lookup, table::Table},
};

/// Addresses in and next to each function of a table.
fn pcs(table: &Table<'_>) -> Vec<u64> {
    let ranges = (0..table.header().num_fdes).filter_map(|index| table.range(index));
    ranges
        .flat_map(|range| {
            let at = |offset: u32| range.start.wrapping_add(offset.into());
            [0, 1, 4, 5, range.size / 2, range.size.wrapping_sub(1), range.size].map(at)
        })
        .collect()
}

/// Asks both readers for each pc, and returns how often the fast one answered.
fn compare(table: &Table<'_>, pcs: &[u64]) -> usize {
    let Some(fast) = &table.fast else { return 0 };
    let among = || Ascending::all(&table.header());
    let mut answers = 0;
    for &pc in pcs {
        let (fdes, fres) = (table.fdes_bytes(), table.fres_bytes());
        let general: Result<_, Error> =
            table.find(pc).and_then(|found| found.as_ref().map(Lookup::row).transpose());
        match fast.find_row(fdes, fres, among(), table.offset(pc), |_| None) {
            FastLookup::Row(row) => {
                assert_eq!(general, Ok(Some(row)), "{pc:#x}");
                answers += 1;
            }
            FastLookup::RowAt { index, at } => {
                assert_eq!(table.row_at(index, at), general, "{pc:#x}");
            }
            FastLookup::Unknown { position } => {
                assert_eq!(table.find_any_row(position, pc), general, "{pc:#x}");
            }
        }
    }
    answers
}

#[test]
fn the_fast_reader_says_of_every_table_what_the_general_one_does() {
    let mut answers = 0;
    for fixture in sections() {
        let table = Table::parse(&fixture.bytes).unwrap().at(fixture.addr);
        answers += compare(&table, &pcs(&table));
    }
    assert!(answers > 250, "only {answers} answers of the fast reader");
}

#[test]
fn the_fast_reader_says_of_damaged_tables_what_the_general_one_does() {
    const SORTED: u8 = TableBuilder::SORTED;
    let rows = || {
        let last = Row::sp(20, &[8, -16]);
        [Row::sp(0, &[8]), Row::sp(1, &[16, -16]), Row::fp(4, &[16, -16]), last].into()
    };
    let mut answers = 0;
    for (version, flags) in
        [(2, SORTED), (2, SORTED | TableBuilder::PCREL), (3, SORTED | TableBuilder::PCREL)]
    {
        let whole = TableBuilder { flags, ..TableBuilder::amd64(version) }
            .function(Function::new(0x100, 0x20, rows()))
            .function(Function::new(0x120, 0x200, rows()))
            .build();
        let pcs = pcs(&Table::parse(&whole).unwrap());
        for (at, value) in (0..whole.len()).flat_map(|at| (0..=u8::MAX).map(move |v| (at, v))) {
            let mut bytes = whole.clone();
            bytes[at] = value;
            let Ok(table) = Table::parse(&bytes) else { continue };
            answers += compare(&table, &pcs);
        }
    }
    assert!(answers > 100_000, "only {answers} answers of the fast reader");
}
