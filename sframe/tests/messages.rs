//! What errors say: each something of its own, with where in hexadecimal.
#![cfg(test)]

use std::collections::BTreeSet;

use sframe::{
    Abi, CfiError, CfiOmissionReason, CompactError, CompactOmissionReason, Error, OmissionReason,
    RemoteError, Severity, TableOffset, Violation, WriteError,
};
use test_support::check_messages;
use unwind_core::{BaseReg, DwarfReg, ReadError, RegRule, TableError as _};

const AT: TableOffset = TableOffset(0x1c);

const ERRORS: [Error; 18] = [
    Error::Truncated(AT),
    Error::BadMagic([0x12, 0x34]),
    Error::UnsupportedVersion(9),
    Error::UnknownFlags(0x80),
    Error::WrongByteOrder { abi: 1 },
    Error::FdesOutside { end: 0x40, len: 0x30 },
    Error::FresOutside { end: 0x40, len: 0x30 },
    Error::TablesOverlap { fdes_end: 0x40, fres_start: 0x30 },
    Error::RowsOutside { at: AT, fre_offset: 0x99 },
    Error::BadFreType { at: AT, info: 0xf },
    Error::ZeroRepSize(AT),
    Error::UnknownFdeType { at: AT, info2: 7 },
    Error::BadWordSize { at: AT, info: 0x60 },
    Error::UnsortedFres(AT),
    Error::BadWordCount { at: AT, count: 3 },
    Error::CfaWithoutRegister(AT),
    Error::UnknownAbi(9),
    Error::CfaOffsetOverflow(AT),
];

const LOST: [OmissionReason; 22] = [
    OmissionReason::Empty,
    OmissionReason::Wraps,
    OmissionReason::NoRows,
    OmissionReason::Unsorted { offset: 0x10 },
    OmissionReason::SignalFrame,
    OmissionReason::SignalContext,
    OmissionReason::Overlap { other: 0x1000 },
    OmissionReason::TooFar,
    OmissionReason::CfaRegister(BaseReg::Reg(DwarfReg(10))),
    OmissionReason::CfaLoaded,
    OmissionReason::CfaScale(12),
    OmissionReason::Ra(RegRule::SameValue),
    OmissionReason::Ra(RegRule::Undefined),
    OmissionReason::Ra(RegRule::ValOffset(8)),
    OmissionReason::Fp(RegRule::Register(BaseReg::Sp, 8)),
    OmissionReason::Fp(RegRule::AtRegister(BaseReg::Fp, -8)),
    OmissionReason::Fp(RegRule::Offset(-8)),
    OmissionReason::FpWithoutRa,
    OmissionReason::SignedRa,
    OmissionReason::Malformed(Error::Truncated(AT)),
    OmissionReason::OtherStack,
    OmissionReason::SharedRows,
];

#[test]
fn the_number_of_each_error_of_a_table_is_the_documented_one() {
    assert!((1..=18).eq(ERRORS.map(|error| error.code())));
    assert_eq!(RemoteError::Table(ERRORS[3]).code(), 4);
    let unreadable = RemoteError::Unreadable { at: AT, error: ReadError::Invalid };
    assert_eq!((unreadable.code(), RemoteError::TooManyReads { limit: 7 }.code()), (256, 257));
}

#[test]
fn every_error_of_a_table_says_something_of_its_own() {
    let mut texts: Vec<String> = ERRORS.map(|error| error.to_string()).to_vec();
    let at_row = texts.iter().filter(|text| text.starts_with(".sframe+0x1c: ")).count();
    assert!(at_row >= 9, "{texts:#?}");
    let unreadable = |error| RemoteError::Unreadable { at: AT, error };
    let remote = [
        unreadable(ReadError::NotResident),
        unreadable(ReadError::Invalid),
        RemoteError::TooManyReads { limit: 7 },
    ];
    texts.extend(remote.map(|error| error.to_string()));
    let abi = Abi::Unknown(9);
    assert_eq!(abi.id(), 9);
    let write = [
        WriteError::OutOfMemory,
        WriteError::TooLarge,
        WriteError::UnknownAbi(abi),
        WriteError::OtherAbi(abi),
        WriteError::TooFarApart { pages: 9 },
    ];
    texts.extend(write.map(|error| error.to_string()));
    let compact = [
        CompactError::Magic,
        CompactError::Length,
        CompactError::Header,
        CompactError::Page { page: 3 },
        CompactError::Row { row: 3 },
        CompactError::Rule { rule: 3 },
    ];
    texts.extend(compact.map(|error| error.to_string()));
    check_messages(&texts);
    // An error of a table read from memory says what the same error of bytes in memory says.
    assert_eq!(RemoteError::Table(ERRORS[0]).to_string(), texts[0]);
}

#[test]
fn every_finding_says_something_of_its_own_and_how_bad_it_is() {
    let (at, start, other) = (AT, 0x20, 3);
    let faults = [
        Violation::UnsortedFde(at),
        Violation::Overlap { at, other },
        Violation::FreCount { header: 3, found: 4 },
        Violation::TooManyRows(at),
        Violation::UnknownAbi(9),
        Violation::ImpossibleRa(at),
        Violation::FreBytes { header: 3, found: 4 },
        Violation::EmptyNeighbour { at, other },
        Violation::RowPastEnd { at, start },
        Violation::LateFirstRow { at, start },
        Violation::NoRows(at),
        Violation::SurplusWords { at, count: 9 },
        Violation::SignedRa(at),
        Violation::RaInFp(at),
        Violation::ReservedBits(at),
    ];
    let errors = faults.iter().filter(|fault| fault.severity() == Severity::Error).count();
    assert_eq!(errors, 6);
    let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert!(texts.iter().all(|text| text.starts_with(".sframe+0x")), "{texts:#?}");
    check_messages(&texts);
    assert_eq!(Violation::Malformed(ERRORS[9]).to_string(), ERRORS[9].to_string());
    assert_eq!(Violation::Malformed(ERRORS[9]).at(), AT);
}

#[test]
fn every_reason_of_a_loss_says_something_of_its_own_and_has_a_name() {
    let texts = LOST.map(|reason| reason.to_string());
    check_messages(&texts);
    let names: BTreeSet<&str> = LOST.iter().map(|reason| reason.name()).collect();
    // Three of the rules above share a name with another one.
    assert_eq!(names.len(), LOST.len() - 4);
    let reasons = [
        CfiOmissionReason::Cfi(CfiError::Truncated),
        CfiOmissionReason::Cfi(CfiError::TruncatedEntry { at: 0x10 }),
        CfiOmissionReason::Cfi(CfiError::NotCie { at: 0x10 }),
        CfiOmissionReason::Cfi(CfiError::CieVersion(9)),
        CfiOmissionReason::Cfi(CfiError::Augmentation(b'x')),
        CfiOmissionReason::Cfi(CfiError::AddressSize(4)),
        CfiOmissionReason::Cfi(CfiError::Pointer(0x7f)),
        CfiOmissionReason::Cfi(CfiError::Empty),
        CfiOmissionReason::Cfi(CfiError::TooLong),
        CfiOmissionReason::Cfi(CfiError::NotCode),
        CfiOmissionReason::Cfi(CfiError::Instruction(0x3f)),
        CfiOmissionReason::Cfi(CfiError::Context(0x0d)),
        CfiOmissionReason::Cfi(CfiError::NothingRemembered),
        CfiOmissionReason::Cfi(CfiError::TooManyRemembered),
        CfiOmissionReason::Cfi(CfiError::LocationBack),
        CfiOmissionReason::Cfi(CfiError::NoCfa),
        CfiOmissionReason::Cfi(CfiError::CfaLoadPlus { register: 6, offset: -8, plus: 16 }),
        CfiOmissionReason::Cfi(CfiError::CfaExpression { at: 0x10 }),
        CfiOmissionReason::Cfi(CfiError::NoReturnAddress),
        CfiOmissionReason::Cfi(CfiError::RaExpression { at: 0x10 }),
        CfiOmissionReason::Cfi(CfiError::RaSignedWithPc),
        CfiOmissionReason::Cfi(CfiError::RaSignState),
        CfiOmissionReason::Cfi(CfiError::FpExpression { at: 0x10 }),
        CfiOmissionReason::Cfi(CfiError::FpUndefined),
        CfiOmissionReason::Cfi(CfiError::StackPointer),
        CfiOmissionReason::Cfi(CfiError::Register(300)),
        CfiOmissionReason::Cfi(CfiError::Offset(1 << 40)),
    ];
    check_messages(&reasons.map(|reason| reason.to_string()));
    // The first fifteen are about the entry, the others about rules.
    assert!(reasons.iter().zip(0..).all(|(reason, at)| reason.is_fault() == (at < 15)));
    let overlap = CfiOmissionReason::Table(OmissionReason::Overlap { other: 0x1000 });
    assert!(overlap.is_fault() && overlap.name() == "overlap");
    assert!(!CfiOmissionReason::Table(OmissionReason::SignalFrame).is_fault());
    let compact = [
        CompactOmissionReason::CfaRegister,
        CompactOmissionReason::RaRegister,
        CompactOmissionReason::FpRegister,
        CompactOmissionReason::OneFrame,
        CompactOmissionReason::TooManyRules,
        CompactOmissionReason::Address,
        CompactOmissionReason::Malformed,
        CompactOmissionReason::NoRow,
        CompactOmissionReason::SharedRows,
    ];
    check_messages(&compact.map(|reason| reason.to_string()));
    let names: BTreeSet<&str> = compact.iter().map(|reason| reason.name()).collect();
    assert_eq!(names.len(), compact.len());
    let names: BTreeSet<&str> = reasons.iter().map(|reason| reason.name()).collect();
    assert!(names.len() + 3 >= reasons.len(), "{names:?}");
    assert_eq!(CfiOmissionReason::Table(LOST[0]).to_string(), texts[0]);
}
