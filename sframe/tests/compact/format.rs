//! The bytes of an image.

use sframe::{CompactBuilder, CompactError, CompactTable};
use unwind_core::{Addend, BaseReg, CfaRule, DwarfReg, RegRule, Row, VirtAddr};

use crate::{SAVED, image, sp};

/// The words of an image.
fn words(image: &[u8]) -> Vec<u64> {
    assert_eq!(image.len() % 8, 0);
    image.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn an_image_is_as_its_documentation_says() {
    let saved = Row::new(CfaRule::fp(16), SAVED, RegRule::Offset(-16));
    let (image, _) = image(&[(0x1_0010, 0x1_0020, sp(8)), (0x1_0020, 0x2_0008, saved)]);
    let expected = [
        u64::from_le_bytes(*b"UNWTABL1"),
        3 << 32 | 2, // rules, pages
        1 << 32 | 5, // the first page, rows
        0,
        3 << 32, // the rows of the first page are from 0 to 3
        5,       // those of the second up to 5; padding
        0x1_0010 << 32,
        0x2_0000 << 32 | 0x2_0020,
        8, // no row; padding
        0,
        0,
        0,
        0x0100_0101, // ordinary, CFA from sp, FP unchanged, RA saved
        8,
        0xffff_fff8 << 32,
        0x0101_0201, // ordinary, CFA from fp, FP and RA saved
        16,
        0xffff_fff8_ffff_fff0,
    ];
    assert_eq!(words(&image), expected);
    let table = CompactTable::parse(&image).unwrap();
    assert_eq!((table.num_pages(), table.num_rows(), table.num_rules()), (2, 5, 3));
    let rows = [
        (0x1_0000..0x1_0010, None),
        (0x1_0010..0x1_0020, Some(sp(8))),
        (0x1_0020..0x2_0000, Some(saved)),
        (0x2_0000..0x2_0008, Some(saved)),
        (0x2_0008..0x3_0000, None),
    ];
    assert_eq!(table.rows().collect::<Vec<_>>(), rows);
    for (pc, row) in [
        (0xffff, None),
        (0x1_000f, None),
        (0x1_0010, Some(sp(8))),
        (0x1_001f, Some(sp(8))),
        (0x1_ffff, Some(saved)),
        (0x2_0007, Some(saved)),
        (0x2_0008, None),
        (0x3_0000, None),
        (u64::MAX, None),
    ] {
        assert_eq!(table.row(pc), row, "at {pc:#x}");
    }
}

#[test]
fn a_table_without_rows_has_no_pages() {
    let (image, omissions) = CompactBuilder::new().finish().unwrap();
    assert!(omissions.is_empty());
    let table = CompactTable::parse(&image).unwrap();
    assert_eq!((table.num_pages(), table.num_rows(), table.num_rules()), (0, 0, 1));
    assert_eq!((table.row(0), table.rows().next()), (None, None));
    assert_eq!(image.len(), 32 + 8 + 24);
}

/// Every way to find a register.
fn rules() -> [RegRule; 8] {
    [
        RegRule::SameValue,
        RegRule::Undefined,
        RegRule::Offset(-24),
        RegRule::ValOffset(i32::MIN),
        RegRule::Register(BaseReg::Sp, 8),
        RegRule::Register(BaseReg::Fp, -8),
        RegRule::AtRegister(BaseReg::Sp, i32::MAX),
        RegRule::AtRegister(BaseReg::Fp, 0x1234_5678),
    ]
}

#[test]
fn what_is_said_of_a_row_is_read_again() {
    let addend = |bytes| Addend::new(bytes).unwrap();
    let cfas = [
        CfaRule::sp(8),
        CfaRule::fp(i32::MIN),
        CfaRule::AtRegister(BaseReg::Sp, 160),
        CfaRule::AtRegister(BaseReg::Fp, -8),
        CfaRule::AtRegisterPlus(BaseReg::Sp, 8, addend(60)),
        CfaRule::AtRegisterPlus(BaseReg::Fp, i32::MAX, addend(-64)),
        CfaRule::Register(BaseReg::Reg(DwarfReg(10)), 0),
        CfaRule::Register(BaseReg::Reg(DwarfReg(0)), -1),
    ];
    let marks: [fn(Row) -> Row; 4] =
        [Row::with_signal, Row::with_guess, Row::with_eh_return, Row::with_signed_ra];
    let mut rows = vec![Row::outermost(), Row::signal_context()];
    for cfa in cfas {
        for ra in rules().into_iter().filter(|rule| *rule != RegRule::Undefined) {
            for fp in rules() {
                rows.push(Row::new(cfa, ra, fp));
            }
        }
    }
    for set in 1_usize..16 {
        let of_set = marks.iter().enumerate().filter(|(at, _)| set >> at & 1 != 0);
        rows.push(of_set.fold(sp(8), |row, (_, mark)| mark(row)));
    }
    let ranges = (0x1000_u64..).step_by(3).zip(&rows);
    let ranges: Vec<_> = ranges.map(|(at, row)| (at, at + 2, *row)).collect();
    let (image, omissions) = image(&ranges);
    assert!(omissions.is_empty());
    let table = CompactTable::parse(&image).unwrap();
    for (start, end, row) in ranges {
        let found = [start, end - 1, end].map(|pc| table.row(pc));
        assert_eq!(found, [Some(row), Some(row), None]);
    }
    // Each once, and the one that is none.
    assert_eq!(usize::try_from(table.num_rules()).unwrap(), rows.len() + 1);
}

#[test]
fn consecutive_ranges_of_one_row_are_one_row() {
    let rows: Vec<_> = (0..1000).map(|at| (0x1000 + at, 0x1001 + at, sp(8))).collect();
    let (one, _) = image(&rows);
    let table = CompactTable::parse(&one).unwrap();
    let none = (0x13e8..0x1_0000, None);
    let rows = [(0..0x1000, None), (0x1000..0x13e8, Some(sp(8))), none];
    assert_eq!(table.rows().collect::<Vec<_>>(), rows);
}

#[test]
fn rows_at_the_ends_of_pages_and_of_all_addresses_are_found() {
    let end = 1 << 48;
    let (image, omissions) =
        image(&[(end - 0x1_0001, end - 0x1_0000, sp(8)), (end - 1, end, sp(16))]);
    assert!(omissions.is_empty());
    let table = CompactTable::parse(&image).unwrap();
    let found = [2, 1, 0].map(|at| table.row(end - 0x1_0000 - at));
    assert_eq!(found, [None, Some(sp(8)), None]);
    assert_eq!([end - 2, end - 1, end].map(|pc| table.row(pc)), [None, Some(sp(16)), None]);
    assert_eq!(table.rows().last(), Some((end - 1..end, Some(sp(16)))));
}

#[test]
fn a_row_of_one_frame_is_lost_and_the_others_are_not() {
    let row = Row::needs_memory(VirtAddr::new(8));
    let (image, omissions) = image(&[(0x1000, 0x1008, row), (0x1008, 0x1010, sp(8))]);
    let table = CompactTable::parse(&image).unwrap();
    assert_eq!([0x1000, 0x1007, 0x1008].map(|pc| table.row(pc)), [None, None, Some(sp(8))]);
    let counts: Vec<_> =
        omissions.iter().map(|(reason, lost)| (reason.name(), lost.ranges, lost.bytes)).collect();
    assert_eq!(counts, [("one-frame", 1, 8)]);
}

#[test]
fn each_malformed_part_is_named() {
    let (good, _) = image(&[(0x1_0010, 0x1_0020, sp(8)), (0x1_0020, 0x2_0008, sp(16))]);
    assert!(CompactTable::parse(&good).is_ok());
    let page = |page| CompactError::Page { page };
    let row = |row| CompactError::Row { row };
    let rule = |rule| CompactError::Rule { rule };
    let cases = [
        (0, b'u', CompactError::Magic),
        (10, 0xff, CompactError::Header), // pages
        (12, 0, CompactError::Header),    // rules
        (14, 1, CompactError::Header),    // 65,539
        (12, 2, CompactError::Length),
        (16, 4, CompactError::Length), // rows
        (16, 6, page(2)),              // with the padding
        (24, 1, CompactError::Header), // reserved
        (32, 1, page(0)),              // does not begin at 0
        (36, 0, page(0)),              // no row
        (36, 6, page(0)),
        (40, 3, page(1)),
        (40, 4, page(2)),              // a row of no page
        (44, 1, CompactError::Header), // padding
        (48, 1, row(0)),               // the first does not start at 0
        (52, 0, row(1)),
        (56, 0x10, row(2)), // equal starts
        (54, 3, row(1)),    // no such rule
        (68, 1, CompactError::Header),
        (72, 1, rule(0)),
        (96, 0, rule(1)), // no row, but not zero
        (96, 4, rule(1)),
        (97, 8, rule(1)),
        (98, 8, rule(1)),
        (99, 8, rule(1)),
        (101, 16, rule(1)),
        (102, 1, rule(1)),
        (103, 1, rule(1)),
        (108, 1, rule(1)), // an addend that nothing uses
        (112, 1, rule(1)),
    ];
    for (at, byte, error) in cases {
        let mut bytes = good.clone();
        assert_ne!(bytes[at], byte, "at {at}");
        bytes[at] = byte;
        assert_eq!(CompactTable::parse(&bytes).unwrap_err(), error, "at {at}: {byte:#x}");
    }
    let mut after_the_last_address = good.clone();
    after_the_last_address[20..24].fill(0xff);
    assert_eq!(CompactTable::parse(&after_the_last_address).unwrap_err(), CompactError::Header);
    for len in 0..good.len() {
        let error = CompactTable::parse(&good[..len]).unwrap_err();
        assert_eq!(error, CompactError::Length, "{len} bytes");
    }
    let longer = [&good[..], &[0; 8]].concat();
    assert_eq!(CompactTable::parse(&longer).unwrap_err(), CompactError::Length);
}
