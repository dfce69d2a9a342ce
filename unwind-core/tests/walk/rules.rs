//! What rows say about the caller of a frame.

use unwind_core::{
    BaseReg, CfaRule, DwarfReg, End, FramePc, ReadError, RegRule, Row, StepError, VirtAddr, Walker,
};

use crate::toy::{R3, Regs, START, Script, Stack, Toy, locals, walk};

#[test]
fn a_misaligned_cfa_ends_a_walk() {
    let script = Script::new([(0x1000, locals(3))]);
    let end = End::Step(StepError::Misaligned { cfa: 0x800b });
    assert_eq!(walk(script, START, &Stack::default()), (vec![0x1010], end));
}

#[test]
fn a_cfa_that_does_not_rise_ends_a_walk() {
    let script = Script::new([(0x1000, locals(0)), (0x2000, locals(-16)), (0x3000, locals(-8))]);
    for (caller, cfa) in [(0x2010, 0x8000), (0x3010, 0x8008)] {
        let stack = Stack::new([(0x8000, caller), (0x7ff8, 0x1010)]);
        let end = End::Step(StepError::NoProgress { cfa, sp: 0x8008 });
        assert_eq!(walk(script.clone(), START, &stack), (vec![0x1010, caller], end));
    }
}

#[test]
fn the_cfa_may_stand_still_only_where_all_registers_are_known() {
    // The return address is in a register, as in a leaf of a CPU that does
    // not push it.
    let in_r3 =
        Row::new(CfaRule::sp(0), RegRule::Register(BaseReg::Reg(R3), 0), RegRule::SameValue);
    let still = Row::new(CfaRule::sp(0), RegRule::Offset(0), RegRule::SameValue);
    let script = Script::new([(0x1000, in_r3), (0x2000, still)]);
    let stack = Stack::new([(0x8000, 0x2010)]);
    let regs = Regs { r3: Some(0x2020), ..START };
    let end = End::Step(StepError::NoProgress { cfa: 0x8000, sp: 0x8000 });
    assert_eq!(walk(script, regs, &stack), (vec![0x1010, 0x2020], end));
}

#[test]
fn rules_that_leave_the_address_space_end_a_walk_at_both_ends_of_it() {
    let at_cfa = |offset| Row::new(CfaRule::sp(8), RegRule::Offset(offset), RegRule::SameValue);
    for (sp, row) in [
        (u64::MAX - 7, locals(0)),
        (0, Row::new(CfaRule::sp(-8), RegRule::Offset(-8), RegRule::SameValue)),
        (0, at_cfa(-16)),
        (u64::MAX - 0xf, at_cfa(8)),
    ] {
        let script = Script::new([(0x1000, row)]);
        let (_, end) = walk(script, Regs { sp, ..START }, &Stack::default());
        assert_eq!(end, End::Step(StepError::Overflow), "sp {sp:#x}, {row:?}");
    }
}

#[test]
fn a_return_address_cannot_be_a_stack_address() {
    let row = Row::new(CfaRule::sp(8), RegRule::ValOffset(-8), RegRule::SameValue);
    let (_, end) = walk(Script::new([(0x1000, row)]), START, &Stack::default());
    assert_eq!(end, End::Step(StepError::BadRule));
    let row = Row::new(CfaRule::sp(8), RegRule::SameValue, RegRule::SameValue);
    let (_, end) = walk(Script::new([(0x1000, row)]), START, &Stack::default());
    assert_eq!(end, End::Step(StepError::BadRule), "and this CPU has no link register");
}

#[test]
fn a_return_address_is_never_computed_from_the_stack_pointer() {
    // Each names an address that has code.
    for base in [BaseReg::Sp, BaseReg::Reg(DwarfReg(7))] {
        let row =
            Row::new(CfaRule::sp(8), RegRule::Register(base, 0x1010 - 0x8000), RegRule::SameValue);
        let (frames, end) = walk(Script::new([(0x1000, row)]), START, &Stack::default());
        assert_eq!((frames, end), (vec![0x1010], End::Step(StepError::BadRule)), "{base:?}");
    }
}

#[test]
fn a_return_address_is_in_the_frame_pointer_only_where_all_registers_are_known() {
    for base in [BaseReg::Fp, BaseReg::Reg(DwarfReg(6))] {
        let in_fp = Row::new(CfaRule::sp(8), RegRule::Register(base, 0), RegRule::SameValue);
        let script = Script::new([(0x1000, in_fp), (0x2000, in_fp)]);
        let regs = Regs { fp: Some(0x2010), ..START };
        // The first frame's caller still has it, but what it called may not.
        let (frames, end) = walk(script.clone(), regs, &Stack::default());
        assert_eq!(
            (frames, end),
            (vec![0x1010, 0x2010], End::Step(StepError::BadRule)),
            "{base:?}"
        );

        // A trampoline at 0x5160 restores pc, sp, fp and r3.
        let rows = [(0x1000, locals(0)), (0x2000, in_fp), (0x5100, Row::signal_context())];
        let saved = [(0x8000, 0x5160), (0x8008, 0x2010), (0x8010, 0x9000), (0x8018, 0x3010)];
        let stack = Stack::new(saved.into_iter().chain([(0x8020, 0)]));
        let (frames, end) = walk(Script::new(rows), START, &stack);
        assert_eq!((frames, end), (vec![0x1010, 0x5160, 0x2010, 0x3010], End::NoRow), "{base:?}");
    }
}

#[test]
fn every_rule_finds_what_it_says() {
    let r3 = BaseReg::Reg(R3);
    let stack = Stack::new([
        (0x8000, 0x2010),
        (0x8008, 0x9990),
        (0x9000, 0x2020),
        (0x9008, 0x9998),
        (0xa000, 0x8008),
    ]);
    let regs = Regs { pc: 0x1010, sp: 0x8000, fp: Some(0xa000), r3: Some(0x9000) };
    let cases = [
        // CFA, RA, FP: the caller's pc, sp and fp.
        (CfaRule::sp(8), RegRule::Offset(-8), RegRule::SameValue, 0x2010, 0x8008, Some(0xa000)),
        (CfaRule::sp(8), RegRule::Offset(-8), RegRule::Undefined, 0x2010, 0x8008, None),
        (CfaRule::sp(8), RegRule::Offset(-8), RegRule::Offset(0), 0x2010, 0x8008, Some(0x9990)),
        (CfaRule::sp(8), RegRule::Offset(-8), RegRule::ValOffset(-8), 0x2010, 0x8008, Some(0x8000)),
        (
            CfaRule::sp(8),
            RegRule::Offset(-8),
            RegRule::Register(r3, 4),
            0x2010,
            0x8008,
            Some(0x9004),
        ),
        (
            CfaRule::sp(8),
            RegRule::Offset(-8),
            RegRule::AtRegister(r3, 8),
            0x2010,
            0x8008,
            Some(0x9998),
        ),
        (
            CfaRule::Register(r3, 0),
            RegRule::AtRegister(r3, 0),
            RegRule::SameValue,
            0x2020,
            0x9000,
            Some(0xa000),
        ),
        (
            CfaRule::AtRegister(BaseReg::Fp, 0),
            RegRule::Offset(-8),
            RegRule::SameValue,
            0x2010,
            0x8008,
            Some(0xa000),
        ),
        (
            CfaRule::sp(8),
            RegRule::Register(r3, -0x8000),
            RegRule::SameValue,
            0x1000,
            0x8008,
            Some(0xa000),
        ),
        // The stack and frame pointer by their DWARF numbers.
        (
            CfaRule::Register(BaseReg::Reg(DwarfReg(7)), 8),
            RegRule::Offset(-8),
            RegRule::AtRegister(BaseReg::Reg(DwarfReg(6)), 0),
            0x2010,
            0x8008,
            Some(0x8008),
        ),
    ];
    for (cfa, ra, fp, pc, sp, caller_fp) in cases {
        // The caller's frame pointer shows in its own CFA.
        let probe = Row::new(CfaRule::fp(0x100), RegRule::Offset(0), RegRule::SameValue);
        let row = Row::new(cfa, ra, fp);
        let script = Script([(0x1000, Ok(row)), (0x2000, Ok(probe))].into_iter().collect());
        let mut walker = Walker::new(Toy, script);
        let mut stack = stack.clone();
        let mut frames = walker.frames(regs, &mut stack);
        let first = frames.next().unwrap();
        assert_eq!(first.cfa, Some(sp), "{row:?}");
        let second = frames.next().unwrap();
        assert_eq!((second.pc, second.sp), (FramePc::Return(VirtAddr::new(pc)), sp), "{row:?}");
        if pc & 0x2000 == 0 {
            continue;
        }
        let end = frames.end().unwrap();
        match caller_fp {
            None => assert_eq!(end, End::Step(StepError::UnknownRegister(BaseReg::Fp)), "{row:?}"),
            Some(fp) if fp < sp => {
                assert_eq!(end, End::Step(StepError::FramePointerBelowStack { fp, sp }), "{row:?}");
            }
            Some(fp) if fp & 7 != 0 => {
                assert_eq!(end, End::Step(StepError::Misaligned { cfa: fp + 0x100 }), "{row:?}");
            }
            Some(fp) => {
                let addr = VirtAddr::new(fp + 0x100);
                let error = ReadError::Invalid;
                assert_eq!(end, End::Step(StepError::Unreadable { addr, error }), "{row:?}");
            }
        }
    }
}

#[test]
fn a_rule_on_a_register_that_is_not_known_is_a_typed_end() {
    let on_r3 =
        Row::new(CfaRule::Register(BaseReg::Reg(R3), 8), RegRule::Offset(-8), RegRule::SameValue);
    let script = Script::new([(0x1000, on_r3), (0x2000, on_r3)]);
    let stack = Stack::new([(0x9000, 0x2010), (0x9008, 0x2020)]);
    let end = End::Step(StepError::UnknownRegister(BaseReg::Reg(R3)));
    let regs = Regs { r3: Some(0x9000), ..START };
    assert_eq!(walk(script, regs, &stack), (vec![0x1010, 0x2010], end));
}

#[test]
fn a_call_as_the_last_instruction_of_a_function_is_looked_up_in_that_function() {
    // 0x2000 is the return address of a call that ends at 0x1fff.
    let script = Script::new([(0x1000, locals(0)), (0x1f00, Row::outermost())]);
    let stack = Stack::new([(0x8000, 0x2000)]);
    assert_eq!(walk(script, START, &stack), (vec![0x1010, 0x2000], End::Outermost));
    // A sampled pc there is another matter.
    let script = Script::new([(0x1f00, locals(0)), (0x2000, Row::outermost())]);
    let at_start = Regs { pc: 0x2000, ..START };
    assert_eq!(walk(script, at_start, &stack), (vec![0x2000], End::Outermost));
}
