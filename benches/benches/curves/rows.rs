//! Walks through a number of return addresses, against the rows that a cache has room for.

use std::hint::black_box;

use unwind_benches::timing::Effort;
use unwind_core::{Module, ModuleMap, PackedFrame, RowCache, SliceMemory, Trace, VirtAddr, Walker};
use unwind_x86::{SframeModule, SframeSource, X86_64, X86_64Regs};

use crate::programs::{FUNCTION, TEXT, frame_size, table};
use crate::{next, sizes};

const START: VirtAddr = VirtAddr::new(0x7000_0000);
const DEPTH: usize = 32;

/// A stack whose frames are of these functions: its pc and its words.
fn stack(functions: &[u64]) -> (u64, Vec<u8>) {
    let pc = |function: &u64| TEXT + function * u64::from(FUNCTION) + 20;
    let mut words = Vec::new();
    for (frame, &function) in functions.iter().enumerate() {
        let size = usize::try_from(frame_size(function) / 8).unwrap();
        words.resize(words.len() + size - 1, 0);
        words.push(functions.get(frame + 1).map_or(0, pc));
    }
    (pc(&functions[0]), words.into_iter().flat_map(u64::to_le_bytes).collect())
}

/// One walk of each stack.
fn walk_all<const ROWS: usize>(
    map: &ModuleMap<SframeModule<'_>, 1>,
    stacks: &[(u64, Vec<u8>)],
    cache: &mut RowCache<ROWS>,
) {
    let mut trace = Trace::<[PackedFrame; DEPTH]>::new();
    for (pc, words) in black_box(stacks) {
        let mut memory = SliceMemory::new(START, words);
        let walker = Walker::new(X86_64::FOUR_LEVEL, SframeSource::new(map));
        let regs = X86_64Regs::new(*pc, START.get(), 0);
        walker.cache(cache).trace(regs, &mut memory, &mut trace);
        assert_eq!((trace.len(), trace.is_complete()), (DEPTH, true));
    }
}

pub(crate) fn measure(effort: Effort) {
    println!("walks through random return addresses, ns a frame");
    println!("{:>10} {:>12} {:>12} {:>12}", "addresses", "512 rows", "4096 rows", "ratio");
    for &addresses in sizes(effort, &[100_u64, 300, 1000, 3000]) {
        // A return address in each function, and ten times that many frames.
        let bytes = table(addresses);
        let table = SframeModule::new(&bytes, TEXT).unwrap().unwrap();
        let text = VirtAddr::new(TEXT)..VirtAddr::new(TEXT + addresses * u64::from(FUNCTION));
        let mut map = ModuleMap::new();
        map.add(Module { text, table }).unwrap();
        let mut state = 0x1234_5678_9abc_def1;
        let mut functions = || (0..DEPTH).map(|_| next(&mut state) % addresses).collect::<Vec<_>>();
        let stacks: Vec<_> = (0..addresses * 10 / 32).map(|_| stack(&functions())).collect();
        let mut few = Box::<RowCache<512>>::default();
        let mut many = Box::<RowCache<4096>>::default();
        let (few, many) = effort
            .duel(|| walk_all(&map, &stacks, &mut few), || walk_all(&map, &stacks, &mut many));
        let [few, many] = [few, many].map(|time| time / (stacks.len() * DEPTH) as f64);
        println!("{addresses:>10} {few:>12.1} {many:>12.1} {:>12.2}", many / few);
    }
}
