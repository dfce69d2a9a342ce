//! The fast walk's forms of the rules are those of the full step: for all stack pointers,
//! frame pointers and ends of the stack in a window of the address space, at places where
//! something may wrap and at one where nothing does.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "tests"
)]

use core::convert::Infallible;

use crate::addr::VirtAddr;
use crate::arch::Arch;
use crate::memory::{Memory, ReadError, SliceMemory};
use crate::origin::Origin;
use crate::register::{DwarfReg, Registers, WordSize};
use crate::row::Row;
use crate::rule::{CfaRule, RegRule};
use crate::source::{Coverage, FrameContext, RowSource};
use crate::trace::Trace;
use crate::walk::cursor::Cursor;
use crate::walk::fast::fast_path::Stop;
use crate::walk::fast::row_cache::{RowCache, RowStore};
use crate::walk::fast::stack::highest_cfa;
use crate::walk::walker::{LookedUp, Walker};

/// Where the frame stands whose caller is looked for.
const PC: u64 = 0x5000;
/// No code is there.
const NO_CODE: u64 = 0xbad0;

#[derive(Clone, Copy, Debug)]
struct Regs {
    sp: u64,
    fp: u64,
}

impl Registers for Regs {
    fn pc(&self) -> u64 {
        PC
    }
    fn sp(&self) -> u64 {
        self.sp
    }
    fn fp(&self) -> Option<u64> {
        Some(self.fp)
    }
    fn get(&self, _: DwarfReg) -> Option<u64> {
        None
    }
}

struct Cpu<const IS_64: bool>;

impl<const IS_64: bool> Arch for Cpu<IS_64> {
    type Regs = Regs;
    const WORD: WordSize = if IS_64 { WordSize::Eight } else { WordSize::Four };

    fn code_addr(&self, pc: u64) -> Option<VirtAddr> {
        (pc != NO_CODE).then_some(VirtAddr::new(pc))
    }

    fn is_plain_code_addr(&self, pc: u64) -> bool {
        // Of some only, so that both ways are taken.
        pc != 0 && pc != NO_CODE && pc & 1 == 0
    }
}

/// The same row for each frame.
struct Same(Row);

impl<const IS_64: bool> RowSource<Cpu<IS_64>> for Same {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(Some(self.0))
    }
}

/// The same, known beforehand.
struct Chain;

impl<const IS_64: bool> RowSource<Cpu<IS_64>> for Chain {
    type Error = Infallible;
    const COVERAGE: Coverage = Coverage::FramePointer { is_guess: false };

    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(Some(Row::frame_pointer(Cpu::<IS_64>::WORD)))
    }
}

/// A stack that may lend its words.
#[derive(Clone, Copy)]
struct Stack<'a> {
    memory: SliceMemory<'a>,
    lends_words: bool,
}

impl Memory for Stack<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.memory.read(addr, buf)
    }

    fn words(&mut self, addr: VirtAddr) -> Option<(VirtAddr, &[[u8; 8]])> {
        if self.lends_words { self.memory.words(addr) } else { None }
    }
}

/// What one step finds: where the walk stands next, or why it ends.
type Found = Result<(FrameKey, Option<u64>), Option<crate::End<Infallible>>>;
type FrameKey = (u64, bool, u64, u8, bool);

fn key(next: &Option<Cursor>) -> Option<(FrameKey, Option<u64>)> {
    let at = next.as_ref()?;
    let pc = (at.pc.addr().get(), at.pc.is_exact());
    Some(((pc.0, pc.1, at.sp, at.provenance.bits(), at.is_by_fp), at.fp.value()))
}

/// How many steps were compared, and how many of them the fast walk found.
#[derive(Debug, Default)]
struct Seen {
    steps: u32,
    callers: u32,
    reasons: u32,
}

/// Takes one step by each way, and compares.
fn compare<const IS_64: bool, S, C>(
    mut plain: Walker<Cpu<IS_64>, S>,
    mut fast: Walker<Cpu<IS_64>, S, crate::Empty, crate::Unchecked, C>,
    regs: Regs,
    stack: Stack<'_>,
    stack_end: Option<u64>,
    seen: &mut Seen,
) where
    S: RowSource<Cpu<IS_64>, Error = Infallible>,
    C: RowStore,
{
    let word = Cpu::<IS_64>::WORD;
    let what = |found: &dyn core::fmt::Debug| {
        extern crate std;
        std::format!("{regs:x?}, end {stack_end:x?}, {}: {found:x?}", stack.lends_words)
    };
    let (mut plain_stack, mut fast_stack) = (stack, stack);
    let mut walk = plain.frames(regs, &mut plain_stack);
    let first = walk.next().unwrap();
    let mut expected: Found = key(&walk.next).ok_or(walk.end());

    let mut frames = fast.frames(regs, &mut fast_stack);
    let start = key(&frames.next);
    let trace: &mut Trace = &mut Trace::<[_; 2]>::new();
    assert!(trace.push(first.pc.addr(), first.provenance));
    if frames.run(trace, &mut LookedUp::Kept) == Stop::Other {
        frames.find_error();
    }
    seen.steps += 1;
    let found: Found = match key(&frames.next) {
        next if next == start => {
            // The fast walk leaves the step to the full one. That is right if there is none,
            // or if it is out of the ordinary.
            let sp = regs.sp;
            let is_ordinary = sp % word.bytes() == 0
                && first.cfa.is_some_and(|cfa| cfa <= highest_cfa(word, stack_end))
                && matches!(expected, Ok((_, Some(_))))
                && (!stack.lends_words || stack.memory.holds(sp));
            assert!(!is_ordinary, "{}", what(&expected));
            return;
        }
        Some(next) => Ok(next),
        // The chain of frame pointers says of the caller, too, why it has none.
        None if trace.len() == 2 => {
            let caller = walk.next().unwrap();
            let last = trace.frames().next_back().unwrap();
            assert_eq!((last.pc, last.provenance), (caller.pc, caller.provenance));
            expected = key(&walk.next).ok_or(walk.end());
            Err(frames.end())
        }
        None => Err(frames.end()),
    };
    assert_eq!(found, expected, "{}", what(&found));
    match found {
        Ok(_) => seen.callers += 1,
        Err(_) => seen.reasons += 1,
    }
}

impl SliceMemory<'_> {
    /// Whether a stack pointer is on it, or at its end.
    fn holds(&self, sp: u64) -> bool {
        let mut copy = *self;
        let (start, words) = copy.words(VirtAddr::new(0)).unwrap();
        let above = sp.wrapping_sub(start.get());
        above <= 8 * u64::try_from(words.len()).unwrap()
    }
}

fn rows(word: WordSize) -> impl Iterator<Item = Row> {
    let slot = i32::try_from(word.bytes()).unwrap();
    let bases: [fn(i32) -> CfaRule; 2] = [CfaRule::sp, CfaRule::fp];
    let shapes = [(1, 0), (2, 0), (2, 1), (3, 1), (3, 2)];
    bases.into_iter().flat_map(move |base| {
        shapes.map(|(slots, fp_slots)| {
            let fp = match fp_slots {
                0 => RegRule::SameValue,
                below => RegRule::Offset(-(below + 1) * slot),
            };
            Row::new(base(slots * slot), RegRule::Offset(-slot), fp).with_origin(Origin::Table)
        })
    })
}

/// All steps with registers and an end in a window of `WIDTH` addresses from `base`.
fn steps<const IS_64: bool, const WIDTH: u64>(base: u64) -> Seen {
    let word = Cpu::<IS_64>::WORD;
    let window = || (0..WIDTH).map(move |at| base.wrapping_add(at) & word.max_value());
    // Neither at the beginning of the window nor at its end is memory. One word is zero, and
    // one leads nowhere.
    let values = [0x6001_u64, 0x7000, base.wrapping_add(24), 0, base.wrapping_add(32), NO_CODE];
    let words = values.map(|value| (value & word.max_value()).to_le_bytes());
    let (bytes, start) = match IS_64 {
        true => (words.as_flattened(), base.wrapping_add(8)),
        false => (&words.as_flattened()[..20], base.wrapping_add(4)),
    };
    let memory = SliceMemory::new(VirtAddr::new(start), bytes);
    let mut seen = Seen::default();
    let mut cache = RowCache::<4>::new();
    for row in rows(word) {
        // Once, so that the cache has the row.
        cache.clear();
        let regs = Regs { sp: start, fp: start };
        let mut none = SliceMemory::new(VirtAddr::new(0), &[]);
        let mut walker = Walker::new(Cpu::<IS_64>, Same(row)).cache(&mut cache);
        assert_eq!(walker.frames(regs, &mut none).count(), 1);
        let fps = if row.is_from_sp() { 1 } else { WIDTH };
        for (sp, fp) in
            window().flat_map(|sp| window().take(fps.try_into().unwrap()).map(move |fp| (sp, fp)))
        {
            for stack_end in window().map(Some).chain([None]) {
                for lends_words in [true, false] {
                    let limits = |walker: Walker<Cpu<IS_64>, Same>| match stack_end {
                        Some(end) => walker.stack_end(end).max_frames(2),
                        None => walker.max_frames(2),
                    };
                    let plain = limits(Walker::new(Cpu, Same(row)));
                    let fast = limits(Walker::new(Cpu, Same(row))).cache(&mut cache);
                    let stack = Stack { memory, lends_words };
                    compare(plain, fast, Regs { sp, fp }, stack, stack_end, &mut seen);
                }
            }
        }
    }
    seen
}

/// The same along a chain of frame pointers.
fn chains<const IS_64: bool, const WIDTH: u64>(base: u64) -> Seen {
    let word = Cpu::<IS_64>::WORD;
    let window = || (0..WIDTH).map(move |at| base.wrapping_add(at) & word.max_value());
    let values = [0x6001_u64, 0x7000, base.wrapping_add(24), 0, base.wrapping_add(32), NO_CODE];
    let words = values.map(|value| (value & word.max_value()).to_le_bytes());
    let memory = SliceMemory::new(VirtAddr::new(base.wrapping_add(8)), words.as_flattened());
    let mut seen = Seen::default();
    for (sp, fp) in window().flat_map(|sp| window().map(move |fp| (sp, fp))) {
        for stack_end in window().map(Some).chain([None]) {
            let walker = || {
                let walker = Walker::new(Cpu::<IS_64>, Chain).max_frames(2);
                if let Some(end) = stack_end { walker.stack_end(end) } else { walker }
            };
            let stack = Stack { memory, lends_words: false };
            compare(walker(), walker(), Regs { sp, fp }, stack, stack_end, &mut seen);
        }
    }
    seen
}

/// Where something may wrap, and where nothing does.
const BASES_64: [u64; 4] = [0, 0x1000, 0xffff_fff0_0000_0000 - 32, u64::MAX - 63];
const BASES_32: [u64; 3] = [0, 0x1000, 0xffff_ffff - 31];

/// Above this, an offset could no longer be added, and the fast walk leaves all to the full
/// step.
const TOP: u64 = u64::MAX - 63;

#[test]
fn every_step_in_six_bits_of_64_bit_code_is_the_full_step() {
    for base in BASES_64 {
        let seen = steps::<true, 64>(base);
        let is_ordinary = base == TOP || seen.callers > 2_000;
        assert!(is_ordinary && seen.reasons > 1_000_000, "{base:#x}: {seen:?}");
    }
}

#[test]
fn every_step_in_five_bits_of_32_bit_code_is_the_full_step() {
    for base in BASES_32 {
        let seen = steps::<false, 32>(base);
        assert!(seen.callers > 1_000 && seen.reasons > 100_000, "{base:#x}: {seen:?}");
    }
}

#[test]
fn every_step_along_a_chain_in_six_bits_is_the_full_step() {
    for base in BASES_64 {
        let seen = chains::<true, 64>(base);
        assert!(seen.reasons > 100_000, "{base:#x}: {seen:?}");
    }
    for base in BASES_32 {
        let seen = chains::<false, 32>(base);
        assert!(seen.reasons > 10_000, "{base:#x}: {seen:?}");
    }
}
