//! Numbers that Linux gives, and what is read off them.
#![cfg(not(loom))]
#![cfg(test)]

use unwind_perf::aux_trace::PmuCapabilities;
use unwind_perf::record::{AttrFlags, Context, Endian, Misc, RecordHeader, RecordType, Words};

#[test]
fn every_mark_has_the_word_of_linux_and_no_other_word_is_one() {
    // enum perf_callchain_context, negative numbers as words.
    let marks = [
        (Context::Hv, -32_i64),
        (Context::Kernel, -128),
        (Context::User, -512),
        (Context::UserDeferred, -640),
        (Context::Guest, -2048),
        (Context::GuestKernel, -2176),
        (Context::GuestUser, -2560),
    ];
    for (mark, number) in marks {
        assert_eq!(mark.word(), number.cast_unsigned(), "{mark:?}");
        assert!(mark.word() >= Context::FIRST_WORD);
    }
    for number in -4096_i64..0 {
        let expected = marks.iter().find(|(_, word)| *word == number).map(|&(mark, _)| mark);
        assert_eq!(Context::from_word(number.cast_unsigned()), expected, "{number}");
    }
}

#[test]
fn a_header_tells_the_mode_and_the_length_of_what_is_after_it() {
    // type 9, misc 0x4002, size 24
    let bytes = [9, 0, 0, 0, 0x02, 0x40, 24, 0];
    let header = RecordHeader::parse(&bytes, Endian::Little).unwrap();
    assert_eq!((header.kind, header.body_len()), (RecordType(9), 16));
    assert_eq!(header.misc.cpu_mode(), Misc::USER);
    // PERF_RECORD_MISC_HYPERVISOR
    assert_eq!(Misc(0x2003).cpu_mode(), Misc(3));
}

#[test]
fn bits_can_be_taken_out_and_unknown_ones_are_kept() {
    let flags = AttrFlags::from_bits_retain(AttrFlags::DEFER_OUTPUT.bits() | 5);
    assert_eq!(flags.difference(AttrFlags::DEFER_OUTPUT), AttrFlags::from_bits_retain(5));
    assert_eq!(
        flags.difference(AttrFlags::from_bits_retain(6)),
        AttrFlags::from_bits_retain(AttrFlags::DEFER_OUTPUT.bits() | 1)
    );
    let unknown = PmuCapabilities::from_bits_retain(0x8000_0200);
    assert_eq!(unknown.bits(), 0x8000_0200);
    assert_eq!(unknown.bits() & PmuCapabilities::AUX_PAUSE.bits(), 0x200);
}

#[test]
fn words_end_with_the_last_whole_one_and_know_their_order() {
    let bytes = [0, 0, 0, 0, 0, 0, 0, 7, 1, 2];
    let words = Words::new(&bytes, Endian::Big);
    assert_eq!((words.get(0), words.get(1), words.endian()), (Some(7), None, Endian::Big));
    assert!(!words.is_empty());
    assert!(Words::new(&bytes[..7], Endian::Big).is_empty());
}
