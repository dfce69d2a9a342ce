//! What errors say: each something of its own, with where in hexadecimal.
#![allow(
    clippy::indexing_slicing,
    clippy::std_instead_of_alloc,
    clippy::std_instead_of_core,
    reason = "tests"
)]

use std::collections::BTreeSet;

use sframe::{
    Abi, CfiReason, Error, Fault, LostReason, RemoteError, SectionOffset, Severity, WriteError,
};
use testdata::check_messages;
use unwind_core::{BaseReg, DwarfReg, ReadError, RegRule};

const AT: SectionOffset = SectionOffset(0x1c);

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

const LOST: [LostReason; 21] = [
    LostReason::Empty,
    LostReason::Wraps,
    LostReason::NoRows,
    LostReason::Unsorted { offset: 0x10 },
    LostReason::SignalFrame,
    LostReason::SignalContext,
    LostReason::Overlap { other: 0x1000 },
    LostReason::TooFar,
    LostReason::CfaRegister(BaseReg::Reg(DwarfReg(10))),
    LostReason::CfaLoaded,
    LostReason::CfaScale(12),
    LostReason::Ra(RegRule::SameValue),
    LostReason::Ra(RegRule::Undefined),
    LostReason::Ra(RegRule::ValOffset(8)),
    LostReason::Fp(RegRule::Register(BaseReg::Sp, 8)),
    LostReason::Fp(RegRule::AtRegister(BaseReg::Fp, -8)),
    LostReason::Fp(RegRule::Offset(-8)),
    LostReason::FpWithoutRa,
    LostReason::SignedRa,
    LostReason::Malformed(Error::Truncated(AT)),
    LostReason::SharedRows,
];

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
    ];
    texts.extend(write.map(|error| error.to_string()));
    check_messages(&texts);
    // An error of a table read from memory says what the same error at hand says.
    assert_eq!(RemoteError::Table(ERRORS[0]).to_string(), texts[0]);
}

#[test]
fn every_finding_says_something_of_its_own_and_how_bad_it_is() {
    let (at, start, other) = (AT, 0x20, 3);
    let faults = [
        Fault::UnsortedFde(at),
        Fault::Overlap { at, other },
        Fault::FreCount { header: 3, found: 4 },
        Fault::TooManyRows(at),
        Fault::UnknownAbi(9),
        Fault::ImpossibleRa(at),
        Fault::FreBytes { header: 3, found: 4 },
        Fault::EmptyNeighbour { at, other },
        Fault::RowBehindEnd { at, start },
        Fault::LateFirstRow { at, start },
        Fault::NoRows(at),
        Fault::SurplusWords { at, count: 9 },
        Fault::SignedRa(at),
        Fault::RaInFp(at),
        Fault::ReservedBits(at),
    ];
    let errors = faults.iter().filter(|fault| fault.severity() == Severity::Error).count();
    assert_eq!(errors, 6);
    let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert!(texts.iter().all(|text| text.starts_with(".sframe+0x")), "{texts:#?}");
    check_messages(&texts);
    assert_eq!(Fault::Malformed(ERRORS[9]).to_string(), ERRORS[9].to_string());
    assert_eq!(Fault::Malformed(ERRORS[9]).at(), AT);
}

#[test]
fn every_reason_of_a_loss_says_something_of_its_own_and_has_a_name() {
    let texts = LOST.map(|reason| reason.to_string());
    check_messages(&texts);
    let names: BTreeSet<&str> = LOST.iter().map(|reason| reason.name()).collect();
    // Three of the rules above share a name with another one.
    assert_eq!(names.len(), LOST.len() - 4);
    let reasons = [
        CfiReason::Truncated,
        CfiReason::TruncatedEntry { at: 0x10 },
        CfiReason::NotCie { at: 0x10 },
        CfiReason::CieVersion(9),
        CfiReason::Augmentation(b'x'),
        CfiReason::AddressSize(4),
        CfiReason::Pointer(0x7f),
        CfiReason::Empty,
        CfiReason::TooLong,
        CfiReason::NotCode,
        CfiReason::Instruction(0x3f),
        CfiReason::Context(0x0d),
        CfiReason::NothingRemembered,
        CfiReason::TooManyRemembered,
        CfiReason::LocationBack,
        CfiReason::NoCfa,
        CfiReason::CfaLoadPlus { register: 6, offset: -8, plus: 16 },
        CfiReason::CfaExpression { at: 0x10 },
        CfiReason::NoReturnAddress,
        CfiReason::RaExpression { at: 0x10 },
        CfiReason::RaSignedWithPc,
        CfiReason::RaSignState,
        CfiReason::FpExpression { at: 0x10 },
        CfiReason::FpUndefined,
        CfiReason::StackPointer,
        CfiReason::Register(300),
        CfiReason::Offset(1 << 40),
    ];
    check_messages(&reasons.map(|reason| reason.to_string()));
    // The first fifteen are about the entry, the others about rules.
    assert!(reasons.iter().zip(0..).all(|(reason, at)| reason.is_fault() == (at < 15)));
    let overlap = CfiReason::Table(LostReason::Overlap { other: 0x1000 });
    assert!(overlap.is_fault() && overlap.name() == "overlap");
    assert!(!CfiReason::Table(LostReason::SignalFrame).is_fault());
    let names: BTreeSet<&str> = reasons.iter().map(|reason| reason.name()).collect();
    assert!(names.len() + 3 >= reasons.len(), "{names:?}");
    assert_eq!(CfiReason::Table(LOST[0]).to_string(), texts[0]);
}
