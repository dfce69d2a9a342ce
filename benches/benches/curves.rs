//! Cost against size: one line each.
//!
//! ```text
//! cargo bench --package unwind-benches --bench curves [-- lookup|walk|spaces|walkers|again|merge|request...]
//! ```

#![allow(
    missing_docs,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a measuring program stops at the first surprise"
)]

use std::fs;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use sframe::{Abi, Builder, Format, Function, Table};
use unwind_benches::deferral::{Deferral, Task};
use unwind_benches::merging::{BYTES_A_SAMPLE, merge};
use unwind_benches::timing::{Effort, wants};
use unwind_core::{
    CfaRule, IncrementalTrace, Module, ModuleMap, PackedFrame, RegRule, Row, RowCache, SliceMemory,
    Trace, VirtAddr, Walker,
};
use unwind_x86::{SframeModule, SframeSource, X86_64, X86_64Regs};

fn main() {
    let effort = Effort::of_arguments();
    // First, as its memory is that of the process.
    if wants("merge") {
        merges(effort);
    }
    if wants("lookup") {
        lookups(effort);
    }
    if wants("walk") {
        walks(effort);
    }
    if wants("spaces") {
        spaces(effort);
    }
    if wants("walkers") {
        walkers(effort);
    }
    if wants("again") {
        again(effort);
    }
    if wants("request") {
        requests(effort);
    }
}

/// The first of the sizes as a test, all of them as a bench.
fn sizes<T: Copy>(effort: Effort, sizes: &[T]) -> &[T] {
    if effort.is_test() { &sizes[..sizes.len().min(2)] } else { sizes }
}

/// A random number after another.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

const FUNCTION: u32 = 64;
const TEXT: u64 = 0x10_0000;

/// How far the stack pointer is from the CFA after the prologue of a function:
/// as a function of its number, so that a row says which function it is of.
fn frame_size(function: u64) -> i32 {
    i32::try_from(16 + 8 * (function % 13)).unwrap()
}

/// A table of `functions` functions of 64 bytes with three rows each.
fn table(functions: u64) -> Vec<u8> {
    let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
    let row = |offset| Row::new(CfaRule::sp(offset), RegRule::Offset(-8), RegRule::SameValue);
    for number in 0..functions {
        let start = TEXT + number * u64::from(FUNCTION);
        let rows = [(0, row(8)), (4, row(frame_size(number))), (60, row(8))];
        builder.add(&Function::new(start, FUNCTION, &rows), |lost| panic!("{lost}")).unwrap();
    }
    builder.finish(TEXT, |lost| panic!("{lost}")).unwrap()
}

fn lookups(effort: Effort) {
    println!("lookup of a random address, ns");
    println!("{:>10} {:>12} {:>12} {:>12}", "functions", "table, KB", "plain", "with index");
    for &functions in sizes(effort, &[10_u64, 100, 1000, 10_000, 100_000, 1_000_000]) {
        let bytes = table(functions);
        let table = Table::parse(&bytes).unwrap().at(TEXT);
        let mut memory = vec![0; table.index_len()];
        let indexed = table.index(&mut memory);
        let mut state = 0x1234_5678_9abc_def1;
        let pcs: Vec<_> = (0..5000)
            .map(|_| {
                let function = next(&mut state) % functions;
                (function, TEXT + function * u64::from(FUNCTION) + 4 + next(&mut state) % 50)
            })
            .collect();
        for &(function, pc) in &pcs {
            let expected = Row::new(
                CfaRule::sp(frame_size(function)),
                RegRule::Offset(-8),
                RegRule::SameValue,
            );
            assert_eq!(table.find_row(pc).unwrap().unwrap().cfa(), expected.cfa());
            assert_eq!(indexed.find_row(pc), table.find_row(pc));
        }
        let (plain, index) = effort.duel(
            || pcs.iter().for_each(|&(_, pc)| _ = black_box(table.find_row(black_box(pc)))),
            || pcs.iter().for_each(|&(_, pc)| _ = black_box(indexed.find_row(black_box(pc)))),
        );
        let per = |time: f64| time / pcs.len() as f64;
        let size = bytes.len() / 1000;
        println!("{functions:>10} {size:>12} {:>12.1} {:>12.1}", per(plain), per(index));
    }
}

const DEEPEST: usize = 10_240;

fn walks(effort: Effort) {
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

fn spaces(effort: Effort) {
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
        let processes = std::cell::RefCell::new(&mut processes);
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
fn walkers(effort: Effort) {
    const START: VirtAddr = VirtAddr::new(0x7000_0000);
    println!("walkers of one address space at once, ns a frame of the slowest");
    println!("{:>10} {:>12}", "walkers", "own caches");
    let bytes = table_with_end();
    let table = SframeModule::new(&bytes, TEXT).unwrap().unwrap();
    let mut map = ModuleMap::<_, 1>::new();
    let text = VirtAddr::new(TEXT)..VirtAddr::new(TEXT + 65 * u64::from(FUNCTION));
    map.add(Module { text, table }).unwrap();
    let stacks = [0, 13, 26, 39].map(|first| stack_with_end(StackEnd::Outermost, DEPTH, first));
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

/// How a stack ends.
#[derive(Clone, Copy, Debug)]
enum StackEnd {
    Outermost,
    /// The last words are not there.
    Cut,
    /// By a return address of zero.
    Zero,
}

/// The pc and the words of a stack of n frames of [`table_with_end`], whose functions
/// begin with this one.
fn stack_with_end(end: StackEnd, depth: usize, first: u64) -> (u64, Vec<u8>) {
    const FUNCTIONS: u64 = 64;
    let function = |frame: usize| match end {
        StackEnd::Outermost if frame + 1 == depth => FUNCTIONS,
        _ => (first + frame as u64) % FUNCTIONS,
    };
    let pc = |frame| TEXT + function(frame) * u64::from(FUNCTION) + 20;
    let mut words = Vec::new();
    for frame in 0..depth {
        let size = usize::try_from(frame_size(function(frame)) / 8).unwrap();
        words.resize(words.len() + size - 1, 0);
        words.push(if frame + 1 == depth { 0 } else { pc(frame + 1) });
    }
    if let StackEnd::Cut = end {
        words.pop();
    }
    (pc(0), words.into_iter().flat_map(u64::to_le_bytes).collect())
}

/// As [`table`] of 64 functions, with one more that has no caller.
fn table_with_end() -> Vec<u8> {
    const FUNCTIONS: u64 = 64;
    let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
    let row = |offset| Row::new(CfaRule::sp(offset), RegRule::Offset(-8), RegRule::SameValue);
    for number in 0..=FUNCTIONS {
        let start = TEXT + number * u64::from(FUNCTION);
        let rows = match number {
            FUNCTIONS => [(0, Row::outermost())],
            _ => [(0, row(frame_size(number)))],
        };
        builder.add(&Function::new(start, FUNCTION, &rows), |lost| panic!("{lost}")).unwrap();
    }
    builder.finish(TEXT, |lost| panic!("{lost}")).unwrap()
}

/// Walks that compare with the walk before, against walks that do not.
fn again(effort: Effort) {
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

fn merges(effort: Effort) {
    println!("merge of samples with later stacks");
    println!("{:>10} {:>12} {:>12} {:>16}", "MB", "samples", "ns a sample", "peak memory, KB");
    for &megabytes in sizes(effort, &[1_u64, 10, 100, 1000]) {
        // Whole kernel entries of all threads.
        let samples = ((megabytes << 20) / BYTES_A_SAMPLE).next_multiple_of(256);
        // From here on the peak is counted anew.
        fs::write("/proc/self/clear_refs", "5").unwrap();
        let start = Instant::now();
        assert_eq!(merge(samples), samples, "each has its stack");
        let time = nanoseconds(start) / samples as f64;
        let peak = peak_memory_kb();
        println!("{megabytes:>10} {samples:>12} {time:>12.0} {peak:>16}");
    }
}

/// The most memory that this process has had at a time.
fn peak_memory_kb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim_end_matches("kB").trim().parse().unwrap()
}

fn requests(effort: Effort) {
    println!("request, by clients that all ask in an entry: ns");
    println!("{:>10} {:>12} {:>12} {:>24}", "clients", "first", "repeated", "delivery, a client");
    let clock = (0..1000).map(|_| nanoseconds(Instant::now())).fold(f64::MAX, f64::min);
    let clients = [1_usize, 2, 4, 8, 16, 32];
    for &clients in sizes(effort, &clients) {
        let (deferral, task) = (Deferral::new(32), Task::new());
        let [mut first, mut repeated, mut delivery] = [f64::MAX; 3];
        for _ in 0..if effort.is_test() { 2 } else { 20_000 } {
            first = first.min(ask(&deferral, &task, clients));
            repeated = repeated.min(ask(&deferral, &task, clients));
            let start = Instant::now();
            deferral.deliver(&task, clients);
            delivery = delivery.min(nanoseconds(start));
        }
        let [first, repeated, delivery] =
            [first, repeated, delivery].map(|time| (time - clock) / clients as f64);
        println!("{clients:>10} {first:>12.1} {repeated:>12.1} {delivery:>24.1}");
    }
    println!("request, on CPUs at once, each for its own task: ns");
    println!("{:>10} {:>12} {:>24}", "CPUs", "repeated", "first, and delivery");
    let cpus = thread::available_parallelism().unwrap().get();
    for cpus in (0..).map(|power| 1_usize << power).take_while(|&count| count <= cpus) {
        let repeated = |deferral: &Deferral, task: &Task| assert!(deferral.request(task, 0));
        let whole = |deferral: &Deferral, task: &Task| {
            assert!(deferral.request(task, 0));
            deferral.deliver(task, 1);
        };
        let repeated = on_cpus(cpus, effort, Task::asked, repeated);
        let whole = on_cpus(cpus, effort, |_| Task::new(), whole);
        println!("{cpus:>10} {repeated:>12.1} {whole:>24.1}");
    }
}

/// What has passed, and reading the clock.
fn nanoseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e9
}

/// The time of a request of each client in turn.
fn ask(deferral: &Deferral, task: &Task, clients: usize) -> f64 {
    let start = Instant::now();
    for client in 0..clients {
        assert!(deferral.request(black_box(task), client));
    }
    nanoseconds(start)
}

/// The shortest time of something that `cpus` CPUs do at once, each with its
/// own task: that of the CPU that takes longest.
fn on_cpus(
    cpus: usize,
    effort: Effort,
    task: impl Fn(&Deferral) -> Task + Sync,
    act: impl Fn(&Deferral, &Task) + Sync,
) -> f64 {
    const REPEATS: usize = 1000;
    let (deferral, barrier) = (Deferral::new(1), Barrier::new(cpus));
    let rounds = if effort.is_test() { 1 } else { 2000 };
    let shortest = || {
        let task = task(&deferral);
        let mut shortest = f64::MAX;
        for _ in 0..rounds {
            barrier.wait();
            let start = Instant::now();
            for _ in 0..REPEATS {
                act(&deferral, black_box(&task));
            }
            shortest = shortest.min(nanoseconds(start) / REPEATS as f64);
        }
        shortest
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..cpus).map(|_| scope.spawn(shortest)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).fold(0.0, f64::max)
    })
}
