//! A stack that was walked before, and another one, against the depth of the stack.

use std::hint::black_box;

use unwind_benches::timing::Effort;
use unwind_core::{
    IncrementalTrace, Module, ModuleMap, PackedFrame, RowCache, SliceMemory, Trace, VirtAddr,
    Walker,
};
use unwind_x86::{SframeModule, SframeSource, X86_64, X86_64Regs};

use crate::programs::{FUNCTION, StackEnd, TEXT, stack_with_end, table_with_end};
use crate::sizes;

/// Walks that compare with the walk before, against walks that do not.
pub(crate) fn measure(effort: Effort) {
    const START: VirtAddr = VirtAddr::new(0x7000_0000);
    println!("incremental walk, of the time of a walk");
    println!("{:>10} {:>10} {:>16} {:>16}", "end", "frames", "same stack", "another one");
    let bytes = table_with_end();
    let table = SframeModule::new(&bytes, TEXT).unwrap().unwrap();
    let mut map = ModuleMap::<_, 1>::new();
    let text = VirtAddr::new(TEXT)..VirtAddr::new(TEXT + 65 * u64::from(FUNCTION));
    map.add(Module { text, table }).unwrap();
    for end in [StackEnd::Outermost, StackEnd::Cut, StackEnd::Zero] {
        for &depth in sizes(effort, &[16_usize, 100, 400]) {
            // Of another one each return address is another, at another place.
            let stacks = [0, 13].map(|first| stack_with_end(end, depth, first));
            let ratio = |stacks: [&(u64, Vec<u8>); 2]| {
                let (mut cache, mut other) = (RowCache::<512>::new(), RowCache::<512>::new());
                let mut trace = Trace::<[PackedFrame; 512]>::new();
                let mut last = IncrementalTrace::<512>::new();
                let walker = || Walker::new(X86_64::FOUR_LEVEL, SframeSource::new(&map));
                let whole = || {
                    for (pc, words) in black_box(stacks) {
                        let regs = X86_64Regs::new(*pc, START.get(), 0);
                        let mut memory = SliceMemory::new(START, words);
                        walker().cache(&mut cache).trace(regs, &mut memory, &mut trace);
                        assert_eq!(trace.len(), depth);
                    }
                };
                let incremental = || {
                    for (pc, words) in black_box(stacks) {
                        let regs = X86_64Regs::new(*pc, START.get(), 0);
                        let mut memory = SliceMemory::new(START, words);
                        let mut walker = walker().cache(&mut other);
                        walker.trace_incremental(regs, &mut memory, &mut last);
                        assert_eq!(last.len(), depth);
                    }
                };
                let (whole, incremental) = effort.duel(whole, incremental);
                assert_eq!(last.end(), trace.end());
                incremental / whole
            };
            let [a, b] = stacks.each_ref();
            let (same, another) = (ratio([a, a]), ratio([a, b]));
            println!("{:>10} {depth:>10} {same:>16.2} {another:>16.2}", format!("{end:?}"));
        }
    }
}
