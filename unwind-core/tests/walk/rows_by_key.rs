//! Rows of tables that are kept once for all address spaces.

use std::cell::Cell;

use unwind_core::{
    FrameContext, KeyedRange, Memory, Module, Row, RowCache, RowKey, RowKeys, RowSource,
    SharedModuleMap, TableLocation, VirtAddr, Walker,
};

use crate::toy::{BadTable, FP, Regs, Script, Stack, Toy, all_with_frame_pointers, three_frames};

/// The code of [`three_frames`], this far above.
struct Moved {
    script: Script,
    by: u64,
    asked: usize,
}

impl RowSource<Toy> for Moved {
    type Error = BadTable;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, BadTable> {
        self.asked += 1;
        let linked = frame.lookup_addr().get() - self.by;
        self.script.0.get(&(linked & !0xff)).copied().transpose()
    }
}

/// Code that is this far above its table, which has a number, if any.
struct Keys {
    by: u64,
    table: Option<u64>,
}

impl RowKeys for Keys {
    fn find(&mut self, _: VirtAddr) -> Option<KeyedRange> {
        let text = VirtAddr::new(self.by + 0x1000)..VirtAddr::new(self.by + 0x4000);
        Some(KeyedRange { text, key: RowKey { table: self.table?, offset: 0x1000 } })
    }
}

/// A walk of the three frames in an address space: how many rows were looked up.
fn walk(cache: &mut RowCache<64>, by: u64, table: Option<u64>, script: &Script) -> usize {
    let (regs, stack) = three_frames();
    let is_code = |word: u64| matches!(word & !0xff, 0x1000 | 0x2000 | 0x3000);
    let moved = |word| if is_code(word) { word + by } else { word };
    let mut stack = Stack(stack.0.iter().map(|(&at, word)| (at, word.map(moved))).collect());
    let mut source = Moved { script: script.clone(), by, asked: 0 };
    let mut trace = unwind_core::Trace::<[_; 8]>::new();
    let mut walker = Walker::new(Toy, &mut source).cache_by_key(cache, Keys { by, table });
    walker.trace(Regs { pc: regs.pc + by, ..regs }, &mut stack, &mut trace);
    let pcs: Vec<_> = trace.pcs().map(|pc| pc.get() - by).collect();
    assert_eq!(pcs, [0x1010, 0x2010, 0x3010]);
    source.asked
}

#[test]
fn l2_that_a_table_has_no_row_is_kept_for_all_address_spaces() {
    let (regs, stack) = three_frames();
    let mut cache = RowCache::<64>::new();
    for (by, asked) in [(0, 2), (0x4000, 0), (0x8000, 0)] {
        let moved = |word| if word & !0xff == 0x2000 { word + by } else { word };
        let mut stack = Stack(stack.0.iter().map(|(&at, word)| (at, word.map(moved))).collect());
        let script = Script::new([(0x1000, FP)]);
        let mut source = Moved { script, by, asked: 0 };
        let keys = Keys { by, table: Some(7) };
        let mut walker = Walker::new(Toy, &mut source).cache_by_key(&mut cache, keys);
        let mut trace = unwind_core::Trace::<[_; 8]>::new();
        walker.trace(Regs { pc: regs.pc + by, ..regs }, &mut stack, &mut trace);
        assert_eq!((trace.len(), trace.end()), (2, Some(unwind_core::End::NoRow)));
        assert_eq!(source.asked, asked, "{by:#x}");
    }
}

#[test]
fn a_row_that_was_looked_up_in_one_address_space_is_kept_for_all() {
    let mut cache = RowCache::new();
    let script = all_with_frame_pointers();
    let first = walk(&mut cache, 0, Some(7), &script);
    assert_eq!(first, 3);
    for by in [0x4000, 0x8000, 0xc000, 0] {
        assert_eq!(walk(&mut cache, by, Some(7), &script), 0, "{by:#x}");
    }
    assert_eq!((cache.stats().hits, cache.stats().misses), (12, 3));
}

#[test]
fn rows_of_another_table_at_the_same_place_are_others() {
    let mut cache = RowCache::new();
    let script = all_with_frame_pointers();
    walk(&mut cache, 0x4000, Some(7), &script);
    assert_eq!(walk(&mut cache, 0x4000, Some(8), &script), 3);
    assert_eq!(walk(&mut cache, 0x8000, Some(8), &script), 0);
    // Another row, which the walk cannot take over.
    let mut script = script;
    script.0.insert(0x1000, Ok(FP.with_signed_ra()));
    assert_eq!(walk(&mut cache, 0x4000, Some(9), &script), 3);
}

#[test]
fn rows_of_a_table_without_a_number_are_not_kept() {
    let mut cache = RowCache::new();
    for _ in 0..2 {
        assert_eq!(walk(&mut cache, 0, None, &all_with_frame_pointers()), 3);
    }
    assert_eq!(cache.stats().hits, 0);
}

#[test]
fn modules_in_the_memory_of_a_target_have_the_keys_of_their_tables() {
    let map = SharedModuleMap::<4>::new();
    let add = |start: u64, id: u64| {
        let text = VirtAddr::new(start)..VirtAddr::new(start + 0x1000);
        let id = core::num::NonZero::new(id);
        let table = TableLocation { addr: VirtAddr::new(start + 0x4000), len: 64, id };
        map.add(&Module { text: text.clone(), table }).unwrap();
        text
    };
    let (first, second, unnamed) = (add(0x1_0000, 7), add(0x9_0000, 7), add(0x5_0000, 0));
    let mut keys = &map;
    let key = RowKey { table: 7, offset: 0x4000_u64.wrapping_neg() };
    for text in [first, second] {
        let found = RowKeys::find(&mut keys, VirtAddr::new(text.start.get() + 0x123));
        assert_eq!(found, Some(KeyedRange { text, key }));
    }
    assert_eq!(RowKeys::find(&mut keys, unnamed.start), None);
    assert_eq!(RowKeys::find(&mut keys, VirtAddr::new(0x100)), None);
}

#[test]
fn a_walk_asks_anew_which_table_an_address_has() {
    /// All rows are a frame pointer's; says how often it was asked.
    struct Asked<'a>(&'a Cell<usize>);

    impl RowSource<Toy> for Asked<'_> {
        type Error = BadTable;

        fn row<M: Memory>(
            &mut self,
            _: &FrameContext<'_, Regs>,
            _: &mut M,
        ) -> Result<Option<Row>, BadTable> {
            self.0.set(self.0.get() + 1);
            Ok(Some(FP))
        }
    }

    /// The table that the code of all frames has now.
    struct Now<'a>(&'a Cell<u64>);

    impl RowKeys for Now<'_> {
        fn find(&mut self, addr: VirtAddr) -> Option<KeyedRange> {
            Keys { by: 0, table: Some(self.0.get()) }.find(addr)
        }
    }

    let (asked, table) = (Cell::new(0), Cell::new(7));
    let mut cache = RowCache::<64>::new();
    let mut walker = Walker::new(Toy, Asked(&asked)).cache_by_key(&mut cache, Now(&table));
    let mut looked_up = |number| {
        table.set(number);
        asked.set(0);
        let (regs, mut stack) = three_frames();
        let mut trace = unwind_core::Trace::<[_; 8]>::new();
        walker.trace(regs, &mut stack, &mut trace);
        asked.get()
    };
    assert_eq!([7, 7, 8, 7, 8].map(&mut looked_up), [3, 0, 3, 0, 0]);
}
