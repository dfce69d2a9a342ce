//! The rows that a walker has from its cache are those of its source.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

use core::convert::Infallible;

use crate::no_regs::{NoRegs, Toy};
use crate::return_addresses::Unchecked;
use crate::walk::cursor::Cursor;
use crate::walk::fast::row_cache::{RowCache, RowStore};
use crate::walk::step::FramePointer;
use crate::walk::walker::{LookedUp, Walker, Whom};
use crate::{
    Addend, BaseReg, CfaRule, DwarfReg, Empty, FrameContext, FramePc, Memory, Origin, Provenance,
    RegRule, Row, RowSource, SliceMemory, VirtAddr,
};

/// A row for each address, from all rules there are; the generation takes
/// part, as another module's table would.
struct AllRules {
    generation: u64,
    asked: u64,
}

const RULES: [RegRule; 9] = [
    RegRule::SameValue,
    RegRule::Undefined,
    RegRule::Offset(-8),
    RegRule::Offset(-4),
    RegRule::Offset(-16),
    RegRule::Offset(0),
    RegRule::Offset(-540_080),
    RegRule::ValOffset(-8),
    RegRule::AtRegister(BaseReg::Reg(DwarfReg(10)), 8),
];

const ORIGINS: [Origin; 4] =
    [Origin::Table, Origin::CallFrames, Origin::Host, Origin::FramePointer];

fn pick<T: Copy>(choices: &[T], from: &mut u64) -> T {
    let count = u64::try_from(choices.len()).unwrap();
    let choice = usize::try_from(*from % count).unwrap();
    *from /= count;
    choices[choice]
}

fn row_of(addr: u64, generation: u64) -> Row {
    let mut n = addr ^ (generation << 20);
    let base = pick(&[BaseReg::Sp, BaseReg::Fp, BaseReg::Reg(DwarfReg(3))], &mut n);
    let offset = pick(&[8, -8, 540_080, i32::MAX, i32::MIN], &mut n);
    let cfa = match n % 4 {
        0 => CfaRule::AtRegister(base, offset),
        1 if let Some(plus) = Addend::new(8) => CfaRule::AtRegisterPlus(base, offset, plus),
        _ => CfaRule::Register(base, offset),
    };
    let row = match n % 11 {
        0 => Row::outermost(),
        _ => Row::new(cfa, pick(&RULES, &mut n), pick(&RULES, &mut n)),
    };
    let row = row.with_origin(pick(&ORIGINS, &mut n));
    match n % 3 {
        0 => row.with_signal(),
        1 => row.with_signed_ra(),
        _ => row,
    }
}

impl RowSource<Toy> for AllRules {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, NoRegs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        self.asked += 1;
        let addr = frame.lookup_addr().get();
        Ok((addr % 7 != 0).then(|| row_of(addr, self.generation)))
    }

    fn generation(&self) -> u64 {
        self.generation
    }
}

type Cached<'c, S, const N: usize> = Walker<Toy, S, Empty, Unchecked, &'c mut RowCache<N>>;

fn cached<S, const N: usize>(source: S, cache: &mut RowCache<N>) -> Cached<'_, S, N>
where
    S: RowSource<Toy, Error = Infallible>,
{
    let mut walker: Cached<'_, S, N> = Walker::new(Toy, source).cache(cache);
    walker.begin();
    walker
}

fn ask<S, C>(walker: &mut Walker<Toy, S, Empty, Unchecked, C>, pc: FramePc) -> Option<Row>
where
    S: RowSource<Toy, Error = Infallible>,
    C: RowStore,
{
    let (fp, provenance) = (FramePointer::new(None), Provenance::new(Origin::Registers, pc));
    let (is_by_fp, has_called_innermost) = (false, false);
    let at = Cursor { pc, sp: 0, fp, provenance, is_by_fp, has_called_innermost };
    let found =
        walker.look_up(&at, None, Whom::CacheFirst, &mut SliceMemory::new(VirtAddr::new(0), &[]));
    if let LookedUp::Row(row) = found { row.unwrap() } else { None }
}

#[test]
fn a_cached_row_is_the_row_for_every_rule_and_generation() {
    let mut cache = RowCache::<64>::new();
    let mut source = AllRules { generation: 0, asked: 0 };
    for round in 0..40_u64 {
        source.generation = round / 3;
        let generation = source.generation;
        let mut walker = cached(&mut source, &mut cache);
        for addr in (0..4000_u64).map(|n| n * 0x1f3) {
            let expected = (addr % 7 != 0).then(|| row_of(addr, generation));
            // Twice, so that the second answer may come from the cache.
            for _ in 0..2 {
                assert_eq!(ask(&mut walker, FramePc::Exact(VirtAddr::new(addr))), expected);
            }
        }
    }
    let stats = cache.stats();
    assert_eq!(stats.misses, source.asked);
    assert!(stats.hits > 0 && stats.unkept > 0, "{stats:?}");
}

/// One row for all.
struct Same(Row);

impl RowSource<Toy> for Same {
    type Error = Infallible;
    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, NoRegs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(Some(self.0))
    }
}

const PUSHED: Row = Row::new(CfaRule::sp(16), RegRule::Offset(-8), RegRule::Offset(-16));

#[test]
fn a_loop_over_as_many_pcs_as_a_set_holds_misses_once_each() {
    let mut cache = RowCache::<4>::new();
    let mut walker = cached(Same(PUSHED), &mut cache);
    for _ in 0..10 {
        for pc in 1..=4 {
            ask(&mut walker, FramePc::Exact(VirtAddr::new(pc)));
        }
    }
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.unkept), (36, 4, 0));
}

#[test]
fn rows_of_code_at_high_addresses_have_all_of_the_cache() {
    for base in [0, 0x7000_0000_0000, 0xffff_ffff_8000_0000] {
        let mut cache = RowCache::<64>::new();
        let mut walker = cached(Same(PUSHED), &mut cache);
        for pc in (1..=32).chain(1..=32) {
            ask(&mut walker, FramePc::Exact(VirtAddr::new(base + 16 * pc)));
        }
        let hits = cache.stats().hits;
        assert!(hits >= 24, "{hits} of 32 at {base:#x}");
    }
}

#[test]
fn a_return_address_shares_the_row_of_its_call() {
    let mut cache = RowCache::<4>::new();
    let mut walker = cached(Same(PUSHED), &mut cache);
    ask(&mut walker, FramePc::Return(VirtAddr::new(0x1001)));
    ask(&mut walker, FramePc::Exact(VirtAddr::new(0x1000)));
    ask(&mut walker, FramePc::Exact(VirtAddr::new(0x1001)));
    assert_eq!((cache.stats().hits, cache.stats().misses), (1, 2));
}

#[test]
fn a_frame_of_540_080_bytes_is_kept() {
    let big = Row::new(CfaRule::sp(540_080), RegRule::Offset(-8), RegRule::Offset(-16));
    let mut cache = RowCache::<4>::new();
    let mut walker = cached(Same(big), &mut cache);
    for _ in 0..3 {
        assert_eq!(ask(&mut walker, FramePc::Exact(VirtAddr::new(0x1000))), Some(big));
    }
    assert_eq!((cache.stats().hits, cache.stats().unkept), (2, 0));
}

#[test]
fn the_last_address_of_all_is_never_taken_for_an_empty_entry() {
    let mut cache = RowCache::<4>::new();
    let mut walker = cached(Same(PUSHED), &mut cache);
    for _ in 0..3 {
        assert_eq!(ask(&mut walker, FramePc::Exact(VirtAddr::new(u64::MAX))), Some(PUSHED));
    }
    assert_eq!((cache.stats().hits, cache.stats().unkept), (0, 3));
}

#[test]
fn the_row_of_an_outermost_frame_is_kept() {
    let outermost = Row::outermost().with_origin(Origin::CallFrames);
    let mut cache = RowCache::<4>::new();
    let mut walker = cached(Same(outermost), &mut cache);
    for _ in 0..3 {
        assert_eq!(ask(&mut walker, FramePc::Exact(VirtAddr::new(0x1000))), Some(outermost));
    }
    assert_eq!((cache.stats().hits, cache.stats().unkept), (2, 0));
}

#[test]
fn clearing_forgets_the_rows() {
    let mut cache = RowCache::<4>::new();
    ask(&mut cached(Same(PUSHED), &mut cache), FramePc::Exact(VirtAddr::new(1)));
    cache.clear();
    ask(&mut cached(Same(PUSHED), &mut cache), FramePc::Exact(VirtAddr::new(1)));
    assert_eq!(cache.stats().misses, 2);
}

#[test]
fn five_hundred_and_twelve_entries_take_little_more_than_8_kib() {
    assert!(size_of::<RowCache<512>>() <= 8192 + 64);
}
