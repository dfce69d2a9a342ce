//! Walks of crafted stacks of 64-bit code, with any bytes as its table.

use unwind_core::{
    DwarfReg, Empty, FramePc, Module, ModuleMap, ReturnAddresses, RowSource as _, VirtAddr, Walker,
};
use unwind_x86::{
    FramePointers, InstructionAnalysis, SframeModule, SframeSource, SignalTrampolines, WildCalls,
    X86_64, X86_64Regs,
};

use crate::{
    input::Input,
    target_memory::{Places, TargetMemory},
    walk::check,
};

pub(crate) const PLACES: Places = Places { stack: 0x7fff_0000_1000, code: 0x40_0000, slot: 8 };

/// In the second half of the code there is none.
struct FirstHalf;

impl ReturnAddresses for FirstHalf {
    fn is_code(&mut self, call: VirtAddr) -> bool {
        (PLACES.code..PLACES.code + 0x2000).contains(&call.get())
    }
}

/// Registers that mostly make sense.
pub(crate) fn registers(input: &mut Input<'_>) -> X86_64Regs {
    let rip = PLACES.code + u64::from(input.u16() & 0x3fff);
    let rsp = PLACES.stack + 8 * u64::from(input.u8() % 32);
    let rbp = TargetMemory::word(PLACES, input);
    let mut regs = X86_64Regs::new(rip, rsp, rbp);
    for number in 0..input.u8() % 18 {
        regs = regs.with(DwarfReg(number), TargetMemory::word(PLACES, input));
    }
    if input.u8() == 0 { X86_64Regs::new(input.u64(), input.u64(), input.u64()) } else { regs }
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let arch = if input.bool() { X86_64::FOUR_LEVEL } else { X86_64::FIVE_LEVEL };
    let max_frames = u32::from(input.u8() % 40);
    let stack_end = input.bool().then(|| TargetMemory::word(PLACES, &mut input));
    let with_fallback = input.bool();
    let regs = registers(&mut input);
    let memory = TargetMemory::new(PLACES, &mut input);

    let mut modules = ModuleMap::<SframeModule<'_>, 2>::new();
    if let Ok(Some(table)) = SframeModule::new(input.rest(), PLACES.code) {
        let text = VirtAddr::new(PLACES.code)..VirtAddr::new(PLACES.code + 0x4000);
        modules.add(Module { text, table }).unwrap();
    }
    let rows = SframeSource::new(&modules).or(SignalTrampolines);
    let rows = rows.or(WildCalls::new(arch, FirstHalf, InstructionAnalysis));
    let mut walker = Walker::new(arch, rows).max_frames(max_frames);
    if let Some(end) = stack_end {
        walker = walker.stack_end(end);
    }
    let (frames, _) = if with_fallback {
        check(&mut walker.fallback(FramePointers), regs, &memory, max_frames, 0)
    } else {
        check(&mut walker.fallback(Empty), regs, &memory, max_frames, 0)
    };
    for frame in frames {
        assert!(arch.is_canonical(frame.pc.addr().get()));
        if let (Some(end), Some(cfa), FramePc::Return(_)) = (stack_end, frame.cfa, frame.pc) {
            assert!(cfa <= end);
        }
    }
}
