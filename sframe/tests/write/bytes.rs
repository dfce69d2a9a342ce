//! What each field of a section is.

use sframe::{Abi, Builder, FdeType, Format, FreType, Function, PauthKey, Table, WriteError};
use testdata::TableBuilder;
use unwind_core::{BaseReg, CfaRule, RegRule, Row};

use crate::*;

#[test]
fn v2_starts_count_from_the_section() {
    let rows = [
        (0, sp(8)),
        (1, Row::new(CfaRule::sp(16), SAVED, RegRule::Offset(-16))),
        (4, Row::new(CfaRule::fp(16), SAVED, RegRule::Offset(-16))),
        (0x1f, Row::outermost()),
    ];
    let function = Function::new(0x1040, 0x20, &rows);
    #[rustfmt::skip]
    let expected = [
        0xe2, 0xde, 2, 0x01, // magic, version, flags: sorted
        3, 0, 0xf8, 0, // AMD64, FP anywhere, RA at CFA-8, no auxiliary header
        1, 0, 0, 0, // functions
        4, 0, 0, 0, // rows
        13, 0, 0, 0, // bytes of rows
        0, 0, 0, 0, // offset of the functions
        20, 0, 0, 0, // offset of the rows
        0x40, 0xf0, 0xff, 0xff, // start: section - 0xfc0
        0x20, 0, 0, 0, // size
        0, 0, 0, 0, // offset of its rows
        4, 0, 0, 0, // rows
        0, 0, 0, 0, // row starts take 1 byte, no blocks, padding
        0, 0x03, 8, // from +0: CFA = SP+8
        1, 0x05, 16, 0xf0, // from +1: CFA = SP+16, FP at CFA-16
        4, 0x04, 16, 0xf0, // from +4: CFA = FP+16, FP at CFA-16
        0x1f, 0x00, // from +0x1f: outermost
    ];
    assert_eq!(built(Format::V2, Abi::Amd64Little, 0x2000, &[function]), expected);
}

#[test]
fn v2_with_errata_1_and_v3_starts_count_from_their_field() {
    let rows = [(0, sp(8))];
    let functions = [Function::new(0x3000, 8, &rows), Function::new(0x1000, 8, &rows)];
    #[rustfmt::skip]
    let v2 = [
        0xe2, 0xde, 2, 0x05, // magic, version, flags: sorted, starts from their fields
        3, 0, 0xf8, 0, 2, 0, 0, 0, 2, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 40, 0, 0, 0,
        0xe4, 0xef, 0xff, 0xff, // 0x1000 - (0x2000 + 28)
        8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
        0xd0, 0x0f, 0, 0, // 0x3000 - (0x2000 + 48)
        8, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
        0, 0x03, 8,
        0, 0x03, 8,
    ];
    assert_eq!(built(Format::V2Pcrel, Abi::Amd64Little, 0x2000, &functions), v2);
    #[rustfmt::skip]
    let v3 = [
        0xe2, 0xde, 3, 0x05,
        3, 0, 0xf8, 0, 2, 0, 0, 0, 2, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0,
        0xe4, 0xef, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, // 0x1000 - (0x2000 + 28)
        8, 0, 0, 0, 0, 0, 0, 0,
        0xd4, 0x0f, 0, 0, 0, 0, 0, 0, // 0x3000 - (0x2000 + 44)
        8, 0, 0, 0, 8, 0, 0, 0,
        1, 0, 0x00, 0, 0, // rows, info, kind, no blocks
        0, 0x03, 8,
        1, 0, 0x00, 0, 0,
        0, 0x03, 8,
    ];
    assert_eq!(built(Format::V3, Abi::Amd64Little, 0x2000, &functions), v3);
}

#[test]
fn big_endian_sections_have_every_field_the_other_way_round() {
    let saved = Row::new(CfaRule::sp(0x1230), RegRule::Offset(-0x1228), RegRule::Offset(-0x1230));
    let rows = [
        (0, Row::new(CfaRule::sp(0), RegRule::SameValue, RegRule::SameValue)),
        (0x104, saved.with_signed_ra()),
    ];
    let function = Function::new(0x4_1000, 0x200, &rows).pauth_key(PauthKey::B);
    #[rustfmt::skip]
    let expected = [
        0xde, 0xe2, 3, 0x05, // magic, version, flags
        1, 0, 0, 0, // AArch64, neither register at a fixed offset
        0, 0, 0, 1, // functions
        0, 0, 0, 2, // rows
        0, 0, 0, 18, // bytes of rows
        0, 0, 0, 0, 0, 0, 0, 16, // offsets of functions and rows
        0, 0, 0, 0, 0, 0x04, 0x0f, 0xe4, // start: 0x41000 - 28
        0, 0, 2, 0, // size
        0, 0, 0, 0, // offset of its rows
        0, 2, 0x21, 0, 0, // rows; key B, row starts take 2 bytes; kind; no blocks
        0, 0, 0x03, 0, // from +0: CFA = SP
        1, 4, 0xa7, 0x12, 0x30, 0xed, 0xd8, 0xed, 0xd0, // from +0x104: signed, three words
    ];
    assert_eq!(built(Format::V3, Abi::Aarch64Big, 0, &[function]), expected);
}

#[test]
fn s390x_words_are_scaled_and_v2_names_registers_by_odd_ones() {
    let (f0, f2) = (reg(16), reg(17));
    let rows = [
        (0, Row::new(CfaRule::sp(160), RegRule::SameValue, RegRule::SameValue)),
        (6, Row::new(CfaRule::sp(320), RegRule::Offset(-48), RegRule::Offset(-72))),
        (8, Row::new(CfaRule::fp(160), RegRule::SameValue, RegRule::Offset(-72))),
        (10, Row::new(CfaRule::sp(160), RegRule::Register(f0, 0), RegRule::Register(f2, 0))),
    ];
    let function = Function::new(0x100, 16, &rows);
    let v2 = built(Format::V2, Abi::S390xBig, 0, &[function]);
    #[rustfmt::skip]
    let expected = [
        0, 0x03, 0, // CFA = SP+160
        6, 0x07, 20, 0xd0, 0xb8, // CFA = SP+320, RA at CFA-48, FP at CFA-72
        8, 0x06, 0, 0, 0xb8, // CFA = FP+160, RA in its register, FP at CFA-72
        10, 0x07, 0, 33, 35, // RA in f0, FP in f2
    ];
    assert_eq!(v2[28 + 20..], expected);
    // V3 has flexible rows for that, in which the CFA is scaled all the same.
    let v3 = built(Format::V3, Abi::S390xBig, 0, &[function]);
    #[rustfmt::skip]
    let expected = [
        0, 4, 0x00, 1, 0, // flexible
        0, 0x04, 0x79, 0,
        6, 0x0c, 0x79, 20, 0x02, 0xd0, 0x02, 0xb8,
        8, 0x0a, 0x59, 0, 0, 0x02, 0xb8, // a zero in place of the RA's pair
10, 0x0c, 0x79, 0, 0x81, 0, 0x89, 0,
    ];
    assert_eq!(v3[28 + 16..], expected);
}

#[test]
fn only_functions_that_need_them_have_flexible_rows() {
    let drap = [
        (0, sp(8)),
        (5, Row::new(CfaRule::Register(reg(10), 0), SAVED, RegRule::SameValue)),
        (
            0x10,
            Row::new(
                CfaRule::AtRegister(BaseReg::Fp, -8),
                SAVED,
                RegRule::AtRegister(BaseReg::Fp, 0),
            ),
        ),
    ];
    let plain = [(0, sp(8)), (4, sp(16))];
    let functions = [Function::new(0x1000, 0x40, &drap), Function::new(0x1040, 0x10, &plain)];
    let bytes = built(Format::V3, Abi::Amd64Little, 0, &functions);
    let table = Table::parse(&bytes).unwrap();
    let fdes: Vec<_> = table.fdes().map(Result::unwrap).collect();
    assert_eq!(fdes[0].fde_type(), FdeType::Flexible);
    assert_eq!(fdes[1].fde_type(), FdeType::Default);
    #[rustfmt::skip]
    let expected = [
        3, 0, 0x00, 1, 0,
        0, 0x04, 0x39, 8, // CFA = rsp+8
        5, 0x04, 0x51, 0, // CFA = r10
        0x10, 0x0a, 0x33, 0xf8, 0, 0x33, 0, // CFA = *(rbp-8), FP = *(rbp)
        2, 0, 0x00, 0, 0,
        0, 0x03, 8,
        4, 0x03, 16,
    ];
    assert_eq!(bytes[28 + 2 * 16..], expected);
}

#[test]
fn row_starts_are_as_wide_as_the_last_row_needs() {
    for (last, size, width) in [
        (0xff, 0x100, FreType::Addr1),
        (0x10, u32::MAX, FreType::Addr1),
        (0x100, 0x200, FreType::Addr2),
        (0xffff, 0x1_0000, FreType::Addr2),
        (0x1_0000, 0x1_0001, FreType::Addr4),
        (0xffff_fffe, u32::MAX, FreType::Addr4),
    ] {
        let rows = [(0, sp(8)), (last, sp(16))];
        let bytes = built(Format::V3, Abi::Amd64Little, 0, &[Function::new(0, size, &rows)]);
        let table = Table::parse(&bytes).unwrap();
        let fde = table.fde(0).unwrap().unwrap();
        assert_eq!(fde.fre_type(), Ok(width), "{last:#x}");
        let row = table.find(u64::from(last)).unwrap().unwrap().row().unwrap();
        assert_eq!(row, sp(16), "{last:#x}");
    }
}

#[test]
fn words_are_as_wide_as_their_row_needs() {
    for (offset, size) in [
        (127, 1),
        (-128, 1),
        (128, 2),
        (-129, 2),
        (32767, 2),
        (-32768, 2),
        (32768, 4),
        (-32769, 4),
        (540_080, 4),
        (i32::MIN, 4),
        (i32::MAX, 4),
    ] {
        let rows = [(0, sp(8)), (1, sp(offset))];
        let bytes = built(Format::V2, Abi::Amd64Little, 0, &[Function::new(0, 16, &rows)]);
        let table = Table::parse(&bytes).unwrap();
        let fde = table.fde(0).unwrap().unwrap();
        let fres: Vec<_> = table.fres(&fde).unwrap().map(Result::unwrap).collect();
        assert_eq!(fres[0].info.word_size(), Some(1));
        assert_eq!((fres[1].info.word_size(), fres[1].words()), (Some(size), &[offset][..]));
    }
    // A control word has no sign.
    for (register, size) in [(31, 1), (32, 2)] {
        let rows = [(0, Row::new(CfaRule::Register(reg(register), 0), SAVED, RegRule::SameValue))];
        let bytes = built(Format::V3, Abi::Amd64Little, 0, &[Function::new(0, 16, &rows)]);
        let found = Table::parse(&bytes).unwrap().find(0).unwrap().unwrap();
        assert_eq!(found.fre.unwrap().info.word_size(), Some(size));
        assert_eq!(found.row(), Ok(rows[0].1));
    }
}

#[test]
fn rows_that_repeat_the_one_before_are_left_out() {
    let again = sp(8).with_origin(unwind_core::Origin::CallFrames);
    let rows = [
        (0, sp(8)),
        (4, again),
        (5, sp(16)),
        (9, Row::new(CfaRule::Register(reg(7), 16), SAVED, RegRule::SameValue)),
        (0x1000, sp(16)),
    ];
    // Neither where another wide row starts, nor how a register is named, nor
    // who found it makes a row another one.
    for count in 3..=5 {
        let function = Function::new(0, 0x1001, &rows[..count]);
        let bytes = built(Format::V2, Abi::Amd64Little, 0, &[function]);
        assert_eq!(bytes[28 + 20..], [0, 0x03, 8, 5, 0x03, 16], "{count} rows");
    }
}

#[test]
fn rows_after_the_end_are_left_out() {
    let rows = [(0, sp(8)), (7, sp(16)), (8, sp(24)), (9, sp(32))];
    for (function, count) in [
        (Function::new(0, 8, &rows), 2),
        (Function::new(0, 16, &rows).blocks(NonZeroU8::new(8).unwrap()), 2),
        (Function::new(0, 16, &rows).blocks(NonZeroU8::new(9).unwrap()), 3),
        // A part of one block.
        (Function::new(0, 7, &rows).blocks(NonZeroU8::new(16).unwrap()), 1),
    ] {
        let bytes = built(Format::V3, Abi::Amd64Little, 0, &[function]);
        assert_eq!(Table::parse(&bytes).unwrap().header().num_fres, count);
    }
}

#[test]
fn a_table_without_functions_is_a_header() {
    for format in [Format::V2, Format::V2Pcrel, Format::V3] {
        let mut builder = Builder::new(format, Abi::S390xBig).unwrap();
        assert!(builder.is_empty());
        let bytes = builder.finish(0x1000, none).unwrap();
        assert_eq!(bytes.len(), 28);
        assert_eq!(Table::parse(&bytes).unwrap().header().num_fdes, 0);
    }
}

#[test]
fn tables_are_written_for_known_abis_only() {
    let abi = Abi::Unknown(9);
    assert_eq!(Builder::new(Format::V3, abi).unwrap_err(), WriteError::UnknownAbi(abi));
    let other = TableBuilder::aarch64(3, false).build();
    let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
    let table = Table::parse(&other).unwrap();
    let merged = builder.add_table(&table, |fde| Some(fde.range.start), none);
    assert_eq!(merged, Err(WriteError::OtherAbi(Abi::Aarch64Little)));
}
