//! The fast path of a walk against the plain one, on random tables and stacks.
#![cfg(not(loom))]
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

extern crate alloc;

mod random_rows;

use alloc::collections::BTreeSet;
use core::convert::Infallible;
use core::sync::atomic::AtomicU64;

use random_rows::{
    ByAddr, CODE_END, Chain, FramePointers, Narrow, Random, Regs, STACK, Table, Uretprobes, WORDS,
    Wide,
};
use unwind_core::{
    Arch, CallerFrame, CfaRule, Coverage, End, FramePc, Frames, KeyedRange, Memory, Provenance,
    ReadError, RegRule, Row, RowCache, RowKey, RowKeys, RowSource, RowStore, SliceMemory, Trace,
    TraceFrame, Unchecked, VirtAddr, Walker, WordSize,
};

/// What there was in the walks of a test.
#[derive(Default)]
struct Seen {
    frames: u64,
    /// The reasons for an end, without what is after their names.
    ends: BTreeSet<String>,
}

/// Those of them that compact rows have.
const FAILURES: [&str; 8] = [
    "BeyondStack",
    "FramePointerBelowStack",
    "Misaligned",
    "NonCanonical",
    "NotResident",
    "Overflow",
    "Unreadable",
    "ZeroFramePointer",
];

/// Walks plainly and fast, and holds one against the other.
fn same<A, S, F, G, H, C>(
    plain: Walker<A, S, G>,
    fast: Walker<A, F, H, Unchecked, C>,
    regs: Regs,
    memory: SliceMemory<'_>,
    seen: &mut Seen,
) -> u64
where
    A: Arch<Regs = Regs>,
    S: RowSource<A, Error = Infallible>,
    F: RowSource<A, Error = Infallible>,
    G: RowSource<A, Error = Infallible>,
    H: RowSource<A, Error = Infallible>,
    C: RowStore,
{
    let mut plain = plain.return_addresses(Uretprobes);
    let shared: Vec<AtomicU64> = eights(memory).collect();
    let mut in_memory = Patchy { memory, shared: &shared, words: Words::Bytes };
    let mut walk = plain.frames(regs, &mut in_memory);
    let with_sp: Vec<_> =
        walk.by_ref().map(|frame| (frame.pc, frame.provenance, frame.sp)).take(1000).collect();
    let mut expected: Vec<_> = with_sp.iter().map(|(pc, how, _)| (*pc, *how)).collect();
    let mut end = walk.end();
    let is_complete = walk.is_complete() && expected.len() <= 40;

    if expected.len() > 40 {
        expected.truncate(40);
        end = Some(End::FrameLimit);
    }
    // No source has an error, so its address does not matter.
    let end = end.map(|end| end.with_fault(VirtAddr::new(0)));
    // The words of the stack are in memory, also as some that change, and have to be read one
    // by one.
    let mut fast = fast.return_addresses(Uretprobes);
    let mut trace = Trace::<[_; 40]>::new();
    for words in [Words::Bytes, Words::Shared, Words::None, Words::Alone] {
        fast.trace(regs, &mut Patchy { memory, shared: &shared, words }, &mut trace);
        let found: Vec<_> = trace.frames().map(|frame| (frame.pc, frame.provenance)).collect();
        assert_eq!((&found, trace.end()), (&expected, end), "{regs:x?} {words:?}");
        // With little room, begun at once or by the frames.
        let rooms: [&mut Trace; 4] = [
            &mut Trace::<[_; 0]>::new(),
            &mut Trace::<[_; 1]>::new(),
            &mut Trace::<[_; 2]>::new(),
            &mut Trace::<[_; 40]>::new(),
        ];
        for trace in rooms.into_iter().filter(|_| words == Words::Bytes) {
            let room = trace.capacity();
            let end = if expected.len() > room { Some(End::FrameLimit) } else { end };
            let memory = &mut Patchy { memory, shared: &shared, words };
            for is_at_once in [true, false] {
                match is_at_once {
                    true => fast.trace(regs, memory, trace),
                    false => fast.frames(regs, memory).trace(trace),
                }
                let found = trace.frames().map(|frame| (frame.pc, frame.provenance));
                assert!(found.eq(expected.iter().take(room).copied()), "{regs:x?} {room}");
                assert_eq!(trace.end(), end, "{regs:x?} {room} {is_at_once}");
            }
        }
        // The addresses alone, in two parts.
        let mut memory = Patchy { memory, shared: &shared, words };
        let mut frames = fast.frames(regs, &mut memory);
        let mut out = [0; 40];
        let (few, others) = out.split_at_mut(3);
        let first = frames.addresses(few);
        let next = frames.position().map(|at| (at.pc(), at.provenance()));
        assert_eq!(next, expected.get(3).copied(), "{regs:x?} {words:?}");
        let second = frames.addresses(others);
        let found = few.iter().take(first.len).chain(others.iter().take(second.len));
        assert!(found.copied().eq(expected.iter().map(|(pc, _)| pc.addr().get())));
        let last = second.last.or(first.last);
        assert_eq!(last, expected.last().map(|(pc, _)| *pc), "{regs:x?} {words:?}");
        let found = frames.end().map_or(End::FrameLimit, |end| end.with_fault(VirtAddr::new(0)));
        assert_eq!((Some(found), frames.is_complete()), (end, is_complete), "{regs:x?} {words:?}");
        // Some callers at a time.
        let mut memory = Patchy { memory: memory.memory, ..memory };
        let mut frames = fast.frames(regs, &mut memory);
        assert_eq!(some_at_a_time(&mut frames, words), with_sp, "{regs:x?} {words:?}");
        let found = frames.end().map(|end| end.with_fault(VirtAddr::new(0)));
        if with_sp.len() <= 40 {
            assert_eq!((found, frames.is_complete()), (end, is_complete), "{regs:x?} {words:?}");
        }
    }
    let frames = u64::try_from(expected.len()).unwrap();
    seen.frames += frames;
    let absent = end.filter(End::is_retryable).map(|_| "NotResident".to_owned());
    let name = match end.unwrap() {
        End::Step(error) => format!("{error:?}"),
        end => format!("{end:?}"),
    };
    let name = name.split([' ', '(']).next().unwrap().to_owned();
    seen.ends.extend([Some(name), absent].into_iter().flatten());
    frames
}

/// The frames of a walk that goes to none to three callers at once.
fn some_at_a_time<A, F, H, C>(
    frames: &mut Frames<'_, A, F, H, Uretprobes, C, Patchy<'_>>,
    words: Words,
) -> Vec<(FramePc, Provenance, u64)>
where
    A: Arch<Regs = Regs>,
    F: RowSource<A, Error = Infallible>,
    H: RowSource<A, Error = Infallible>,
    C: RowStore,
{
    let by_full_steps =
        words == Words::Alone && A::WORD == WordSize::Eight && F::COVERAGE == Coverage::Unknown;
    let mut found = Vec::new();
    let mut out = [CallerFrame::NONE; 3];
    let mut count = 0;
    for room in (0..=out.len()).cycle() {
        let Some(at) = Frames::position(frames) else {
            assert_eq!(count, 0, "the last of the callers comes next");
            break;
        };
        let at = (at.pc(), at.provenance(), at.sp());
        match count {
            0 => found.push(at),
            _ => assert_eq!(found.last(), Some(&at)),
        }
        count = frames.callers(&mut out[..room]);
        assert!(count <= if by_full_steps { 0 } else { room });
        for caller in &out[..count] {
            let TraceFrame { pc, provenance, .. } = caller.frame();
            assert_eq!(caller.pc(), pc);
            found.push((pc, provenance, caller.sp(A::WORD)));
        }
    }
    found
}

/// How a walk gets the words of the stack, other than by reading them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Words {
    None,
    /// None, and it says that it lends all that it has.
    Alone,
    Bytes,
    Shared,
}

/// The words that the walk may have as shared ones.
fn eights(mut memory: SliceMemory<'_>) -> impl Iterator<Item = AtomicU64> {
    (0..)
        .map_while(move |at| memory.read_u64(VirtAddr::new(STACK + at * 8)).ok())
        .map(u64::to_le)
        .map(AtomicU64::new)
}

/// The same memory, with or without words in memory, where what is not there may be at
/// another time or not.
struct Patchy<'a> {
    memory: SliceMemory<'a>,
    shared: &'a [AtomicU64],
    words: Words,
}

impl Memory for Patchy<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let is_absent = addr.get() & 0x20 != 0;
        let error = if is_absent { ReadError::NotResident } else { ReadError::Invalid };
        self.memory.read(addr, buf).map_err(|_| error)
    }

    fn words(&mut self, addr: VirtAddr) -> Option<(VirtAddr, &[[u8; 8]])> {
        self.memory.words(addr).filter(|_| self.words == Words::Bytes)
    }

    fn shared_words(&mut self, _: VirtAddr) -> Option<(VirtAddr, &[AtomicU64])> {
        (self.words == Words::Shared).then_some((VirtAddr::new(STACK), self.shared))
    }

    fn lends_words_alone(&self) -> bool {
        self.words == Words::Alone
    }
}

/// All code has its rows from one table.
struct Keys {
    table: u64,
}

impl RowKeys for Keys {
    fn find(&mut self, _: VirtAddr) -> Option<KeyedRange> {
        let text = VirtAddr::new(0x800)..VirtAddr::new(CODE_END / 4);
        Some(KeyedRange { text, key: RowKey { table: self.table, offset: 0x800 } })
    }
}

fn compare<A: Arch<Regs = Regs>>(make: impl Fn() -> A, stack_at: u64, seed: u64) -> (Seen, u64) {
    let random = &mut Random(seed);
    let word = A::WORD.bytes();
    let (mut seen, mut hits) = (Seen::default(), 0);
    // For all tables.
    let mut by_key = RowCache::<256>::new();
    for number in 0..20 {
        let table = Table::random(random, i32::try_from(word).unwrap());
        let other_table = Table::random(random, i32::try_from(word).unwrap());
        let mut cache = RowCache::<256>::new();
        let mut other_cache = RowCache::<256>::new();
        let mut small_cache = RowCache::<4>::new();
        for turn in 0..250 {
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
            let sp = sp + random.below(40).saturating_sub(36);
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
            let regs = Regs::new(pc, sp, fp);
            let max = u32::try_from(random.pick(&[0, 1, 2, 7, 64, 64, 64, 500])).unwrap();
            let stack_end =
                STACK + random.pick(&[WORDS * word, WORDS * word / 2, u64::MAX / 2, u64::MAX / 2]);
            // At times without the first bytes, so that they start within a word.
            let cut = usize::try_from(random.below(20).saturating_sub(16)).unwrap();
            let stack_at = VirtAddr::new(stack_at + u64::try_from(cut).unwrap());
            let memory = SliceMemory::new(stack_at, &stack[cut..]);

            let plain = Walker::new(make(), &table).max_frames(max).stack_end(stack_end);
            let fast = Walker::new(make(), &table).cache(&mut cache);
            let fast = fast.max_frames(max).stack_end(stack_end);
            if random.below(2) == 0 {
                same(plain, fast, regs, memory, &mut seen);
            } else {
                let plain = plain.fallback(FramePointers);
                same(plain, fast.fallback(Chain), regs, memory, &mut seen);
            }

            // Rows by frame pointers from the cache, too, and others if they fail.
            let source = || RowSource::<A>::or(&table, FramePointers);
            let plain = Walker::new(make(), source()).fallback(&other_table);
            let plain = plain.max_frames(max).stack_end(stack_end);
            let fast = Walker::new(make(), source()).cache(&mut other_cache);
            let fast = fast.fallback(&other_table).max_frames(max).stack_end(stack_end);
            same(plain, fast, regs, memory, &mut seen);

            // Asked within the fast walk, for rows that a small cache soon loses.
            let plain = Walker::new(make(), source()).fallback(&other_table);
            let plain = plain.max_frames(max).stack_end(stack_end);
            let source = RowSource::<A>::or(ByAddr(&table), Chain);
            let fast = Walker::new(make(), source).cache(&mut small_cache);
            let fast = fast.fallback(&other_table).max_frames(max).stack_end(stack_end);
            same(plain, fast, regs, memory, &mut seen);

            // With one code for a cache and for none, and by rows of many tables in one cache.
            let plain = Walker::new(make(), &table).fallback(FramePointers);
            let plain = plain.max_frames(max).stack_end(stack_end);
            let fast = Walker::new(make(), &table).fallback(Chain);
            let fast = fast.max_frames(max).stack_end(stack_end);
            let none = None::<&mut RowCache<256>>;
            match turn % 4 {
                0 => same(plain, fast.cache_if_any(Some(&mut cache)), regs, memory, &mut seen),
                1 => same(plain, fast.cache_if_any(none), regs, memory, &mut seen),
                _ => {
                    let fast = fast.cache_by_key(&mut by_key, Keys { table: number });
                    same(plain, fast, regs, memory, &mut seen)
                }
            };
        }
        hits += cache.stats().hits + other_cache.stats().hits;
    }
    (seen, hits)
}

#[test]
fn a_trace_by_the_cache_is_the_walk_by_the_table_with_slots_of_eight_bytes() {
    let (Seen { frames, ends }, hits) = compare(|| Wide, STACK, 0x9e37_79b9_7f4a_7c15);
    assert!(frames > 10_000 && hits > frames / 4, "{frames} frames, {hits} hits");
    assert!(FAILURES.iter().all(|name| ends.contains(*name)), "{ends:?}");
}

#[test]
fn a_trace_by_the_cache_is_the_walk_by_the_table_with_slots_of_four_bytes() {
    let (Seen { frames, .. }, hits) = compare(|| Narrow, STACK + 0x10_0000, 0x2545_f491_4f6c_dd1d);
    assert!(frames > 10_000 && hits > frames / 4, "{frames} frames, {hits} hits");
}

/// Walks by frame pointers, along the chain and by its rows, on stacks that have
/// far more frame pointers than the others.
fn compare_chains<A: Arch<Regs = Regs>>(make: impl Fn() -> A, stack_at: u64, seed: u64) -> Seen {
    let random = &mut Random(seed);
    let word = A::WORD.bytes();
    let table = Table::random(random, i32::try_from(word).unwrap());
    let mut seen = Seen::default();
    for _ in 0..3000 {
        let stack: Vec<u8> = (0..WORDS)
            .map(|at| match random.below(64) {
                0..2 => STACK + random.below(WORDS) * word,
                2 => random.pick(&[0, STACK + 1, CODE_END, u64::MAX - 7]),
                // Return addresses, above the frame pointers.
                _ if at % 2 == 1 => 0x1000 + random.below(2000),
                _ => STACK + (at + 2 + random.below(3) * 2) * word,
            })
            .flat_map(|value| value.to_le_bytes().into_iter().take(usize::try_from(word).unwrap()))
            .collect();
        let sp = STACK + random.below(4) * 2 * word + random.below(40).saturating_sub(38);
        let fp =
            random.pick(&[sp, sp, sp, sp, STACK, sp + word, sp - word, sp + 3, 0, u64::MAX - 7]);
        let regs = Regs::new(0x1000, sp, Some(fp));
        let max = u32::try_from(random.pick(&[1, 2, 7, 64, 64, 500])).unwrap();
        let stack_end = [WORDS * word, WORDS * word / 2, word, u64::MAX / 2, u64::MAX / 2];
        let stack_end = STACK + random.pick(&stack_end);
        let cut = usize::try_from(random.below(20).saturating_sub(16)).unwrap();
        let stack_at = VirtAddr::new(stack_at + u64::try_from(cut).unwrap());
        let memory = SliceMemory::new(stack_at, &stack[cut..]);
        let plain = || Walker::new(make(), FramePointers).max_frames(max).stack_end(stack_end);
        let fast = || Walker::new(make(), Chain).max_frames(max).stack_end(stack_end);
        same(plain().fallback(&table), fast().fallback(&table), regs, memory, &mut seen);
        same(plain(), fast(), regs, memory, &mut seen);
        same(plain(), fast().fallback(Chain), regs, memory, &mut seen);
    }
    seen
}

#[test]
fn a_trace_along_frame_pointers_is_the_walk_by_their_rows() {
    let Seen { frames, ends } = compare_chains(|| Wide, STACK, 0x9e37_79b9_7f4a_7c15);
    assert!(frames > 10_000, "{frames} frames");
    assert!(FAILURES.iter().all(|name| ends.contains(*name)), "{ends:?}");
    let Seen { frames, .. } = compare_chains(|| Narrow, STACK + 0x10_0000, 0x2545_f491_4f6c_dd1d);
    assert!(frames > 10_000, "{frames} frames");
}

#[test]
fn each_lookup_of_a_trace_is_counted_once_as_a_hit_or_a_miss() {
    let step = Row::new(CfaRule::sp(8), RegRule::Offset(-8), RegRule::SameValue);
    let mut rows = vec![Some(step); 256];
    rows[0x03] = Some(Row::outermost());
    let table = Table { rows, generation: 0 };
    let stack: Vec<u8> = [0x1002_u64, 0x1003, 0x1004].map(u64::to_le_bytes).concat();
    let mut cache = RowCache::<256>::new();
    for round in 0..3 {
        let mut walker = Walker::new(Wide, &table).cache(&mut cache);
        let mut trace = Trace::<[_; 40]>::new();
        let regs = Regs::new(0x1001, STACK, Some(0));
        walker.trace(regs, &mut SliceMemory::new(VirtAddr::new(STACK), &stack), &mut trace);
        assert_eq!((trace.len(), trace.end()), (4, Some(End::Outermost)));
        // The first return address is after the byte that the walk starts at.
        assert_eq!((cache.stats().hits, cache.stats().misses), (1 + 4 * round, 3));
    }
}

#[test]
fn a_stack_that_starts_within_a_word_is_walked_by_its_aligned_words_only() {
    let step = Row::new(CfaRule::sp(8), RegRule::Offset(-8), RegRule::SameValue);
    let table = Table { rows: vec![Some(step); 256], generation: 0 };
    let stack: Vec<u8> = [0x1002_u64, 0x1003, 0x1004].map(u64::to_le_bytes).concat();
    let mut cache = RowCache::<256>::new();
    for offset in 0..8 {
        let start = STACK + offset;
        let memory = SliceMemory::new(VirtAddr::new(start), &stack);
        for _ in 0..2 {
            let plain = Walker::new(Wide, &table).fallback(FramePointers);
            let fast = Walker::new(Wide, &table).cache(&mut cache).fallback(FramePointers);
            let regs = Regs::new(0x1001, start, Some(0));
            let frames = same(plain, fast, regs, memory, &mut Seen::default());
            assert_eq!(frames, if offset == 0 { 4 } else { 1 });
        }
    }
}
