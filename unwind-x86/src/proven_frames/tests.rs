#![allow(clippy::arithmetic_side_effects, reason = "tests")]

extern crate std;

use std::vec::Vec;

use proptest::prelude::*;
use unwind_core::{CfaRule, RegRule, SliceMemory, Walker};

use super::*;
use crate::x86_64::X86_64Regs;

const START: u64 = 0x1000;

/// What `push rbp; mov rbp, rsp` begins, by both encodings.
const SETS_UP: [[u8; 4]; 2] = [[0x55, 0x48, 0x89, 0xe5], [0x55, 0x48, 0x8b, 0xec]];

fn proof(code: &[u8], at: u64, told: Option<Range<u64>>) -> Option<FrameProof> {
    struct Told(Option<Range<u64>>);
    impl FunctionBounds for Told {
        fn find(&self, _: VirtAddr) -> Option<Range<VirtAddr>> {
            let Range { start, end } = self.0.clone()?;
            Some(VirtAddr::new(start)..VirtAddr::new(end))
        }

        fn are_called(&self) -> bool {
            true
        }
    }
    // Memory has whole pages; `int3` is in the rest of this one.
    let mut page = code.to_vec();
    page.resize(code.len().next_multiple_of(0x1000), 0xcc);
    let mut mem = SliceMemory::new(VirtAddr::new(START), &page);
    let pc = FramePc::Exact(VirtAddr::new(START + at));
    ProvenFrames::new(Told(told)).proof(WordSize::Eight, pc, &mut mem)
}

/// The row at an offset of a function whose bounds are told.
fn told(code: &[u8], at: u64) -> Option<Row> {
    let end = START + u64::try_from(code.len()).unwrap();
    proof(code, at, Some(START..end)).and_then(|proof| proof.row(0x7000, Some(0x7100)))
}

/// The same where they are not.
fn found(code: &[u8], at: u64) -> Option<Row> {
    proof(code, at, None).and_then(|proof| proof.row(0x7000, Some(0x7100)))
}

fn frame_pointer() -> Row {
    Row::frame_pointer(WordSize::Eight).with_origin(Origin::Instructions)
}

/// CFA = sp + `cfa`, the frame pointer as `fp` says.
fn by_sp(cfa: i32, fp: RegRule) -> Row {
    Row::new(CfaRule::sp(cfa), RegRule::Offset(-8), fp).with_origin(Origin::Instructions)
}

#[test]
fn m1_a_function_has_its_row_at_each_instruction() {
    // push rbp; mov rbp, rsp; sub rsp, 16; jmp to itself. No way leads to a return.
    for [push, mov @ ..] in SETS_UP {
        let code = [&[push][..], &mov, &[0x48, 0x83, 0xec, 0x10, 0xeb, 0xfe]].concat();
        for row in [told, found] {
            assert_eq!(row(&code, 0), Some(by_sp(8, RegRule::SameValue)));
            assert_eq!(row(&code, 1), Some(by_sp(16, RegRule::SameValue)));
            assert_eq!(row(&code, 4), Some(frame_pointer()));
            assert_eq!(row(&code, 8), Some(frame_pointer()));
            assert_eq!(row(&code, 2), None, "inside of an instruction");
        }
    }
}

#[test]
fn m1_bounds_of_code_that_is_no_longer_there_prove_rows_that_are_wrong() {
    // push rbp; mov rbp, rsp; pop rbp; ret. Then a function without a frame: nop; jmp to itself.
    let code = [0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3, 0x90, 0xeb, 0xfe];
    // A map still has the function that was in the place of both. By it the frame pointer, which is the caller's,
    // leads past the caller. So maps, which say nothing of when code was where, give names alone.
    assert_eq!(told(&code, 6), Some(frame_pointer()));
    assert_eq!(found(&code, 6), None);
}

#[test]
fn m1_a_frame_pointer_that_is_stored_and_moved_is_set_up_when_it_is_where_it_stays() {
    // sub rsp, 24; mov [rsp+16], rbp; mov rbp, rsp; add rbp, 16; jmp to itself.
    let code = [
        &[0x48, 0x83, 0xec, 0x18, 0x48, 0x89, 0x6c, 0x24, 0x10][..],
        &[0x48, 0x8b, 0xec, 0x48, 0x83, 0xc5, 0x10, 0xeb, 0xfe],
    ]
    .concat();
    assert_eq!(told(&code, 4), Some(by_sp(32, RegRule::SameValue)));
    assert_eq!(told(&code, 9), Some(by_sp(32, RegRule::SameValue)));
    assert_eq!(told(&code, 12), Some(by_sp(32, RegRule::Offset(-16))));
    assert_eq!(told(&code, 16), Some(frame_pointer()));
    // Stored elsewhere, the frame pointer leads to no caller.
    let elsewhere: Vec<u8> =
        code.iter().map(|&byte| if byte == 0x10 { 0x08 } else { byte }).collect();
    assert_eq!(told(&elsewhere, 16), None);
}

#[test]
fn m1_a_frame_pointer_may_be_stored_and_loaded_again_around_a_call() {
    // mov [rsp+80], rbp; call; mov rbp, [rsp+80]; jmp to itself.
    let store = [0x48, 0x89, 0x6c, 0x24, 0x50, 0xe8, 0, 0, 1, 0];
    let code =
        |offset| [&SETS_UP[0][..], &store, &[0x48, 0x8b, 0x6c, 0x24, offset, 0xeb, 0xfe]].concat();
    for row in [told, found] {
        assert_eq!(row(&code(0x50), 19), Some(frame_pointer()));
        assert_eq!(row(&code(0x58), 19), None);
    }
    // Without a frame: mov rbp, [rsp+16]; add rsp, 24; ret.
    let code = [0x48, 0x8b, 0x6c, 0x24, 0x10, 0x48, 0x83, 0xc4, 0x18, 0xc3];
    assert_eq!(found(&code, 0), Some(by_sp(32, RegRule::Offset(-16))));
}

#[test]
fn m1_a_start_is_believed_only_as_far_as_its_function_goes() {
    // The first function returns; the second has no frame and loops.
    let code = [&SETS_UP[0][..], &[0x5d, 0xc3, 0x90, 0xeb, 0xfe]].concat();
    assert_eq!(found(&code, 4), Some(frame_pointer()));
    assert_eq!(found(&code, 6), None);
    assert_eq!(found(&code, 7), None);
    // A push before it has moved the return address.
    for push in [&[0x50][..], &[0x6a, 0x01], &[0x68, 0, 0, 0, 0]] {
        let code = [push, &SETS_UP[0], &[0xeb, 0xfe]].concat();
        assert_eq!(found(&code, u64::try_from(push.len()).unwrap() + 4), None);
    }
    // A jump to another function at its end leads over others.
    let code = [&SETS_UP[0][..], &[0x5d, 0xeb, 0x03, 0x90, 0xeb, 0xfe, 0xeb, 0xfe]].concat();
    assert_eq!(found(&code, 7), None);
    // With a jump over the return it is one function.
    let code = [&SETS_UP[0][..], &[0x74, 0x02, 0x5d, 0xc3, 0x90, 0xeb, 0xfe]].concat();
    assert_eq!(found(&code, 8), Some(frame_pointer()));
    assert_eq!(found(&code, 9), Some(frame_pointer()));
}

#[test]
fn m1_code_that_makes_room_for_its_return_address_has_no_rows() {
    // push rbx; push rbp; mov rbp, rsp; nop; pop rbp; ret, at a place where functions start and at another.
    let code = [&[0x53][..], &SETS_UP[0], &[0x90, 0x5d, 0xc3]].concat();
    for at in 1..=5 {
        assert_eq!(found(&code, at), None, "{at}");
    }
    let moved = [&[0x90][..], &code].concat();
    assert!(found(&moved, 6).is_some());
}

#[test]
fn m1_places_that_two_ways_lead_to_with_other_frames_prove_nothing() {
    // je +4, over the frame's set-up, to code that loops with it and without.
    let code = [&[0x74, 0x04][..], &SETS_UP[0], &[0xeb, 0xfe]].concat();
    assert_eq!(told(&code, 6), None);
    // The same to code that goes elsewhere, by a register.
    let code = [&[0x74, 0x04][..], &SETS_UP[0], &[0x90, 0xff, 0xe0]].concat();
    assert_eq!(told(&code, 6), None);
    let straight = [&[0x74, 0x7f][..], &SETS_UP[0], &[0xeb, 0xfe]].concat();
    assert_eq!(told(&straight, 6), Some(frame_pointer()));
}

#[test]
fn m1_a_call_between_the_start_and_the_frame_may_move_the_stack_pointer() {
    // call; push rbp; mov rbp, rsp; jmp to itself: nothing is on the stack for it to take off.
    let code = [&[0xe8, 0, 0, 1, 0][..], &SETS_UP[0], &[0xeb, 0xfe]].concat();
    assert_eq!(told(&code, 9), Some(frame_pointer()));
    // The same with a word pushed before it and taken off after it.
    let code = [&[0x50][..], &code[..5], &[0x48, 0x83, 0xc4, 0x08], &code[5..]].concat();
    assert_eq!(told(&code, 14), None);
}

#[test]
fn m1_a_function_whose_entry_was_overwritten_by_a_jump_still_has_its_frame() {
    // jmp far away over mov [rsp-0x14000], eax, of which two bytes are left.
    let code = [&[0xe9, 0, 0, 0x10, 0, 0xfe, 0xff][..], &SETS_UP[1], &[0xeb, 0xfe]].concat();
    assert_eq!(told(&code, 11), Some(frame_pointer()));
    assert_eq!(told(&code, 8), Some(by_sp(16, RegRule::SameValue)));
}

#[test]
fn m1_a_told_function_that_never_sets_up_a_frame_has_rows_until_it_moves_the_stack_pointer() {
    // mov rax, rbx; push rcx; pop rcx; sub rsp, r10; jmp rcx.
    let code = [0x48, 0x89, 0xd8, 0x51, 0x59, 0x4c, 0x29, 0xd4, 0xff, 0xe1];
    for (at, cfa) in [(0, 8), (3, 8), (4, 16), (5, 8)] {
        assert_eq!(told(&code, at), Some(by_sp(cfa, RegRule::SameValue)), "{at}");
        assert_eq!(found(&code, at), None, "{at}");
    }
    assert_eq!(told(&code, 8), None);
    // Passed over by a jump: jmp over push rcx to nop; sub rsp, r10; jmp rcx.
    let code = [0xeb, 0x01, 0x51, 0x90, 0x4c, 0x29, 0xd4, 0xff, 0xe1];
    assert_eq!([2, 3].map(|at| told(&code, at)), [None, None]);
    // After a call, which may have set a frame up: call; nop; jmp rcx. And where two ways meet: jz to nop; push rcx;
    // nop; jmp rcx.
    assert_eq!(told(&[0xe8, 64, 0, 0, 0, 0x90, 0xff, 0xe1], 5), None);
    assert_eq!(told(&[0x74, 0x01, 0x51, 0x90, 0xff, 0xe1], 3), None);
}

#[test]
fn m1_a_way_to_a_return_proves_the_row_at_its_start() {
    // add rsp, 8; pop rbp; ret.
    let code = [0x48, 0x83, 0xc4, 0x08, 0x5d, 0xc3];
    assert_eq!(found(&code, 0), Some(by_sp(24, RegRule::Offset(-16))));
    assert_eq!(found(&code, 4), Some(by_sp(16, RegRule::Offset(-16))));
    assert_eq!(found(&code, 5), Some(by_sp(8, RegRule::SameValue)));
    // sub rsp, 8; pop rbp; ret: what it pops is not on the stack yet.
    assert_eq!(found(&[0x48, 0x83, 0xec, 0x08, 0x5d, 0xc3], 0), None);
    // add rsp, -16; ret: nor what it returns to.
    assert_eq!(found(&[0x48, 0x83, 0xc4, 0xf0, 0xc3], 0), None);
    // leave; ret.
    assert_eq!(found(&[0xc9, 0xc3], 0), Some(frame_pointer()));
    // A call on the way may take arguments off the stack: the frame pointer has to agree.
    let code = [0xe8, 0, 1, 0, 0, 0x48, 0x81, 0xc4, 0, 1, 0, 0, 0x5d, 0xc3];
    let with_call = proof(&code, 0, None).unwrap();
    assert_eq!(with_call.row(0x7000, Some(0x7100)), Some(frame_pointer()));
    assert_eq!(with_call.row(0x7008, Some(0x7100)), None);
    assert_eq!(with_call.row(0x7000, None), None);
    // Nothing is known of what follows a jump by a register, nor where no code is.
    assert_eq!(found(&[0x90, 0xff, 0xe0], 0), None);
    assert_eq!(found(&[0x90, 0x90], 0x1000), None);
}

/// Code as a compiler makes it: what each instruction does is known where it is written.
#[derive(Clone, Debug)]
struct Made {
    code: Vec<u8>,
    /// Offsets at which the frame is set up, and at which it is not.
    set_up: Vec<u64>,
    bare: Vec<u64>,
}

fn made(body: &[u8], is_told: bool) -> Made {
    let mut made = Made { code: Vec::new(), set_up: Vec::new(), bare: Vec::new() };
    let mut push = |bytes: &[u8], is_set_up: bool| {
        let at = u64::try_from(made.code.len()).unwrap();
        if is_set_up {
            made.set_up.push(at)
        } else {
            made.bare.push(at)
        }
        made.code.extend_from_slice(bytes);
    };
    if is_told {
        push(&[0x48, 0x85, 0xff], false);
    }
    push(&[0x55], false);
    push(&[0x48, 0x89, 0xe5], false);
    for kind in body {
        match kind % 8 {
            0 => push(&[0x50], true),
            1 => push(&[0x48, 0x83, 0xec, 0x20], true),
            2 => push(&[0xe8, 0, 0, 1, 0], true),
            3 => push(&[0x48, 0x8b, 0x45, 0xf8], true),
            4 => push(&[0x75, 0x00], true),
            5 => push(&[0x48, 0x8d, 0x65, 0xf0], true),
            6 => push(&[0xc5, 0xfb, 0x10, 0x04, 0x24], true),
            _ => push(&[0x0f, 0x1f, 0x44, 0x00, 0x00], true),
        }
    }
    push(&[0xeb, 0xfe], true);
    made
}

proptest! {
    #[test]
    fn m1_made_functions_have_their_frames(body in prop::collection::vec(any::<u8>(), 0..200)) {
        for is_told in [true, false] {
            let row = if is_told { told } else { found };
            let made = made(&body, is_told);
            for &at in &made.set_up {
                prop_assert_eq!(row(&made.code, at), Some(frame_pointer()), "{:x}", at);
            }
            for &at in &made.bare {
                prop_assert!(row(&made.code, at).is_some_and(|row| row != frame_pointer()));
            }
        }
    }

    /// Any bytes are looked at in bounded time, and a walk never claims what it cannot read.
    #[test]
    fn m1_any_code_is_looked_at_in_a_bounded_number_of_reads(
        code in prop::collection::vec(any::<u8>(), 0..4096),
        at in 0_u64..4096,
    ) {
        struct Counted<'c>(SliceMemory<'c>, u32);
        impl Memory for Counted<'_> {
            fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), unwind_core::ReadError> {
                self.1 += 1;
                self.0.read(addr, buf)
            }
        }
        let mut mem = Counted(SliceMemory::new(VirtAddr::new(START), &code), 0);
        let pc = FramePc::Exact(VirtAddr::new(START + at));
        for word in [WordSize::Four, WordSize::Eight] {
            _ = ProvenFrames::new(()).proof(word, pc, &mut mem);
            _ = ProvenFrames::start(word, pc.addr(), &mut mem);
        }
        prop_assert!(mem.1 < 60_000, "{}", mem.1);
    }
}

#[test]
fn m1_a_function_whose_bounds_nobody_tells_begins_where_its_instructions_lead_to_the_pc_from() {
    // push rbp; mov rbp, rsp; jz to the ret; nop; pop rbp; ret; and then the same.
    let function = [0x55, 0x48, 0x89, 0xe5, 0x74, 1, 0x90, 0x5d, 0xc3];
    let mut code = [function, function].concat();
    code.resize(0x100, 0xcc);
    let start = |word, at: u64| {
        let mut mem = SliceMemory::new(VirtAddr::new(START), &code);
        let start = ProvenFrames::start(word, VirtAddr::new(START + at), &mut mem)?;
        Some(start.get() - START)
    };
    for at in [0, 1, 4, 6, 7, 8] {
        assert_eq!(start(WordSize::Eight, at), Some(0), "{at}");
        assert_eq!(start(WordSize::Eight, at + 9), Some(9), "{at}");
    }
    // Inside of an instruction, and after the last one.
    for at in [2, 5, 18] {
        assert_eq!(start(WordSize::Eight, at), None, "{at}");
    }
    // With words of four bytes these are other instructions.
    assert_eq!(start(WordSize::Four, 6), None);
}

#[test]
fn m1_a_walk_through_proven_frames_has_no_gap() {
    // push rbp; mov rbp, rsp; call; nop; jmp to itself, twice in a stack.
    let code = [&SETS_UP[0][..], &[0xe8, 0, 0, 1, 0, 0x90, 0xeb, 0xfe]].concat();
    let mut bytes = code.clone();
    bytes.resize(0x100, 0xcc);
    // The frame at 0x1100 is that of the interrupted function, its caller's at 0x1110.
    for word in [0x1110_u64, 0x1009, 0, 0] {
        bytes.extend(word.to_le_bytes());
    }
    let mut mem = SliceMemory::new(VirtAddr::new(START), &bytes);
    let regs = X86_64Regs::new(0x100a, 0x10f0, 0x1100);
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, ProvenFrames::new(()));
    let frames: Vec<_> = walker.frames(regs, &mut mem).collect();
    assert_eq!(frames.len(), 2);
    assert_eq!(frames[1].pc, FramePc::Return(VirtAddr::new(0x1009)));
    assert!(frames.iter().all(|frame| !frame.provenance.is_after_gap()));
}
