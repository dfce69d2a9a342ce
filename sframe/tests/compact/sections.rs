//! SFrame sections: those of compilers and linkers, and made ones.

use proptest::{collection::vec, prelude::*};
use sframe::{CompactBuilder, CompactOmissions, CompactTable, Section, Table};
use testdata::{Function, Row, TableBuilder};

/// Holds the image of a section against lookups in it, around each end of a function and each start
/// of a row. Returns how many rows both found, and at how many places none.
fn compare(name: &str, section: &Section<'_>) -> (u32, u32, CompactOmissions) {
    let mut builder = CompactBuilder::new();
    builder.add_section(section).unwrap();
    let (image, omissions) = builder.finish().unwrap();
    let compact = CompactTable::parse(&image).unwrap();
    let mut starts = Vec::new();
    for table in section.tables().flatten() {
        for fde in table.fdes().flatten() {
            let (start, size) = (fde.range.start, u64::from(fde.range.size));
            starts.extend([start, start.wrapping_add(size)]);
            let block = if fde.is_mask() { u64::from(fde.rep_size).max(1) } else { size.max(1) };
            for row in table.fres(&fde).into_iter().flatten().flatten() {
                let blocks = (0..size).step_by(usize::try_from(block).unwrap());
                starts.extend(blocks.map(|at| start.wrapping_add(at + u64::from(row.start))));
            }
        }
    }
    let (mut found, mut none) = (0, 0);
    for pc in starts.iter().flat_map(|at| [at.wrapping_sub(1), *at, at.wrapping_add(1)]) {
        let expected =
            section.find(pc).and_then(|found| found.map(|found| found.row()).transpose());
        match (compact.row(pc), expected) {
            (Some(row), Ok(Some(expected))) => {
                let is_same = row == expected || row.is_outermost() && expected.is_outermost();
                assert!(is_same, "{name} at {pc:#x}: {row:?}, {expected:?}");
                found += 1;
            }
            (None, Ok(None)) => none += 1,
            (None, _) => assert!(!omissions.is_empty(), "{name} at {pc:#x}"),
            (row, expected) => panic!("{name} at {pc:#x}: {row:?}, but {expected:?}"),
        }
    }
    (found, none, omissions)
}

#[test]
fn every_row_of_a_linked_section_is_the_one_that_a_lookup_finds() {
    let (mut found, mut none) = (0, 0);
    for fixture in testdata::sections() {
        let section = Section::new(&fixture.bytes).at(fixture.addr);
        let (some, without, omissions) = compare(&fixture.name(), &section);
        // Where registers are saved in others.
        let is_s390x = fixture.name().contains("s390x");
        assert!(omissions.is_empty() || is_s390x, "{}: {omissions:?}", fixture.name());
        (found, none) = (found + some, none + without);
    }
    println!("{found} rows, {none} places without one");
    assert!(found > 3_000 && none > 300, "{found} {none}");
}

#[test]
fn a_malformed_section_has_the_rows_of_the_functions_that_are_not() {
    let mut found = 0;
    for fixture in testdata::malformed_sections() {
        let section = Section::new(&fixture.bytes).at(fixture.addr);
        let (rows, ..) = compare(&fixture.name(), &section);
        found += rows;
    }
    assert!(found > 0);
}

#[test]
fn a_function_of_an_unknown_type_has_no_row_also_where_it_has_no_rows_itself() {
    let unknown = Function { info2: 3, ..Function::new(0x1000, 0x10, Vec::new()) };
    let good = Function::new(0x1010, 0x10, vec![Row::sp(0, &[8])]);
    let bytes = TableBuilder::amd64(3).function(unknown).function(good).build();
    let (found, none, omissions) = compare("unknown", &Section::new(&bytes));
    assert!(found > 0 && none > 0);
    let lost: Vec<_> = omissions.iter().map(|(reason, lost)| (reason.name(), lost.bytes)).collect();
    assert_eq!(lost, [("malformed", 16)]);
}

#[test]
fn a_linkage_table_of_blocks_has_the_rows_of_each_block() {
    let rows = vec![Row::sp(0, &[8]), Row::sp(11, &[16])];
    let table = TableBuilder::amd64(3).function(Function::new(0x1003, 0x8000, rows).blocks(16));
    let bytes = table.build();
    let (found, _, omissions) = compare("blocks", &Section::new(&bytes));
    assert!(found > 10_000 && omissions.is_empty(), "{found} {omissions:?}");
}

#[test]
fn blocks_and_functions_that_share_rows_without_end_are_lost_and_named() {
    let rows = || vec![Row::sp(0, &[8]), Row::sp(1, &[16])];
    let table = TableBuilder::amd64(2).function(Function::new(0, 0x40_0000, rows()).blocks(2));
    let bytes = table.build();
    let mut builder = CompactBuilder::new();
    builder.add_section(&Section::new(&bytes)).unwrap();
    let (image, omissions) = builder.finish().unwrap();
    let reasons: Vec<_> = omissions.iter().map(|(reason, _)| reason.name()).collect();
    assert_eq!(reasons, ["shared-rows"]);
    let table = Table::parse(&bytes).unwrap();
    let compact = CompactTable::parse(&image).unwrap();
    let rows = u64::from(compact.num_rows() - compact.num_pages());
    assert!(rows.abs_diff(table.max_rows()) < 10, "{rows}");
}

#[test]
fn blocks_without_rows_are_not_looked_at_one_by_one() {
    let table = TableBuilder::amd64(2).function(Function::new(0, u32::MAX, vec![]).blocks(1));
    let bytes = table.build();
    let mut builder = CompactBuilder::new();
    builder.add_section(&Section::new(&bytes)).unwrap();
    let (image, omissions) = builder.finish().unwrap();
    assert!(omissions.is_empty());
    assert_eq!(CompactTable::parse(&image).unwrap().num_rows(), 0);
}

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let row = (1_u32..12, any::<bool>(), 1_i32..4, any::<bool>());
    vec(row, 0..5).prop_map(|rows| {
        let mut at = 0;
        let rows = rows.into_iter().enumerate().map(|(index, (step, is_first, cfa, has_fp))| {
            // The first row may not start with the function.
            at += if index == 0 && is_first { 0 } else { step };
            let words: &[i32] = if has_fp { &[8 * cfa, -16] } else { &[8 * cfa] };
            Row::sp(at, words)
        });
        rows.collect()
    })
}

fn function() -> impl Strategy<Value = Function> {
    let place = prop_oneof![6 => -40_i64..60, 1 => Just(0x1_0000 - 8), 1 => Just(1 << 22)];
    let size = prop_oneof![1 => Just(0_u32), 6 => 0_u32..60];
    let block = prop_oneof![3 => Just(None), 1 => (1_u8..20).prop_map(Some)];
    (place, size, rows(), block, any::<bool>()).prop_map(|(start, size, rows, block, is_signal)| {
        let function = Function::new(start, size, rows);
        let function = if is_signal { function.signal() } else { function };
        block.map_or_else(|| function.clone(), |size| function.clone().blocks(size))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..ProptestConfig::default() })]

    /// Also in tables that are in no order but say that they are.
    #[test]
    fn every_row_of_a_made_section_is_the_one_that_a_lookup_finds(
        tables in vec((vec(function(), 0..8), 1_u8..4, any::<bool>(), any::<bool>()), 1..3),
        addr in prop_oneof![Just(0x10_0000_u64), Just(0x10), Just((1 << 48) - 0x30), Just(1 << 63), Just(u64::MAX - 0x20)],
    ) {
        let mut bytes = Vec::new();
        for (mut functions, version, is_sorted, says_so) in tables {
            if is_sorted {
                functions.sort_by_key(|function| function.start);
            }
            let flags = if says_so { TableBuilder::SORTED } else { 0 };
            let table = TableBuilder { flags, functions, ..TableBuilder::amd64(version) };
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            bytes.extend(table.build());
        }
        let section = Section::new(&bytes).at(addr);
        compare("made", &section);
    }
}
