//! Tables from call frame information: each construct, and each way to be
//! malformed.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::panic,
    clippy::std_instead_of_alloc,
    reason = "tests"
)]

use core::num::NonZeroU8;

use sframe::{
    Abi, Builder, CfiLost, CfiReason, CfiReport, CfiSection, Format, LostReason, PauthKey, PcKind,
    Section,
};
use testdata::{CfiBuilder, Cie};
use unwind_core::{Base, CfaRule, DwarfReg, RegRule, Row};

const AMD64: Abi = Abi::Amd64Little;
const SAVED: RegRule = RegRule::AtCfa(-8);
/// Where the sections and the tables are.
const ADDR: u64 = 0x10_0000;

// Instructions.
const ADVANCE: u8 = 0x40;
const OFFSET: u8 = 0x80;
const RESTORE: u8 = 0xc0;
const SET_LOC: u8 = 0x01;
const ADVANCE2: u8 = 0x03;
const RESTORE_EXTENDED: u8 = 0x06;
const UNDEFINED: u8 = 0x07;
const SAME_VALUE: u8 = 0x08;
const REGISTER: u8 = 0x09;
const REMEMBER: u8 = 0x0a;
const RESTORE_STATE: u8 = 0x0b;
const DEF_CFA: u8 = 0x0c;
const DEF_CFA_REGISTER: u8 = 0x0d;
const DEF_CFA_OFFSET: u8 = 0x0e;
const DEF_CFA_EXPRESSION: u8 = 0x0f;
const EXPRESSION: u8 = 0x10;
const OFFSET_SF: u8 = 0x11;
const VAL_OFFSET: u8 = 0x14;
const VAL_EXPRESSION: u8 = 0x16;
const NEGATE_RA_STATE: u8 = 0x2d;
const NEGATE_RA_STATE_WITH_PC: u8 = 0x2c;
// Registers of x86-64.
const RBP: u8 = 6;
const RSP: u8 = 7;
const R10: u8 = 10;
const RIP: u8 = 16;
// Operations.
const DEREF: u8 = 0x06;
const BREG: u8 = 0x70;
const PLUS_CONST: u8 = 0x23;
const LIT: u8 = 0x30;

const fn sp(offset: i32) -> Row {
    Row::new(CfaRule::sp(offset), SAVED, RegRule::Same)
}

const fn reg(number: u8) -> Base {
    Base::Reg(DwarfReg(number))
}

/// A table from one FDE, which starts at 0x1000.
struct One {
    bytes: Vec<u8>,
    lost: Vec<CfiLost>,
    report: CfiReport,
}

impl One {
    fn new(abi: Abi, format: Format, cie: &Cie, len: u64, instructions: &[u8]) -> Self {
        let mut cfi = CfiBuilder::eh_frame(ADDR);
        cfi.big = matches!(abi, Abi::S390xBig | Abi::Aarch64Big);
        let cie = cfi.cie(cie);
        cfi.fde(cie, 0x1000, len, instructions);
        Self::of(abi, format, CfiSection::eh_frame(cfi.build(), ADDR))
    }

    fn amd64(len: u64, instructions: &[u8]) -> Self {
        Self::new(AMD64, Format::V3, &Cie::amd64(), len, instructions)
    }

    fn of(abi: Abi, format: Format, section: CfiSection<'_>) -> Self {
        let mut builder = Builder::new(format, abi).unwrap();
        let mut lost = Vec::new();
        let report = builder.add_cfi(section, |range| lost.push(range)).unwrap();
        let bytes = builder.finish(ADDR, |lost| panic!("{lost}")).unwrap();
        Self { bytes, lost, report }
    }

    fn section(&self) -> Section<'_> {
        Section::parse(&self.bytes).unwrap().at(ADDR)
    }

    fn row(&self, pc: u64) -> Option<Row> {
        self.section().find(pc).unwrap().map(|found| found.row().unwrap())
    }

    /// The rows at each pc, with nothing lost.
    #[track_caller]
    fn expect(&self, rows: &[(u64, Row)]) {
        assert_eq!(self.lost, []);
        for &(pc, row) in rows {
            assert_eq!(self.row(pc), Some(row), "at {pc:#x}");
        }
    }

    /// The one range that is lost.
    #[track_caller]
    fn expect_lost(&self, start: u64, size: u64, reason: CfiReason) {
        let [lost] = self.lost[..] else { panic!("{:?}", self.lost) };
        assert_eq!((lost.start, lost.size, lost.reason), (start, size, reason));
        assert_eq!(self.report.lost_bytes, size);
        for pc in start..start + size {
            assert_eq!(self.row(pc), None, "at {pc:#x}");
        }
    }
}

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
    let saved_fp = RegRule::AtCfa(-16);
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
    let fp = RegRule::AtReg(Base::Fp, 0);
    one.expect(&[
        (0x1000, sp(8)),
        (0x1005, Row::new(CfaRule::Offset(reg(R10), 0), SAVED, RegRule::Same)),
        (0x100e, Row::new(CfaRule::Offset(reg(R10), 0), SAVED, fp)),
        (0x1013, Row::new(CfaRule::Deref(Base::Fp, -8), SAVED, fp)),
        (0x1027, Row::new(CfaRule::Offset(reg(R10), 0), SAVED, fp)),
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
    let table = CfiReason::Table;
    assert_eq!(
        lost,
        [
            (0x1005, 9, table(LostReason::CfaRegister(reg(R10)))),
            (0x100e, 5, table(LostReason::CfaLoaded)),
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
        let kinds: Vec<_> = section.fdes().map(|fde| fde.unwrap().pc_kind().unwrap()).collect();
        assert_eq!(kinds, [PcKind::Increment, PcKind::Mask(NonZeroU8::new(16).unwrap())]);
        assert_eq!(section.header().num_fres, 4);
    }
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
    let at = |offset| RegRule::AtReg(Base::Sp, offset);
    let row = Row::new(CfaRule::Deref(Base::Sp, 160), at(168), at(120)).with_signal();
    one.expect(&[(0x1000, row), (0x1009, row)]);
    assert!(one.section().find(0x1000).unwrap().unwrap().fde.is_signal());

    let v2 = One::new(AMD64, Format::V2, &cie, 10, &instructions);
    v2.expect_lost(0x1000, 10, CfiReason::Table(LostReason::SignalFrame));
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
    let inner = Row::new(CfaRule::sp(16), SAVED, RegRule::AtCfa(-16));
    one.expect(&[
        (0x1000, inner),
        (0x1004, Row::new(CfaRule::fp(32), SAVED, RegRule::Same)),
        (0x1008, inner),
        (0x100c, sp(8)),
    ]);
}

#[test]
fn what_holds_before_a_state_that_was_not_remembered_is_kept() {
    let one = One::amd64(0x20, &[ADVANCE | 4, DEF_CFA_OFFSET, 16, ADVANCE | 4, RESTORE_STATE]);
    one.expect_lost(0x1008, 0x18, CfiReason::NothingRemembered);
    assert_eq!((one.row(0x1003), one.row(0x1007)), (Some(sp(8)), Some(sp(16))));
    let deep = One::amd64(0x20, &[REMEMBER; 300]);
    deep.expect_lost(0x1000, 0x20, CfiReason::TooManyRemembered);
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
        (0x1004, Row::new(CfaRule::Offset(reg(11), 536_632), SAVED, RegRule::Same)),
        (0x100c, Row::new(CfaRule::sp(540_080), SAVED, RegRule::AtCfa(-8 * 0x10_0000))),
    ]);
}

#[test]
fn offsets_beyond_32_bits_are_lost() {
    let huge = [0x80, 0x80, 0x80, 0x80, 0x10];
    let mut cfa = vec![ADVANCE | 4, DEF_CFA_OFFSET];
    cfa.extend(huge);
    cfa.extend([ADVANCE | 4, DEF_CFA_OFFSET, 8]);
    let one = One::amd64(0x20, &cfa);
    one.expect_lost(0x1004, 4, CfiReason::Offset(1 << 32));
    assert_eq!(one.row(0x1008), Some(sp(8)));

    let mut fp = vec![OFFSET | RBP];
    fp.extend(huge);
    One::amd64(0x20, &fp).expect_lost(0x1000, 0x20, CfiReason::Offset(-8 << 32));
}

#[test]
fn saved_registers_are_found_in_every_way_that_there_is() {
    let rdi = reg(5);
    let r12 = reg(12);
    for (instructions, ra, fp) in [
        // vfork keeps the return address in rdi, zlib rbp in a slot below others.
        (&[REGISTER, RIP, 5][..], RegRule::Reg(rdi, 0), RegRule::Same),
        (&[REGISTER, RBP, 12], SAVED, RegRule::Reg(r12, 0)),
        (&[OFFSET_SF, RIP, 2], RegRule::AtCfa(-16), RegRule::Same),
        (&[OFFSET | RBP, 6], SAVED, RegRule::AtCfa(-48)),
        (&[VAL_OFFSET, RBP, 2], SAVED, RegRule::Cfa(-16)),
        (&[SAME_VALUE, RBP], SAVED, RegRule::Same),
        (&[EXPRESSION, RIP, 2, BREG, 8], RegRule::AtReg(reg(0), 8), RegRule::Same),
        (&[VAL_EXPRESSION, RIP, 2, BREG, 8], RegRule::Reg(reg(0), 8), RegRule::Same),
        (&[VAL_EXPRESSION, RBP, 3, BREG | RSP, 8, DEREF], SAVED, RegRule::AtReg(Base::Sp, 8)),
        // The CFA is on the stack when an expression of a register starts.
        (&[EXPRESSION, RBP, 2, PLUS_CONST, 24], SAVED, RegRule::AtCfa(24)),
        (&[EXPRESSION, RBP, 2, LIT + 24, 0x1c], SAVED, RegRule::AtCfa(-24)),
        (&[VAL_EXPRESSION, RBP, 2, LIT + 24, 0x22], SAVED, RegRule::Cfa(24)),
        (&[VAL_EXPRESSION, RBP, 1, DEREF], SAVED, RegRule::AtCfa(0)),
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
        (&[0x92, 10, 8], CfaRule::Offset(reg(R10), 8)), // bregx
        (&[BREG | RBP, 0x70, DEREF], CfaRule::Deref(Base::Fp, -16)),
        (&[BREG | RSP, 8, PLUS_CONST, 8, DEREF, LIT, 0x22], CfaRule::Deref(Base::Sp, 16)),
    ] {
        let mut instructions = vec![DEF_CFA_EXPRESSION, u8::try_from(expression.len()).unwrap()];
        instructions.extend(expression);
        let one = One::amd64(8, &instructions);
        one.expect(&[(0x1000, Row::new(cfa, SAVED, RegRule::Same))]);
    }
}

#[test]
fn only_the_range_of_what_cannot_be_said_is_lost() {
    // OpenSSL: cfa = *(rsp+56)+8.
    let load_plus = CfiReason::CfaLoadPlus { register: 7, offset: 56, plus: 8 };
    for (instructions, reason) in [
        (&[DEF_CFA_EXPRESSION, 5, BREG | RSP, 56, DEREF, PLUS_CONST, 8][..], load_plus),
        (&[DEF_CFA_EXPRESSION, 1, 0x9c], CfiReason::CfaExpression { at: 43 }),
        (&[DEF_CFA_EXPRESSION, 3, BREG | RSP, 8, 0x19], CfiReason::CfaExpression { at: 43 }),
        (&[DEF_CFA_EXPRESSION, 0], CfiReason::CfaExpression { at: 43 }),
        (&[DEF_CFA, 0x80, 4, 8], CfiReason::Register(512)),
        (&[UNDEFINED, RBP], CfiReason::FpUndefined),
        (&[REGISTER, RBP, 0xfe, 1], CfiReason::Register(254)),
        (&[EXPRESSION, RIP, 3, BREG, 0, 0x19], CfiReason::RaExpression { at: 44 }),
        (&[EXPRESSION, RBP, 3, BREG, 0, DEREF], CfiReason::FpExpression { at: 44 }),
        (&[VAL_EXPRESSION, RBP, 2, LIT, LIT], CfiReason::FpExpression { at: 44 }),
        (&[VAL_OFFSET, RSP, 1], CfiReason::StackPointer),
        (&[OFFSET | RSP, 2], CfiReason::StackPointer),
        (&[SAME_VALUE, RIP], CfiReason::NoReturnAddress),
        (&[VAL_OFFSET, RIP, 1], CfiReason::Table(LostReason::Ra(RegRule::Cfa(-8)))),
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
fn a_stack_pointer_that_is_the_cfa_is_no_loss() {
    One::amd64(8, &[VAL_OFFSET, RSP, 0]).expect(&[(0x1000, sp(8))]);
    One::amd64(8, &[VAL_EXPRESSION, RSP, 2, BREG | RSP, 8]).expect(&[(0x1000, sp(8))]);
}

#[test]
fn a_return_address_may_have_a_column_of_its_own() {
    let cie = Cie { ra: 5, instructions: vec![DEF_CFA, RSP, 8], ..Cie::amd64() };
    let one = One::new(AMD64, Format::V3, &cie, 8, &[ADVANCE | 4, OFFSET | 5, 1]);
    one.expect(&[
        (0x1000, Row::new(CfaRule::sp(8), RegRule::Reg(reg(5), 0), RegRule::Same)),
        (0x1004, sp(8)),
    ]);
}

#[test]
fn code_without_a_cfa_or_a_return_address_is_lost() {
    let bare = Cie { instructions: Vec::new(), ..Cie::amd64() };
    let one = One::new(AMD64, Format::V3, &bare, 8, &[OFFSET | RIP, 1]);
    one.expect_lost(0x1000, 8, CfiReason::NoCfa);
    let one = One::new(AMD64, Format::V3, &bare, 8, &[DEF_CFA, RSP, 8]);
    one.expect_lost(0x1000, 8, CfiReason::NoReturnAddress);
}

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
        let (ra, fp) = (RegRule::AtCfa(-24), RegRule::AtCfa(-32));
        let leaf = Row::new(CfaRule::sp(0), RegRule::Same, RegRule::Same);
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
    let leaf = Row::new(CfaRule::sp(0), RegRule::Same, RegRule::Same);
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
    one.expect_lost(0x1004, 4, CfiReason::RaSignedWithPc);
    assert_eq!(one.row(0x1008), Some(leaf));
}

#[test]
fn aarch64_may_save_the_frame_pointer_alone() {
    let instructions = [DEF_CFA_OFFSET, 16, OFFSET | 29, 2];
    let row = Row::new(CfaRule::sp(16), RegRule::Same, RegRule::AtCfa(-16));
    let one = One::new(Abi::Aarch64Little, Format::V3, &Cie::aarch64(), 8, &instructions);
    one.expect(&[(0x1000, row)]);
    let one = One::new(Abi::Aarch64Little, Format::V2, &Cie::aarch64(), 8, &instructions);
    one.expect_lost(0x1000, 8, CfiReason::Table(LostReason::FpWithoutRa));
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
        let (ra, fp) = (RegRule::AtCfa(-48), RegRule::AtCfa(-72));
        let in_registers = [RegRule::Reg(reg(17), 0), RegRule::Reg(reg(16), 0)];
        one.expect(&[
            (0x1000, Row::new(CfaRule::sp(160), RegRule::Same, RegRule::Same)),
            (0x1006, Row::new(CfaRule::sp(160), ra, fp)),
            (0x100c, Row::new(CfaRule::sp(480), ra, fp)),
            (0x1012, Row::new(CfaRule::fp(480), ra, fp)),
            (0x1018, Row::new(CfaRule::fp(480), in_registers[0], in_registers[1])),
        ]);
    }
}

#[test]
fn debug_frame_is_read_in_both_widths_and_all_versions() {
    for (version, dwarf64, big) in
        [(1, false, false), (3, true, false), (4, false, true), (4, true, true)]
    {
        let mut cfi = CfiBuilder::debug_frame();
        (cfi.dwarf64, cfi.big) = (dwarf64, big);
        let abi = if big { Abi::Aarch64Big } else { Abi::Aarch64Little };
        let cie = Cie { version, augmentation: b"", ..Cie::aarch64() };
        // An assembler's mistake before, between and behind.
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
        let leaf = |offset| Row::new(CfaRule::sp(offset), RegRule::Same, RegRule::Same);
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
    one.expect_lost(0x1004, 4, CfiReason::LocationBack);
    assert_eq!(one.row(0x1003), Some(sp(8)));
}

#[test]
fn a_last_location_at_the_end_or_behind_it_is_ignored() {
    for advance in [8, 9, 63] {
        let one = One::amd64(8, &[ADVANCE | advance, DEF_CFA_OFFSET, 16, 0xff]);
        one.expect(&[(0x1007, sp(8))]);
        assert_eq!(one.section().header().num_fres, 1);
    }
}

#[test]
fn an_instruction_that_is_unknown_or_out_of_place_ends_its_entry_only() {
    for (instructions, reason) in [
        (&[0x3f][..], CfiReason::Instruction(0x3f)),
        // AArch64 only.
        (&[NEGATE_RA_STATE], CfiReason::Instruction(NEGATE_RA_STATE)),
        (&[DEF_CFA_EXPRESSION, 1, LIT, DEF_CFA_OFFSET, 8], CfiReason::Context(DEF_CFA_OFFSET)),
        (&[DEF_CFA_EXPRESSION, 1, LIT, DEF_CFA_REGISTER, 6], CfiReason::Context(DEF_CFA_REGISTER)),
        (&[DEF_CFA_OFFSET, 0x80], CfiReason::TruncatedEntry { at: 44 }),
        (&[DEF_CFA_EXPRESSION, 9, LIT], CfiReason::TruncatedEntry { at: 44 }),
        (&[ADVANCE2, 1], CfiReason::TruncatedEntry { at: 43 }),
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
        (Cie { version: 2, ..Cie::amd64() }, CfiReason::CieVersion(2)),
        (Cie { augmentation: b"zX", ..Cie::amd64() }, CfiReason::Augmentation(b'X')),
        (Cie { augmentation: b"R", ..Cie::amd64() }, CfiReason::Augmentation(b'R')),
        (Cie { augmentation: b"eh", ..Cie::amd64() }, CfiReason::Augmentation(b'e')),
        (Cie { instructions: vec![0x3f], ..Cie::amd64() }, CfiReason::Instruction(0x3f)),
        (Cie { instructions: vec![RESTORE | 3], ..Cie::amd64() }, CfiReason::Context(RESTORE | 3)),
        (Cie { data: vec![0x0d], ..Cie::amd64() }, CfiReason::Pointer(0x0d)),
        // Relative to data that was not named; indirect.
        (Cie { data: vec![0x3b], ..Cie::amd64() }, CfiReason::Pointer(0x3b)),
        (Cie { data: vec![0x9b], ..Cie::amd64() }, CfiReason::Pointer(0x9b)),
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
        assert_eq!(lost, [(entry, reason), (wrong, CfiReason::NotCie { at: entry })]);
        assert_eq!((one.report.fdes, one.report.unusable), (4, 2));
        assert_eq!((one.row(0x2000), one.row(0x4000)), (Some(sp(8)), Some(sp(8))));
    }
}

#[test]
fn nothing_is_read_behind_an_entry_that_does_not_end_or_a_terminator() {
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
        assert_eq!(lost, [(before, CfiReason::Truncated)]);
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
            (0x1000, 0, CfiReason::Empty),
            (0x1_0000, 1 << 32, CfiReason::TooLong),
            (0, 0, CfiReason::NotCode),
        ]
    );
    assert_eq!((one.report.fdes, one.report.unusable, one.report.code_bytes), (4, 3, 8));
    assert_eq!((one.row(0x1000), one.row(0)), (Some(sp(8)), None));
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
    let overlap = LostReason::Overlap { other: 0x1000 };
    assert_eq!(lost, [(0x1000, 0x10, overlap), (0x1008, 0x20, overlap)]);
    let bytes = bytes.unwrap();
    let section = Section::parse(&bytes).unwrap().at(ADDR);
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
    assert_eq!(one.lost[0].reason, CfiReason::Pointer(0x50));
}

#[test]
fn losses_are_told_with_their_construct() {
    let openssl = [DEF_CFA_EXPRESSION, 5, BREG | RSP, 56, DEREF, PLUS_CONST, 8];
    let one = One::amd64(8, &openssl);
    assert_eq!(one.lost[0].to_string(), "8 bytes at 0x1000 (entry at 0x16): cfa = *(r7+56)+8");
}
