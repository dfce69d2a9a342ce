//! CIEs and FDEs: their forms, and what a malformed one costs.

use core::ops::Range;

use sframe::{
    Abi, Builder, CfiConverter, CfiError, CfiOmissionReason, CfiSection, Format, OmissionReason,
    Table,
};
use testdata::{CfiBuilder, Cie};
use unwind_core::{CfaRule, RegRule, Row};

use crate::{
    ADDR, AMD64, One,
    dwarf::{
        ADVANCE, ADVANCE2, BREG, DEF_CFA, DEF_CFA_EXPRESSION, DEF_CFA_OFFSET, DEF_CFA_REGISTER,
        DEREF, LIT, NEGATE_RA_STATE, PLUS_CONST, RESTORE, RSP, SET_LOC,
    },
    sp,
};

#[test]
fn debug_frame_is_read_in_both_widths_and_all_versions() {
    for (version, dwarf64, big) in
        [(1, false, false), (3, true, false), (4, false, true), (4, true, true)]
    {
        let mut cfi = CfiBuilder::debug_frame();
        (cfi.dwarf64, cfi.big) = (dwarf64, big);
        let abi = if big { Abi::Aarch64Big } else { Abi::Aarch64Little };
        let cie = Cie { version, augmentation: b"", ..Cie::aarch64() };
        // An assembler's mistake before, between and after.
        cfi.raw(&[0; 4]);
        let at = cfi.cie(&cie);
        cfi.fde(
            at,
            0x1000,
            0x10,
            &[ADVANCE2, if big { 0 } else { 2 }, if big { 2 } else { 0 }, DEF_CFA_OFFSET, 16],
        );
        cfi.raw(&[0; 4]);
        cfi.fde(at, 0x2000, 0x10, &[]);
        let one = One::of(abi, Format::V3, CfiSection::debug_frame(cfi.build()));
        let leaf = |offset| Row::new(CfaRule::sp(offset), RegRule::SameValue, RegRule::SameValue);
        one.expect(&[(0x1000, leaf(0)), (0x1008, leaf(16)), (0x200f, leaf(0))]);
    }
}

#[test]
fn a_location_may_be_set_forwards_only() {
    let cie = Cie { augmentation: b"", version: 3, ..Cie::amd64() };
    let mut cfi = CfiBuilder::debug_frame();
    let at = cfi.cie(&cie);
    let mut instructions = vec![SET_LOC];
    instructions.extend(0x1004_u64.to_le_bytes());
    instructions.extend([DEF_CFA_OFFSET, 16, SET_LOC]);
    instructions.extend(0x1003_u64.to_le_bytes());
    cfi.fde(at, 0x1000, 8, &instructions);
    let one = One::of(AMD64, Format::V3, CfiSection::debug_frame(cfi.build()));
    // What the rules before the bad location are good for is not known.
    one.expect_lost(0x1004, 4, CfiOmissionReason::Cfi(CfiError::LocationBack));
    assert_eq!(one.row(0x1003), Some(sp(8)));
}

#[test]
fn a_last_location_at_the_end_or_after_it_is_ignored() {
    for advance in [8, 9, 63] {
        let one = One::amd64(8, &[ADVANCE | advance, DEF_CFA_OFFSET, 16, 0xff]);
        one.expect(&[(0x1007, sp(8))]);
        assert_eq!(one.section().header().num_fres, 1);
    }
}

#[test]
fn an_instruction_that_is_unknown_or_out_of_place_ends_its_entry_only() {
    for (instructions, reason) in [
        (&[0x3f][..], CfiOmissionReason::Cfi(CfiError::Instruction(0x3f))),
        // AArch64 only.
        (&[NEGATE_RA_STATE], CfiOmissionReason::Cfi(CfiError::Instruction(NEGATE_RA_STATE))),
        (
            &[DEF_CFA_EXPRESSION, 1, LIT, DEF_CFA_OFFSET, 8],
            CfiOmissionReason::Cfi(CfiError::Context(DEF_CFA_OFFSET)),
        ),
        (
            &[DEF_CFA_EXPRESSION, 1, LIT, DEF_CFA_REGISTER, 6],
            CfiOmissionReason::Cfi(CfiError::Context(DEF_CFA_REGISTER)),
        ),
        (&[DEF_CFA_OFFSET, 0x80], CfiOmissionReason::Cfi(CfiError::TruncatedEntry { at: 44 })),
        (
            &[DEF_CFA_EXPRESSION, 9, LIT],
            CfiOmissionReason::Cfi(CfiError::TruncatedEntry { at: 44 }),
        ),
        (&[ADVANCE2, 1], CfiOmissionReason::Cfi(CfiError::TruncatedEntry { at: 43 })),
    ] {
        let mut all = vec![DEF_CFA_OFFSET, 24];
        all.splice(0..0, [ADVANCE | 4]);
        all.extend(instructions);
        let mut cfi = CfiBuilder::eh_frame(ADDR);
        let cie = cfi.cie(&Cie::amd64());
        cfi.fde(cie, 0x1000, 8, &all);
        cfi.fde(cie, 0x2000, 8, &[]);
        let one = One::of(AMD64, Format::V3, CfiSection::eh_frame(cfi.build(), ADDR));
        one.expect_lost(0x1004, 4, reason);
        assert_eq!((one.row(0x1003), one.row(0x2000)), (Some(sp(8)), Some(sp(8))));
    }
}

#[test]
fn a_cie_that_cannot_be_used_harms_its_own_entries_only() {
    for (bad, reason) in [
        (Cie { version: 2, ..Cie::amd64() }, CfiOmissionReason::Cfi(CfiError::CieVersion(2))),
        (
            Cie { augmentation: b"zX", ..Cie::amd64() },
            CfiOmissionReason::Cfi(CfiError::Augmentation(b'X')),
        ),
        (
            Cie { augmentation: b"R", ..Cie::amd64() },
            CfiOmissionReason::Cfi(CfiError::Augmentation(b'R')),
        ),
        (
            Cie { augmentation: b"eh", ..Cie::amd64() },
            CfiOmissionReason::Cfi(CfiError::Augmentation(b'e')),
        ),
        (
            Cie { instructions: vec![0x3f], ..Cie::amd64() },
            CfiOmissionReason::Cfi(CfiError::Instruction(0x3f)),
        ),
        (
            Cie { instructions: vec![RESTORE | 3], ..Cie::amd64() },
            CfiOmissionReason::Cfi(CfiError::Context(RESTORE | 3)),
        ),
        (Cie { data: vec![0x0d], ..Cie::amd64() }, CfiOmissionReason::Cfi(CfiError::Pointer(0x0d))),
        // Relative to data that was not named; indirect.
        (Cie { data: vec![0x3b], ..Cie::amd64() }, CfiOmissionReason::Cfi(CfiError::Pointer(0x3b))),
        (Cie { data: vec![0x9b], ..Cie::amd64() }, CfiOmissionReason::Cfi(CfiError::Pointer(0x9b))),
    ] {
        let mut cfi = CfiBuilder::eh_frame(ADDR);
        let bad = cfi.cie(&bad);
        let good = cfi.cie(&Cie::amd64());
        let entry = cfi.fde(bad, 0x1000, 8, &[]);
        cfi.fde(good, 0x2000, 8, &[]);
        // A CIE that is none.
        let wrong = cfi.fde(entry, 0x3000, 8, &[]);
        cfi.fde(good, 0x4000, 8, &[]);
        let one = One::of(AMD64, Format::V3, CfiSection::eh_frame(cfi.build(), ADDR));
        let lost: Vec<_> = one.lost.iter().map(|lost| (lost.entry, lost.reason)).collect();
        assert_eq!(
            lost,
            [(entry, reason), (wrong, CfiOmissionReason::Cfi(CfiError::NotCie { at: entry }))]
        );
        assert_eq!((one.report.fdes, one.report.unusable), (4, 2));
        assert_eq!((one.row(0x2000), one.row(0x4000)), (Some(sp(8)), Some(sp(8))));
    }
}

#[test]
fn addresses_of_other_sizes_and_segments_are_refused() {
    let cie = Cie { version: 4, augmentation: b"", ..Cie::amd64() };
    let mut cfi = CfiBuilder::debug_frame();
    let at = cfi.cie(&cie);
    cfi.fde(at, 0x1000, 8, &[]);
    let convert = |bytes: &[u8]| One::of(AMD64, Format::V3, CfiSection::debug_frame(bytes));
    let good = convert(cfi.build());
    assert_eq!((good.lost.as_slice(), good.row(0x1000)), (&[][..], Some(sp(8))));
    // After the length, the mark, the version and the augmentation.
    for (field, value, size) in [(10, 4, 4), (11, 1, 8)] {
        let mut bytes = cfi.build().to_vec();
        bytes[field] = value;
        let reasons: Vec<_> = convert(&bytes).lost.iter().map(|lost| lost.reason).collect();
        assert_eq!(reasons, [CfiOmissionReason::Cfi(CfiError::AddressSize(size))]);
    }
}

#[test]
fn a_converter_says_how_far_it_is() {
    let mut cfi = CfiBuilder::eh_frame(ADDR);
    let cie = cfi.cie(&Cie::amd64());
    let first = cfi.fde(cie, 0x1000, 8, &[]);
    let second = cfi.fde(cie, 0x2000, 8, &[]);
    let section = CfiSection::eh_frame(cfi.build(), ADDR);
    assert!(!section.is_empty() && CfiSection::debug_frame(&[]).is_empty());
    let mut builder = Builder::new(Format::V2, AMD64).unwrap();
    assert_eq!(builder.format(), Format::V2);
    let mut converter = CfiConverter::new(section, &builder);
    let mut positions = vec![converter.position()];
    let mut code = vec![converter.code().cloned()];
    while converter.next(&mut builder, &mut |lost| panic!("{lost}")).unwrap() {
        positions.push(converter.position());
        code.push(converter.code().cloned());
    }
    assert_eq!(code, [None, Some(0x1000..0x1008), Some(0x2000..0x2008)]);
    assert!(converter.code().is_none(), "of the section's end");
    assert!(first < second);
    assert_eq!(positions, [0, second, u64::try_from(section.len()).unwrap()]);
}

#[test]
fn a_cie_inside_another_entry_is_none() {
    let mut inner = CfiBuilder::eh_frame(ADDR);
    inner.cie(&Cie::amd64());
    let mut outer = Cie { instructions: vec![0x90, 1, DEF_CFA_EXPRESSION, 64], ..Cie::amd64() };
    let before = outer.instructions.len();
    outer.instructions.extend(inner.build());
    outer.instructions.resize(before + 64, 0);
    let mut cfi = CfiBuilder::eh_frame(ADDR);
    let outside = cfi.cie(&outer);
    let end = u64::try_from(cfi.build().len()).unwrap();
    let inside = end - 64;
    let entry = cfi.fde(inside, 0x1000, 8, &[]);
    cfi.fde(outside, 0x2000, 8, &[DEF_CFA, 7, 16]);
    let one = One::of(AMD64, Format::V3, CfiSection::eh_frame(cfi.build(), ADDR));
    let lost: Vec<_> = one.lost.iter().map(|lost| (lost.entry, lost.reason)).collect();
    assert_eq!(lost, [(entry, CfiOmissionReason::Cfi(CfiError::NotCie { at: inside }))]);
    assert_eq!(one.row(0x2000).map(|row| row.cfa()), Some(CfaRule::sp(16)));
}

#[test]
fn cies_are_found_in_any_order_and_number() {
    // Each has rules of its own. They take minutes if the time rises with the square of their number.
    let mut cfi = CfiBuilder::debug_frame();
    let cie = |slots: u8| Cie {
        instructions: vec![DEF_CFA, 7, 8 * slots, 0x90, 1],
        augmentation: b"",
        ..Cie::amd64()
    };
    let cies: Vec<(u64, u8)> =
        (1..=13_u8).cycle().take(60_000).map(|slots| (cfi.cie(&cie(slots)), slots)).collect();
    for (&(at, _), index) in cies.iter().rev().zip(0..) {
        cfi.fde(at, 0x1000 + 8 * index, 8, &[]);
    }
    // In `.debug_frame` an entry may come before its CIE.
    let here = u64::try_from(cfi.build().len()).unwrap();
    let mut probe = cfi.clone();
    probe.fde(0, 0x100, 8, &[]);
    let after = u64::try_from(probe.build().len()).unwrap();
    assert_eq!(cfi.fde(after, 0x100, 8, &[]), here);
    assert_eq!(cfi.cie(&cie(14)), after);
    let one = One::of(AMD64, Format::V3, CfiSection::debug_frame(cfi.build()));
    assert_eq!(one.lost, []);
    assert_eq!(one.row(0x100), Some(sp(8 * 14)));
    for (&(_, slots), index) in cies.iter().rev().zip(0..) {
        assert_eq!(one.row(0x1000 + 8 * index), Some(sp(8 * i32::from(slots))));
    }
}

#[test]
fn nothing_is_read_after_an_entry_that_does_not_end_or_a_terminator() {
    let mut cfi = CfiBuilder::eh_frame(ADDR);
    let cie = cfi.cie(&Cie::amd64());
    cfi.fde(cie, 0x1000, 8, &[]);
    let before = u64::try_from(cfi.build().len()).unwrap();
    let mut terminated = cfi.clone();
    terminated.raw(&[0; 4]);
    terminated.fde(cie, 0x2000, 8, &[]);
    let one = One::of(AMD64, Format::V3, CfiSection::eh_frame(terminated.build(), ADDR));
    one.expect(&[(0x1000, sp(8))]);
    assert_eq!(one.row(0x2000), None);

    for len in [0x7f, 0xffff_fff0_u32] {
        let mut cut = cfi.clone();
        cut.raw(&len.to_le_bytes());
        cut.raw(&[0; 16]);
        let one = One::of(AMD64, Format::V3, CfiSection::eh_frame(cut.build(), ADDR));
        let lost = one.lost.iter().map(|lost| (lost.entry, lost.reason)).collect::<Vec<_>>();
        assert_eq!(lost, [(before, CfiOmissionReason::Cfi(CfiError::Truncated))]);
        assert_eq!(one.row(0x1000), Some(sp(8)));
    }
}

#[test]
fn entries_about_no_code_or_too_much_are_counted() {
    let cie = Cie { augmentation: b"", version: 3, ..Cie::amd64() };
    let mut cfi = CfiBuilder::debug_frame();
    let at = cfi.cie(&cie);
    cfi.fde(at, 0x1000, 0, &[]);
    cfi.fde(at, 0x1000, 8, &[]);
    cfi.fde(at, 0x1_0000, 1 << 32, &[]);
    // What a linker leaves of a function that it drops.
    cfi.fde(at, 0, 8, &[]);
    let code = [0x1000..0x2000, 0x1_0000..0x2_0000];
    let section = CfiSection::debug_frame(cfi.build()).code(&code);
    let one = One::of(AMD64, Format::V3, section);
    let lost: Vec<_> = one.lost.iter().map(|lost| (lost.start, lost.size, lost.reason)).collect();
    assert_eq!(
        lost,
        [
            (0x1000, 0, CfiOmissionReason::Cfi(CfiError::Empty)),
            (0x1_0000, 1 << 32, CfiOmissionReason::Cfi(CfiError::TooLong)),
            (0, 0, CfiOmissionReason::Cfi(CfiError::NotCode)),
        ]
    );
    assert_eq!((one.report.fdes, one.report.unusable, one.report.code_bytes), (4, 3, 8));
    assert_eq!((one.row(0x1000), one.row(0)), (Some(sp(8)), None));
}

#[test]
fn ranges_of_code_may_come_in_any_order() {
    let mut cfi = CfiBuilder::eh_frame(ADDR);
    let cie = cfi.cie(&Cie::amd64());
    for start in (0x1000..0x1400).step_by(0x10) {
        cfi.fde(cie, start, 8, &[]);
    }
    let ascending = [0x1010..0x1020, 0x1020..0x1030, 0x1100..0x1200, 0x1300..0x1301];
    let [a, b, c, d] = ascending.clone();
    // One that ends before it starts has none.
    let mixed = [d, b, c.clone(), a, c, Range { start: 0x1280, end: 0x1210 }];
    let [ascending, mixed] = [&ascending[..], &mixed[..]].map(|code| {
        let section = CfiSection::eh_frame(cfi.build(), ADDR).code(code);
        let one = One::of(AMD64, Format::V3, section);
        (0x1000..0x1400).step_by(0x10).filter(|&pc| one.row(pc).is_some()).collect::<Vec<u64>>()
    });
    let expected: Vec<u64> = (0x1000..0x1400)
        .step_by(0x10)
        .filter(|pc| matches!(pc, 0x1010 | 0x1020 | 0x1100..0x1200 | 0x1300))
        .collect();
    assert_eq!((&ascending, &mixed), (&expected, &expected));
}

#[test]
fn of_two_entries_about_the_same_code_one_is_kept() {
    let mut cfi = CfiBuilder::eh_frame(ADDR);
    let cie = cfi.cie(&Cie::amd64());
    cfi.fde(cie, 0x1000, 0x10, &[]);
    cfi.fde(cie, 0x1000, 0x10, &[]);
    cfi.fde(cie, 0x1008, 0x20, &[DEF_CFA_OFFSET, 16]);
    let mut builder = Builder::new(Format::V3, AMD64).unwrap();
    builder.add_cfi(CfiSection::eh_frame(cfi.build(), ADDR), |lost| panic!("{lost}")).unwrap();
    let mut lost = Vec::new();
    let bytes = builder.finish(ADDR, |range| lost.push((range.start, range.size, range.reason)));
    let overlap = OmissionReason::Overlap { other: 0x1000 };
    assert_eq!(lost, [(0x1000, 0x10, overlap), (0x1008, 0x20, overlap)]);
    let bytes = bytes.unwrap();
    let section = Table::parse(&bytes).unwrap().at(ADDR);
    assert_eq!(section.find(0x100f).unwrap().unwrap().row(), Ok(sp(8)));
}

#[test]
fn every_pointer_encoding_but_indirect_ones_is_read() {
    let start = 0x1000_u64;
    for (encoding, field) in [
        (0x00, start.to_le_bytes().to_vec()),
        (0x01, vec![0x80, 0x20]),
        (0x02, vec![0, 0x10]),
        (0x03, vec![0, 0x10, 0, 0]),
        (0x04, start.to_le_bytes().to_vec()),
        (0x09, vec![0x80, 0x20]),
        (0x0a, vec![0, 0x10]),
        (0x0b, vec![0, 0x10, 0, 0]),
        (0x0c, start.to_le_bytes().to_vec()),
        (0x2b, 0x600_u32.to_le_bytes().to_vec()), // from the text at 0xa00
        (0x3b, 0x1800_i32.wrapping_neg().to_le_bytes().to_vec()), // from the data at 0x2800
    ] {
        let mut cfi = CfiBuilder::eh_frame(ADDR);
        let cie = cfi.cie(&Cie { data: vec![encoding], ..Cie::amd64() });
        let at = u32::try_from(cfi.build().len()).unwrap() + 4;
        // The length has the width, not the base, of an address.
        let mut len = vec![8];
        len.resize(field.len(), 0);
        if matches!(encoding & 0x0f, 1 | 9) {
            len = vec![8];
        }
        let mut entry = (at - u32::try_from(cie).unwrap()).to_le_bytes().to_vec();
        entry.extend(&field);
        entry.extend(&len);
        entry.push(0);
        cfi.raw(&u32::try_from(entry.len()).unwrap().to_le_bytes());
        cfi.raw(&entry);
        let section = CfiSection::eh_frame(cfi.build(), ADDR).text(0xa00).data(0x2800);
        let one = One::of(AMD64, Format::V3, section);
        assert_eq!(one.lost, [], "encoding {encoding:#x}");
        assert_eq!((one.row(0x1000), one.row(0x1007)), (Some(sp(8)), Some(sp(8))));
        assert_eq!(one.row(0x1008), None, "encoding {encoding:#x}");
    }
}

#[test]
fn a_personality_routine_and_its_data_are_skipped() {
    let mut data = vec![0x9b, 1, 2, 3, 4, 0x1b, 0x1b];
    let cie = Cie { augmentation: b"zPLR", data: data.clone(), ..Cie::amd64() };
    One::new(AMD64, Format::V3, &cie, 8, &[]).expect(&[(0x1007, sp(8))]);
    // A routine at an aligned address, which says nothing about where it is.
    data[0] = 0x50;
    let cie = Cie { augmentation: b"zPLR", data, ..Cie::amd64() };
    let one = One::new(AMD64, Format::V3, &cie, 8, &[]);
    assert_eq!(one.lost[0].reason, CfiOmissionReason::Cfi(CfiError::Pointer(0x50)));
}

#[test]
fn losses_are_told_with_their_construct() {
    let openssl = [DEF_CFA_EXPRESSION, 5, BREG | RSP, 56, DEREF, PLUS_CONST, 8];
    let one = One::amd64(8, &openssl);
    assert_eq!(one.lost[0].to_string(), "8 bytes at 0x1000 (entry at 0x16): cfa = *(r7+56)+8");
}
