//! The fast path of a walk against the plain one, on random tables and stacks.
#![cfg(not(loom))]
#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "tests"
)]

use core::convert::Infallible;

use unwind_core::{
    Arch, Base, Cached, CfaRule, DwarfReg, End, FrameContext, Memory, Origin, ReadError, RegRule,
    Registers, Row, RowCache, RowSource, SliceMemory, StepError, TargetCode, UnwindCache, VirtAddr,
    Walker, WordSize,
};

/// A xorshift generator: the same numbers each time.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.below(choices.len().try_into().unwrap())).unwrap()]
    }
}

#[derive(Clone, Copy, Debug)]
struct Regs {
    pc: u64,
    sp: u64,
    fp: Option<u64>,
}

impl Registers for Regs {
    fn pc(&self) -> u64 {
        self.pc
    }
    fn sp(&self) -> u64 {
        self.sp
    }
    fn fp(&self) -> Option<u64> {
        self.fp
    }
    fn get(&self, reg: DwarfReg) -> Option<u64> {
        (reg == DwarfReg(3)).then_some(self.sp)
    }
}

/// Code ends at 2^40; signal contexts are two words at the stack pointer.
struct Wide;
struct Narrow;

const CODE_END: u64 = 1 << 40;

impl Arch for Wide {
    type Regs = Regs;
    const WORD: WordSize = WordSize::Eight;
    fn code_addr(&self, pc: u64) -> Option<VirtAddr> {
        (pc < CODE_END).then_some(VirtAddr::new(pc))
    }
    fn signal_context<M: Memory>(
        &self,
        _: VirtAddr,
        sp: u64,
        mem: &mut M,
    ) -> Result<Option<Regs>, StepError> {
        let mut word = |addr| {
            let addr = VirtAddr::new(addr);
            mem.read_u64(addr).map_err(|error| StepError::Unreadable { addr, error })
        };
        Ok(Some(Regs { pc: word(sp)?, sp: word(sp.wrapping_add(8))?, fp: None }))
    }
}

impl Arch for Narrow {
    type Regs = Regs;
    const WORD: WordSize = WordSize::Four;
    fn stack_addr(&self, sp: u64) -> VirtAddr {
        VirtAddr::new(sp.wrapping_add(0x10_0000))
    }
}

/// Rows by the low bits of the pc.
struct Table(Vec<Option<Row>>);

impl Table {
    fn random(random: &mut Random, word: i32) -> Self {
        let row = |random: &mut Random| {
            let base = if random.below(10) == 0 { Base::Fp } else { Base::Sp };
            let base = if random.below(90) == 0 { Base::Reg(DwarfReg(3)) } else { base };
            let offset = random.pick(&[word, 2 * word, 2 * word, 3 * word, 0x40, 0x40]);
            let odd = random.pick(&[0, -word, 3, word + 3, i32::MAX, i32::MIN, 0x1_0000]);
            let offset = if random.below(60) == 0 { odd } else { offset };
            let cfa = match random.below(120) {
                0 => CfaRule::Deref(base, offset),
                _ => CfaRule::Offset(base, offset),
            };
            let ra = match random.below(120) {
                0 => RegRule::Undefined,
                1 => RegRule::AtCfa(-3 * word),
                _ => RegRule::AtCfa(-word),
            };
            let fp = match random.below(12) {
                0..5 => RegRule::Same,
                5..9 => RegRule::AtCfa(-2 * word),
                9 => RegRule::AtCfa(-3 * word),
                10 => random.pick(&[RegRule::AtCfa(8), RegRule::Undefined, RegRule::Cfa(-word)]),
                _ => random.pick(&[RegRule::AtCfa(-0x1_0000), RegRule::AtCfa(0), RegRule::Same]),
            };
            let origins = [Origin::Table, Origin::BuiltTable, Origin::Host, Origin::FramePointer];
            let origin = random.pick(&origins);
            let row = match random.below(80) {
                0 => Row::outermost(),
                _ => Row::new(cfa, ra, fp),
            };
            let row = row.with_origin(origin);
            if random.below(50) == 0 { row.with_signal() } else { row }
        };
        Self((0..256).map(|_| (random.below(40) != 0).then(|| row(random))).collect())
    }
}

impl<A: Arch> RowSource<A> for &Table {
    type Error = Infallible;
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let at = frame.pc.lookup_addr().get() % 256;
        Ok(self.0[usize::try_from(at).unwrap()])
    }
}

/// Frames that all keep a frame pointer.
struct FramePointers;

impl<A: Arch> RowSource<A> for FramePointers {
    type Error = Infallible;
    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let row = match A::WORD {
            WordSize::Four => Row::new(CfaRule::fp(8), RegRule::AtCfa(-4), RegRule::AtCfa(-8)),
            WordSize::Eight => Row::new(CfaRule::fp(16), RegRule::AtCfa(-8), RegRule::AtCfa(-16)),
        };
        Ok(Some(row.with_origin(Origin::FramePointer)))
    }
}

/// Some return addresses are a tracer's.
#[derive(Clone, Copy)]
struct Uretprobes;

impl TargetCode for Uretprobes {
    fn real_return(&mut self, ra: VirtAddr, slot: Option<VirtAddr>) -> Option<VirtAddr> {
        let slot = slot?.get();
        // Zero is no good answer, but nothing may come of it.
        (ra.get() % 64 == 5).then(|| VirtAddr::new(if slot % 256 == 0 { 0 } else { slot % 999 }))
    }

    fn is_code(&mut self, call: VirtAddr) -> bool {
        call.get() % 64 != 9
    }
}

/// Near the lowest address, where sums that wrap end up.
const STACK: u64 = 0x10;
const WORDS: u64 = 1 << 8;

/// Walks plainly and fast, and holds one against the other; returns how many
/// frames there were.
fn same<A, S, F, G>(
    plain: Walker<A, S, G>,
    fast: Walker<A, F, G>,
    regs: Regs,
    memory: &mut SliceMemory<'_>,
) -> u64
where
    A: Arch<Regs = Regs>,
    S: RowSource<A, Error = Infallible>,
    F: RowSource<A, Error = Infallible>,
    G: RowSource<A, Error = Infallible>,
{
    let mut plain = plain.code(Uretprobes);
    let mut walk = plain.frames(regs, memory);
    let mut expected: Vec<_> = walk.by_ref().map(|frame| (frame.pc, frame.provenance)).collect();
    let mut end = walk.end();

    if expected.len() > 40 {
        expected.truncate(40);
        end = Some(End::Full);
    }
    // The words of the stack are at hand, and have to be read one by one.
    let mut fast = fast.code(Uretprobes);
    let mut trace = UnwindCache::<40, Infallible>::new();
    for is_at_hand in [true, false] {
        match is_at_hand {
            true => fast.trace(regs, memory, &mut trace),
            false => fast.trace(regs, &mut OneByOne(*memory), &mut trace),
        }
        let found: Vec<_> = trace.frames().map(|frame| (frame.pc, frame.provenance)).collect();
        assert_eq!((&found, trace.end()), (&expected, end), "{regs:x?} {is_at_hand}");
    }
    u64::try_from(expected.len()).unwrap()
}

/// The same memory without words at hand.
struct OneByOne<'a>(SliceMemory<'a>);

impl Memory for OneByOne<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.0.read(addr, buf)
    }
}

fn compare<A: Arch<Regs = Regs>>(make: impl Fn() -> A, stack_at: u64, seed: u64) -> (u64, u64) {
    let random = &mut Random(seed);
    let word = A::WORD.bytes();
    let (mut frames, mut hits) = (0, 0);
    for _ in 0..20 {
        let table = Table::random(random, i32::try_from(word).unwrap());
        let mut cache = RowCache::<256>::new();
        let mut other_cache = RowCache::<256>::new();
        for _ in 0..250 {
            let stack: Vec<u8> = (0..WORDS)
                .map(|_| match random.below(64) {
                    0..7 => STACK + random.below(WORDS) * word,
                    7 => STACK + random.below(WORDS * word),
                    8 => random.pick(&[0, CODE_END, u64::MAX, 1]),
                    // Some pcs again and again, some only once.
                    9..56 => 0x1000 + random.below(200),
                    _ => 0x1000 + random.below(20_000),
                })
                .flat_map(|value| {
                    let bytes = value.to_le_bytes();
                    bytes.into_iter().take(usize::try_from(word).unwrap())
                })
                .collect();
            let sp = STACK + random.below(WORDS / 16) * word;
            let fp = random.pick(&[
                None,
                Some(0),
                Some(sp + 2 * word),
                Some(sp + 8 * word),
                Some(sp - 1),
                Some(sp + 1),
                Some(u64::MAX - 7),
            ]);
            let pc = match random.below(20) {
                0 => random.pick(&[u64::MAX, 0, CODE_END]),
                _ => 0x1000 + random.below(200),
            };
            let regs = Regs { pc, sp, fp };
            let max = u32::try_from(random.pick(&[0, 1, 2, 7, 64, 64, 64, 500])).unwrap();
            let stack_end =
                STACK + random.pick(&[WORDS * word, WORDS * word / 2, u64::MAX / 2, u64::MAX / 2]);
            // At times without the first bytes, so that they start within a word.
            let cut = usize::try_from(random.below(20).saturating_sub(16)).unwrap();
            let stack_at = VirtAddr::new(stack_at + u64::try_from(cut).unwrap());
            let mut memory = SliceMemory::new(stack_at, &stack[cut..]);

            let plain = Walker::new(make(), &table).fallback(FramePointers);
            let plain = plain.max_frames(max).stack_end(stack_end);
            let source = Cached::new(&table, &mut cache);
            let fast = Walker::new(make(), source).fallback(FramePointers);
            let fast = fast.max_frames(max).stack_end(stack_end);
            frames += same(plain, fast, regs, &mut memory);

            // Rows by frame pointers from the cache, too.
            let source = || RowSource::<A>::or(&table, FramePointers);
            let plain = Walker::new(make(), source()).max_frames(max).stack_end(stack_end);
            let source = Cached::new(source(), &mut other_cache);
            let fast = Walker::new(make(), source).max_frames(max).stack_end(stack_end);
            frames += same(plain, fast, regs, &mut memory);
        }
        hits += cache.stats().hits + other_cache.stats().hits;
    }
    (frames, hits)
}

#[test]
fn a_trace_by_the_cache_is_the_walk_by_the_table_with_slots_of_eight_bytes() {
    let (frames, hits) = compare(|| Wide, STACK, 0x9e37_79b9_7f4a_7c15);
    assert!(frames > 10_000 && hits > frames / 4, "{frames} frames, {hits} hits");
}

#[test]
fn a_trace_by_the_cache_is_the_walk_by_the_table_with_slots_of_four_bytes() {
    let (frames, hits) = compare(|| Narrow, STACK + 0x10_0000, 0x2545_f491_4f6c_dd1d);
    assert!(frames > 10_000 && hits > frames / 4, "{frames} frames, {hits} hits");
}

#[test]
fn each_lookup_of_a_trace_is_counted_once_as_a_hit_or_a_miss() {
    let step = Row::new(CfaRule::sp(8), RegRule::AtCfa(-8), RegRule::Same);
    let mut rows = vec![Some(step); 256];
    rows[0x03] = Some(Row::outermost());
    let table = Table(rows);
    let stack: Vec<u8> = [0x1002_u64, 0x1003, 0x1004].map(u64::to_le_bytes).concat();
    let mut cache = RowCache::<256>::new();
    for round in 0..3 {
        let mut walker = Walker::new(Wide, Cached::new(&table, &mut cache));
        let mut trace = UnwindCache::<40, Infallible>::new();
        let regs = Regs { pc: 0x1001, sp: STACK, fp: Some(0) };
        walker.trace(regs, &mut SliceMemory::new(VirtAddr::new(STACK), &stack), &mut trace);
        assert_eq!((trace.len(), trace.end()), (4, Some(End::Outermost)));
        // The first return address is behind the byte that the walk starts at.
        assert_eq!((cache.stats().hits, cache.stats().misses), (1 + 4 * round, 3));
    }
}
