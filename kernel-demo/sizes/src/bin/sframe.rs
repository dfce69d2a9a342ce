//! The same, with SFrame tables in user memory and a cache of their rows.
#![no_std]
#![no_main]

use demo_sizes::{Outside, UNWIND, unknown};
use unwind_core::{
    Audience, Cached, ClientId, Memory, RowCache, RowSource, SharedModuleMap, TaskState,
    UnwindCache, VirtAddr, Walker,
};
use unwind_x86::{
    FramePointers, Prologue, SframeMemorySource, SframeScratch, SignalTrampolines, X86_64,
    X86_64Regs,
};

#[unsafe(no_mangle)]
extern "C" fn start() -> ! {
    static TASK: TaskState = TaskState::new();
    let client = ClientId::from_bits(unknown());
    let _ = Outside.read(VirtAddr::new(unknown()), &mut [0; 8]);
    let _ = core::hint::black_box(UNWIND.request(&TASK, client));
    let _ = core::hint::black_box(UNWIND.user_return(&TASK));
    let mut cache = UnwindCache::<126, _>::new();
    let mut delivery = UNWIND.deliver(&TASK, Audience::Asked, Some(&mut cache), |cache| {
        let regs = X86_64Regs::new(unknown(), unknown(), unknown());
        let mut rows = RowCache::<128>::new();
        let modules = SharedModuleMap::<4>::new();
        core::hint::black_box(&modules);
        let mut scratch = SframeScratch::new();
        let tables = SframeMemorySource::new(&modules, &mut scratch);
        let tables = Cached::new(tables, &mut rows);
        let source = RowSource::<X86_64>::or(tables, SignalTrampolines);
        let source = RowSource::<X86_64>::or(source, Prologue);
        let mut walker = Walker::new(X86_64::FOUR_LEVEL, source).fallback(FramePointers);
        walker.trace(regs, &mut Outside, cache);
    });
    while let Some(serving) = delivery.next() {
        core::hint::black_box(serving.end());
    }
    loop {
        core::hint::spin_loop();
    }
}
