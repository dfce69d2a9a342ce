//! The same with tables in the target's memory, read through a function that
//! may fail.

use core::hint::black_box;
use unwind_core::{
    Memory, ReadError, RowCache, RowSource, SharedModuleMap, Trace, VirtAddr, Walker,
};
use unwind_x86::{FramePointers, RemoteSframe, SframeScratch, X86_64, X86_64Regs};

/// Memory of which the optimiser knows nothing.
struct Target;

impl Memory for Target {
    #[inline(never)]
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        black_box((addr, buf));
        black_box(Ok(()))
    }
}

fn main() {
    let [pc, sp, fp] = black_box([0; 3]);
    let modules = SharedModuleMap::<4>::new();
    black_box(&modules);
    let mut rows = RowCache::<512>::new();
    let mut scratch = SframeScratch::new();
    let mut trace = Trace::<[_; 510]>::new();
    let source = RemoteSframe::new(&modules, &mut scratch);
    let source = RowSource::<X86_64>::or(source, FramePointers);
    let walker = Walker::new(X86_64::FOUR_LEVEL, source).cache(&mut rows);
    let mut walker = walker.fallback(FramePointers);
    walker.trace(X86_64Regs::new(pc, sp, fp), &mut Target, &mut trace);
    black_box(&trace);
}
