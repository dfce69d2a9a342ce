//! The sampled frame at a function's entry and exit.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use core::convert::Infallible;
use unwind_core::{
    Arch, BaseReg, CfaRule, Coverage, DwarfReg, FrameContext, FramePc, Memory, Origin, ReadError,
    RegRule, Row, RowSource, SliceMemory, Trace, VirtAddr, Walker,
};
use unwind_x86::{FramePointers, Ia32, Ia32Regs, InstructionAnalysis, X86_64, X86_64Regs};

/// Code at an address, with `hlt` in the rest of its pages; other pages are
/// not there.
struct Code<'a> {
    start: u64,
    bytes: &'a [u8],
}

impl Code<'_> {
    fn byte(&self, addr: u64) -> Option<u8> {
        const HLT: u8 = 0xf4;
        let len = u64::try_from(self.bytes.len()).unwrap();
        let last = self.start + len.saturating_sub(1);
        let pages = self.start / 4096..=last / 4096;
        let at = addr.checked_sub(self.start).and_then(|at| usize::try_from(at).ok());
        let byte = at.and_then(|at| self.bytes.get(at)).copied().unwrap_or(HLT);
        (len != 0 && pages.contains(&(addr / 4096))).then_some(byte)
    }
}

impl Memory for Code<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        for (byte, at) in buf.iter_mut().zip(0..) {
            let at = addr.checked_add(at).ok_or(ReadError::Invalid)?;
            *byte = self.byte(at.get()).ok_or(ReadError::Invalid)?;
        }
        Ok(())
    }
}

fn ask<A: Arch>(regs: &A::Regs, pc: FramePc, code: &mut Code<'_>) -> Option<Row>
where
    InstructionAnalysis: RowSource<A, Error = Infallible>,
{
    let frame = FrameContext::new(pc, 0, None, Some(regs));
    let row = InstructionAnalysis.row(&frame, code).unwrap();
    assert!(row.is_none_or(|row| row.origin() == Origin::Instructions));
    row
}

/// The row at each instruction of a function in 64-bit code.
fn row_64(start: u64, bytes: &[u8], at: usize) -> Option<Row> {
    let pc = FramePc::Exact(VirtAddr::new(start + u64::try_from(at).unwrap()));
    ask::<X86_64>(&X86_64Regs::new(0, 0, 0), pc, &mut Code { start, bytes })
}

fn row_32(start: u64, bytes: &[u8], at: usize) -> Option<Row> {
    let pc = FramePc::Exact(VirtAddr::new(start + u64::try_from(at).unwrap()));
    ask::<Ia32>(&Ia32Regs::new(0, 0, 0), pc, &mut Code { start, bytes })
}

const fn sp_64(cfa: i32, fp: RegRule) -> Option<Row> {
    Some(Row::new(CfaRule::sp(cfa), RegRule::Offset(-8), fp).with_origin(Origin::Instructions))
}

const fn sp_32(cfa: i32, fp: RegRule) -> Option<Row> {
    Some(Row::new(CfaRule::sp(cfa), RegRule::Offset(-4), fp).with_origin(Origin::Instructions))
}

const fn fp_64(cfa: i32, fp: RegRule) -> Option<Row> {
    Some(Row::new(CfaRule::fp(cfa), RegRule::Offset(-8), fp).with_origin(Origin::Instructions))
}

/// The same row of code that may stand elsewhere too.
fn guess(row: Option<Row>) -> Option<Row> {
    row.map(Row::with_guess)
}

const SAME: RegRule = RegRule::SameValue;

#[test]
fn f12_each_instruction_of_a_64_bit_frame_has_its_row_or_leaves_it_to_the_frame_pointer() {
    const CODE: &[u8] = &[
        0xf3, 0x0f, 0x1e, 0xfa, // 0 endbr64
        0x55, // 4 push rbp
        0x48, 0x89, 0xe5, // 5 mov rbp, rsp
        0x53, // 8 push rbx
        0x48, 0x83, 0xec, 0x18, // 9 sub rsp, 24
        0xe8, 0x00, 0x00, 0x00, 0x00, // 13 call
        0x48, 0x8b, 0x5d, 0xf8, // 18 mov rbx, [rbp-8]
        0xc9, // 22 leave
        0xc3, // 23 ret
    ];
    for (at, row) in [
        (0, guess(sp_64(8, SAME))),
        (4, sp_64(8, SAME)),
        (5, sp_64(16, RegRule::Offset(-16))),
        (8, None),
        (9, None),
        (13, None),
        (18, None),
        (22, fp_64(16, RegRule::Offset(-16))),
        (23, sp_64(8, SAME)),
    ] {
        // Wherever the function lies: its start needs no alignment.
        for start in [0x40_1000, 0x40_1003] {
            assert_eq!(row_64(start, CODE, at), row, "at {start:#x}+{at}");
        }
    }
}

#[test]
fn the_other_exits_of_a_64_bit_frame_are_followed_to_the_return() {
    const POPS: &[u8] = &[
        0x48, 0x8d, 0x65, 0xe8, // 0 lea rsp, [rbp-24]
        0x5b, // 4 pop rbx
        0x41, 0x5c, // 5 pop r12
        0x41, 0x5d, // 7 pop r13
        0x5d, // 9 pop rbp
        0xc3, // 10 ret
    ];
    for (at, row) in [
        (0, fp_64(16, RegRule::Offset(-16))),
        (4, sp_64(40, RegRule::Offset(-16))),
        (5, sp_64(32, RegRule::Offset(-16))),
        (7, sp_64(24, RegRule::Offset(-16))),
        (9, sp_64(16, RegRule::Offset(-16))),
        (10, sp_64(8, SAME)),
    ] {
        assert_eq!(row_64(0x40_1000, POPS, at), row, "at +{at}");
    }
    let add = [0x48, 0x81, 0xc4, 0x00, 0x01, 0x00, 0x00, 0x5d, 0xf3, 0xc3];
    assert_eq!(row_64(0x40_1001, &add, 0), sp_64(0x110, RegRule::Offset(-16)));
    let mov = [0x48, 0x89, 0xec, 0x5d, 0xc2, 0x10, 0x00];
    assert_eq!(row_64(0x40_1001, &mov, 0), fp_64(16, RegRule::Offset(-16)));
    let add = [0x48, 0x83, 0xc4, 0x18, 0x5d, 0xc3];
    assert_eq!(row_64(0x40_1001, &add, 0), sp_64(0x28, RegRule::Offset(-16)));
    let far = [0x48, 0x8d, 0xa5, 0x00, 0xff, 0xff, 0xff, 0x48, 0x81, 0xc4, 0, 1, 0, 0, 0x5d, 0xc3];
    assert_eq!(row_64(0x40_1001, &far, 0), fp_64(16, RegRule::Offset(-16)));
    // pop rsp.
    assert_eq!(row_64(0x40_1001, &[0x5c, 0x5d, 0xc3], 0), None);
    let vector = [0xc5, 0xf8, 0x77, 0x5d, 0xc3];
    assert_eq!(row_64(0x40_1001, &vector, 0), sp_64(16, RegRule::Offset(-16)));
}

#[test]
fn a_tail_call_ends_a_function_only_once_its_frame_is_gone() {
    const CODE: &[u8] = &[
        0x5d, // 0 pop rbp
        0xe9, 0x00, 0x00, 0x00, 0x00, // 1 jmp
        0x90, // 6 nop
        0xeb, 0xf0, // 7 jmp, the end of a loop
        0xff, 0x24, 0xc5, 0, 0, 0, 0, // 9 jmp [rax*8], a switch
    ];
    assert_eq!(row_64(0x40_1001, CODE, 0), guess(sp_64(16, RegRule::Offset(-16))));
    assert_eq!(row_64(0x40_1001, CODE, 1), guess(sp_64(8, SAME)));
    assert_eq!(row_64(0x40_1001, CODE, 7), None);
    assert_eq!(row_64(0x40_1001, CODE, 9), None);
    // xorpd xmm1, xmm1 has the byte of a leave.
    let xorpd = [0x66, 0x0f, 0x57, 0xc9, 0xe9, 0, 0, 0, 0];
    assert_eq!(row_64(0x40_1001, &xorpd, 4), None);
    let leave = [0xc9, 0xe9, 0, 0, 0, 0];
    assert_eq!(row_64(0x40_1001, &leave, 1), guess(sp_64(8, SAME)));
}

#[test]
fn u7_an_entry_that_is_only_for_the_first_call_has_its_rows() {
    let lld = [
        0xf3, 0x0f, 0x1e, 0xfa, // 0 endbr64
        0x68, 0x01, 0x00, 0x00, 0x00, // 4 push 1
        0xe9, 0xd2, 0xff, 0xff, 0xff, // 9 jmp 0x20 before
        0x66, 0x90, // 14 xchg ax, ax
    ];
    let gnu = [
        0xf3, 0x0f, 0x1e, 0xfa, // 0 endbr64
        0x68, 0x01, 0x00, 0x00, 0x00, // 4 push 1
        0xf2, 0xe9, 0xd1, 0xff, 0xff, 0xff, // 9 bnd jmp 0x20 before
        0x90, // 15 nop
    ];
    for (entry, distance) in [(lld, 10), (gnu, 11)] {
        for (at, cfa) in [(0, 8), (4, 8), (9, 16)] {
            assert_eq!(row_64(0x40_1040, &entry, at), sp_64(cfa, SAME), "at +{at}");
            // Not aligned as entries are.
            let elsewhere = row_64(0x40_1041, &entry, at);
            assert!(elsewhere.is_none_or(|row| row.is_guess()), "at +{at}: {elsewhere:?}");
            // A jump that leads to no table's start, or forward, or anything else in its place.
            for (wrong, value) in [(at, 0), (distance, 0xd3), (distance + 3, 0), (15, 0x91)] {
                let mut other = entry;
                other[wrong] = value;
                let found = row_64(0x40_1040, &other, at);
                assert!(
                    found.is_none_or(|row| row.is_guess()),
                    "+{wrong} is {value:#x}, at +{at}: {found:?}"
                );
            }
        }
    }
}

#[test]
fn u7_the_start_of_molds_32_bit_tables_has_its_rows() {
    let table: [&[u8]; 2] = [&[0x8d, 0x8b, 0x20, 0x10, 0, 0], &[0xb9, 0x20, 0x10, 0, 0]];
    for table in table {
        // endbr32; push ecx; lea or mov; push [ecx]; jmp [ecx + 4]
        let code =
            [&[0xf3, 0x0f, 0x1e, 0xfb, 0x51][..], table, &[0xff, 0x31, 0xff, 0x61, 4]].concat();
        let push = 5 + table.len();
        for (at, cfa) in [(0, 4), (4, 4), (5, 8), (push, 8), (push + 2, 12)] {
            assert_eq!(row_32(0x804_1000, &code, at), sp_32(cfa, SAME), "{code:x?} at +{at}");
        }
        let mut other = code.clone();
        *other.last_mut().unwrap() = 8;
        for at in [4, 5, push, push + 2] {
            assert_eq!(row_32(0x804_1000, &other, at), None, "at +{at}");
        }
    }
    // endbr32; mov ecx, 8; jmp [ebx + slot]; int3
    let entry = [0xf3, 0x0f, 0x1e, 0xfb, 0xb9, 8, 0, 0, 0, 0xff, 0xa3, 0x2c, 0x10, 0, 0, 0xcc];
    for at in [0, 4, 9] {
        assert_eq!(row_32(0x804_1010, &entry, at), sp_32(4, SAME), "at +{at}");
    }
}

#[test]
fn an_entry_of_a_lazy_linkage_table_has_its_rows() {
    for slot in [0x25, 0xa3] {
        let entry = [
            0xff, slot, 0xda, 0x2f, 0x01, 0x00, // 0 jmp [slot]
            0x68, 0x07, 0x00, 0x00, 0x00, // 6 push 7
            0xe9, 0x70, 0xff, 0xff, 0xff, // 11 jmp to the table's start
        ];
        for (at, cfa) in [(0, 8), (6, 8), (11, 16)] {
            assert_eq!(row_64(0x40_1010, &entry, at), sp_64(cfa, SAME), "at +{at}");
            assert_eq!(row_32(0x40_1010, &entry, at), sp_32(cfa / 2, SAME), "at +{at}");
        }
        // Inside an instruction, or with anything else in its place.
        for at in [1, 2, 5, 7, 12] {
            assert_eq!(row_64(0x40_1010, &entry, at), None, "at +{at}");
        }
        for (wrong, at) in [(0, 6), (0, 11), (1, 0), (6, 0), (6, 11), (11, 0), (11, 6)] {
            let mut other = entry;
            other[wrong] = 0x90;
            assert_eq!(row_64(0x40_1010, &other, at), None, "+{wrong} is another, at +{at}");
        }
    }
}

#[test]
fn an_address_that_is_made_of_r12_or_for_it_is_not_the_stack_pointers() {
    for (lea_of_rsp, lea_of_r12, fp) in [
        (&[0x48, 0x8d, 0x65, 0xf0, 0x5d, 0xc3][..], &[0x4c, 0x8d, 0x65, 0xf0, 0x5d, 0xc3][..], -16),
        (
            &[0x48, 0x8d, 0x65, 0xf0, 0x5b, 0x5d, 0xc3],
            &[0x4d, 0x8d, 0x65, 0xf0, 0x5b, 0x5d, 0xc3],
            -16,
        ),
    ] {
        let of_rsp = row_64(0x40_1010, lea_of_rsp, 0).unwrap();
        assert!(matches!(of_rsp.cfa(), CfaRule::Register(BaseReg::Fp, at) if at > fp), "{of_rsp}");
        assert_eq!(row_64(0x40_1010, lea_of_r12, 0), None);
    }
    // lea r10, [rsp + 8]; and rsp, -32 is the begin of a frame; with r12 for rsp it is none.
    let realigns = [0x4c, 0x8d, 0x54, 0x24, 0x08, 0x48, 0x83, 0xe4, 0xe0];
    assert!(row_64(0x40_1010, &realigns, 0).is_some());
    for rex in [0x4d, 0x4e] {
        let mut other = realigns;
        other[0] = rex;
        assert_eq!(row_64(0x40_1010, &other, 0), None, "{rex:#x}");
    }
}

#[test]
fn a_function_that_tells_32_bit_code_its_address_has_its_rows() {
    for reg in [0x04, 0x0c, 0x14, 0x1c, 0x34, 0x3c] {
        let code = [0x8b, reg, 0x24, 0xc3]; // mov reg, [esp]; ret
        for at in [0, 3] {
            assert_eq!(row_32(0x40_1010, &code, at), sp_32(4, SAME), "{reg:#x} at +{at}");
        }
        assert_eq!(row_64(0x40_1010, &code, 0), None, "the half of a word");
        assert_eq!(row_32(0x40_1010, &[0x8b, reg, 0x24, 0x90], 0), None, "no end");
    }
    // Into the stack pointer, and into the frame pointer.
    for reg in [0x24, 0x2c] {
        assert_eq!(row_32(0x40_1010, &[0x8b, reg, 0x24, 0xc3], 0), None, "{reg:#x}");
    }
}

#[test]
fn each_instruction_of_a_32_bit_frame_has_its_row_or_leaves_it_to_the_frame_pointer() {
    const CODE: &[u8] = &[
        0xf3, 0x0f, 0x1e, 0xfb, // 0 endbr32
        0x55, // 4 push ebp
        0x89, 0xe5, // 5 mov ebp, esp
        0x53, // 7 push ebx
        0x83, 0xec, 0x14, // 8 sub esp, 20
        0x8d, 0x65, 0xfc, // 11 lea esp, [ebp-4]
        0x5b, // 14 pop ebx
        0x5d, // 15 pop ebp
        0xc3, // 16 ret
    ];
    let saved = RegRule::Offset(-8);
    let by_fp = Row::new(CfaRule::fp(8), RegRule::Offset(-4), saved);
    for (at, row) in [
        (0, guess(sp_32(4, SAME))),
        (4, sp_32(4, SAME)),
        (5, sp_32(8, saved)),
        (7, None),
        (8, None),
        (11, Some(by_fp.with_origin(Origin::Instructions))),
        (14, sp_32(12, saved)),
        (15, sp_32(8, saved)),
        (16, sp_32(4, SAME)),
    ] {
        assert_eq!(row_32(0x804_9003, CODE, at), row, "at +{at}");
    }
    // The other encoding of the move.
    let code = [0x55, 0x8b, 0xec, 0x5d, 0xc3];
    assert_eq!(row_32(0x804_9003, &code, 0), guess(sp_32(4, SAME)), "no start is in sight");
    assert_eq!(row_32(0x804_9003, &code, 1), guess(sp_32(8, saved)));
    assert_eq!([0, 1].map(|at| row_32(0x804_9000, &code, at)), [sp_32(4, SAME), sp_32(8, saved)]);
}

#[test]
fn each_instruction_of_a_64_bit_function_that_realigns_its_stack_has_its_row() {
    const CODE: &[u8] = &[
        0x4c, 0x8d, 0x54, 0x24, 0x08, // 0 lea r10, [rsp+8]
        0x48, 0x83, 0xe4, 0xc0, // 5 and rsp, -64
        0x41, 0xff, 0x72, 0xf8, // 9 push [r10-8]
        0x55, // 13 push rbp
        0x48, 0x89, 0xe5, // 14 mov rbp, rsp
        0x41, 0x52, // 17 push r10
        0x48, 0x81, 0xec, 0x88, 0x00, 0x00, 0x00, // 19 sub rsp, 136
        0x4c, 0x8b, 0x55, 0xf8, // 26 mov r10, [rbp-8]
        0xc9, // 30 leave
        0x49, 0x8d, 0x62, 0xf8, // 31 lea rsp, [r10-8]
        0xc3, // 35 ret
    ];
    let r10 = |fp| {
        let cfa = CfaRule::Register(BaseReg::Reg(DwarfReg(10)), 0);
        Some(Row::new(cfa, RegRule::Offset(-8), fp).with_origin(Origin::Instructions))
    };
    for (at, row) in [
        (0, sp_64(8, SAME)),
        (5, sp_64(8, SAME)),
        (9, r10(SAME)),
        (13, r10(SAME)),
        (14, r10(RegRule::AtRegister(BaseReg::Sp, 0))),
        (17, None),
        (19, None),
        (26, None),
        (30, r10(RegRule::AtRegister(BaseReg::Fp, 0))),
        (31, r10(SAME)),
        (35, sp_64(8, SAME)),
    ] {
        assert_eq!(row_64(0x40_1003, CODE, at), row, "at +{at}");
    }
}

#[test]
fn each_instruction_of_a_32_bit_function_that_realigns_its_stack_has_its_row() {
    const CODE: &[u8] = &[
        0x8d, 0x4c, 0x24, 0x04, // 0 lea ecx, [esp+4]
        0x81, 0xe4, 0x00, 0xff, 0xff, 0xff, // 4 and esp, -256
        0xff, 0x71, 0xfc, // 10 push [ecx-4]
        0x55, // 13 push ebp
        0x89, 0xe5, // 14 mov ebp, esp
        0x51, // 16 push ecx
        0x8d, 0x65, 0xfc, // 17 lea esp, [ebp-4]
        0x59, // 20 pop ecx
        0x5d, // 21 pop ebp
        0x8d, 0x61, 0xfc, // 22 lea esp, [ecx-4]
        0xc3, // 25 ret
    ];
    let row =
        |cfa, fp| Some(Row::new(cfa, RegRule::Offset(-4), fp).with_origin(Origin::Instructions));
    let ecx = CfaRule::Register(BaseReg::Reg(DwarfReg(1)), 0);
    for (at, row) in [
        (0, sp_32(4, SAME)),
        (4, sp_32(4, SAME)),
        (10, row(ecx, SAME)),
        (13, row(ecx, SAME)),
        (14, row(ecx, RegRule::AtRegister(BaseReg::Sp, 0))),
        (16, None),
        (17, row(CfaRule::AtRegister(BaseReg::Fp, -4), RegRule::AtRegister(BaseReg::Fp, 0))),
        (20, row(CfaRule::AtRegister(BaseReg::Sp, 0), RegRule::AtRegister(BaseReg::Sp, 4))),
        (21, row(ecx, RegRule::AtRegister(BaseReg::Sp, 0))),
        (22, row(ecx, SAME)),
        (25, sp_32(4, SAME)),
    ] {
        assert_eq!(row_32(0x804_9003, CODE, at), row, "at +{at}");
    }
}

#[test]
fn any_register_but_the_stack_pointer_may_keep_the_cfa_while_a_stack_is_realigned() {
    // In the order of their numbers in instructions: rax, rcx, rdx, rbx.
    let low = [0, 2, 1, 3].map(|number| (None, number)).into_iter().zip([0, 1, 2, 3]);
    // rbp, rsi, rdi.
    let behind_sp = [6, 4, 5].map(|number| (None, number)).into_iter().zip([5, 6, 7]);
    let high = [8, 11, 15].map(|number| (Some(0x41), number)).into_iter().zip([0, 3, 7]);
    for ((prefix, number), bits) in low.chain(behind_sp).chain(high) {
        // and rsp, -64; push [reg-8].
        let mut code = vec![0x48, 0x83, 0xe4, 0xc0];
        code.extend(prefix);
        code.extend([0xff, 0x70 | bits, 0xf8]);
        let cfa = CfaRule::Register(BaseReg::Reg(DwarfReg(number)), 0);
        let row = Row::new(cfa, RegRule::Offset(-8), SAME).with_origin(Origin::Instructions);
        assert_eq!(row_64(0x40_1003, &code, 4), Some(row), "{code:x?}");
    }
}

#[test]
fn what_only_looks_like_a_realigned_stack_has_no_row() {
    const AND: [u8; 4] = [0x48, 0x83, 0xe4, 0xc0];
    const PUSH: [u8; 4] = [0x41, 0xff, 0x72, 0xf8];
    let lea = [0x4c, 0x8d, 0x54, 0x24, 0x08];
    assert_eq!(row_64(0x40_1003, &[&lea[..], &AND].concat(), 0), sp_64(8, SAME));
    for (what, lea) in [
        ("another slot", [0x4c, 0x8d, 0x54, 0x24, 0x10]),
        ("a long offset", [0x4c, 0x8d, 0x94, 0x24, 0x08]),
        ("no offset", [0x4c, 0x8d, 0x14, 0x24, 0x08]),
        ("an index", [0x4c, 0x8d, 0x54, 0x64, 0x08]),
    ] {
        let code = [&lea[..], &AND].concat();
        assert_eq!([0, 5].map(|at| row_64(0x40_1003, &code, at)), [None; 2], "{what}");
    }
    for (what, code, at) in [
        ("no rounding", [&[0x90; 4][..], &PUSH].concat(), 4),
        ("another slot", [&AND[..], &[0x41, 0xff, 0x72, 0xf0]].concat(), 4),
        ("another push", [&AND[..], &[0x41, 0xff, 0x72, 0xf0, 0x55]].concat(), 8),
    ] {
        assert_eq!(row_64(0x40_1003, &code, at), None, "{what}");
    }
    // lea esp, [ebp-4]; pop ecx; pop ebp; lea esp, [ecx-8]; ret: not at the
    // return address.
    let exit = [0x8d, 0x65, 0xfc, 0x59, 0x5d, 0x8d, 0x61, 0xf8, 0xc3];
    assert_eq!(row_32(0x804_9003, &exit, 0), None);
}

#[test]
fn a_push_that_sets_up_no_frame_is_an_entry_only_where_a_function_may_start() {
    // push rbp; push rbx; sub rsp, 8.
    let code = [0xc3, 0x55, 0x53, 0x48, 0x83, 0xec, 0x08];
    assert_eq!(row_64(0x40_1003, &code, 1), guess(sp_64(8, SAME)), "after a return");
    assert_eq!(row_64(0x40_100f, &code[1..], 0), None, "in the middle of nothing");
    assert_eq!(row_64(0x40_1010, &code[1..], 0), guess(sp_64(8, SAME)), "aligned");
    for mark in [0xfa, 0xfb] {
        let code = [0xf3, 0x0f, 0x1e, mark, 0x55, 0x53, 0x48, 0x83, 0xec, 0x08];
        assert_eq!(row_64(0x40_1003, &code, 4), guess(sp_64(8, SAME)), "after a landing mark");
    }
    // An entry of a linkage table, which no function jumps into the middle of.
    for jump in [&[0xff, 0x25, 0, 0, 0, 0][..], &[0xf2, 0xff, 0x25, 0, 0, 0, 0]] {
        let code = [&[0xf3, 0x0f, 0x1e, 0xfa], jump].concat();
        assert_eq!(row_64(0x40_1000, &code, 0), sp_64(8, SAME), "a linkage table");
    }
    let code = [0x41, 0x54, 0x55, 0x53];
    assert_eq!(row_64(0x40_1001, &code, 2), None, "after another push");
    let code = [0xcc, 0x48, 0x83, 0xec, 0x08];
    assert_eq!(row_64(0x40_1002, &code, 1), guess(sp_64(8, SAME)), "sub rsp after padding");
}

#[test]
fn a_return_address_has_no_row() {
    let pc = FramePc::Return(VirtAddr::new(0x40_1000));
    let mut code = Code { start: 0x40_1000, bytes: &[0xc3] };
    assert_eq!(ask::<X86_64>(&X86_64Regs::new(0, 0, 0), pc, &mut code), None);
}

#[test]
fn code_at_the_edge_of_a_mapping_is_read_up_to_the_edge() {
    // The last byte of a page whose neighbours are not there.
    let mut page = vec![0x90; 4096];
    page[4094..].copy_from_slice(&[0xc9, 0xc3]);
    assert_eq!(row_64(0x40_1000, &page, 4095), sp_64(8, SAME));
    assert_eq!(row_64(0x40_1000, &page, 4094), fp_64(16, RegRule::Offset(-16)));
    page[..4].copy_from_slice(&[0xf3, 0x0f, 0x1e, 0xfa]);
    assert_eq!(row_64(0x40_1000, &page, 0), guess(sp_64(8, SAME)));
    // Code cut off in the middle of an instruction.
    page[4094..].copy_from_slice(&[0x48, 0x83]);
    assert_eq!(row_64(0x40_1000, &page, 4094), None);
    assert_eq!(row_64(0x9000, &page, 0x7_0000), None, "no code at all");
    assert_eq!(row_64(u64::MAX, &[0xc3], 0), sp_64(8, SAME), "the last byte there is");
    assert_eq!(row_64(0, &[0xc3], 0), sp_64(8, SAME), "the first byte there is");
}

#[test]
fn any_bytes_give_an_answer_that_stays_in_bounds() {
    // A xorshift generator: the same bytes each time.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes = [0; 64];
    let mut found = 0;
    for _ in 0..20_000 {
        for byte in &mut bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Mostly bytes that mean something here.
            const LIKELY: [u8; 16] = [
                0x48, 0x55, 0x5d, 0xc9, 0xc3, 0x89, 0xe5, 0x83, 0xc4, 0x5b, 0x41, 0x5c, 0x81, 0x8d,
                0xa5, 0xff,
            ];
            let [pick, other, ..] = state.to_le_bytes();
            *byte = LIKELY.get(usize::from(pick % 20)).copied().unwrap_or(other);
        }
        for at in [0, 8, 63] {
            found += usize::from(row_64(0x1000, &bytes, at).is_some());
            found += usize::from(row_32(0x1001, &bytes, at).is_some());
        }
    }
    assert!(found > 1_000, "{found}");
}

#[test]
fn the_frame_pointer_row_is_that_of_the_word_size() {
    let pc = FramePc::Return(VirtAddr::new(0x1000));
    let mut none = Code { start: 0, bytes: &[] };
    let frame = FrameContext::new(pc, 0, None, None);
    let row: Option<Row> = RowSource::<X86_64>::row(&mut FramePointers, &frame, &mut none).unwrap();
    let expected = Row::new(CfaRule::fp(16), RegRule::Offset(-8), RegRule::Offset(-16));
    assert_eq!(row, Some(expected.with_origin(Origin::FramePointer).with_guess()));
    let coverage = <FramePointers as RowSource<X86_64>>::COVERAGE;
    assert_eq!(coverage, Coverage::FramePointer { is_guess: true }, "no lookup is needed");
    let frame = FrameContext::new(pc, 0, None, None);
    let row: Option<Row> = RowSource::<Ia32>::row(&mut FramePointers, &frame, &mut none).unwrap();
    let expected = Row::new(CfaRule::fp(8), RegRule::Offset(-4), RegRule::Offset(-8));
    assert_eq!(row, Some(expected.with_origin(Origin::FramePointer).with_guess()));
}

#[test]
fn frame_pointers_lead_to_the_same_frames_through_words_at_hand() {
    // Each frame: where the caller's is, and the return address.
    let words = [0x7010_u64, 0x1111, 0x7020, 0x2222, 0x7030, 0x3333, 0, 0];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let regs = X86_64Regs::new(0x1000, 0x7000, 0x7000);
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, FramePointers);
    let mut lent = Trace::<[_; 8]>::new();
    let mut in_memory = SliceMemory::new(VirtAddr::new(0x7000), &bytes);
    walker.trace(regs, &mut in_memory, &mut lent);
    let mut copied = Code { start: 0x7000, bytes: &bytes };
    let frames: Vec<_> = walker.frames(regs, &mut copied).map(|frame| frame.pc).collect();
    assert_eq!(frames.len(), 4);
    assert!(lent.frames().map(|frame| frame.pc).eq(frames));
}
