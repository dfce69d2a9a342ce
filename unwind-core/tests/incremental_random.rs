//! A walk that continues from the one before against the plain one, on random
//! tables and on stacks that change a little, a lot or not at all.
#![cfg(not(loom))]
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod random_rows;

use core::convert::Infallible;
use core::ops::AddAssign;

use random_rows::{
    ByAddr, CODE_END, Chain, Narrow, Random, Regs, STACK, Table, Uretprobes, WORDS, Wide,
};
use unwind_core::{
    Arch, End, IncrementalTrace, Memory, ReadError, ReturnAddresses, RowCache, RowSource, RowStore,
    SliceMemory, Trace, TraceFrame, VirtAddr, Walker,
};

/// The most frames that a walk has.
const ROOM: usize = 24;

/// A stack of which a word may be absent, and of which not all words are lent.
#[derive(Clone, Copy)]
struct Stack<'a> {
    whole: SliceMemory<'a>,
    absent: Option<u64>,
    lent: Option<usize>,
}

impl<'a> Stack<'a> {
    fn new(start: u64, bytes: &'a [u8]) -> Self {
        let whole = SliceMemory::new(VirtAddr::new(start), bytes);
        Self { whole, absent: None, lent: Some(usize::MAX) }
    }
}

impl Memory for Stack<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let end = addr.get().wrapping_add(buf.len().try_into().unwrap());
        match self.absent {
            Some(absent) if (addr.get()..end).contains(&absent) => Err(ReadError::NotResident),
            _ => self.whole.read(addr, buf),
        }
    }

    fn words(&mut self, addr: VirtAddr) -> Option<(VirtAddr, &[[u8; 8]])> {
        let (start, words) = self.whole.words(addr)?;
        let present = match self.absent.and_then(|absent| absent.checked_sub(start.get())) {
            Some(offset) => usize::try_from(offset / 8).unwrap(),
            None => words.len(),
        };
        Some((start, words.get(..present.min(self.lent?)).unwrap_or(words)))
    }
}

/// What walks found.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    frames: usize,
    reused: usize,
}

impl AddAssign for Found {
    fn add_assign(&mut self, other: Self) {
        self.frames += other.frames;
        self.reused += other.reused;
    }
}

/// Walks by `walker` from the beginning and on from `last`, and holds one against
/// the other.
fn same<A, S, G, T, C, M>(
    walker: &mut Walker<A, S, G, T, C>,
    regs: Regs,
    memory: &mut M,
    last: &mut IncrementalTrace<ROOM>,
) -> Found
where
    A: Arch<Regs = Regs>,
    S: RowSource<A, Error = Infallible>,
    G: RowSource<A, Error = Infallible>,
    T: ReturnAddresses,
    C: RowStore,
    M: Memory,
{
    let mut walk = walker.frames(regs, memory);
    let mut expected: Vec<_> = walk.by_ref().map(|frame| (frame.pc, frame.provenance)).collect();
    let mut end = walk.end();
    if expected.len() > ROOM {
        expected.truncate(ROOM);
        end = Some(End::FrameLimit);
    }
    // No source has an error, so its address does not matter.
    let end = end.map(|end| end.with_fault(VirtAddr::new(0)));
    walker.trace_incremental(regs, memory, last);
    let pair = |frame: TraceFrame| (frame.pc, frame.provenance);
    let found: Vec<_> = last.frames().map(pair).collect();
    assert_eq!((&found, last.end()), (&expected, end), "{regs:x?}");
    assert!(last.pcs().eq(expected.iter().map(|(pc, _)| pc.addr())));

    let mut copy = Trace::<[_; ROOM]>::new();
    last.copy_to(&mut copy);
    assert!(copy.frames().map(pair).eq(expected) && copy.end() == end, "{regs:x?}");
    Found { frames: last.len(), reused: last.reused() }
}

/// A thread whose stack changes from walk to walk.
struct Thread {
    words: Vec<u64>,
    regs: Regs,
    max_frames: u32,
    stack_end: u64,
}

impl Thread {
    fn new(random: &mut Random, word: u64) -> Self {
        let words = (0..WORDS).map(|_| Self::value(random, word)).collect();
        let regs = Regs::new(0x1000, STACK, Some(STACK));
        let mut thread = Self { words, regs, max_frames: 500, stack_end: u64::MAX / 2 };
        thread.go_elsewhere(random, word);
        thread
    }

    fn value(random: &mut Random, word: u64) -> u64 {
        match random.below(64) {
            0..8 => STACK + random.below(WORDS) * word,
            8 => random.pick(&[0, CODE_END, u64::MAX, 1]),
            _ => 0x1000 + random.below(200),
        }
    }

    fn go_elsewhere(&mut self, random: &mut Random, word: u64) {
        let sp = STACK + random.below(WORDS / 16) * word;
        let fps = [None, Some(0), Some(sp + 2 * word), Some(sp + 8 * word), Some(u64::MAX - 7)];
        let pc = match random.below(20) {
            0 => random.pick(&[u64::MAX, 0, CODE_END]),
            _ => 0x1000 + random.below(200),
        };
        self.regs = Regs::new(pc, sp, random.pick(&fps));
    }

    /// Runs on for a while.
    fn run(&mut self, random: &mut Random, word: u64) {
        let near = usize::try_from((self.regs.sp - STACK) / word + random.below(24)).unwrap();
        match random.below(16) {
            0..3 => {}
            3..6 => self.words[near] = Self::value(random, word),
            6..9 => {
                let at = usize::try_from(random.below(WORDS)).unwrap();
                self.words[at] = Self::value(random, word);
            }
            9 => self.words[..near].fill_with(|| Self::value(random, word)),
            10 => self.regs.pc = 0x1000 + random.below(200),
            11 => self.regs.fp = random.pick(&[None, Some(0), Some(self.regs.sp + 2 * word)]),
            12 => self.max_frames = random.pick(&[0, 1, 2, 7, 20, 24, 25, 500, 500, 500]),
            13 => {
                let ends = [WORDS * word, WORDS * word / 2, u64::MAX / 2, u64::MAX / 2];
                self.stack_end = STACK + random.pick(&ends);
            }
            _ => self.go_elsewhere(random, word),
        }
    }

    fn bytes(&self, word: u64) -> Vec<u8> {
        let len = usize::try_from(word).unwrap();
        self.words.iter().flat_map(|value| value.to_le_bytes().into_iter().take(len)).collect()
    }
}

/// Return addresses that a tracer replaced, as long as it does.
#[derive(Clone, Copy)]
struct Tracer {
    is_on: bool,
    generation: Option<u64>,
}

impl ReturnAddresses for Tracer {
    fn resolve(&mut self, ra: VirtAddr, slot: Option<VirtAddr>) -> Option<VirtAddr> {
        if self.is_on { Uretprobes.resolve(ra, slot) } else { None }
    }

    fn is_code(&mut self, call: VirtAddr) -> bool {
        !self.is_on || Uretprobes.is_code(call)
    }

    fn generation(&self) -> Option<u64> {
        self.generation
    }
}

fn compare<A: Arch<Regs = Regs>>(make: impl Fn() -> A, stack_at: u64, seed: u64) -> Found {
    let random = &mut Random(seed);
    let word = A::WORD.bytes();
    let mut all = Found::default();
    for _ in 0..40 {
        let mut table = Table::random(random, i32::try_from(word).unwrap());
        let mut caches = [RowCache::<256>::new(), RowCache::<256>::new()];
        let mut lasts = [const { IncrementalTrace::new() }; 3];
        let mut thread = Thread::new(random, word);
        let mut tracer = Tracer { is_on: random.below(2) == 0, generation: Some(0) };
        for _ in 0..200 {
            thread.run(random, word);
            if random.below(30) == 0 {
                table = Table::random(random, i32::try_from(word).unwrap())
                    .with_generation(table.generation + 1);
            }
            if random.below(30) == 0 {
                tracer.is_on = !tracer.is_on;
                tracer.generation = tracer.generation.map(|generation| generation + 1);
            }
            let bytes = thread.bytes(word);
            let mut stack = Stack::new(stack_at, &bytes);
            if random.below(4) == 0 {
                stack.absent = Some(stack_at + random.below(WORDS) * word);
            }
            stack.lent = random.pick(&[None, Some(20), Some(usize::MAX)]);
            let Thread { regs, max_frames, stack_end, .. } = thread;
            let [cache, other] = &mut caches;
            let [first, second, third] = &mut lasts;

            let walker = Walker::new(make(), &table).cache(cache).max_frames(max_frames);
            let walker = walker.stack_end(stack_end);
            let mut walker = walker.fallback(Chain).return_addresses(tracer);
            all += same(&mut walker, regs, &mut stack, first);

            // Asked within the fast walk; rows by frame pointers from the cache, too.
            let source = RowSource::<A>::or(ByAddr(&table), Chain);
            let walker = Walker::new(make(), source).cache(other).max_frames(max_frames);
            let mut walker = walker.stack_end(stack_end).return_addresses(tracer);
            all += same(&mut walker, regs, &mut stack, second);
            let mut walker = walker.return_addresses(Tracer { generation: None, ..tracer });
            let found = same(&mut walker, regs, &mut stack, third);
            assert_eq!(found.reused, 0, "who knows whether the answers are still right");
        }
    }
    all
}

#[test]
fn a_walk_on_from_the_last_one_is_the_walk_with_slots_of_eight_bytes() {
    let found = compare(|| Wide, STACK, 0x9e37_79b9_7f4a_7c15);
    assert!(found.frames > 50_000 && found.reused > found.frames / 16, "{found:?}");
}

#[test]
fn a_walk_on_from_the_last_one_is_the_walk_with_slots_of_four_bytes() {
    let found = compare(|| Narrow, STACK + 0x10_0000, 0x2545_f491_4f6c_dd1d);
    assert!(found.frames > 50_000 && found.reused > found.frames / 16, "{found:?}");
}

#[test]
fn a_walk_on_along_frame_pointers_is_the_walk_and_meets_the_last_one() {
    const FRAMES: u64 = 16;
    let random = &mut Random(0x9e37_79b9_7f4a_7c15);
    let mut last = IncrementalTrace::new();
    let mut all = Found::default();
    let mut ras: Vec<u64> = (0..FRAMES).map(|_| 0x1000 + random.below(200)).collect();
    for _ in 0..1000 {
        // Calls come and go below the frame that runs.
        let runs = random.below(FRAMES);
        for ra in ras.iter_mut().take(usize::try_from(random.below(runs + 2)).unwrap()) {
            *ra = 0x1000 + random.below(200);
        }
        let fps = (1..FRAMES).map(|number| STACK + 16 * number).chain([0]);
        let words = fps.zip(&ras).flat_map(|(fp, ra)| [fp, *ra]);
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let mut stack = Stack::new(STACK, &bytes);
        stack.lent = random.pick(&[None, Some(20), Some(usize::MAX)]);
        let sp = STACK + 16 * runs;
        let regs = Regs::new(0x1000 + random.below(4), sp, Some(sp));
        let found = same(&mut Walker::new(Wide, Chain), regs, &mut stack, &mut last);
        assert_eq!(found.frames, usize::try_from(FRAMES - runs).unwrap() + 1);
        all += found;
    }
    assert!(all.reused > all.frames / 3, "{all:?}");
}
