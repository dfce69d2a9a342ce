//! Processes of one program, and walkers of one address space.

use std::cell::RefCell;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use unwind_benches::timing::Effort;
use unwind_core::{Module, ModuleMap, PackedFrame, RowCache, SliceMemory, Trace, VirtAddr, Walker};
use unwind_x86::{SframeModule, SframeSource, X86_64, X86_64Regs};

use crate::programs::{FUNCTION, TEXT, frame_size, stack_with_end, table, table_with_end};
use crate::{nanoseconds, next, sizes};

/// How many files a program maps, functions each has, frames a stack, and stacks there are.
const FILES: u64 = 5;
const FUNCTIONS: u64 = 400;
const DEPTH: usize = 32;
const STACKS: usize = 8;

/// A process of the program: what it has mapped where, and its stacks.
struct Process<'t> {
    modules: ModuleMap<SframeModule<'t>, 8>,
    cache: Box<RowCache<512>>,
    /// The pc of each, and the words.
    stacks: Vec<(u64, Vec<u8>)>,
}

impl<'t> Process<'t> {
    /// The files are somewhere else in each.
    fn new(files: &'t [Vec<u8>], calls: &[Vec<(u64, u64)>], at: &mut u64) -> Self {
        let mut modules = ModuleMap::new();
        let mut loads = Vec::new();
        for (number, bytes) in (1..).zip(files) {
            let load = 0x7f00_0000_0000 + ((next(at) % (1 << 24)) << 12);
            let table = SframeModule::new(bytes, load + TEXT).unwrap().unwrap().with_id(number);
            let start = VirtAddr::new(load + TEXT);
            let end = VirtAddr::new(load + TEXT + FUNCTIONS * u64::from(FUNCTION));
            // Two in one place are as rare as elsewhere.
            modules.add(Module { text: start..end, table }).unwrap();
            loads.push(load);
        }
        let pc = |&(file, function): &(u64, u64)| {
            loads[file as usize] + TEXT + function * u64::from(FUNCTION) + 20
        };
        let stack = |calls: &Vec<(u64, u64)>| {
            let mut words = Vec::new();
            for (frame, &(_, function)) in calls.iter().enumerate() {
                let size = usize::try_from(frame_size(function) / 8).unwrap();
                words.resize(words.len() + size - 1, 0);
                words.push(calls.get(frame + 1).map_or(0, pc));
            }
            (pc(&calls[0]), words.into_iter().flat_map(u64::to_le_bytes).collect())
        };
        Self { modules, cache: Box::default(), stacks: calls.iter().map(stack).collect() }
    }
}

pub(crate) fn processes(effort: Effort) {
    const START: VirtAddr = VirtAddr::new(0x7000_0000);
    println!("processes of one program that are walked in turn, ns a frame");
    println!("{:>10} {:>12} {:>12}", "processes", "by address", "by key");
    let mut state = 0x1234_5678_9abc_def1;
    let files: Vec<_> = (0..FILES).map(|_| table(FUNCTIONS)).collect();
    // One call of eight is to another file.
    let mut file = 0;
    let mut call = || {
        if next(&mut state).is_multiple_of(8) {
            file = next(&mut state) % FILES;
        }
        (file, next(&mut state) % FUNCTIONS)
    };
    let calls: Vec<Vec<_>> = (0..STACKS).map(|_| (0..DEPTH).map(|_| call()).collect()).collect();
    for &count in sizes(effort, &[1_usize, 10, 50, 200]) {
        let mut processes: Vec<_> =
            (0..count).map(|_| Process::new(&files, &calls, &mut state)).collect();
        let walks = 200 * STACKS;
        let turns: Vec<_> = (0..walks).map(|turn| (turn % count, turn / count % STACKS)).collect();
        let mut trace = Trace::<[PackedFrame; DEPTH]>::new();
        let processes = RefCell::new(&mut processes);
        let mut shared = Box::<RowCache<4096>>::default();
        let by_address = |trace: &mut Trace<[PackedFrame; DEPTH]>| {
            for &(process, stack) in &turns {
                let Process { modules, cache, stacks } = &mut processes.borrow_mut()[process];
                let (pc, words) = &stacks[stack];
                let mut memory = SliceMemory::new(START, words);
                let source = SframeSource::new(modules);
                let mut walker = Walker::new(X86_64::FOUR_LEVEL, source).cache(cache);
                walker.trace(X86_64Regs::new(*pc, START.get(), 0), &mut memory, trace);
                assert_eq!((trace.len(), trace.is_complete()), (DEPTH, true));
            }
        };
        let mut by_key = |trace: &mut Trace<[PackedFrame; DEPTH]>| {
            for &(process, stack) in &turns {
                let Process { modules, stacks, .. } = &processes.borrow()[process];
                let (pc, words) = &stacks[stack];
                let mut memory = SliceMemory::new(START, words);
                let source = SframeSource::new(modules);
                let walker = Walker::new(X86_64::FOUR_LEVEL, source);
                let mut walker = walker.cache_by_key(&mut shared, source);
                walker.trace(X86_64Regs::new(*pc, START.get(), 0), &mut memory, trace);
                assert_eq!((trace.len(), trace.is_complete()), (DEPTH, true));
            }
        };
        let mut other = trace.clone();
        let (address, key) = effort.duel(|| by_address(&mut trace), || by_key(&mut other));
        let [address, key] = [address, key].map(|time| time / (walks * DEPTH) as f64);
        println!("{count:>10} {address:>12.1} {key:>12.1}");
        let missed = shared.stats().misses;
        assert!(missed <= (STACKS * DEPTH) as u64, "{missed} rows were looked up");
    }
}

/// Walkers of one address space on CPUs at once: one map is lent to all, and each has a cache of
/// its own.
pub(crate) fn walkers(effort: Effort) {
    const START: VirtAddr = VirtAddr::new(0x7000_0000);
    println!("walkers of one address space at once, ns a frame of the slowest");
    println!("{:>10} {:>12}", "walkers", "own caches");
    let bytes = table_with_end();
    let table = SframeModule::new(&bytes, TEXT).unwrap().unwrap();
    let mut map = ModuleMap::<_, 1>::new();
    let text = VirtAddr::new(TEXT)..VirtAddr::new(TEXT + 65 * u64::from(FUNCTION));
    map.add(Module { text, table }).unwrap();
    let stacks = [0, 13, 26, 39].map(|first| stack_with_end(DEPTH, first));
    let rounds = if effort.is_test() { 2 } else { 5000 };
    let cpus = thread::available_parallelism().unwrap().get();
    for count in (0..).map(|power| 1_usize << power).take_while(|&count| count <= cpus.max(2)) {
        let barrier = Barrier::new(count);
        let shortest = || {
            let (mut cache, mut shortest) = (RowCache::<512>::new(), f64::MAX);
            let mut trace = Trace::<[PackedFrame; DEPTH]>::new();
            for _ in 0..rounds {
                barrier.wait();
                let start = Instant::now();
                for (pc, words) in black_box(&stacks) {
                    let regs = X86_64Regs::new(*pc, START.get(), 0);
                    let walker = Walker::new(X86_64::FOUR_LEVEL, SframeSource::new(&map));
                    let mut memory = SliceMemory::new(START, words);
                    walker.cache(&mut cache).trace(regs, &mut memory, &mut trace);
                    assert_eq!((trace.len(), trace.is_complete()), (DEPTH, true));
                }
                shortest = shortest.min(nanoseconds(start));
            }
            // Whatever the others look up: a return address in each function, and the first pcs.
            assert!(cache.stats().misses <= 65 + 4, "{:?}", cache.stats());
            shortest / (DEPTH * stacks.len()) as f64
        };
        let slowest = thread::scope(|scope| {
            let threads: Vec<_> = (0..count).map(|_| scope.spawn(shortest)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).fold(0.0, f64::max)
        });
        println!("{count:>10} {slowest:>12.1}");
    }
}
