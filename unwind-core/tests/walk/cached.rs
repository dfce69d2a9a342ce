//! Walks with a cache: which rows they look up, and which they keep.
use unwind_core::{
    CfaRule, Coverage, End, FrameContext, Memory, RegRule, Row, RowCache, RowSource, SliceMemory,
    Trace, TraceFrame, VirtAddr, Walker, WordSize,
};

use crate::toy::{
    BadTable, FP, Regs, START, Script, Stack, Toy, locals, same_in_trace, three_frames,
};

/// What a source looks at besides the lookup address.
type Look = fn(&FrameContext<'_, Regs>);

/// A source that notes for which addresses it was asked.
struct Noting {
    script: Script,
    asked: Vec<u64>,
    look: Look,
}

impl Noting {
    fn new(script: Script) -> Self {
        Self { script, asked: Vec::new(), look: |_| {} }
    }
}

impl RowSource<Toy> for Noting {
    type Error = BadTable;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, BadTable> {
        self.asked.push(frame.lookup_addr().get());
        assert!(self.asked.len() < 100, "a walk asks again and again");
        (self.look)(frame);
        self.script.row(frame, mem)
    }
}

/// The pcs of a trace from `regs`.
fn trace<S, const N: usize>(
    source: S,
    cache: &mut RowCache<N>,
    regs: Regs,
    stack: &mut Stack,
) -> Vec<u64>
where
    S: RowSource<Toy, Error = BadTable>,
{
    let mut trace = Trace::<[_; 8]>::new();
    Walker::new(Toy, source).cache(cache).trace(regs, stack, &mut trace);
    assert_eq!(trace.end(), Some(End::Outermost));
    trace.pcs().map(VirtAddr::get).collect()
}

#[test]
fn a_walk_looks_up_each_row_once_and_no_row_that_a_cache_has() {
    let (regs, mut stack) = three_frames();
    let script = Script::new([(0x1000, FP), (0x2000, FP), (0x3000, Row::outermost())]);
    let mut cache = RowCache::<16>::new();
    for asked in [&[0x1010, 0x200f, 0x300f][..], &[], &[]] {
        let mut source = Noting::new(script.clone());
        let pcs = trace(&mut source, &mut cache, regs, &mut stack);
        assert_eq!((pcs, &source.asked[..]), (vec![0x1010, 0x2010, 0x3010], asked));
    }
}

#[test]
fn a_row_that_a_walk_used_stays_when_room_is_made() {
    for is_lent_as_one_that_may_be_missing in [false, true] {
        a_used_row_stays(is_lent_as_one_that_may_be_missing);
    }
}

fn a_used_row_stays(may_be_missing: bool) {
    let rows = (1..5).map(|at| (0x1000 * at, locals(0)));
    let script = Script::new(rows.chain([(0x5000, Row::outermost()), (0x6000, Row::outermost())]));
    let mut stack = Stack::new((0..4).map(|at| (0x8000 + 8 * at, 0x2010 + 0x1000 * at)));
    let mut cache = RowCache::<4>::new();
    let mut asked_at = |pcs: &[u64]| {
        let mut source = Noting::new(script.clone());
        let mut trace = Trace::<[_; 8]>::new();
        for &pc in pcs {
            let frames = if pc == 0x1010 { 8 } else { 1 };
            let walker = Walker::new(Toy, &mut source).max_frames(frames);
            let sp = 0x8000 + 8 * ((pc >> 12) - 1);
            let regs = Regs { pc, sp, ..START };
            if may_be_missing {
                walker.cache_if_any(Some(&mut cache)).trace(regs, &mut stack, &mut trace);
            } else {
                walker.cache(&mut cache).trace(regs, &mut stack, &mut trace);
            }
        }
        source.asked
    };
    // The fifth row takes the place of the first, and no other counts as used.
    assert_eq!(asked_at(&[0x1010]), [0x1010, 0x200f, 0x300f, 0x400f, 0x500f]);
    // The second is used again, so the sixth takes the place of the third.
    assert_eq!(asked_at(&[0x200f, 0x6010]), [0x6010]);
    assert_eq!(asked_at(&[0x200f]), []);
    assert_eq!(asked_at(&[0x300f]), [0x300f]);
}

#[test]
fn a_row_that_took_more_than_the_address_is_looked_up_for_each_frame() {
    let looks: [Look; 4] = [
        |frame| frame.may_change(),
        |frame| _ = frame.sp(),
        |frame| _ = frame.fp(),
        |frame| _ = frame.registers(),
    ];
    let (regs, stack) = three_frames();
    let script = Script::new([(0x1000, FP), (0x2000, FP), (0x3000, Row::outermost())]);
    for look in looks {
        // Of its own, of the source before, and of one that has no row.
        for (own, before) in [(look, None), (|_: &_| {}, Some(look))] {
            let mut cache = RowCache::<16>::new();
            for _ in 0..3 {
                let mut source = Noting { look: own, ..Noting::new(script.clone()) };
                let nothing = Script::new([]);
                let mut first = before.map(|look| Noting { look, ..Noting::new(nothing) });
                let mut stack = stack.clone();
                let pcs = match &mut first {
                    Some(first) => trace(
                        RowSource::<Toy>::or(first, &mut source),
                        &mut cache,
                        regs,
                        &mut stack,
                    ),
                    None => trace(&mut source, &mut cache, regs, &mut stack),
                };
                assert_eq!(pcs, [0x1010, 0x2010, 0x3010]);
                source.asked.dedup();
                assert_eq!(source.asked, [0x1010, 0x200f, 0x300f]);
            }
            assert_eq!(cache.stats().hits, 0);
            assert_eq!(cache.stats().unkept, 9);
        }
    }
}

#[test]
fn l2_what_was_found_by_the_pc_is_kept_of_callers_alone() {
    let (regs, mut stack) = three_frames();
    let script = Script::new([(0x1000, FP), (0x2000, FP), (0x3000, Row::outermost())]);
    let mut cache = RowCache::<16>::new();
    for asked in [&[0x1010, 0x200f, 0x300f][..], &[0x1010], &[0x1010]] {
        let mut source = Noting { look: |frame| _ = frame.pc(), ..Noting::new(script.clone()) };
        assert_eq!(trace(&mut source, &mut cache, regs, &mut stack), [0x1010, 0x2010, 0x3010]);
        source.asked.dedup();
        assert_eq!(source.asked, asked);
    }
}

/// Frame pointers, for a fallback: guesses if they are not trusted, and known to be the row of all
/// frames or not.
struct Pointers<const TRUSTED: bool, const OF_ALL: bool>;

impl<const TRUSTED: bool, const OF_ALL: bool> RowSource<Toy> for Pointers<TRUSTED, OF_ALL> {
    type Error = BadTable;
    const COVERAGE: Coverage = match OF_ALL {
        true => Coverage::FramePointer { is_guess: !TRUSTED },
        false => Coverage::Unknown,
    };

    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, BadTable> {
        let row = Row::frame_pointer(WordSize::Eight);
        Ok(Some(if TRUSTED { row } else { row.with_guess() }))
    }
}

/// Walks with this fallback, twice by one cache, and compares with walks without one. Returns
/// which rows were looked up by each.
fn asked_twice<F>(
    script: &Script,
    cache: &mut RowCache<16>,
    fallback: impl Fn() -> F,
) -> [Vec<u64>; 2]
where
    F: RowSource<Toy, Error = BadTable>,
{
    let (regs, mut stack) = three_frames();
    [(), ()].map(|()| {
        let mut plain = Walker::new(Toy, script.clone()).fallback(fallback());
        let mut frames = plain.frames(regs, &mut stack);
        let expected: Vec<TraceFrame> = frames.by_ref().map(TraceFrame::from).collect();
        let (end, is_complete) = (frames.end(), frames.is_complete());
        let mut source = Noting::new(script.clone());
        let mut trace = Trace::<[_; 8]>::new();
        let walker = Walker::new(Toy, &mut source).cache(cache).fallback(fallback());
        { walker }.trace(regs, &mut stack, &mut trace);
        assert_eq!(trace.frames().collect::<Vec<_>>(), expected);
        assert_eq!(trace.end(), end.map(same_in_trace));
        assert_eq!(trace.is_complete(), is_complete);
        source.asked
    })
}

#[test]
fn l2_that_there_is_no_row_is_kept_like_a_row() {
    for rows in [
        &[(0x1000, FP), (0x3000, Row::outermost())][..],
        &[(0x2000, FP), (0x3000, Row::outermost())],
        &[(0x3000, Row::outermost())],
        &[(0x1000, FP), (0x2000, FP)],
        &[],
    ] {
        let script = Script::new(rows.iter().copied());
        let all = vec![0x1010, 0x200f, 0x300f];
        let cache = || RowCache::<16>::new();
        let of_all = asked_twice(&script, &mut cache(), || Pointers::<false, true>);
        assert_eq!(of_all, [all.clone(), vec![]]);
        let trusted = asked_twice(&script, &mut cache(), || Pointers::<true, true>);
        assert_eq!(trusted, [all.clone(), vec![]]);
        let unknown = asked_twice(&script, &mut cache(), || Pointers::<false, false>);
        assert_eq!(unknown, [all, vec![]]);
        // A walk without a fallback ends where there is no row.
        let [first, second] = asked_twice(&script, &mut cache(), || Script::new([]));
        assert!(!first.is_empty() && second.is_empty(), "{first:x?} {second:x?}");
    }
}

#[test]
fn l2_a_cache_without_rows_is_of_the_source_and_not_of_the_fallback() {
    let script = Script::new([(0x1000, FP), (0x3000, Row::outermost())]);
    let mut cache = RowCache::<16>::new();
    // Each of the walks is compared with one that has no cache: whether it is complete, too.
    asked_twice(&script, &mut cache, || Pointers::<true, true>);
    let guessed = asked_twice(&script, &mut cache, || Pointers::<false, true>);
    let without = asked_twice(&script, &mut cache, || Script::new([]));
    assert_eq!([guessed, without].as_flattened().concat(), [0_u64; 0]);
}

#[test]
fn l2_that_memory_was_absent_where_a_row_is_looked_for_is_not_kept() {
    let (regs, mut stack) = three_frames();
    let mut cache = RowCache::<16>::new();
    for _ in 0..3 {
        let script = Script::new([(0x1000, FP), (0x3000, Row::outermost())]);
        let mut source = Noting { look: |frame| frame.may_change(), ..Noting::new(script) };
        let walker = Walker::new(Toy, &mut source).cache(&mut cache);
        let mut walker = walker.fallback(Pointers::<false, true>);
        walker.trace(regs, &mut stack, &mut Trace::<[_; 8]>::new());
        source.asked.dedup();
        assert_eq!(source.asked, [0x1010, 0x200f, 0x300f]);
    }
}

#[test]
fn why_a_cached_row_leads_nowhere_is_said_without_asking_for_it() {
    let regs = Regs { fp: Some(0x8010), ..START };
    let of = |words: &[(u64, u64)]| Stack::new(words.iter().copied());
    let saved = Row::new(CfaRule::sp(16), RegRule::Offset(-8), RegRule::Offset(-16));
    // A frame pointer that cannot be read is no reason: see `a1_*`.
    for (row, regs, stack, expected) in [
        (FP, Regs { fp: Some(0), ..regs }, of(&[]), "no frame pointer"),
        (FP, Regs { fp: Some(0x7000), ..regs }, of(&[]), "below the stack"),
        (FP, regs, of(&[]), "no return address"),
        (FP, regs, of(&[(0x8018, 0x2_0000)]), "no saved frame pointer, no code"),
        (FP, regs, of(&[(0x8010, 0), (0x8018, 0x2_0000)]), "no code"),
        (saved, START, of(&[(0x8008, 0x2_0000)]), "no saved frame pointer, no code"),
        (locals(0), START, of(&[(0x8000, 0x2_0000)]), "no code"),
        // Up to the end of the stack, and beyond it.
        (locals(0x38), START, of(&[]), "no return address"),
        (locals(0x40), START, of(&[]), "beyond the stack"),
    ] {
        let script = Script::new([(0x1000, row)]);
        let mut plain = Walker::new(Toy, script.clone()).stack_end(0x8040);
        let mut stack = stack;
        let mut frames = plain.frames(regs, &mut stack);
        assert_eq!(frames.by_ref().count(), 1, "{expected}");
        let end = frames.end();
        assert!(matches!(end, Some(End::Step(_))), "{expected}: {end:?}");
        let mut cache = RowCache::<16>::new();
        for asked in [1, 0] {
            let mut source = Noting::new(script.clone());
            let mut trace = Trace::<[_; 8]>::new();
            let walker = Walker::new(Toy, &mut source).cache(&mut cache).stack_end(0x8040);
            { walker }.trace(regs, &mut stack, &mut trace);
            assert_eq!((trace.len(), trace.end()), (1, end.map(same_in_trace)), "{expected}");
            assert_eq!(source.asked.len(), asked, "{expected}");
        }
    }
}

#[test]
fn a_stack_pointer_beyond_the_stack_leads_to_no_word_at_the_lowest_addresses() {
    // Two slots above it are the words at 0 and 8.
    let regs = Regs { sp: u64::MAX - 7, ..START };
    let words = [0x2010_u64, 0x2010].map(u64::to_le_bytes).concat();
    let mut in_memory = SliceMemory::new(VirtAddr::new(0), &words);
    let mut by_address = Stack::new([(0, 0x2010), (8, 0x2010)]);
    for row in [locals(0), locals(8)] {
        let mut cache = RowCache::<16>::new();
        let script = Script::new([(0x1000, row), (0x2000, Row::outermost())]);
        for _ in 0..2 {
            let mut walker = Walker::new(Toy, script.clone()).cache(&mut cache);
            let expected = walker.frames(regs, &mut by_address).count();
            assert_eq!(expected, 1);
            let mut trace = Trace::<[_; 8]>::new();
            walker.trace(regs, &mut by_address, &mut trace);
            assert_eq!(trace.len(), expected);
            walker.trace(regs, &mut in_memory, &mut trace);
            assert_eq!(trace.len(), expected);
        }
    }
}

#[test]
fn a_walk_that_may_have_a_cache_uses_the_one_that_it_gets_and_needs_none() {
    let (regs, mut stack) = three_frames();
    let script = Script::new([(0x1000, FP), (0x2000, FP), (0x3000, Row::outermost())]);
    let mut cache = RowCache::<16>::new();
    let mut asked = |cache: Option<&mut RowCache<16>>| {
        let mut source = Noting::new(script.clone());
        let mut trace = Trace::<[_; 8]>::new();
        Walker::new(Toy, &mut source).cache_if_any(cache).trace(regs, &mut stack, &mut trace);
        assert_eq!(trace.end(), Some(End::Outermost));
        assert!(trace.pcs().map(VirtAddr::get).eq([0x1010, 0x2010, 0x3010]));
        source.asked
    };
    let all = [0x1010, 0x200f, 0x300f];
    assert_eq!([asked(None), asked(None)], [all, all]);
    assert_eq!([asked(Some(&mut cache)), asked(Some(&mut cache))], [all.to_vec(), vec![]]);
    assert_eq!(asked(None), all);
    // What one walk has kept, and counted, is there for the next one whichever way it is lent.
    assert_eq!(trace(Noting::new(script.clone()), &mut cache, regs, &mut stack).len(), 3);
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses), (6, 3));
}
