//! Walks through a row cache, one after another, have the frames and the ends
//! of walks without one.
use unwind_core::{Frame, Module, ModuleMap, RowCache, RowSource as _, Trace, VirtAddr, Walker};
use unwind_x86::{FramePointers, SframeModule, SframeSource, SignalTrampolines, X86_64};

use crate::{
    input::Input,
    target_memory::TargetMemory,
    walk::{FRAMES, check},
    walk_x86_64::{PLACES, registers},
};

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let max_frames = u32::from(input.u8() % 80);
    let walks: Vec<_> = (0..1 + input.u8() % 4)
        .map(|_| (registers(&mut input), TargetMemory::new(PLACES, &mut input), input.u8()))
        .collect();
    let mut modules = ModuleMap::<SframeModule<'_>, 2>::new();
    let Ok(Some(table)) = SframeModule::new(input.rest(), PLACES.code) else { return };
    let text = VirtAddr::new(PLACES.code)..VirtAddr::new(PLACES.code + 0x4000);
    let module = Module { text, table };
    modules.add(module.clone()).unwrap();
    let mut cache = RowCache::<16>::new();
    for (regs, memory, change) in walks {
        if change == 1 {
            // The generation changes, and what was kept is of no use.
            modules.remove(VirtAddr::new(PLACES.code));
        } else if modules.is_empty() {
            modules.add(module.clone()).unwrap();
        }
        let rows = SframeSource::new(&modules).or(SignalTrampolines);
        let mut plain =
            Walker::new(X86_64::FOUR_LEVEL, rows).max_frames(max_frames).fallback(FramePointers);
        let (frames, end) = check(&mut plain, regs, &memory, max_frames, 0);

        // Trampolines are told by their bytes, so a cache does not keep their rows.
        let rows = SframeSource::new(&modules).or(SignalTrampolines);
        let mut cached = Walker::new(X86_64::FOUR_LEVEL, rows)
            .cache(&mut cache)
            .max_frames(max_frames)
            .fallback(FramePointers);
        for _ in 0..2 {
            let mut mem = memory.clone();
            let mut walk = cached.frames(regs, &mut mem);
            let through: Vec<Frame> = walk.by_ref().collect();
            assert_eq!((&through, walk.end()), (&frames, Some(end)));
            let mut trace = Trace::<[_; FRAMES]>::new();
            cached.trace(regs, &mut memory.clone(), &mut trace);
            let traced: Vec<_> = trace.frames().map(|f| (f.pc, f.provenance)).collect();
            let walked: Vec<_> = frames.iter().map(|f| (f.pc, f.provenance)).collect();
            assert_eq!(traced, walked[..walked.len().min(FRAMES)]);
            if walked.len() < FRAMES {
                let last = frames.last().map_or(VirtAddr::new(0), |f| f.pc.lookup_addr());
                assert_eq!(trace.end(), Some(end.with_fault(last)));
            }
        }
    }
}
