//! Frames that a signal interrupted.

use unwind_core::{
    BaseReg, CfaRule, End, FramePc, Origin, RegRule, Row, StepError, VirtAddr, Walker,
};

use crate::toy::{R3, Regs, START, Script, Stack, Toy, locals, pcs, walk};

#[test]
fn a_signal_frame_gives_back_all_registers_and_an_exact_pc() {
    let on_r3 =
        Row::new(CfaRule::Register(BaseReg::Reg(R3), 8), RegRule::Offset(-8), RegRule::SameValue);
    // The handler runs on a stack of its own, above the interrupted one.
    let stack = Stack::new([
        (0x8000, 0x5160),
        (0x8008, 0x2000),
        (0x8010, 0x7000),
        (0x8018, 0),
        (0x8020, 0x7100),
        (0x7100, 0x3010),
    ]);
    for signal in [Row::signal_context(), locals(0).with_signal()] {
        let script = Script::new([
            (0x1000, locals(0)),
            (0x5100, signal),
            (0x2000, on_r3),
            (0x3000, Row::outermost()),
        ]);
        let (mut walker, mut stack) = (Walker::new(Toy, script), stack.clone());
        let frames: Vec<_> = walker.frames(START, &mut stack).collect();
        assert_eq!(pcs(&frames), [0x1010, 0x5160, 0x2000, 0x3010]);
        // 0x2000 is looked up as it is, one byte back would be another row.
        assert_eq!(frames[2].pc, FramePc::Exact(VirtAddr::new(0x2000)));
        assert_eq!(frames[2].provenance.origin(), Origin::SignalContext);
        assert_eq!(frames[1].cfa, Some(0x7000));
        assert_eq!((frames[2].sp, frames[2].cfa), (0x7000, Some(0x7108)));
        assert!(!frames[3].pc.is_exact());
    }
}

#[test]
fn a_signal_row_without_a_known_trampoline_is_applied_with_an_exact_pc() {
    let script = Script::new([
        (0x1000, locals(0)),
        (0x6100, locals(0).with_signal()),
        (0x2000, Row::outermost()),
    ]);
    let stack = Stack::new([(0x8000, 0x6160), (0x8008, 0x2000)]);
    assert_eq!(walk(script, START, &stack), (vec![0x1010, 0x6160, 0x2000], End::Outermost));
    let script = Script::new([(0x1000, locals(0)), (0x6100, Row::signal_context())]);
    let end = End::Step(StepError::UnknownTrampoline);
    assert_eq!(walk(script, START, &stack), (vec![0x1010, 0x6160], end));
}

#[test]
fn a_crafted_ring_of_signal_frames_ends_with_the_limit() {
    // The trampoline's context leads back to the trampoline.
    let script = Script::new([(0x5100, Row::signal_context())]);
    let stack = Stack::new([(0x8000, 0x5160), (0x8008, 0x8000), (0x8010, 0), (0x8018, 0)]);
    let (frames, end) = walk(script, Regs { pc: 0x5160, ..START }, &stack);
    assert_eq!((frames.len(), end), (510, End::FrameLimit));
}
