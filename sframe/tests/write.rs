//! What is written, byte by byte, and what is lost.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::panic,
    clippy::std_instead_of_alloc,
    reason = "tests"
)]

use core::num::NonZeroU8;

use sframe::{
    Abi, Builder, Error, FdeKind, Format, FreType, Function, Lost, LostReason, PauthKey, Section,
    SectionOffset, WriteError,
};
use testdata::SectionBuilder;
use unwind_core::{Base, CfaRule, DwarfReg, RegRule, Row};

const SAVED: RegRule = RegRule::AtCfa(-8);

const fn sp(offset: i32) -> Row {
    Row::new(CfaRule::sp(offset), SAVED, RegRule::Same)
}

const fn reg(number: u8) -> Base {
    Base::Reg(DwarfReg(number))
}

fn none(lost: Lost) {
    panic!("{lost}");
}

fn built(format: Format, abi: Abi, addr: u64, functions: &[Function<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(format, abi).unwrap();
    for function in functions {
        builder.add(function, none).unwrap();
    }
    builder.finish(addr, none).unwrap()
}

/// The ranges and reasons that adding `function` loses.
fn losses(format: Format, abi: Abi, function: &Function<'_>) -> Vec<(u64, u64, LostReason)> {
    let mut lost = Vec::new();
    let mut builder = Builder::new(format, abi).unwrap();
    builder.add(function, |range| lost.push((range.start, range.size, range.reason))).unwrap();
    lost
}

#[test]
fn v2_starts_count_from_the_section() {
    let rows = [
        (0, sp(8)),
        (1, Row::new(CfaRule::sp(16), SAVED, RegRule::AtCfa(-16))),
        (4, Row::new(CfaRule::fp(16), SAVED, RegRule::AtCfa(-16))),
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
    let saved = Row::new(CfaRule::sp(0x1230), RegRule::AtCfa(-0x1228), RegRule::AtCfa(-0x1230));
    let rows = [
        (0, Row::new(CfaRule::sp(0), RegRule::Same, RegRule::Same)),
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
        (0, Row::new(CfaRule::sp(160), RegRule::Same, RegRule::Same)),
        (6, Row::new(CfaRule::sp(320), RegRule::AtCfa(-48), RegRule::AtCfa(-72))),
        (8, Row::new(CfaRule::fp(160), RegRule::Same, RegRule::AtCfa(-72))),
        (10, Row::new(CfaRule::sp(160), RegRule::Reg(f0, 0), RegRule::Reg(f2, 0))),
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
        (5, Row::new(CfaRule::Offset(reg(10), 0), SAVED, RegRule::Same)),
        (0x10, Row::new(CfaRule::Deref(Base::Fp, -8), SAVED, RegRule::AtReg(Base::Fp, 0))),
    ];
    let plain = [(0, sp(8)), (4, sp(16))];
    let functions = [Function::new(0x1000, 0x40, &drap), Function::new(0x1040, 0x10, &plain)];
    let bytes = built(Format::V3, Abi::Amd64Little, 0, &functions);
    let section = Section::parse(&bytes).unwrap();
    let fdes: Vec<_> = section.fdes().map(Result::unwrap).collect();
    assert_eq!(fdes[0].kind(), FdeKind::Flexible);
    assert_eq!(fdes[1].kind(), FdeKind::Default);
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
        let section = Section::parse(&bytes).unwrap();
        let fde = section.fde(0).unwrap().unwrap();
        assert_eq!(fde.fre_type(), Ok(width), "{last:#x}");
        let row = section.find(u64::from(last)).unwrap().unwrap().row().unwrap();
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
        let section = Section::parse(&bytes).unwrap();
        let fde = section.fde(0).unwrap().unwrap();
        let fres: Vec<_> = section.fres(&fde).unwrap().map(Result::unwrap).collect();
        assert_eq!(fres[0].info.word_size(), Some(1));
        assert_eq!((fres[1].info.word_size(), fres[1].words()), (Some(size), &[offset][..]));
    }
    // A control word has no sign.
    for (register, size) in [(31, 1), (32, 2)] {
        let rows = [(0, Row::new(CfaRule::Offset(reg(register), 0), SAVED, RegRule::Same))];
        let bytes = built(Format::V3, Abi::Amd64Little, 0, &[Function::new(0, 16, &rows)]);
        let found = Section::parse(&bytes).unwrap().find(0).unwrap().unwrap();
        assert_eq!(found.fre.unwrap().info.word_size(), Some(size));
        assert_eq!(found.row(), Ok(rows[0].1));
    }
}

#[test]
fn rows_that_repeat_the_one_before_are_left_out() {
    let again = sp(8).with_origin(unwind_core::Origin::BuiltTable);
    let rows = [
        (0, sp(8)),
        (4, again),
        (5, sp(16)),
        (9, Row::new(CfaRule::Offset(reg(7), 16), SAVED, RegRule::Same)),
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
fn rows_behind_the_end_are_left_out() {
    let rows = [(0, sp(8)), (7, sp(16)), (8, sp(24)), (9, sp(32))];
    for (function, count) in [
        (Function::new(0, 8, &rows), 2),
        (Function::new(0, 16, &rows).blocks(NonZeroU8::new(8).unwrap()), 2),
        (Function::new(0, 16, &rows).blocks(NonZeroU8::new(9).unwrap()), 3),
        // A part of one block.
        (Function::new(0, 7, &rows).blocks(NonZeroU8::new(16).unwrap()), 1),
    ] {
        let bytes = built(Format::V3, Abi::Amd64Little, 0, &[function]);
        assert_eq!(Section::parse(&bytes).unwrap().header().num_fres, count);
    }
}

#[test]
fn functions_of_no_bytes_or_no_rows_are_lost() {
    let rows = [(0, sp(8))];
    let abi = Abi::Amd64Little;
    let empty = losses(Format::V3, abi, &Function::new(0x10, 0, &rows));
    assert_eq!(empty, [(0x10, 0, LostReason::Empty)]);
    let bare = losses(Format::V3, abi, &Function::new(0x10, 4, &[]));
    assert_eq!(bare, [(0x10, 4, LostReason::NoRows)]);
    let behind = losses(Format::V3, abi, &Function::new(0x10, 4, &[(4, sp(8))]));
    assert_eq!(behind, [(0x10, 4, LostReason::NoRows)]);
}

#[test]
fn rows_have_to_ascend() {
    for rows in [[(0, sp(8)), (0, sp(16))], [(2, sp(8)), (1, sp(16))]] {
        let function = Function::new(0x10, 4, &rows);
        let reason = LostReason::Unsorted { offset: rows[1].0 };
        assert_eq!(losses(Format::V2, Abi::Amd64Little, &function), [(0x10, 4, reason)]);
    }
}

#[test]
fn a_row_that_cannot_be_written_is_lost_alone() {
    let loaded = Row::new(CfaRule::Deref(Base::Fp, -8), SAVED, RegRule::Same);
    let rows = [(0, sp(8)), (4, loaded), (6, loaded), (0x100, sp(16)), (0x104, sp(8))];
    let function = Function::new(0x1000, 0x110, &rows);
    let mut lost = Vec::new();
    let mut builder = Builder::new(Format::V2, Abi::Amd64Little).unwrap();
    let first = builder.check(&function).unwrap_err();
    assert_eq!((first.start, first.size), (0x1004, 2));
    builder.add(&function, |range| lost.push(range)).unwrap();
    let [range] = lost[..] else { panic!("{lost:?}") };
    assert_eq!((range.function, range.start, range.size), (0x1000, 0x1004, 0xfc));
    assert_eq!(range.reason, LostReason::CfaLoaded);
    let bytes = builder.finish(0, none).unwrap();
    let section = Section::parse(&bytes).unwrap();
    let ranges: Vec<_> = section.fdes().map(|fde| fde.unwrap().range).collect();
    assert_eq!((ranges[0].start, ranges[0].size), (0x1000, 4));
    // Its rows count from its own start, so one byte is enough.
    assert_eq!((ranges[1].start, ranges[1].size), (0x1100, 0x10));
    assert_eq!(section.fde(1).unwrap().unwrap().fre_type(), Ok(FreType::Addr1));
    assert_eq!(section.find(0x1104).unwrap().unwrap().row(), Ok(sp(8)));
    assert_eq!(section.find(0x1004), Ok(None));
}

#[test]
fn every_rule_that_v2_cannot_say_is_named() {
    let rbx = reg(3);
    let saved_fp = RegRule::AtCfa(-16);
    for (row, reason) in [
        (Row::new(CfaRule::Offset(rbx, 8), SAVED, RegRule::Same), LostReason::CfaRegister(rbx)),
        (Row::new(CfaRule::Deref(Base::Sp, 8), SAVED, RegRule::Same), LostReason::CfaLoaded),
        (
            Row::new(CfaRule::sp(8), RegRule::Reg(rbx, 0), saved_fp),
            LostReason::Ra(RegRule::Reg(rbx, 0)),
        ),
        (
            Row::new(CfaRule::sp(8), SAVED, RegRule::AtReg(rbx, 8)),
            LostReason::Fp(RegRule::AtReg(rbx, 8)),
        ),
        (Row::signal_context(), LostReason::SignalContext),
        (sp(8).with_signed_ra(), LostReason::SignedRa),
    ] {
        let rows = [(0, row)];
        let function = Function::new(0, 4, &rows);
        assert_eq!(losses(Format::V2, Abi::Amd64Little, &function), [(0, 4, reason)]);
        let in_v3 = losses(Format::V3, Abi::Amd64Little, &function);
        assert_eq!(in_v3.is_empty(), reason != LostReason::SignedRa, "{reason}");
    }
    let rows = [(0, Row::new(CfaRule::sp(16), RegRule::Same, saved_fp))];
    let function = Function::new(0, 4, &rows);
    let aarch64 = losses(Format::V2, Abi::Aarch64Little, &function);
    assert_eq!(aarch64, [(0, 4, LostReason::FpWithoutRa)]);
    assert_eq!(losses(Format::V3, Abi::Aarch64Little, &function), []);
    let rows = [(0, sp(8))];
    let signal = losses(Format::V2, Abi::Amd64Little, &Function::new(0, 4, &rows).signal());
    assert_eq!(signal, [(0, 4, LostReason::SignalFrame)]);
}

#[test]
fn every_rule_that_v3_cannot_say_is_named() {
    let amd64 = Abi::Amd64Little;
    for (abi, row, reason) in [
        (
            amd64,
            Row::new(CfaRule::sp(8), RegRule::Same, RegRule::Same),
            LostReason::Ra(RegRule::Same),
        ),
        (
            amd64,
            Row::new(CfaRule::sp(8), RegRule::Cfa(-8), RegRule::Same),
            LostReason::Ra(RegRule::Cfa(-8)),
        ),
        (
            amd64,
            Row::new(CfaRule::sp(8), SAVED, RegRule::Undefined),
            LostReason::Fp(RegRule::Undefined),
        ),
        (
            Abi::S390xBig,
            Row::new(CfaRule::sp(164), RegRule::Same, RegRule::Same),
            LostReason::CfaScale(164),
        ),
        (
            Abi::S390xBig,
            Row::new(CfaRule::sp(i32::MIN), RegRule::Same, RegRule::Same),
            LostReason::CfaScale(i32::MIN),
        ),
    ] {
        let rows = [(0, row)];
        assert_eq!(losses(Format::V3, abi, &Function::new(0, 4, &rows)), [(0, 4, reason)]);
    }
}

#[test]
fn what_only_the_signal_context_tells_has_no_rows() {
    let rows = [(0, sp(8)), (4, Row::signal_context()), (8, sp(16))];
    let bytes = built(Format::V3, Abi::Amd64Little, 0, &[Function::new(0, 16, &rows)]);
    let section = Section::parse(&bytes).unwrap();
    let fdes: Vec<_> = section.fdes().map(Result::unwrap).collect();
    let marks: Vec<_> = fdes.iter().map(|fde| (fde.num_fres, fde.is_signal())).collect();
    assert_eq!(marks, [(1, false), (0, true), (1, false)]);
    assert_eq!(section.find(5).unwrap().unwrap().row(), Ok(Row::signal_context()));
    let function = Function::new(0, 32, &rows).blocks(NonZeroU8::new(16).unwrap());
    let lost = losses(Format::V3, Abi::Amd64Little, &function);
    assert_eq!(lost, [(0, 32, LostReason::SignalContext)]);
}

#[test]
fn a_function_of_too_many_rows_for_v3_becomes_several() {
    let rows: Vec<_> = (0..150_000_u32).map(|i| (i, sp(if i % 2 == 0 { 8 } else { 16 }))).collect();
    let function = Function::new(0x1000, 150_000, &rows);
    let v3 = built(Format::V3, Abi::Amd64Little, 0, &[function]);
    let v2 = built(Format::V2, Abi::Amd64Little, 0, &[function]);
    let section = Section::parse(&v3).unwrap();
    let counts: Vec<_> = section.fdes().map(|fde| fde.unwrap().num_fres).collect();
    assert_eq!(counts, [0xffff, 0xffff, 150_000 - 2 * 0xffff]);
    assert_eq!(Section::parse(&v2).unwrap().header().num_fdes, 1);
    for offset in [0_u32, 1, 0xfffe, 0xffff, 0x1_0000, 2 * 0xffff - 1, 2 * 0xffff, 149_999] {
        let found = section.find(0x1000 + u64::from(offset)).unwrap().unwrap();
        let expected = rows[usize::try_from(offset).unwrap()].1;
        assert_eq!(found.row(), Ok(expected), "{offset:#x}");
    }
}

#[test]
fn of_functions_that_overlap_the_shorter_stays() {
    let rows = [(0, sp(8))];
    let function = |start, size| Function::new(start, size, &rows);
    for (functions, stay, gone) in [
        // The same twice: the first.
        (&[function(0, 8), function(0, 8)][..], &[(0, 8)][..], &[(0, 8, 0)][..]),
        // A bogus one over many.
        (
            &[function(0, 0x1000), function(0x10, 8), function(0x20, 8)],
            &[(0x10, 8), (0x20, 8)],
            &[(0, 0x1000, 0x10)],
        ),
        // Half on another.
        (&[function(4, 8), function(0, 8)], &[(4, 8)], &[(0, 8, 4)]),
        (&[function(4, 9), function(0, 8)], &[(0, 8)], &[(4, 9, 0)]),
        // Side by side.
        (&[function(8, 8), function(0, 8)], &[(0, 8), (8, 8)], &[]),
    ] {
        let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
        for function in functions {
            builder.add(function, none).unwrap();
        }
        let mut lost = Vec::new();
        let bytes = builder
            .finish(0, |range| match range.reason {
                LostReason::Overlap { other } => lost.push((range.start, range.size, other)),
                other => panic!("{other}"),
            })
            .unwrap();
        let section = Section::parse(&bytes).unwrap();
        let ranges: Vec<_> =
            section.fdes().map(|fde| fde.unwrap().range).map(|r| (r.start, r.size)).collect();
        assert_eq!((&ranges[..], &lost[..]), (stay, gone));
        // It is reported once.
        assert_eq!(builder.finish(0, none).unwrap(), bytes);
    }
}

#[test]
fn v2_functions_too_far_from_the_section_are_lost() {
    let rows = [(0, sp(8))];
    let addr = 0x7000_0000_0000;
    for format in [Format::V2, Format::V2Pcrel, Format::V3] {
        let mut builder = Builder::new(format, Abi::Amd64Little).unwrap();
        for start in [addr - 0x1_0000_0000, addr - 0x1000, addr + 0x1000, addr + 0x8000_0000] {
            builder.add(&Function::new(start, 8, &rows), none).unwrap();
        }
        let mut lost = Vec::new();
        let bytes = builder.finish(addr, |range| lost.push((range.start, range.reason))).unwrap();
        let section = Section::parse(&bytes).unwrap().at(addr);
        assert!(section.find(addr - 0x1000).unwrap().is_some());
        assert!(section.find(addr + 0x1007).unwrap().is_some());
        if format == Format::V3 {
            assert_eq!(lost, []);
            assert!(section.find(addr + 0x8000_0000).unwrap().is_some());
            continue;
        }
        let far = [addr - 0x1_0000_0000, addr + 0x8000_0000];
        assert_eq!(lost, far.map(|start| (start, LostReason::TooFar)));
        assert_eq!(section.header().num_fdes, 2);
        // From elsewhere it is near.
        let near = builder.finish(addr + 0x7000_0000, |range| assert_eq!(range.start, far[0]));
        assert_eq!(Section::parse(&near.unwrap()).unwrap().header().num_fdes, 3);
    }
}

#[test]
fn a_section_may_be_put_at_any_address() {
    let rows = [(0, sp(8))];
    let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
    builder.add(&Function::new(0x1000, 8, &rows), none).unwrap();
    for addr in [0, 0x1000, u64::MAX - 0xfff, 0xffff_8000_0000_0000] {
        let bytes = builder.finish(addr, none).unwrap();
        let section = Section::parse(&bytes).unwrap().at(addr);
        assert_eq!(section.find(0x1007).unwrap().unwrap().row(), Ok(sp(8)), "{addr:#x}");
    }
}

#[test]
fn a_table_without_functions_is_a_header() {
    for format in [Format::V2, Format::V2Pcrel, Format::V3] {
        let mut builder = Builder::new(format, Abi::S390xBig).unwrap();
        assert!(builder.is_empty());
        let bytes = builder.finish(0x1000, none).unwrap();
        assert_eq!(bytes.len(), 28);
        assert_eq!(Section::parse(&bytes).unwrap().header().num_fdes, 0);
    }
}

#[test]
fn tables_are_written_for_known_abis_only() {
    let abi = Abi::Unknown(9);
    assert_eq!(Builder::new(Format::V3, abi).unwrap_err(), WriteError::UnknownAbi(abi));
    let other = SectionBuilder::aarch64(3, false).build();
    let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
    let section = Section::parse(&other).unwrap();
    let merged = builder.add_section(&section, |fde| Some(fde.range.start), none);
    assert_eq!(merged, Err(WriteError::OtherAbi(Abi::Aarch64Little)));
}

#[test]
fn tables_of_several_versions_become_one() {
    let words = |offset| [testdata::Row::sp(0, &[offset])].to_vec();
    let tables: Vec<_> = (1..=3)
        .map(|version| {
            let start = i64::from(version) * 0x100;
            SectionBuilder::amd64(version)
                .function(testdata::Function::new(start, 0x20, words(8 * i32::from(version))))
                .function(testdata::Function::new(start + 0x20, 0x20, words(80)).blocks(16))
                .build()
        })
        .collect();
    for format in [Format::V2, Format::V2Pcrel, Format::V3] {
        let mut builder = Builder::new(format, Abi::Amd64Little).unwrap();
        // The last first, each moved by 0x1000; the third's blocks are dropped.
        for table in tables.iter().rev() {
            let section = Section::parse(table).unwrap();
            let place =
                |fde: &sframe::Fde| (fde.range.start != 0x320).then(|| fde.range.start + 0x1000);
            builder.add_section(&section, place, none).unwrap();
        }
        let bytes = builder.finish(0, none).unwrap();
        let section = Section::parse(&bytes).unwrap();
        let starts: Vec<_> = section.fdes().map(|fde| fde.unwrap().range.start).collect();
        assert_eq!(starts, [0x1100, 0x1120, 0x1200, 0x1220, 0x1300]);
        for (pc, offset) in [(0x1100, 8), (0x1200, 16), (0x1300, 24), (0x1131, 80)] {
            let found = section.find(pc).unwrap().unwrap();
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
        let table = SectionBuilder::amd64(version)
            .function(one(0x100))
            .function(bad_type)
            .function(bad_word)
            .function(one(0x130))
            .build();
        let section = Section::parse(&table).unwrap();
        let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
        let mut lost = Vec::new();
        let place = |fde: &sframe::Fde| Some(fde.range.start);
        builder.add_section(&section, place, |range| lost.push(range)).unwrap();
        assert_eq!(lost.len(), 2, "{lost:?}");
        assert!(matches!(lost[0].reason, LostReason::Malformed(Error::BadFreType { .. })));
        assert!(matches!(lost[1].reason, LostReason::Malformed(Error::BadWordSize { .. })));
        assert_eq!((lost[0].start, lost[1].start), (0x110, 0x120));
        let bytes = builder.finish(0, none).unwrap();
        assert_eq!(Section::parse(&bytes).unwrap().header().num_fdes, 2, "v{version}");
    }
}

#[test]
fn rows_outside_of_a_table_lose_their_function() {
    let one = |start| testdata::Function::new(start, 8, [testdata::Row::sp(0, &[8])].to_vec());
    let mut table = SectionBuilder::amd64(2).function(one(0x100)).function(one(0x200)).build();
    table[28 + 8..][..4].copy_from_slice(&0xffff_u32.to_le_bytes());
    let section = Section::parse(&table).unwrap();
    let mut builder = Builder::new(Format::V2, Abi::Amd64Little).unwrap();
    let mut lost = Vec::new();
    builder.add_section(&section, |fde| Some(fde.range.start), |range| lost.push(range)).unwrap();
    let error = Error::RowsOutside { at: SectionOffset(28), fre_offset: 0xffff };
    assert_eq!(lost.len(), 1);
    assert_eq!((lost[0].start, lost[0].reason), (0x100, LostReason::Malformed(error)));
    let bytes = builder.finish(0, none).unwrap();
    assert!(Section::parse(&bytes).unwrap().find(0x200).unwrap().is_some());
}

#[test]
fn a_merge_copies_a_bounded_number_of_shared_rows() {
    // 250 rows; then 700 functions that claim them too,
    // and one with a row of its own.
    let rows = (0..250).map(|n| testdata::Row::sp(n, &[if n % 2 == 0 { 8 } else { 16 }]));
    let mut table =
        SectionBuilder::amd64(2).function(testdata::Function::new(0, 250, rows.collect()));
    for n in 1..=700_i64 {
        let row = testdata::Row::sp(0, &[8]);
        table = table.function(testdata::Function::new(n * 0x100, 250, vec![row]));
    }
    let own = [testdata::Row::sp(0, &[24])].to_vec();
    let mut table = table.function(testdata::Function::new(0x10_0000, 8, own)).build();
    for n in 1..=700 {
        table[28 + n * 20 + 8..][..8].copy_from_slice(&[0, 0, 0, 0, 250, 0, 0, 0]);
    }
    let section = Section::parse(&table).unwrap();
    let mut builder = Builder::new(Format::V2, Abi::Amd64Little).unwrap();
    let mut lost = Vec::new();
    builder.add_section(&section, |fde| Some(fde.range.start), |range| lost.push(range)).unwrap();
    assert!(lost.iter().all(|lost| lost.reason == LostReason::SharedRows), "{lost:?}");
    let bytes = builder.finish(0, none).unwrap();
    let merged = Section::parse(&bytes).unwrap();
    // 65,536 rows in any case.
    assert_eq!(lost.len(), 701 - 65_536 / 250);
    assert_eq!(merged.header().num_fres, 65_536 / 250 * 250 + 1);
    assert_eq!(merged.find(0x10_0000).unwrap().unwrap().row(), Ok(sp(24)));
}

#[test]
fn functions_on_both_sides_of_the_ends_of_the_address_space_are_found() {
    let rows = [(0, sp(8))];
    // By their distance from a section at 1 MiB, the upper ones come first.
    let starts = [0, 0x200, 0x30_0000, u64::MAX - 0x20_0000, u64::MAX - 0xf];
    for format in [Format::V2, Format::V2Pcrel, Format::V3] {
        for addr in [0x10_0000, u64::MAX - 0xf_ffff] {
            let functions = starts.map(|start| Function::new(start, 16, &rows));
            let bytes = built(format, Abi::Amd64Little, addr, &functions);
            let section = Section::parse(&bytes).unwrap().at(addr);
            section.check().unwrap();
            for start in starts {
                let found = section.find(start + 15).unwrap().unwrap();
                assert_eq!(found.fde.range.start, start, "{format:?} at {addr:#x}");
            }
        }
    }
}

#[test]
fn a_function_that_goes_past_the_end_of_the_address_space_is_lost() {
    let rows = [(0, sp(8))];
    let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
    let mut lost = Vec::new();
    for size in [0x10, 0x11, u32::MAX] {
        let function = Function::new(u64::MAX - 0xf, size, &rows);
        builder.add(&function, |range| lost.push((range.size, range.reason))).unwrap();
    }
    assert_eq!(lost, [(0x11, LostReason::Wraps), (u32::MAX.into(), LostReason::Wraps)]);
    builder.add(&Function::new(0, 8, &rows), none).unwrap();
    let bytes = builder.finish(0x1000, none).unwrap();
    assert_eq!(Section::parse(&bytes).unwrap().check().unwrap().functions, 2);
}

#[test]
fn losses_are_told_with_addresses_in_hexadecimal() {
    let rows = [(0, Row::new(CfaRule::Offset(reg(10), 0), SAVED, RegRule::Same))];
    let builder = Builder::new(Format::V2, Abi::Amd64Little).unwrap();
    let lost = builder.check(&Function::new(0x1040, 8, &rows)).unwrap_err();
    assert_eq!(
        lost.to_string(),
        "8 bytes at 0x1040 of the function at 0x1040: the cfa comes from r10"
    );
    let rule = LostReason::Fp(RegRule::AtReg(Base::Sp, 8));
    assert_eq!(rule.to_string(), "the frame pointer is at sp+8");
}
