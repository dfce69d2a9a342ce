//! What errors say: each something of its own, with a name and a number to count by.
#![cfg(test)]

use std::collections::BTreeSet;

use test_support::check_messages;
use unwind_cfi::{CfiError, RemoteCfiError, TooFewSlots};
use unwind_core::{ReadError, TableError as _, VirtAddr};

/// All of them, by code.
const ERRORS: [CfiError; 33] = [
    CfiError::Truncated,
    CfiError::TruncatedEntry { at: 0x1c },
    CfiError::NotCie { at: 0x1c },
    CfiError::NotFde { at: 0x1c },
    CfiError::CieVersion(9),
    CfiError::Augmentation(b'x'),
    CfiError::AddressSize(2),
    CfiError::Pointer(0x50),
    CfiError::Empty,
    CfiError::TooLong,
    CfiError::NotCode,
    CfiError::Instruction(0x3f),
    CfiError::Context(0x3f),
    CfiError::NothingRemembered,
    CfiError::TooManyRemembered,
    CfiError::LocationBack,
    CfiError::TooManyInstructions,
    CfiError::NoCfa,
    CfiError::CfaLoadPlus { register: 10, offset: -8, plus: 16 },
    CfiError::CfaExpression { at: 0x1c },
    CfiError::NoReturnAddress,
    CfiError::RaExpression { at: 0x1c },
    CfiError::RaSignedWithPc,
    CfiError::RaSignState,
    CfiError::FpExpression { at: 0x1c },
    CfiError::FpUndefined,
    CfiError::StackPointer,
    CfiError::Register(99),
    CfiError::Offset(1 << 40),
    CfiError::SearchTableVersion(9),
    CfiError::SearchTableTruncated,
    CfiError::OutsideSection { addr: 0x1c },
    CfiError::CieTooLong,
];

#[test]
fn every_error_says_something_of_its_own_and_has_a_name_and_a_number() {
    check_messages(&ERRORS.map(|error| error.to_string()));
    assert!((1..).zip(ERRORS).all(|(code, error)| code == error.code()));
    assert!(ERRORS.iter().all(|error| error.code() == unwind_core::TableError::code(error)));
    let names: BTreeSet<&str> = ERRORS.iter().map(|error| error.name()).collect();
    assert_eq!(names.len(), ERRORS.len());
    for name in names {
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'), "{name}");
    }
    for error in [ERRORS[1], ERRORS[2], ERRORS[3], ERRORS[19], ERRORS[31]] {
        assert!(error.to_string().contains("0x1c"), "{error}");
    }
    assert_eq!(ERRORS[18].to_string(), "cfa = *(r10-8)+16");
}

#[test]
fn rules_that_no_row_can_say_are_no_faults() {
    let rules = ERRORS.iter().filter(|error| !error.is_fault());
    let codes: Vec<u16> = rules.map(|error| error.code()).collect();
    assert_eq!(codes, (18..=29).collect::<Vec<_>>());
}

#[test]
fn what_cannot_be_read_is_told_apart_from_what_is_wrong() {
    let unreadable = |error| RemoteCfiError::Unreadable { addr: VirtAddr::new(0x7000), error };
    let absent = unreadable(ReadError::NotResident);
    let errors = [RemoteCfiError::Cfi(CfiError::NoCfa), absent, unreadable(ReadError::Invalid)];
    check_messages(&errors.map(|error| error.to_string()));
    assert_eq!(errors[0].to_string(), CfiError::NoCfa.to_string());
    assert!(absent.to_string().contains("0x7000"), "{absent}");
    assert_eq!(errors.map(|error| error.code()), [18, 256, 256]);
    assert_eq!(errors.map(|error| error.is_not_resident()), [false, true, false]);
    assert_eq!(TooFewSlots { needed: 12 }.to_string(), "the index needs 12 slots");
}
