//! A walk, against the depth of the stack.

use std::hint::black_box;

use unwind_benches::timing::Effort;
use unwind_core::{Module, ModuleMap, RowCache, SliceMemory, Trace, VirtAddr, Walker};
use unwind_x86::{SframeModule, SframeSource, X86_64, X86_64Regs};

use crate::programs::{FUNCTION, TEXT, frame_size, table};
use crate::sizes;

const DEEPEST: usize = 10_240;

pub(crate) fn measure(effort: Effort) {
    const FUNCTIONS: u64 = 64;
    println!("walk of a captured stack, ns a frame");
    println!("{:>10} {:>12} {:>12}", "frames", "first time", "again");
    let bytes = table(FUNCTIONS);
    let table = SframeModule::new(&bytes, TEXT).unwrap().unwrap();
    let mut map = ModuleMap::<_, 1>::new();
    let text = VirtAddr::new(TEXT)..VirtAddr::new(TEXT + FUNCTIONS * u64::from(FUNCTION));
    map.add(Module { text, table }).unwrap();
    for &depth in sizes(effort, &[1_usize, 10, 100, 1000, 10_000]) {
        // Each function calls the next one, and the outermost has no caller.
        let pc_of = |frame: usize| TEXT + (frame as u64 % FUNCTIONS) * u64::from(FUNCTION) + 20;
        let frames: Vec<_> = (0..depth).map(pc_of).collect();
        let mut stack = Vec::new();
        for frame in 0..depth {
            let words = frame_size(frame as u64 % FUNCTIONS) / 8;
            stack.resize(stack.len() + usize::try_from(words).unwrap() - 1, 0_u64);
            stack.push(frames.get(frame + 1).copied().unwrap_or(0));
        }
        let stack: Vec<u8> = stack.into_iter().flat_map(u64::to_le_bytes).collect();
        let start = VirtAddr::new(0x7000_0000);
        let mut trace: Box<Trace> = Box::new(Trace::<[_; DEEPEST]>::new());
        let mut walk = |cache: &mut RowCache<512>| {
            let mut memory = SliceMemory::new(start, black_box(&stack));
            let walker = Walker::new(X86_64::FOUR_LEVEL, SframeSource::new(&map)).cache(cache);
            let mut walker = walker.max_frames(DEEPEST as u32);
            walker.trace(X86_64Regs::new(frames[0], start.get(), 0), &mut memory, &mut trace);
            assert_eq!((trace.len(), trace.is_complete()), (depth, true));
            trace.pcs().next_back()
        };
        let mut kept = RowCache::new();
        assert_eq!(walk(&mut kept).map(VirtAddr::get), frames.last().copied());
        let mut emptied = RowCache::new();
        let repeats = 1 + 1000 / depth;
        let times = [
            effort.race(&mut [&mut || {
                emptied.clear();
                _ = black_box(walk(&mut emptied));
            }])[0],
            effort.race(&mut [&mut || {
                (0..repeats).for_each(|_| _ = black_box(walk(&mut kept)));
            }])[0]
                / repeats as f64,
        ];
        let [first, again] = times.map(|time| time / depth as f64);
        println!("{depth:>10} {first:>12.1} {again:>12.1}");
    }
}
