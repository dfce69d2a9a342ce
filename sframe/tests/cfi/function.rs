//! Functions as compilers and linkers write them.

use core::num::NonZeroU8;

use sframe::{CfiError, CfiOmissionReason, CfiSection, Format, OmissionReason, PcType};
use testdata::{CfiBuilder, Cie};
use unwind_core::{BaseReg, CfaRule, RegRule, Row};

use crate::{
    ADDR, AMD64, One, SAVED,
    dwarf::{
        ADVANCE, BREG, DEF_CFA, DEF_CFA_EXPRESSION, DEF_CFA_OFFSET, DEF_CFA_REGISTER, DEREF,
        EXPRESSION, LIT, OFFSET, R10, RBP, REMEMBER, RESTORE, RESTORE_STATE, RIP, RSP, UNDEFINED,
        VAL_EXPRESSION, VAL_OFFSET,
    },
    reg, sp,
};

#[test]
fn a_function_with_a_frame_pointer_has_three_rows_and_an_epilogue() {
    let one = One::amd64(
        0x20,
        &[
            ADVANCE | 1,
            DEF_CFA_OFFSET,
            16,
            OFFSET | RBP,
            2, // push %rbp
            ADVANCE | 3,
            DEF_CFA_REGISTER,
            RBP, // mov %rsp,%rbp
            ADVANCE | 27,
            DEF_CFA,
            RSP,
            8, // leave
        ],
    );
    let saved_fp = RegRule::Offset(-16);
    one.expect(&[
        (0x1000, sp(8)),
        (0x1001, Row::new(CfaRule::sp(16), SAVED, saved_fp)),
        (0x1004, Row::new(CfaRule::fp(16), SAVED, saved_fp)),
        (0x101e, Row::new(CfaRule::fp(16), SAVED, saved_fp)),
        (0x101f, Row::new(CfaRule::sp(8), SAVED, saved_fp)),
    ]);
    assert_eq!(one.row(0x1020), None);
    assert_eq!((one.report.fdes, one.report.code_bytes), (1, 0x20));
}

#[test]
fn a_realigned_frame_finds_its_cfa_in_r10_and_in_memory() {
    // lea 8(%rsp),%r10; and $-32,%rsp; push -8(%r10); push %rbp; mov %rsp,%rbp; push %r10
    let one = One::amd64(
        0x40,
        &[
            ADVANCE | 5,
            DEF_CFA,
            R10,
            0,
            ADVANCE | 9,
            EXPRESSION,
            RBP,
            2,
            BREG | RBP,
            0,
            ADVANCE | 5,
            DEF_CFA_EXPRESSION,
            3,
            BREG | RBP,
            0x78, // -8
            DEREF,
            ADVANCE | 20,
            DEF_CFA,
            R10,
            0,
            ADVANCE | 5,
            DEF_CFA,
            RSP,
            8,
        ],
    );
    let fp = RegRule::AtRegister(BaseReg::Fp, 0);
    one.expect(&[
        (0x1000, sp(8)),
        (0x1005, Row::new(CfaRule::Register(reg(R10), 0), SAVED, RegRule::SameValue)),
        (0x100e, Row::new(CfaRule::Register(reg(R10), 0), SAVED, fp)),
        (0x1013, Row::new(CfaRule::AtRegister(BaseReg::Fp, -8), SAVED, fp)),
        (0x1027, Row::new(CfaRule::Register(reg(R10), 0), SAVED, fp)),
        (0x102c, Row::new(CfaRule::sp(8), SAVED, fp)),
    ]);
}

#[test]
fn a_realigned_frame_loses_only_its_middle_in_v2() {
    let instructions = [
        ADVANCE | 5,
        DEF_CFA,
        R10,
        0,
        ADVANCE | 9,
        DEF_CFA_EXPRESSION,
        3,
        BREG | RBP,
        0x78,
        DEREF,
        ADVANCE | 5,
        DEF_CFA,
        RSP,
        8,
    ];
    let one = One::new(AMD64, Format::V2, &Cie::amd64(), 0x20, &instructions);
    let lost: Vec<_> = one.lost.iter().map(|lost| (lost.start, lost.size, lost.reason)).collect();
    let table = CfiOmissionReason::Table;
    assert_eq!(
        lost,
        [
            (0x1005, 9, table(OmissionReason::CfaRegister(reg(R10)))),
            (0x100e, 5, table(OmissionReason::CfaLoaded)),
        ]
    );
    assert_eq!((one.row(0x1004), one.row(0x1013)), (Some(sp(8)), Some(sp(8))));
    assert_eq!((one.row(0x1005), one.row(0x1012)), (None, None));
}

/// `(pc & 15) >= 11 ? rsp+16 : rsp+8`, the expression of lazy PLTs.
const PLT: [u8; 14] = [
    DEF_CFA_EXPRESSION,
    11,
    BREG | RSP,
    8,
    0x80, // breg16
    0,
    LIT | 15,
    0x1a, // and
    LIT | 11,
    0x2a, // ge
    LIT | 3,
    0x24, // shl
    0x22, // plus
    0x96, // nop
];

fn plt_instructions() -> Vec<u8> {
    let mut instructions = vec![DEF_CFA_OFFSET, 16, ADVANCE | 6, DEF_CFA_OFFSET, 24, ADVANCE | 10];
    let mut plt = PLT.to_vec();
    plt[1] = 12;
    instructions.extend(plt);
    instructions
}

#[test]
fn a_lazy_plt_is_a_function_and_a_run_of_blocks() {
    for format in [Format::V2, Format::V3] {
        let one = One::new(AMD64, format, &Cie::amd64(), 0x48, &plt_instructions());
        one.expect(&[(0x1000, sp(16)), (0x1006, sp(24)), (0x100f, sp(24))]);
        for pc in 0x1010..0x1048 {
            let offset = if pc % 16 >= 11 { 16 } else { 8 };
            assert_eq!(one.row(pc), Some(sp(offset)), "at {pc:#x}");
        }
        assert_eq!(one.row(0x1048), None);
        let section = one.section();
        let kinds: Vec<_> = section.fdes().map(|fde| fde.unwrap().pc_type().unwrap()).collect();
        assert_eq!(kinds, [PcType::Increment, PcType::Mask(NonZeroU8::new(16).unwrap())]);
        assert_eq!(section.header().num_fres, 4);
    }
}

#[test]
fn the_step_of_a_plt_may_come_before_the_register() {
    let [pc @ .., plus] = [0x80, 0, LIT | 15, 0x1a, LIT | 11, 0x2a, LIT | 3, 0x24, 0x22];
    let mut plt = vec![DEF_CFA_EXPRESSION, 11];
    plt.extend(pc);
    plt.extend([BREG | RSP, 8, plus]);
    let one = One::new(AMD64, Format::V3, &Cie::amd64(), 0x40, &plt);
    for pc in 0x1000..0x1040 {
        assert_eq!(one.row(pc), Some(sp(if pc % 16 >= 11 { 16 } else { 8 })), "at {pc:#x}");
    }
}

#[test]
fn steps_that_no_blocks_have_are_lost() {
    let step = |register: &[u8], block: &[u8], at: u8| {
        let mut bytes = register.to_vec();
        bytes.extend([0x80, 0]);
        bytes.extend(block);
        bytes.extend([0x1a, LIT | at, 0x2a, LIT | 3, 0x24, 0x22]);
        bytes.splice(0..0, [DEF_CFA_EXPRESSION, u8::try_from(bytes.len()).unwrap()]);
        One::new(AMD64, Format::V3, &Cie::amd64(), 0x40, &bytes)
    };
    let [lost, block] = [
        CfiOmissionReason::Cfi(CfiError::CfaExpression { at: 41 }),
        CfiOmissionReason::Cfi(CfiError::Offset(0x7fff_ffff)),
    ];
    assert_eq!(step(&[BREG | RSP, 8], &[LIT | 15], 11).lost, []);
    // At the start of each block; in blocks of 256 bytes, or of 12.
    step(&[BREG | RSP, 8], &[LIT | 15], 0).expect_lost(0x1000, 0x40, lost);
    step(&[BREG | RSP, 8], &[0x08, 0xff], 11).expect_lost(0x1000, 0x40, lost);
    step(&[BREG | RSP, 8], &[LIT | 11], 8).expect_lost(0x1000, 0x40, lost);
    // After the step the offset is one too far.
    let far = [BREG | RSP, 0xff, 0xff, 0xff, 0xff, 0x07];
    step(&far, &[LIT | 15], 11).expect_lost(0x1000, 0x40, block);
}

#[test]
fn blocks_count_from_addresses_that_are_multiples_of_their_size() {
    for start in 0x1000..0x1011_u64 {
        for len in 1..40_u64 {
            let mut cfi = CfiBuilder::eh_frame(ADDR);
            let cie = cfi.cie(&Cie::amd64());
            let mut plt = PLT.to_vec();
            plt[1] = 12;
            cfi.fde(cie, start, len, &plt);
            let one = One::of(AMD64, Format::V3, CfiSection::eh_frame(cfi.build(), ADDR));
            assert_eq!(one.lost, []);
            for pc in start - 1..=start + len {
                let inside = (start..start + len).contains(&pc);
                let offset = if pc % 16 >= 11 { 16 } else { 8 };
                assert_eq!(one.row(pc), inside.then_some(sp(offset)), "{pc:#x} of {start:#x}");
            }
        }
    }
}

#[test]
fn a_signal_trampoline_reads_the_registers_that_the_kernel_saved() {
    let cie = Cie { augmentation: b"zRS", instructions: Vec::new(), ..Cie::amd64() };
    let at_rsp = |register, offset_low, offset_high| {
        [EXPRESSION, register, 3, BREG | RSP, offset_low, offset_high]
    };
    let mut instructions = vec![DEF_CFA_EXPRESSION, 4, BREG | RSP, 0xa0, 1, DEREF];
    instructions.extend(at_rsp(RBP, 0xf8, 0)); // 120
    instructions.extend(at_rsp(RSP, 0xa0, 1)); // 160, which is what the CFA is
    instructions.extend(at_rsp(RIP, 0xa8, 1)); // 168
    let one = One::new(AMD64, Format::V3, &cie, 10, &instructions);
    let at = |offset| RegRule::AtRegister(BaseReg::Sp, offset);
    let row = Row::new(CfaRule::AtRegister(BaseReg::Sp, 160), at(168), at(120)).with_signal();
    one.expect(&[(0x1000, row), (0x1009, row)]);
    assert!(one.section().find(0x1000).unwrap().unwrap().fde.is_signal());

    let v2 = One::new(AMD64, Format::V2, &cie, 10, &instructions);
    v2.expect_lost(0x1000, 10, CfiOmissionReason::Table(OmissionReason::SignalFrame));
}

#[test]
fn an_undefined_return_address_is_the_outermost_frame() {
    for format in [Format::V2, Format::V3] {
        // Whatever else holds there.
        let one = One::new(
            AMD64,
            format,
            &Cie::amd64(),
            8,
            &[UNDEFINED, RIP, UNDEFINED, RBP, ADVANCE | 2, DEF_CFA_OFFSET, 16],
        );
        one.expect(&[(0x1000, Row::outermost()), (0x1007, Row::outermost())]);
        assert_eq!(one.section().header().num_fres, 1);
    }
}

#[test]
fn rules_outlast_an_outermost_row() {
    let one = One::amd64(
        16,
        &[
            REMEMBER,
            UNDEFINED,
            RIP,
            ADVANCE | 4,
            DEF_CFA_OFFSET,
            32,
            ADVANCE | 4,
            RESTORE | RIP,
            ADVANCE | 4,
            RESTORE_STATE,
        ],
    );
    one.expect(&[
        (0x1000, Row::outermost()),
        (0x1004, Row::outermost()),
        (0x1008, sp(32)),
        (0x100c, sp(8)),
    ]);
}

#[test]
fn a_stack_pointer_that_is_the_cfa_is_no_loss() {
    One::amd64(8, &[VAL_OFFSET, RSP, 0]).expect(&[(0x1000, sp(8))]);
    One::amd64(8, &[VAL_EXPRESSION, RSP, 2, BREG | RSP, 8]).expect(&[(0x1000, sp(8))]);
}

#[test]
fn a_return_address_may_have_a_column_of_its_own() {
    let cie = Cie { ra: 5, instructions: vec![DEF_CFA, RSP, 8], ..Cie::amd64() };
    let one = One::new(AMD64, Format::V3, &cie, 8, &[ADVANCE | 4, OFFSET | 5, 1]);
    one.expect(&[
        (0x1000, Row::new(CfaRule::sp(8), RegRule::Register(reg(5), 0), RegRule::SameValue)),
        (0x1004, sp(8)),
    ]);
}
