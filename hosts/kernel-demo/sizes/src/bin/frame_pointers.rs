//! Requests, deliveries, and walks by frame pointers.
#![no_std]
#![no_main]

use demo_sizes::Outside;
use unwind_core::{RowSource, Walker};
use unwind_x86::{FramePointers, InstructionAnalysis, SignalTrampolines, X86_64};

#[unsafe(no_mangle)]
extern "C" fn start() -> ! {
    demo_sizes::request();
    demo_sizes::deliver(|regs, trace| {
        let source = RowSource::<X86_64>::or(SignalTrampolines, InstructionAnalysis);
        let mut walker = Walker::new(X86_64::FOUR_LEVEL, source).fallback(FramePointers);
        walker.trace(regs, &mut Outside, trace);
    });
    demo_sizes::stop()
}
