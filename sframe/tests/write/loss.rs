//! What a format cannot say is lost, and told.

use core::num::NonZeroU8;

use sframe::{Abi, Builder, Format, FreType, Function, OmissionReason, Table};
use unwind_core::{BaseReg, CfaRule, RegRule, Row};

use crate::*;

#[test]
fn functions_of_no_bytes_or_no_rows_are_lost() {
    let rows = [(0, sp(8))];
    let abi = Abi::Amd64Little;
    let empty = losses(Format::V3, abi, &Function::new(0x10, 0, &rows));
    assert_eq!(empty, [(0x10, 0, OmissionReason::Empty)]);
    let bare = losses(Format::V3, abi, &Function::new(0x10, 4, &[]));
    assert_eq!(bare, [(0x10, 4, OmissionReason::NoRows)]);
    let after = losses(Format::V3, abi, &Function::new(0x10, 4, &[(4, sp(8))]));
    assert_eq!(after, [(0x10, 4, OmissionReason::NoRows)]);
}

#[test]
fn rows_have_to_ascend() {
    for rows in [[(0, sp(8)), (0, sp(16))], [(2, sp(8)), (1, sp(16))]] {
        let function = Function::new(0x10, 4, &rows);
        let reason = OmissionReason::Unsorted { offset: rows[1].0 };
        assert_eq!(losses(Format::V2, Abi::Amd64Little, &function), [(0x10, 4, reason)]);
        let builder = Builder::new(Format::V2, Abi::Amd64Little).unwrap();
        let lost = builder.check(&function).unwrap_err();
        assert_eq!((lost.start, lost.size, lost.reason), (0x10, 4, reason));
    }
}

#[test]
fn a_row_that_cannot_be_written_is_lost_alone() {
    let loaded = Row::new(CfaRule::AtRegister(BaseReg::Fp, -8), SAVED, RegRule::SameValue);
    let rows = [(0, sp(8)), (4, loaded), (6, loaded), (0x100, sp(16)), (0x104, sp(8))];
    let function = Function::new(0x1000, 0x110, &rows);
    let mut lost = Vec::new();
    let mut builder = Builder::new(Format::V2, Abi::Amd64Little).unwrap();
    let first = builder.check(&function).unwrap_err();
    assert_eq!((first.start, first.size), (0x1004, 2));
    builder.add(&function, |range| lost.push(range)).unwrap();
    let [range] = lost[..] else { panic!("{lost:?}") };
    assert_eq!((range.function, range.start, range.size), (0x1000, 0x1004, 0xfc));
    assert_eq!(range.reason, OmissionReason::CfaLoaded);
    let bytes = builder.finish(0, none).unwrap();
    let table = Table::parse(&bytes).unwrap();
    let ranges: Vec<_> = table.fdes().map(|fde| fde.unwrap().range).collect();
    assert_eq!((ranges[0].start, ranges[0].size), (0x1000, 4));
    // Its rows count from its own start, so one byte is enough.
    assert_eq!((ranges[1].start, ranges[1].size), (0x1100, 0x10));
    assert_eq!(table.fde(1).unwrap().unwrap().fre_type(), Ok(FreType::Addr1));
    assert_eq!(table.find(0x1104).unwrap().unwrap().row(), Ok(sp(8)));
    assert_eq!(table.find(0x1004), Ok(None));
}

#[test]
fn a_return_address_where_no_call_leaves_one_is_not_written() {
    let same = RegRule::SameValue;
    for (abi, sp) in [(Abi::Amd64Little, 7), (Abi::Aarch64Little, 31), (Abi::S390xBig, 15)] {
        let wrong = [BaseReg::Sp, reg(sp)].map(|base| RegRule::Register(base, 0));
        for ra in
            wrong.into_iter().chain([RegRule::ValOffset(-8), RegRule::Register(BaseReg::Sp, 8)])
        {
            let rows = [(0, Row::new(CfaRule::sp(160), ra, same))];
            for format in [Format::V2, Format::V3] {
                let lost = losses(format, abi, &Function::new(0, 4, &rows));
                assert_eq!(lost, [(0, 4, OmissionReason::Ra(ra))], "{abi:?} {format:?}");
            }
        }
        // In another register it may be.
        let rows = [(0, Row::new(CfaRule::sp(160), RegRule::Register(BaseReg::Fp, 0), same))];
        assert_eq!(losses(Format::V3, abi, &Function::new(0, 4, &rows)), []);
    }
}

#[test]
fn every_rule_that_v2_cannot_say_is_named() {
    let rbx = reg(3);
    let saved_fp = RegRule::Offset(-16);
    for (row, reason) in [
        (
            Row::new(CfaRule::Register(rbx, 8), SAVED, RegRule::SameValue),
            OmissionReason::CfaRegister(rbx),
        ),
        (
            Row::new(CfaRule::AtRegister(BaseReg::Sp, 8), SAVED, RegRule::SameValue),
            OmissionReason::CfaLoaded,
        ),
        (
            Row::new(CfaRule::sp(8), RegRule::Register(rbx, 0), saved_fp),
            OmissionReason::Ra(RegRule::Register(rbx, 0)),
        ),
        (
            Row::new(CfaRule::sp(8), SAVED, RegRule::AtRegister(rbx, 8)),
            OmissionReason::Fp(RegRule::AtRegister(rbx, 8)),
        ),
        (Row::signal_context(), OmissionReason::SignalContext),
        (sp(8).with_signed_ra(), OmissionReason::SignedRa),
    ] {
        let rows = [(0, row)];
        let function = Function::new(0, 4, &rows);
        assert_eq!(losses(Format::V2, Abi::Amd64Little, &function), [(0, 4, reason)]);
        let in_v3 = losses(Format::V3, Abi::Amd64Little, &function);
        assert_eq!(in_v3.is_empty(), reason != OmissionReason::SignedRa, "{reason}");
    }
    let rows = [(0, Row::new(CfaRule::sp(16), RegRule::SameValue, saved_fp))];
    let function = Function::new(0, 4, &rows);
    let aarch64 = losses(Format::V2, Abi::Aarch64Little, &function);
    assert_eq!(aarch64, [(0, 4, OmissionReason::FpWithoutRa)]);
    assert_eq!(losses(Format::V3, Abi::Aarch64Little, &function), []);
    let rows = [(0, sp(8))];
    let signal = losses(Format::V2, Abi::Amd64Little, &Function::new(0, 4, &rows).signal());
    assert_eq!(signal, [(0, 4, OmissionReason::SignalFrame)]);
}

#[test]
fn every_rule_that_v3_cannot_say_is_named() {
    let amd64 = Abi::Amd64Little;
    for (abi, row, reason) in [
        (
            amd64,
            Row::new(CfaRule::sp(8), RegRule::SameValue, RegRule::SameValue),
            OmissionReason::Ra(RegRule::SameValue),
        ),
        (
            amd64,
            Row::new(CfaRule::sp(8), RegRule::ValOffset(-8), RegRule::SameValue),
            OmissionReason::Ra(RegRule::ValOffset(-8)),
        ),
        (
            amd64,
            Row::new(CfaRule::sp(8), SAVED, RegRule::Undefined),
            OmissionReason::Fp(RegRule::Undefined),
        ),
        (
            Abi::S390xBig,
            Row::new(CfaRule::sp(164), RegRule::SameValue, RegRule::SameValue),
            OmissionReason::CfaScale(164),
        ),
        (
            Abi::S390xBig,
            Row::new(CfaRule::sp(i32::MIN), RegRule::SameValue, RegRule::SameValue),
            OmissionReason::CfaScale(i32::MIN),
        ),
    ] {
        let rows = [(0, row)];
        assert_eq!(losses(Format::V3, abi, &Function::new(0, 4, &rows)), [(0, 4, reason)]);
    }
}

#[test]
fn no_version_has_words_for_a_cfa_on_another_stack() {
    let rows = [(0, Row::other_stack(0x40_0010, -8, true))];
    let function = Function::new(0, 4, &rows);
    for format in [Format::V2, Format::V3] {
        let lost = losses(format, Abi::Amd64Little, &function);
        assert_eq!(lost, [(0, 4, OmissionReason::OtherStack)], "{format:?}");
    }
}

#[test]
fn what_only_the_signal_context_tells_has_no_rows() {
    let rows = [(0, sp(8)), (4, Row::signal_context()), (8, sp(16))];
    let bytes = built(Format::V3, Abi::Amd64Little, 0, &[Function::new(0, 16, &rows)]);
    let table = Table::parse(&bytes).unwrap();
    let fdes: Vec<_> = table.fdes().map(Result::unwrap).collect();
    let marks: Vec<_> = fdes.iter().map(|fde| (fde.num_fres, fde.is_signal())).collect();
    assert_eq!(marks, [(1, false), (0, true), (1, false)]);
    assert_eq!(table.find(5).unwrap().unwrap().row(), Ok(Row::signal_context()));
    let function = Function::new(0, 32, &rows).blocks(NonZeroU8::new(16).unwrap());
    let lost = losses(Format::V3, Abi::Amd64Little, &function);
    assert_eq!(lost, [(0, 32, OmissionReason::SignalContext)]);
}

#[test]
fn a_function_of_too_many_rows_for_v3_becomes_several() {
    let rows: Vec<_> = (0..150_000_u32).map(|i| (i, sp(if i % 2 == 0 { 8 } else { 16 }))).collect();
    let function = Function::new(0x1000, 150_000, &rows);
    let v3 = built(Format::V3, Abi::Amd64Little, 0, &[function]);
    let v2 = built(Format::V2, Abi::Amd64Little, 0, &[function]);
    let table = Table::parse(&v3).unwrap();
    let counts: Vec<_> = table.fdes().map(|fde| fde.unwrap().num_fres).collect();
    assert_eq!(counts, [0xffff, 0xffff, 150_000 - 2 * 0xffff]);
    assert_eq!(Table::parse(&v2).unwrap().header().num_fdes, 1);
    for offset in [0_u32, 1, 0xfffe, 0xffff, 0x1_0000, 2 * 0xffff - 1, 2 * 0xffff, 149_999] {
        let found = table.find(0x1000 + u64::from(offset)).unwrap().unwrap();
        let expected = rows[usize::try_from(offset).unwrap()].1;
        assert_eq!(found.row(), Ok(expected), "{offset:#x}");
    }
}

#[test]
fn losses_are_told_with_addresses_in_hexadecimal() {
    let rows = [(0, Row::new(CfaRule::Register(reg(10), 0), SAVED, RegRule::SameValue))];
    let builder = Builder::new(Format::V2, Abi::Amd64Little).unwrap();
    let lost = builder.check(&Function::new(0x1040, 8, &rows)).unwrap_err();
    assert_eq!(
        lost.to_string(),
        "8 bytes at 0x1040 of the function at 0x1040: the cfa comes from r10"
    );
    let rule = OmissionReason::Fp(RegRule::AtRegister(BaseReg::Sp, 8));
    assert_eq!(rule.to_string(), "the frame pointer is at sp+8");
}
