//! Some callers at a time, for a walk that may be left at any of them.

use core::borrow::BorrowMut;

use crate::addr::{FramePc, VirtAddr};
use crate::arch::Arch;
use crate::end::End;
use crate::memory::Memory;
use crate::register::WordSize;
use crate::return_addresses::ReturnAddresses;
use crate::source::RowSource;
use crate::trace::{Provenance, TraceFrame};
use crate::walk::fast::compact_row::CompactRow;
use crate::walk::fast::fast_path::{Caller, FrameSink, Stop};
use crate::walk::fast::row_cache::RowStore;
use crate::walk::fast::run::CallerLog;
use crate::walk::frames::Frames;
use crate::walk::walker::LookedUp;

/// A frame that has called, as [`Frames::callers`] writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerFrame {
    pc: VirtAddr,
    /// Where the return address is that led to it, in words.
    slot: u64,
    provenance: Provenance,
}

impl CallerFrame {
    /// No frame: what is in memory for frames before there are any.
    pub const NONE: Self =
        Self { pc: VirtAddr::new(0), slot: 0, provenance: Provenance::from_bits(0) };

    /// Where its execution stands.
    #[inline]
    #[must_use]
    pub const fn pc(&self) -> FramePc {
        FramePc::Return(self.pc)
    }

    /// Its stack pointer there, a register value, by the size of words that its
    /// [`Arch`] has: just above the return address that led to it.
    #[inline]
    #[must_use]
    pub const fn sp(&self, word: WordSize) -> u64 {
        self.slot.wrapping_add(1).wrapping_mul(word.bytes())
    }

    /// What a trace keeps of it.
    #[must_use]
    pub const fn frame(&self) -> TraceFrame {
        TraceFrame::new(self.pc, self.provenance)
    }
}

impl<A, S, F, T, C, M, R> Frames<'_, A, S, F, T, C, M, R>
where
    A: Arch,
    R: BorrowMut<A::Regs>,
    S: RowSource<A>,
    F: RowSource<A>,
    F::Error: Into<S::Error>,
    T: ReturnAddresses,
    C: RowStore,
    M: Memory,
{
    /// Goes to callers of the frame that comes next, which is not handed out: to as many as there
    /// is room for, but no further than cached rows lead. They are written to `out`, and the last
    /// of them comes next. Returns how many they are.
    ///
    /// It is zero where the first step is none by a cached row: then the walk has gone to the
    /// caller, or to the end, as [`next`](Iterator::next) does. The registers that the walk keeps
    /// may be others only then.
    pub fn callers(&mut self, out: &mut [CallerFrame]) -> usize {
        let mut log = Log { out, len: 0, has_gap: false };
        let mut found = LookedUp::Kept;
        let stop = self.run(&mut log, &mut found);
        self.has_gap |= log.has_gap;
        let count = log.len;
        if count != 0 {
            return count;
        }
        if stop == Stop::Unused {
            self.touch();
        }
        match stop {
            Stop::Outermost => self.end_by_cache(End::Outermost),
            _ => _ = self.leave(&mut found),
        }
        0
    }
}

/// The callers so far.
struct Log<'o> {
    out: &'o mut [CallerFrame],
    len: usize,
    /// A guess in compact form has led to one of them.
    has_gap: bool,
}

/// What is noted of the rows of a run: what is known of any, as one byte.
#[derive(Clone, Copy, Default)]
struct CallerSink {
    any: u8,
}

impl FrameSink for CallerSink {
    type Kept = CallerFrame;

    #[inline]
    fn entry(Caller { pc, slot, row, .. }: Caller) -> CallerFrame {
        CallerFrame { pc, slot, provenance: row.provenance() }
    }

    #[inline]
    fn note(&mut self, row: CompactRow) {
        self.any |= row.provenance().bits();
    }
}

impl CallerLog for Log<'_> {
    type Sink = CallerSink;

    #[inline]
    fn room(&mut self, most: usize) -> &mut [CallerFrame] {
        let most = most.min(self.out.len());
        self.out.get_mut(..most).unwrap_or_default()
    }

    #[inline]
    fn fill(&mut self, count: usize, sink: &CallerSink) -> Option<(VirtAddr, Provenance)> {
        let last = self.out.get(count.checked_sub(1)?)?;
        self.len = count;
        self.has_gap = Provenance::from_bits(sink.any).is_after_gap();
        Some((last.pc, last.provenance))
    }

    fn replace_last(&mut self, pc: VirtAddr, provenance: Provenance) {
        if let Some(last) = self.out.get_mut(self.len.wrapping_sub(1)) {
            (last.pc, last.provenance) = (pc, provenance);
        }
    }
}
