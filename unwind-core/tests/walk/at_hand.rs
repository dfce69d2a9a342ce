//! Rows that are at hand: a walk that is kept asks its source for no others.

use unwind_core::{
    Cached, CfaRule, End, FrameContext, KeptRow, Memory, RegRule, Row, RowCache, RowSource,
    SliceMemory, UnwindCache, VirtAddr, Walker,
};

use crate::toy::{
    BadTable, FP, Regs, START, Script, Stack, Toy, all_with_frame_pointers, locals, three_frames,
};

/// A source, and how often a walk asked it for rows that it had not at hand.
struct Counting<S> {
    source: S,
    rows: u32,
    fetched: u32,
    used: u32,
}

impl<S> Counting<S> {
    fn new(source: S) -> Self {
        Self { source, rows: 0, fetched: 0, used: 0 }
    }
}

impl<S: RowSource<Toy>> RowSource<Toy> for Counting<S> {
    type Error = S::Error;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Self::Error> {
        self.rows += 1;
        self.source.row(frame, mem)
    }

    fn begin(&mut self) {
        self.source.begin();
    }

    fn quick(&mut self, addr: VirtAddr, after: KeptRow) -> Option<KeptRow> {
        self.source.quick(addr, after)
    }

    fn fetch<M: Memory>(&mut self, frame: &FrameContext<'_, Regs>, mem: &mut M) -> bool {
        self.fetched += 1;
        assert!(self.fetched < 100, "a walk asks again and again");
        self.source.fetch(frame, mem)
    }

    fn used(&mut self, row: KeptRow) {
        self.used += 1;
        self.source.used(row);
    }
}

/// The pcs of a trace from `regs`, and how often rows were asked for, fetched and
/// marked as used.
fn trace<S: RowSource<Toy, Error = BadTable>>(
    source: S,
    regs: Regs,
    stack: &mut Stack,
) -> (Vec<u64>, [u32; 3]) {
    let mut source = Counting::new(source);
    let mut trace = UnwindCache::<8, BadTable>::new();
    Walker::new(Toy, &mut source).trace(regs, stack, &mut trace);
    assert_eq!(trace.end(), Some(End::Outermost));
    (trace.pcs().map(VirtAddr::get).collect(), [source.rows, source.fetched, source.used])
}

#[test]
fn a_walk_looks_up_each_row_once_and_no_row_that_a_cache_has() {
    let (regs, mut stack) = three_frames();
    let script = Script::new([(0x1000, FP), (0x2000, FP), (0x3000, Row::outermost())]);
    let mut cache = RowCache::<16>::new();
    for fetched in [3, 0, 0] {
        let source = Cached::new(script.clone(), &mut cache);
        let expected = (vec![0x1010, 0x2010, 0x3010], [0, fetched, 0]);
        assert_eq!(trace(source, regs, &mut stack), expected);
    }
}

#[test]
fn a_walk_marks_the_rows_that_it_uses_and_asks_for_none_again() {
    let rows = (1..5).map(|at| (0x1000 * at, locals(0))).chain([(0x5000, Row::outermost())]);
    let script = Script::new(rows);
    let mut stack = Stack::new((0..4).map(|at| (0x8000 + 8 * at, 0x2010 + 0x1000 * at)));
    let mut cache = RowCache::<4>::new();
    // The fifth row takes the place of the first, and no other counts as used.
    let (pcs, counts) = trace(Cached::new(script.clone(), &mut cache), START, &mut stack);
    assert_eq!((pcs.len(), counts), (5, [0, 5, 0]));
    for used in [3, 0] {
        // From the second frame on, where the lookup is of the byte before.
        let regs = Regs { pc: 0x200f, sp: 0x8008, ..START };
        let source = Cached::new(script.clone(), &mut cache);
        let expected = (vec![0x200f, 0x3010, 0x4010, 0x5010], [0, 0, used]);
        assert_eq!(trace(source, regs, &mut stack), expected);
    }
}

#[test]
fn why_a_row_at_hand_leads_nowhere_is_said_without_asking_for_it() {
    let regs = Regs { fp: 0x8010, ..START };
    let of = |words: &[(u64, u64)]| Stack::new(words.iter().copied());
    let saved = Row::new(CfaRule::sp(16), RegRule::Offset(-8), RegRule::Offset(-16));
    // A frame pointer that cannot be read is no reason: see `a1_*`.
    for (row, regs, stack, expected) in [
        (FP, Regs { fp: 0, ..regs }, of(&[]), "no frame pointer"),
        (FP, Regs { fp: 0x7000, ..regs }, of(&[]), "below the stack"),
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
        for _ in 0..2 {
            let mut source = Counting::new(Cached::new(script.clone(), &mut cache));
            let mut trace = UnwindCache::<8, BadTable>::new();
            let mut walker = Walker::new(Toy, &mut source).stack_end(0x8040);
            walker.trace(regs, &mut stack, &mut trace);
            assert_eq!((trace.len(), trace.end()), (1, end), "{expected}");
            assert_eq!(source.rows, 0, "{expected}");
        }
    }
}

/// A script that says at once what is not so.
struct Untrue {
    script: Script,
    /// Whether it says that it has fetched any row.
    fetches: bool,
    /// What it has at hand for any address.
    at_hand: Option<KeptRow>,
}

impl RowSource<Toy> for Untrue {
    type Error = BadTable;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, BadTable> {
        self.script.row(frame, mem)
    }

    fn quick(&mut self, _: VirtAddr, _: KeptRow) -> Option<KeptRow> {
        self.at_hand
    }

    fn fetch<M: Memory>(&mut self, _: &FrameContext<'_, Regs>, _: &mut M) -> bool {
        self.fetches
    }
}

#[test]
fn a_source_that_only_says_that_it_has_a_row_is_asked_for_it() {
    let (regs, mut stack) = three_frames();
    let script = Script::new([(0x1000, FP), (0x2000, FP), (0x3000, Row::outermost())]);
    let source = Untrue { script, fetches: true, at_hand: None };
    let (pcs, [rows, fetched, _]) = trace(source, regs, &mut stack);
    assert_eq!((pcs, rows), (vec![0x1010, 0x2010, 0x3010], 3));
    assert!(fetched <= 2 * rows, "{fetched}");
}

#[test]
fn a_row_at_hand_that_is_none_is_asked_for() {
    let (regs, mut stack) = three_frames();
    let mut trace = UnwindCache::<8, BadTable>::new();
    let script = all_with_frame_pointers();
    let source = Untrue { script, fetches: false, at_hand: Some(KeptRow::NONE) };
    let mut walker = Walker::new(Toy, source);
    walker.trace(regs, &mut stack, &mut trace);
    assert!(trace.pcs().map(VirtAddr::get).eq([0x1010, 0x2010, 0x3010]));
    assert_eq!(trace.end(), Some(End::ZeroReturnAddress));
}

#[test]
fn a_stack_pointer_beyond_the_stack_leads_to_no_word_at_the_lowest_addresses() {
    // Two slots above it are the words at 0 and 8.
    let regs = Regs { sp: u64::MAX - 7, ..START };
    let words = [0x2010_u64, 0x2010].map(u64::to_le_bytes).concat();
    let mut at_hand = SliceMemory::new(VirtAddr::new(0), &words);
    let mut by_address = Stack::new([(0, 0x2010), (8, 0x2010)]);
    for row in [locals(0), locals(8)] {
        let mut cache = RowCache::<16>::new();
        let script = Script::new([(0x1000, row), (0x2000, Row::outermost())]);
        for _ in 0..2 {
            let mut walker = Walker::new(Toy, Cached::new(script.clone(), &mut cache));
            let expected = walker.frames(regs, &mut by_address).count();
            assert_eq!(expected, 1);
            let mut trace = UnwindCache::<8, BadTable>::new();
            walker.trace(regs, &mut by_address, &mut trace);
            assert_eq!(trace.len(), expected);
            walker.trace(regs, &mut at_hand, &mut trace);
            assert_eq!(trace.len(), expected);
        }
    }
}
