//! What AArch64 and s390x have of their own.

use sframe::{Abi, CfiError, CfiOmissionReason, Format, OmissionReason, PauthKey};
use testdata::Cie;
use unwind_core::{CfaRule, RegRule, Row};

use crate::{
    One,
    dwarf::{
        ADVANCE, DEF_CFA, DEF_CFA_OFFSET, DEF_CFA_REGISTER, NEGATE_RA_STATE,
        NEGATE_RA_STATE_WITH_PC, OFFSET, REGISTER, REMEMBER, RESTORE, RESTORE_EXTENDED,
        RESTORE_STATE,
    },
    reg,
};

#[test]
fn aarch64_keeps_the_return_address_in_its_register() {
    for (abi, format) in [(Abi::Aarch64Little, Format::V2), (Abi::Aarch64Big, Format::V3)] {
        // stp x29,x30,[sp,#-32]!; mov x29,sp; ... ldp x29,x30,[sp],#32
        let one = One::new(
            abi,
            format,
            &Cie::aarch64(),
            0x40,
            &[
                ADVANCE | 1,
                DEF_CFA_OFFSET,
                32,
                OFFSET | 29,
                4,
                OFFSET | 30,
                3,
                ADVANCE | 1,
                DEF_CFA_REGISTER,
                29,
                ADVANCE | 13,
                RESTORE | 30,
                RESTORE | 29,
                DEF_CFA,
                31,
                0,
            ],
        );
        let (ra, fp) = (RegRule::Offset(-24), RegRule::Offset(-32));
        let leaf = Row::new(CfaRule::sp(0), RegRule::SameValue, RegRule::SameValue);
        one.expect(&[
            (0x1000, leaf),
            (0x1004, Row::new(CfaRule::sp(32), ra, fp)),
            (0x1008, Row::new(CfaRule::fp(32), ra, fp)),
            (0x103c, leaf),
        ]);
        assert_eq!(one.section().fde(0).unwrap().unwrap().pauth_key(), Some(PauthKey::A));
    }
}

#[test]
fn aarch64_says_where_return_addresses_are_signed_and_by_which_key() {
    let cie = Cie { augmentation: b"zRB", ..Cie::aarch64() };
    let instructions = [
        ADVANCE | 1,
        NEGATE_RA_STATE,
        ADVANCE | 1,
        REMEMBER,
        NEGATE_RA_STATE,
        ADVANCE | 1,
        RESTORE_STATE,
        ADVANCE | 1,
        RESTORE_EXTENDED,
        34,
    ];
    let one = One::new(Abi::Aarch64Little, Format::V2, &cie, 0x20, &instructions);
    let leaf = Row::new(CfaRule::sp(0), RegRule::SameValue, RegRule::SameValue);
    one.expect(&[
        (0x1000, leaf),
        (0x1004, leaf.with_signed_ra()),
        (0x1008, leaf),
        (0x100c, leaf.with_signed_ra()),
        (0x1010, leaf),
    ]);
    assert_eq!(one.section().fde(0).unwrap().unwrap().pauth_key(), Some(PauthKey::B));

    let with_pc = [ADVANCE | 1, NEGATE_RA_STATE_WITH_PC, ADVANCE | 1, NEGATE_RA_STATE_WITH_PC];
    let one = One::new(Abi::Aarch64Little, Format::V3, &Cie::aarch64(), 0x20, &with_pc);
    one.expect_lost(0x1004, 4, CfiOmissionReason::Cfi(CfiError::RaSignedWithPc));
    assert_eq!(one.row(0x1008), Some(leaf));
}

#[test]
fn aarch64_may_save_the_frame_pointer_alone() {
    let instructions = [DEF_CFA_OFFSET, 16, OFFSET | 29, 2];
    let row = Row::new(CfaRule::sp(16), RegRule::SameValue, RegRule::Offset(-16));
    let one = One::new(Abi::Aarch64Little, Format::V3, &Cie::aarch64(), 8, &instructions);
    one.expect(&[(0x1000, row)]);
    let one = One::new(Abi::Aarch64Little, Format::V2, &Cie::aarch64(), 8, &instructions);
    one.expect_lost(0x1000, 8, CfiOmissionReason::Table(OmissionReason::FpWithoutRa));
}

#[test]
fn s390x_saves_its_stack_pointer_and_keeps_registers_in_others() {
    for format in [Format::V2, Format::V3] {
        // stmg %r11,%r15,88(%r15); lay %r15,-320(%r15)
        let one = One::new(
            Abi::S390xBig,
            format,
            &Cie::s390x(),
            0x20,
            &[
                ADVANCE | 6,
                OFFSET | 11,
                9,
                OFFSET | 14,
                6,
                OFFSET | 15,
                5,
                ADVANCE | 6,
                DEF_CFA_OFFSET,
                0xe0,
                3,
                ADVANCE | 6,
                DEF_CFA_REGISTER,
                11,
                ADVANCE | 6,
                REGISTER,
                11,
                16,
                REGISTER,
                14,
                17,
            ],
        );
        let (ra, fp) = (RegRule::Offset(-48), RegRule::Offset(-72));
        let in_registers = [RegRule::Register(reg(17), 0), RegRule::Register(reg(16), 0)];
        one.expect(&[
            (0x1000, Row::new(CfaRule::sp(160), RegRule::SameValue, RegRule::SameValue)),
            (0x1006, Row::new(CfaRule::sp(160), ra, fp)),
            (0x100c, Row::new(CfaRule::sp(480), ra, fp)),
            (0x1012, Row::new(CfaRule::fp(480), ra, fp)),
            (0x1018, Row::new(CfaRule::fp(480), in_registers[0], in_registers[1])),
        ]);
    }
}
