//! The same, with SFrame tables in user memory and a cache of their rows.
#![no_std]
#![no_main]

use demo_sizes::Outside;
use unwind_core::{RowCache, RowSource, SharedModuleMap, Walker};
use unwind_x86::{
    FramePointers, InstructionAnalysis, RemoteSframe, SframeScratch, SignalTrampolines, X86_64,
};

#[unsafe(no_mangle)]
extern "C" fn start() -> ! {
    demo_sizes::request();
    demo_sizes::deliver(|regs, trace| {
        let mut rows = RowCache::<128>::new();
        let modules = SharedModuleMap::<4>::new();
        core::hint::black_box(&modules);
        let mut scratch = SframeScratch::new();
        let tables = RemoteSframe::new(&modules, &mut scratch);
        let source = RowSource::<X86_64>::or(tables, SignalTrampolines);
        let source = RowSource::<X86_64>::or(source, InstructionAnalysis);
        let walker = Walker::new(X86_64::FOUR_LEVEL, source).cache(&mut rows);
        let mut walker = walker.fallback(FramePointers);
        walker.trace(regs, &mut Outside, trace);
    });
    demo_sizes::stop()
}
