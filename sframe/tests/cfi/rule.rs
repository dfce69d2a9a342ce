//! Rules: what a table can say of them, and what is lost of those that it cannot.

use sframe::{CfiError, CfiOmissionReason, Format, OmissionReason};
use testdata::Cie;
use unwind_core::{BaseReg, CfaRule, RegRule, Row};

use crate::{
    AMD64, One, SAVED,
    dwarf::{
        ADVANCE, BREG, DEF_CFA, DEF_CFA_EXPRESSION, DEF_CFA_OFFSET, DEREF, EXPRESSION, LIT, OFFSET,
        OFFSET_SF, PLUS_CONST, R10, RBP, REGISTER, REMEMBER, RESTORE, RESTORE_STATE, RIP, RSP,
        SAME_VALUE, UNDEFINED, VAL_EXPRESSION, VAL_OFFSET,
    },
    reg, sp,
};

#[test]
fn a_state_is_remembered_whole_and_states_nest() {
    let one = One::amd64(
        0x20,
        &[
            REMEMBER,
            DEF_CFA_OFFSET,
            16,
            OFFSET | RBP,
            2,
            ADVANCE | 4,
            REMEMBER,
            DEF_CFA,
            RBP,
            32,
            RESTORE | RBP,
            ADVANCE | 4,
            RESTORE_STATE,
            ADVANCE | 4,
            RESTORE_STATE,
        ],
    );
    let inner = Row::new(CfaRule::sp(16), SAVED, RegRule::Offset(-16));
    one.expect(&[
        (0x1000, inner),
        (0x1004, Row::new(CfaRule::fp(32), SAVED, RegRule::SameValue)),
        (0x1008, inner),
        (0x100c, sp(8)),
    ]);
}

#[test]
fn what_holds_before_a_state_that_was_not_remembered_is_kept() {
    let one = One::amd64(0x20, &[ADVANCE | 4, DEF_CFA_OFFSET, 16, ADVANCE | 4, RESTORE_STATE]);
    one.expect_lost(0x1008, 0x18, CfiOmissionReason::Cfi(CfiError::NothingRemembered));
    assert_eq!((one.row(0x1003), one.row(0x1007)), (Some(sp(8)), Some(sp(16))));
    let deep = One::amd64(0x20, &[REMEMBER; 300]);
    deep.expect_lost(0x1000, 0x20, CfiOmissionReason::Cfi(CfiError::TooManyRemembered));
}

#[test]
fn offsets_beyond_16_bits_are_kept() {
    // sub $540072,%rsp; probes on the way by r11.
    let one = One::amd64(
        0x20,
        &[
            ADVANCE | 4,
            DEF_CFA,
            11,
            0xb8,
            0xe0,
            0x20,
            ADVANCE | 8,
            DEF_CFA,
            RSP,
            0xb0,
            0xfb,
            0x20,
            OFFSET | RBP,
            0x80,
            0x80,
            0x40,
        ],
    );
    one.expect(&[
        (0x1004, Row::new(CfaRule::Register(reg(11), 536_632), SAVED, RegRule::SameValue)),
        (0x100c, Row::new(CfaRule::sp(540_080), SAVED, RegRule::Offset(-8 * 0x10_0000))),
    ]);
}

#[test]
fn offsets_beyond_32_bits_are_lost() {
    let huge = [0x80, 0x80, 0x80, 0x80, 0x10];
    let mut cfa = vec![ADVANCE | 4, DEF_CFA_OFFSET];
    cfa.extend(huge);
    cfa.extend([ADVANCE | 4, DEF_CFA_OFFSET, 8]);
    let one = One::amd64(0x20, &cfa);
    one.expect_lost(0x1004, 4, CfiOmissionReason::Cfi(CfiError::Offset(1 << 32)));
    assert_eq!(one.row(0x1008), Some(sp(8)));

    let mut fp = vec![OFFSET | RBP];
    fp.extend(huge);
    One::amd64(0x20, &fp).expect_lost(
        0x1000,
        0x20,
        CfiOmissionReason::Cfi(CfiError::Offset(-8 << 32)),
    );
}

#[test]
fn saved_registers_are_found_in_every_way_that_there_is() {
    let rdi = reg(5);
    let r12 = reg(12);
    for (instructions, ra, fp) in [
        // vfork keeps the return address in rdi, zlib rbp in a slot below others.
        (&[REGISTER, RIP, 5][..], RegRule::Register(rdi, 0), RegRule::SameValue),
        (&[REGISTER, RBP, 12], SAVED, RegRule::Register(r12, 0)),
        (&[OFFSET_SF, RIP, 2], RegRule::Offset(-16), RegRule::SameValue),
        (&[OFFSET | RBP, 6], SAVED, RegRule::Offset(-48)),
        (&[VAL_OFFSET, RBP, 2], SAVED, RegRule::ValOffset(-16)),
        (&[SAME_VALUE, RBP], SAVED, RegRule::SameValue),
        (&[EXPRESSION, RIP, 2, BREG, 8], RegRule::AtRegister(reg(0), 8), RegRule::SameValue),
        (&[VAL_EXPRESSION, RIP, 2, BREG, 8], RegRule::Register(reg(0), 8), RegRule::SameValue),
        (
            &[VAL_EXPRESSION, RBP, 3, BREG | RSP, 8, DEREF],
            SAVED,
            RegRule::AtRegister(BaseReg::Sp, 8),
        ),
        // The CFA is on the stack when an expression of a register starts.
        (&[EXPRESSION, RBP, 2, PLUS_CONST, 24], SAVED, RegRule::Offset(24)),
        (&[EXPRESSION, RBP, 2, LIT + 24, 0x1c], SAVED, RegRule::Offset(-24)),
        (&[VAL_EXPRESSION, RBP, 2, LIT + 24, 0x22], SAVED, RegRule::ValOffset(24)),
        (&[VAL_EXPRESSION, RBP, 1, DEREF], SAVED, RegRule::Offset(0)),
    ] {
        let one = One::amd64(8, instructions);
        one.expect(&[(0x1000, Row::new(CfaRule::sp(8), ra, fp))]);
    }
}

#[test]
fn a_cfa_may_be_an_expression_that_is_a_rule() {
    for (expression, cfa) in [
        (&[BREG | RSP, 16][..], CfaRule::sp(16)),
        (&[BREG | RSP, 16, PLUS_CONST, 8], CfaRule::sp(24)),
        (&[LIT | 8, BREG | RSP, 16, 0x22], CfaRule::sp(24)),
        (&[0x92, 10, 8], CfaRule::Register(reg(R10), 8)), // bregx
        (&[BREG | RBP, 0x70, DEREF], CfaRule::AtRegister(BaseReg::Fp, -16)),
        (&[BREG | RSP, 8, PLUS_CONST, 8, DEREF, LIT, 0x22], CfaRule::AtRegister(BaseReg::Sp, 16)),
    ] {
        let mut instructions = vec![DEF_CFA_EXPRESSION, u8::try_from(expression.len()).unwrap()];
        instructions.extend(expression);
        let one = One::amd64(8, &instructions);
        one.expect(&[(0x1000, Row::new(cfa, SAVED, RegRule::SameValue))]);
    }
}

#[test]
fn only_the_range_of_what_cannot_be_said_is_lost() {
    // OpenSSL: cfa = *(rsp+56)+8.
    let load_plus =
        CfiOmissionReason::Cfi(CfiError::CfaLoadPlus { register: 7, offset: 56, plus: 8 });
    let load_twice =
        CfiOmissionReason::Cfi(CfiError::CfaLoadPlus { register: 7, offset: 56, plus: 16 });
    for (instructions, reason) in [
        (
            &[DEF_CFA_EXPRESSION, 7, BREG | RSP, 56, DEREF, PLUS_CONST, 8, PLUS_CONST, 8][..],
            load_twice,
        ),
        (&[DEF_CFA_EXPRESSION, 5, BREG | RSP, 56, DEREF, PLUS_CONST, 8][..], load_plus),
        (
            &[DEF_CFA_EXPRESSION, 1, 0x9c],
            CfiOmissionReason::Cfi(CfiError::CfaExpression { at: 43 }),
        ),
        (
            &[DEF_CFA_EXPRESSION, 3, BREG | RSP, 8, 0x19],
            CfiOmissionReason::Cfi(CfiError::CfaExpression { at: 43 }),
        ),
        (&[DEF_CFA_EXPRESSION, 0], CfiOmissionReason::Cfi(CfiError::CfaExpression { at: 43 })),
        (&[DEF_CFA, 0x80, 4, 8], CfiOmissionReason::Cfi(CfiError::Register(512))),
        (&[UNDEFINED, RBP], CfiOmissionReason::Cfi(CfiError::FpUndefined)),
        (&[REGISTER, RBP, 0xfe, 1], CfiOmissionReason::Cfi(CfiError::Register(254))),
        (
            &[EXPRESSION, RIP, 3, BREG, 0, 0x19],
            CfiOmissionReason::Cfi(CfiError::RaExpression { at: 44 }),
        ),
        (
            &[EXPRESSION, RBP, 3, BREG, 0, DEREF],
            CfiOmissionReason::Cfi(CfiError::FpExpression { at: 44 }),
        ),
        (
            &[VAL_EXPRESSION, RBP, 2, LIT, LIT],
            CfiOmissionReason::Cfi(CfiError::FpExpression { at: 44 }),
        ),
        (&[VAL_OFFSET, RSP, 1], CfiOmissionReason::Cfi(CfiError::StackPointer)),
        (&[OFFSET | RSP, 2], CfiOmissionReason::Cfi(CfiError::StackPointer)),
        (&[SAME_VALUE, RIP], CfiOmissionReason::Cfi(CfiError::NoReturnAddress)),
        (
            &[VAL_OFFSET, RIP, 1],
            CfiOmissionReason::Table(OmissionReason::Ra(RegRule::ValOffset(-8))),
        ),
    ] {
        let mut all = vec![ADVANCE | 4, REMEMBER];
        all.extend(instructions);
        all.extend([ADVANCE | 4, RESTORE_STATE]);
        let one = One::amd64(0x20, &all);
        one.expect_lost(0x1004, 4, reason);
        for pc in [0x1000, 0x1003, 0x1008, 0x101f] {
            assert_eq!(one.row(pc), Some(sp(8)), "at {pc:#x}: {reason}");
        }
    }
}

#[test]
fn code_without_a_cfa_or_a_return_address_is_lost() {
    let bare = Cie { instructions: Vec::new(), ..Cie::amd64() };
    let one = One::new(AMD64, Format::V3, &bare, 8, &[OFFSET | RIP, 1]);
    one.expect_lost(0x1000, 8, CfiOmissionReason::Cfi(CfiError::NoCfa));
    let one = One::new(AMD64, Format::V3, &bare, 8, &[DEF_CFA, RSP, 8]);
    one.expect_lost(0x1000, 8, CfiOmissionReason::Cfi(CfiError::NoReturnAddress));
}
