//! Call frame information that tables of SFrame do not have.

use sframe::{CfiAbi, CfiSection, CompactBuilder, CompactOmissionReason as Reason, CompactTable};
use testdata::CfiBuilder;
use unwind_core::{Addend, BaseReg, CfaRule, RegRule, Row};

use crate::{SAVED, cie, sp};

const DEF_CFA_EXPRESSION: u8 = 0x0f;
/// `*(rsp + 8) + 16`.
const LOADED_AND_ADDED: [u8; 7] = [DEF_CFA_EXPRESSION, 5, 0x77, 8, 0x06, 0x23, 16];
/// `(pc & 15) >= 11 ? rsp+16 : rsp+8`, the expression of lazy PLTs.
const PLT: [u8; 13] =
    [DEF_CFA_EXPRESSION, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];

/// The rows of one FDE, and what is lost of it.
fn table(abi: CfiAbi, start: u64, len: u64, instructions: &[u8]) -> (Vec<u8>, Vec<(Reason, u64)>) {
    let mut cfi = CfiBuilder::eh_frame(0x10_0000);
    let cie = cfi.cie(&cie(abi));
    cfi.fde(cie, start, len, instructions);
    let mut builder = CompactBuilder::new();
    let report = builder.add_cfi(CfiSection::eh_frame(cfi.build(), 0x10_0000), abi).unwrap();
    assert_eq!((report.fdes, report.code_bytes), (1, len));
    let (image, omissions) = builder.finish().unwrap();
    let lost: Vec<_> = omissions.iter().map(|(reason, lost)| (reason, lost.bytes)).collect();
    let no_rows = lost.iter().filter(|(reason, _)| *reason != Reason::SharedRows);
    assert_eq!(report.lost_bytes, no_rows.map(|(_, bytes)| bytes).sum::<u64>());
    (image, lost)
}

#[test]
fn a_cfa_that_is_loaded_and_added_to_has_a_row() {
    let (image, lost) = table(CfiAbi::X86_64, 0x1000, 0x10, &LOADED_AND_ADDED);
    assert_eq!(lost, []);
    let cfa = CfaRule::AtRegisterPlus(BaseReg::Sp, 8, Addend::new(16).unwrap());
    let row = Row::new(cfa, SAVED, RegRule::SameValue);
    assert_eq!(CompactTable::parse(&image).unwrap().row(0x100f), Some(row));
}

#[test]
fn a_linkage_table_has_a_row_before_and_after_the_push_of_each_entry() {
    for start in [0x1000_u64, 0x1005, 0x100d] {
        let (image, lost) = table(CfiAbi::X86_64, start, 0x1000, &PLT);
        assert_eq!(lost, []);
        let table = CompactTable::parse(&image).unwrap();
        for pc in start..start + 0x1000 {
            let row = if pc % 16 >= 11 { sp(16) } else { sp(8) };
            assert_eq!(table.row(pc), Some(row), "at {pc:#x}");
        }
        assert_eq!([start - 1, start + 0x1000].map(|pc| table.row(pc)), [None; 2]);
    }
}

#[test]
fn a_linkage_table_without_end_is_lost_where_it_is_too_long() {
    let (image, lost) = table(CfiAbi::X86_64, 0x1000, 0x100_0000, &PLT);
    let rows = CompactTable::parse(&image).unwrap().num_rows();
    // Two for each block, and one for each page.
    assert_eq!(lost.len(), 1);
    assert!((0x1_0000..0x3_0000).contains(&rows), "{rows}");
}

#[test]
fn a_frame_pointer_that_is_lost_is_undefined() {
    let undefined = [0x07, 6];
    let (image, lost) = table(CfiAbi::X86_64, 0x1000, 0x10, &undefined);
    assert_eq!(lost, []);
    let row = Row::new(CfaRule::sp(8), SAVED, RegRule::Undefined);
    assert_eq!(CompactTable::parse(&image).unwrap().row(0x1000), Some(row));
}

#[test]
fn code_of_32_bits_has_rows() {
    // Pushes ebp.
    let (image, lost) = table(CfiAbi::Ia32, 0x1000, 0x10, &[0x41, 0x0e, 8, 0x85, 2]);
    assert_eq!(lost, []);
    let row = |cfa, fp| Row::new(CfaRule::sp(cfa), RegRule::Offset(-4), fp);
    let table = CompactTable::parse(&image).unwrap();
    let expected = [row(4, RegRule::SameValue), row(8, RegRule::Offset(-8))];
    assert_eq!([0x1000, 0x1001].map(|pc| table.row(pc)), expected.map(Some));
}

#[test]
fn an_entry_about_no_code_loses_nothing() {
    let (image, lost) = table(CfiAbi::X86_64, 0x1000, 0, &[]);
    assert_eq!(lost, []);
    assert_eq!(CompactTable::parse(&image).unwrap().num_rows(), 0);
}

#[test]
fn rules_that_no_row_says_are_lost_and_named() {
    // The CFA is rsp * 2.
    let (image, lost) =
        table(CfiAbi::X86_64, 0x1000, 0x10, &[0x44, DEF_CFA_EXPRESSION, 4, 0x77, 0, 0x12, 0x22]);
    assert_eq!(lost, [(Reason::NoRow, 12)]);
    let table = CompactTable::parse(&image).unwrap();
    assert_eq!([0x1003, 0x1004].map(|pc| table.row(pc)), [Some(sp(8)), None]);
    // No such instruction.
    let (_, lost) = super::call_frames::table(CfiAbi::X86_64, 0x1000, 0x10, &[0x44, 0x3f]);
    assert_eq!(lost, [(Reason::Malformed, 12)]);
}
