//! Walks of crafted stacks of 32-bit code, with segments.

use unwind_core::{RowSource, Walker};
use unwind_x86::{FramePointers, Ia32, Ia32Regs, InstructionAnalysis, SignalTrampolines};

use crate::{
    input::Input,
    target_memory::{Places, TargetMemory},
    walk::check,
};

const PLACES: Places = Places { stack: 0xffd0_0000, code: 0x0804_8000, slot: 4 };

fn register(input: &mut Input<'_>) -> u32 {
    TargetMemory::word(PLACES, input) as u32
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (code_base, stack_base) = match input.u8() % 8 {
        0 => (input.u32(), input.u32()),
        1 => (0, 0x1000),
        _ => (0, 0),
    };
    let arch = match input.u8() {
        0 => Ia32::VM86,
        _ => Ia32::with_bases(code_base, stack_base),
    };
    let max_frames = u32::from(input.u8() % 40);
    let esp = (PLACES.stack as u32).wrapping_add(4 * u32::from(input.u8() % 32));
    let (eip, ebp) = (register(&mut input), register(&mut input));
    let regs = match input.u8() & 3 {
        0 => {
            let mut gpr = [0; 8].map(|_: u32| register(&mut input));
            gpr[4] = esp.wrapping_sub(stack_base);
            gpr[5] = ebp;
            Ia32Regs::from_all(eip, gpr)
        }
        _ => Ia32Regs::new(eip, esp.wrapping_sub(stack_base), ebp),
    };
    let memory = TargetMemory::new(PLACES, &mut input);
    let rows = RowSource::<Ia32>::or(SignalTrampolines, InstructionAnalysis);
    let mut walker = Walker::new(arch, rows).max_frames(max_frames).fallback(FramePointers);
    let (frames, _) = check(&mut walker, regs, &memory, max_frames, code_base);
    assert!(arch != Ia32::VM86 || frames.is_empty());
    for frame in frames {
        assert!(u32::try_from(frame.pc.addr().get()).is_ok() && u32::try_from(frame.sp).is_ok());
    }
}
