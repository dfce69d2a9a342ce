//! The search: sorted and not, blocks, neighbours of size zero, one bad
//! function among good ones, both ends of the address space.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, clippy::as_conversions, reason = "tests")]

use sframe::{Error, Section, Table, TableOffset};
use testdata::{Function, Row, TableBuilder};

/// A function of two rows whose CFA offsets tell it from others.
fn function(start: i64, size: u32, mark: i32) -> Function {
    Function::new(start, size, vec![Row::sp(0, &[mark]), Row::sp(4, &[mark + 1])])
}

/// The first word of the row at `pc`.
fn word(table: &Table<'_>, pc: u64) -> Option<i32> {
    let row = table.find(pc).unwrap().map(|found| found.row().unwrap());
    assert_eq!(table.find_row(pc), Ok(row));
    table.find(pc).unwrap().map(|found| found.fre.unwrap().words()[0])
}

/// Tables of all versions, each sorted and not.
fn tables() -> Vec<TableBuilder> {
    let mut tables = Vec::new();
    for version in [1, 2, 3] {
        for flags in [0, TableBuilder::SORTED] {
            let plain = TableBuilder::amd64(version);
            tables.push(TableBuilder { flags, ..plain.clone() });
            if version > 1 {
                tables.push(TableBuilder { flags: flags | TableBuilder::PCREL, ..plain });
            }
        }
    }
    tables
}

#[test]
fn a_function_holds_from_its_first_byte_to_its_last() {
    for mut table in tables() {
        table.functions =
            (0..9).map(|i| function(0x100 * i - 0x200, 0x40, 10 * i as i32)).collect();
        let bytes = table.build();
        let table = Table::parse(&bytes).unwrap().at(0x4000);
        for i in 0..9_u64 {
            let start = 0x3e00 + 0x100 * i;
            let mark = 10 * i as i32;
            for (offset, expected) in [
                (0_u64, Some(mark)),
                (3, Some(mark)),
                (4, Some(mark + 1)),
                (0x3f, Some(mark + 1)),
                (0x40, None),
                (u64::MAX, None),
            ] {
                let pc = start.wrapping_add(offset);
                assert_eq!(word(&table, pc), expected, "{table:?} at {pc:#x}");
            }
        }
    }
}

#[test]
fn an_unsorted_table_is_searched_to_its_end() {
    for version in [1, 2, 3] {
        let mut table = TableBuilder { flags: 0, ..TableBuilder::amd64(version) };
        for (start, mark) in [(0x300, 1), (0x100, 3), (0x200, 5), (0, 7)] {
            table = table.function(function(start, 0x10, mark));
        }
        let bytes = table.build();
        let table = Table::parse(&bytes).unwrap();
        for (pc, mark) in [(0x300, 1), (0x100, 3), (0x20f, 6), (0, 7)] {
            assert_eq!(word(&table, pc), Some(mark));
        }
        assert_eq!(word(&table, 0x310), None);
    }
}

#[test]
fn a_table_that_only_claims_to_be_sorted_ends_the_search() {
    let mut table = TableBuilder::amd64(2);
    for i in 0..64 {
        table = table.function(function(i * 0x5a5 % 0x1000 * 0x10, 8, 0));
    }
    let bytes = table.build();
    let table = Table::parse(&bytes).unwrap();
    let found = (0..0x1_0000).filter(|&pc| table.find(pc).unwrap().is_some()).count();
    // Misses are fine.
    assert!(found <= 64 * 8);
}

#[test]
fn functions_of_size_zero_do_not_hide_their_neighbours() {
    // In any order among equals.
    for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0], [0, 2, 1]] {
        let same = [function(0x100, 0, 90), function(0x100, 0x20, 10), function(0x100, 0, 92)];
        for version in [1, 2, 3] {
            let mut table = TableBuilder::amd64(version).function(function(0, 0x10, 50));
            for index in order {
                table = table.function(same[index].clone());
            }
            // One in the middle, as an assembler's local symbol may be.
            table = table.function(function(0x110, 0, 94)).function(function(0x200, 0x10, 70));
            let bytes = table.build();
            let table = Table::parse(&bytes).unwrap();
            for (pc, mark) in [
                (0x100, Some(10)),
                (0x10f, Some(11)),
                (0x110, Some(11)),
                (0x11f, Some(11)),
                (0x120, None),
                (0x200, Some(70)),
                (0xf, Some(51)),
                (0x10, None),
            ] {
                assert_eq!(word(&table, pc), mark, "v{version} {order:?} at {pc:#x}");
            }
        }
    }
}

#[test]
fn functions_of_equal_start_are_found_in_any_order() {
    // Two halves of code that was taken apart may both be said to start there.
    let (short, long) = (function(0x100, 8, 10), function(0x100, 0x20, 20));
    for (pair, short_mark) in [([&short, &long], None), ([&long, &short], Some(10))] {
        for mut table in
            tables().into_iter().filter(|table| table.flags & TableBuilder::SORTED != 0)
        {
            table.functions = vec![function(0, 0x10, 50)];
            table.functions.extend(pair.map(Clone::clone));
            table.functions.push(function(0x200, 0x10, 70));
            let bytes = table.build();
            let table = Table::parse(&bytes).unwrap();
            // The last of those that cover a pc.
            for (pc, mark) in [
                (0xff, None),
                (0x100, short_mark.or(Some(20))),
                (0x108, Some(21)),
                (0x11f, Some(21)),
                (0x120, None),
                (0x200, Some(70)),
            ] {
                assert_eq!(word(&table, pc), mark, "{table:?} at {pc:#x}");
            }
        }
    }
}

#[test]
fn a_function_inside_of_another_ends_the_search_for_the_outer_one() {
    for mut table in tables().into_iter().filter(|table| table.flags & TableBuilder::SORTED != 0) {
        table.functions = vec![function(0x100, 0x100, 10), function(0x140, 0x10, 20)];
        let bytes = table.build();
        let table = Table::parse(&bytes).unwrap();
        for (pc, mark) in [(0x13f, Some(11)), (0x14f, Some(21)), (0x150, None), (0x1ff, None)] {
            assert_eq!(word(&table, pc), mark, "{table:?} at {pc:#x}");
        }
    }
}

#[test]
fn a_pc_in_a_block_is_looked_up_from_the_blocks_start() {
    for (version, rep_size) in [(1, 0), (2, 16), (3, 16)] {
        let rows = vec![Row::sp(0, &[8]), Row::sp(11, &[16])];
        let plt = Function::new(0x1030, 0x70, rows).blocks(rep_size);
        let bytes = TableBuilder::amd64(version).function(plt).build();
        let table = Table::parse(&bytes).unwrap();
        for pc in 0x1030..0x10a0 {
            let expected = if pc % 16 < 11 { 8 } else { 16 };
            assert_eq!(word(&table, pc), Some(expected), "v{version} at {pc:#x}");
        }
        assert_eq!(word(&table, 0x10a0), None);
    }
}

#[test]
fn a_pc_before_the_first_row_has_no_row() {
    for table in tables() {
        let late = Function::new(0x100, 0x20, vec![Row::sp(8, &[24])]);
        let bytes = table.function(late).build();
        let table = Table::parse(&bytes).unwrap();
        assert_eq!(word(&table, 0x107), None);
        assert_eq!(word(&table, 0x108), Some(24));
    }
}

#[test]
fn a_function_without_rows_is_found_in_v3_only() {
    for version in [1, 2, 3] {
        let empty = Function::new(0x100, 0x20, vec![]);
        let bytes = TableBuilder::amd64(version).function(empty).build();
        let found = Table::parse(&bytes).unwrap().find(0x100).unwrap();
        assert_eq!(found.is_some(), version == 3);
        assert!(found.is_none_or(|found| found.fre.is_none()));
    }
}

#[test]
fn f18_rows_at_or_after_the_functions_end_do_not_matter() {
    let rows = vec![Row::sp(0, &[8]), Row::sp(0x20, &[16]), Row::sp(0x30, &[24])];
    let bytes = TableBuilder::amd64(3).function(Function::new(0x100, 0x20, rows)).build();
    let table = Table::parse(&bytes).unwrap();
    assert_eq!(word(&table, 0x11f), Some(8));
    assert_eq!(word(&table, 0x120), None);
}

#[test]
fn one_bad_function_does_not_harm_its_neighbours() {
    type Damage = fn(&mut Function);
    let bad: [(&str, Damage); 5] = [
        ("row type", |function| function.info |= 0x0f),
        ("blocks of size zero", |function| function.info |= 0x10),
        ("unknown type", |function| function.info2 = 2),
        ("word size", |function| function.rows[0].info = 0x63),
        ("unknown type and word size", |function| {
            function.info2 = 2;
            function.rows[0].info = 0x63;
        }),
    ];
    for sorted in [0, TableBuilder::SORTED] {
        for (what, damage) in bad {
            let mut table = TableBuilder::amd64(3);
            table.flags = TableBuilder::PCREL | sorted;
            for i in 0..7 {
                let mut one = function(0x100 * i, 0x100, 2 * i as i32);
                // All rows of a row type that is wide enough for any info.
                one.info = 2;
                if i == 3 {
                    one.rows.truncate(1);
                    one.rows[0].words.clear();
                    damage(&mut one);
                }
                table = table.function(one);
            }
            let bytes = table.build();
            let table = Table::parse(&bytes).unwrap();
            for pc in 0..0x700 {
                match pc / 0x100 {
                    3 => {
                        assert!(table.find(pc).is_err(), "{what} at {pc:#x}");
                        assert_eq!(table.find_row(pc).err(), table.find(pc).err());
                    }
                    i => assert!(word(&table, pc).unwrap() / 2 == i as i32, "{what} {pc:#x}"),
                }
            }
        }
    }
}

#[test]
fn rows_outside_the_section_are_an_error_of_their_function() {
    for version in [1, 2, 3] {
        let table = TableBuilder::amd64(version)
            .function(function(0x100, 0x20, 1))
            .function(function(0x200, 0x20, 3));
        let mut bytes = table.build();
        // The offset of the second function's rows.
        let field = 28 + table.fde_size() + if version == 3 { 12 } else { 8 };
        let fre_len = u32::from_le_bytes(bytes[0x10..][..4].try_into().unwrap());
        let at = TableOffset((28 + table.fde_size()) as u64);
        for fre_offset in [fre_len + 1, u32::MAX, if version == 3 { fre_len - 4 } else { u32::MAX }]
        {
            bytes[field..][..4].copy_from_slice(&fre_offset.to_le_bytes());
            let table = Table::parse(&bytes).unwrap();
            assert_eq!(table.find(0x200), Err(Error::RowsOutside { at, fre_offset }));
            assert!(table.fde(1).is_err());
            // What the entry itself says is known.
            assert_eq!(table.range(1).unwrap().size, 0x20);
            assert_eq!(word(&table, 0x100), Some(1));
        }
    }
}

#[test]
fn a_row_that_is_cut_off_is_an_error_with_its_place() {
    for version in [1, 2, 3] {
        let table = TableBuilder::amd64(version).function(function(0x100, 0x20, 1));
        let whole = table.build();
        // The second of two rows of 3 bytes, after the attribute of V3.
        let second = whole.len() - 3;
        let fre_len = u32::from_le_bytes(whole[0x10..][..4].try_into().unwrap());
        for cut in 1..=3 {
            let mut bytes = whole.clone();
            bytes[0x10..][..4].copy_from_slice(&(fre_len - cut).to_le_bytes());
            let table = Table::parse(&bytes).unwrap();
            let error = Err(Error::Truncated(TableOffset(second as u64)));
            assert_eq!(table.find(0x104), error, "v{version} without {cut} bytes");
            assert_eq!(table.find_row(0x104).map(|_| None), error);
        }
    }
}

#[test]
fn functions_may_share_rows() {
    let table = TableBuilder::amd64(2).function(function(0, 8, 1)).function(function(0x10, 8, 3));
    let mut bytes = table.build();
    let field = 28 + 20 + 8;
    bytes[field..][..4].fill(0);
    let table = Table::parse(&bytes).unwrap();
    assert_eq!(word(&table, 0x10), Some(1));
}

#[test]
fn a_gap_and_an_auxiliary_header_are_honoured() {
    for version in [1, 2, 3] {
        for flags in [TableBuilder::SORTED, TableBuilder::SORTED | TableBuilder::PCREL] {
            if version == 1 && flags != TableBuilder::SORTED {
                continue;
            }
            let table = TableBuilder {
                aux: vec![0xee; 7],
                gap: vec![0xdd; 5],
                flags,
                ..TableBuilder::amd64(version)
            };
            let bytes = table.function(function(-0x40, 0x20, 9)).build();
            let table = Table::parse(&bytes).unwrap().at(0x1000);
            assert_eq!(table.fde(0).unwrap().unwrap().range.start, 0xfc0);
            assert_eq!(word(&table, 0xfc0), Some(9));
        }
    }
}

#[test]
fn a_function_may_wrap_at_the_end_of_the_address_space() {
    // The section at the end, its code after it: from -8 to 8.
    let bytes = TableBuilder::amd64(3).function(function(0x78, 16, 5)).build();
    let table = Table::parse(&bytes).unwrap().at(0xffff_ffff_ffff_ff80);
    for (pc, mark) in [(u64::MAX - 7, Some(5)), (u64::MAX, Some(6)), (7, Some(6)), (8, None)] {
        assert_eq!(word(&table, pc), mark, "at {pc:#x}");
    }
}

#[test]
fn a_section_may_lie_before_after_or_far_from_its_code() {
    for addr in [0x1000, 0x7fff_ffff_f000, 0xffff_8000_0000_0000] {
        for distance in [-0x4000_0000_i64, -0x1000, 0x1000, 0x4000_0000] {
            let table = TableBuilder::amd64(2)
                .function(function(distance, 8, 1))
                .function(function(distance + 8, 8, 3));
            let bytes = table.build();
            let table = Table::parse(&bytes).unwrap().at(addr);
            let start = addr.wrapping_add_signed(distance);
            assert_eq!(word(&table, start.wrapping_add(8)), Some(3));
            assert_eq!(word(&table, start.wrapping_sub(1)), None);
        }
    }
    // V3 starts are 64 bits wide.
    let far = TableBuilder::amd64(3).function(function(-0x7000_0000_0000, 8, 1)).build();
    let table = Table::parse(&far).unwrap().at(0x7000_0000_1000);
    assert_eq!(word(&table, 0x1000), Some(1));
}

#[test]
fn a_header_alone_covers_nothing() {
    for table in tables() {
        let bytes = table.build();
        let table = Table::parse(&bytes).unwrap();
        assert_eq!(table.find(0), Ok(None));
        assert_eq!(table.fde(0), Ok(None));
        assert_eq!(table.fdes().count(), 0);
    }
}

#[test]
fn tables_one_after_another_are_all_searched() {
    // As a linker that only concatenates leaves them: each padded to 8 bytes.
    let tables: Vec<Vec<u8>> = (0..4)
        .map(|i| {
            let start = 0x1000 + 0x100 * i;
            let table = TableBuilder {
                flags: TableBuilder::PCREL,
                aux: vec![0; i as usize],
                ..TableBuilder::amd64(2)
            };
            table.function(function(start, 0x40, i as i32 * 10)).build()
        })
        .collect();
    let mut bytes = Vec::new();
    let mut starts = Vec::new();
    for table in &tables {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        starts.push(bytes.len() as u64);
        bytes.extend(table);
    }
    let sections = Section::new(&bytes).at(0x9000);
    let addrs: Vec<u64> = sections.tables().map(|table| table.unwrap().addr()).collect();
    assert_eq!(addrs, starts.iter().map(|start| 0x9000 + start).collect::<Vec<_>>());
    for (i, start) in starts.iter().enumerate() {
        let pc = 0x9000 + start + 0x1000 + 0x100 * i as u64;
        let found = sections.find(pc).unwrap().unwrap();
        assert_eq!(found.fre.unwrap().words(), [i as i32 * 10]);
    }
    assert_eq!(sections.find(0x9000), Ok(None));

    // Bytes after the last that do not look like a table are not one.
    bytes.resize(bytes.len().next_multiple_of(8) + 64, 0xa5);
    assert_eq!(Section::new(&bytes).tables().count(), 4);
    // Those that do are one.
    bytes.truncate(bytes.len() - 64);
    bytes.extend([0xe2, 0xde, 2]);
    let mut tables = Section::new(&bytes).tables();
    assert!(tables.by_ref().take(4).all(|table| table.is_ok()));
    assert_eq!(tables.next().unwrap().unwrap_err(), Error::Truncated(TableOffset(0)));
    assert!(tables.next().is_none());
    // A row in a table before the bad one is still found.
    let pc = starts[1] + 0x1100;
    assert!(Section::new(&bytes).find(pc).unwrap().is_some());
    assert!(Section::new(&bytes).find(0).is_err());
}

#[test]
fn no_bytes_are_no_tables() {
    let sections = Section::new(&[]);
    assert_eq!(sections.tables().count(), 0);
    assert_eq!(sections.find(0x1000), Ok(None));
    assert_eq!(Table::parse(&[]).unwrap_err(), Error::Truncated(TableOffset(0)));
}

#[test]
fn functions_come_in_the_order_of_the_table_as_many_as_are_left() {
    let mut table = TableBuilder { flags: 0, ..TableBuilder::amd64(2) };
    for start in [0x200, 0, 0x100] {
        table = table.function(Function::new(start, 16, vec![Row::sp(0, &[8])]));
    }
    let bytes = table.build();
    let mut fdes = Table::parse(&bytes).unwrap().fdes();
    for (left, start) in [(3, 0x200), (2, 0), (1, 0x100)] {
        assert_eq!(fdes.size_hint(), (left, Some(left)));
        assert_eq!(fdes.next().unwrap().unwrap().range.start, start);
    }
    assert_eq!((fdes.size_hint(), fdes.next()), ((0, Some(0)), None));
}
