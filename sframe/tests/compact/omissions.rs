//! What a table cannot say is counted by reason, and costs no other row.

use sframe::{CompactBuilder, CompactOmissionReason as Reason, CompactTable};
use unwind_core::{BaseReg, CfaRule, DwarfReg, RegRule, Row};

use crate::{SAVED, sp};

const RBX: BaseReg = BaseReg::Reg(DwarfReg(3));

/// The reasons and counts of what is lost.
fn lost(builder: CompactBuilder) -> (Vec<u8>, Vec<(Reason, u64, u64)>) {
    let (image, omissions) = builder.finish().unwrap();
    let lost = omissions.iter().map(|(reason, lost)| (reason, lost.ranges, lost.bytes)).collect();
    (image, lost)
}

#[test]
fn rules_from_other_registers_are_lost_and_named() {
    let mut builder = CompactBuilder::new();
    let row = |cfa, ra, fp| Row::new(cfa, ra, fp);
    let at_rbx = CfaRule::AtRegister(RBX, 8);
    let (in_rbx, same) = (RegRule::Register(RBX, 0), RegRule::SameValue);
    let rows = [
        row(at_rbx, SAVED, same),
        row(CfaRule::sp(8), in_rbx, same),
        row(CfaRule::sp(8), RegRule::AtRegister(RBX, 0), same),
        row(CfaRule::sp(8), SAVED, in_rbx),
        Row::other_stack(0x1000, -8, true),
        sp(8),
    ];
    for (at, row) in (0x1000..).step_by(0x10).zip(rows) {
        builder.add(at..at + 0x10, &row).unwrap();
    }
    let (image, lost) = lost(builder);
    let expected = [
        (Reason::CfaRegister, 1, 16),
        (Reason::RaRegister, 2, 32),
        (Reason::FpRegister, 1, 16),
        (Reason::OneFrame, 1, 16),
    ];
    assert_eq!(lost, expected);
    let table = CompactTable::parse(&image).unwrap();
    assert_eq!([0x1000, 0x104f, 0x1050].map(|pc| table.row(pc)), [None, None, Some(sp(8))]);
}

#[test]
fn rules_beyond_the_limit_are_lost_and_the_others_are_not() {
    let mut builder = CompactBuilder::new();
    for at in 0..65_535_u32 + 10 {
        let at = u64::from(at);
        builder.add(at * 4..at * 4 + 4, &sp(i32::try_from(at).unwrap())).unwrap();
    }
    // One that is there.
    builder.add(0x10_0000..0x10_0004, &sp(65_534)).unwrap();
    let (image, lost) = lost(builder);
    assert_eq!(lost, [(Reason::TooManyRules, 10, 40)]);
    let table = CompactTable::parse(&image).unwrap();
    assert_eq!(table.num_rules(), 65_536);
    for at in 0..65_535_u32 {
        assert_eq!(table.row(u64::from(at) * 4 + 3), Some(sp(i32::try_from(at).unwrap())));
    }
    assert_eq!(table.row(65_535 * 4), None);
    assert_eq!(table.row(0x10_0000), Some(sp(65_534)));
}

#[test]
fn addresses_from_2_to_the_48_on_are_lost() {
    let mut builder = CompactBuilder::new();
    let end = 1 << 48;
    builder.add(end - 4..end + 4, &sp(8)).unwrap();
    builder.add(0xffff_ffff_8000_0000..0xffff_ffff_8000_0010, &sp(8)).unwrap();
    builder.add(8..8, &sp(8)).unwrap();
    let (image, lost) = lost(builder);
    assert_eq!(lost, [(Reason::Address, 2, 20)]);
    let table = CompactTable::parse(&image).unwrap();
    assert_eq!((table.num_pages(), table.row(end - 1)), (1, Some(sp(8))));
}
