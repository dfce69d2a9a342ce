//! A walk by SFrame tables in memory with a cache of 512 rows, and by frame pointers
//! where they have no row.

use core::hint::black_box;

use unwind_core::{Module, ModuleMap, RowCache, RowSource, SliceMemory, Trace, VirtAddr, Walker};
use unwind_x86::{FramePointers, SframeModule, SframeSource, X86_64, X86_64Regs};

fn main() {
    let [start, end, addr, pc, sp, fp] = black_box([0; 6]).map(VirtAddr::new);
    let (section, stack): (&[u8], &[u8]) = black_box((&[], &[]));
    let mut map = ModuleMap::<SframeModule<'_>, 4>::new();
    if let Ok(Some(table)) = SframeModule::new(section, addr.get()) {
        let _ = black_box(map.add(Module { text: start..end, table }));
    }
    let mut rows = RowCache::<512>::new();
    let mut trace = Trace::<[_; 510]>::new();
    let source = SframeSource::new(&map).or(FramePointers);
    let walker = Walker::new(X86_64::FOUR_LEVEL, source).cache(&mut rows);
    let mut walker = walker.fallback(FramePointers);
    let regs = X86_64Regs::new(pc.get(), sp.get(), fp.get());
    walker.trace(regs, &mut SliceMemory::new(sp, stack), &mut trace);
    black_box(&trace);
}
