//! Walks of which the addresses are kept, and nothing else.

use core::borrow::BorrowMut;

use crate::addr::{FramePc, VirtAddr};
use crate::arch::Arch;
use crate::memory::Memory;
use crate::return_addresses::ReturnAddresses;
use crate::source::RowSource;
use crate::trace::Provenance;
use crate::walk::fast::compact_row::CompactRow;
use crate::walk::fast::fast_path::{Caller, FrameSink};
use crate::walk::fast::row_cache::RowStore;
use crate::walk::fast::run::{CallerLog, FrameLog};
use crate::walk::frames::Frames;
use crate::walk::walker::LookedUp;

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
    /// Writes the addresses of the frames that come to `out`, innermost first, as many as
    /// there is room for: the same frames as those of the iterator, as fast as a
    /// [trace](crate::Walker::trace).
    ///
    /// Frames that have found no room come next. So [`end`](Self::end) is `None` where there are
    /// more.
    pub fn addresses(&mut self, out: &mut [u64]) -> Addresses {
        let mut log = Log { out, len: 0, is_exact: false, has_gap: false };
        self.write(&mut log, None, &mut LookedUp::Kept);
        let Log { out, len, is_exact, has_gap } = log;
        self.has_gap |= has_gap;
        let last = len.checked_sub(1).and_then(|last| out.get(last)).map(|addr| {
            let addr = VirtAddr::new(*addr);
            if is_exact { FramePc::Exact(addr) } else { FramePc::Return(addr) }
        });
        Addresses { len, last }
    }
}

/// The addresses that a walk has [written](Frames::addresses).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Addresses {
    /// How many there are.
    pub len: usize,
    /// The last one.
    pub last: Option<FramePc>,
}

/// The addresses of the frames so far.
struct Log<'o> {
    out: &'o mut [u64],
    len: usize,
    /// The last one is exact.
    is_exact: bool,
    /// A guess in compact form has led to one of them.
    has_gap: bool,
}

/// What is noted of the rows of a run.
#[derive(Clone, Copy)]
pub(super) struct AddressSink {
    last: CompactRow,
    /// What is known of any, as one byte.
    any: u8,
}

impl Default for AddressSink {
    fn default() -> Self {
        Self { last: CompactRow::NONE, any: 0 }
    }
}

impl FrameSink for AddressSink {
    type Kept = u64;

    #[inline]
    fn entry(caller: Caller) -> u64 {
        caller.pc.get()
    }

    #[inline]
    fn note(&mut self, row: CompactRow) {
        self.last = row;
        self.any |= row.provenance().bits();
    }
}

impl FrameLog for Log<'_> {
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn push(&mut self, pc: VirtAddr, provenance: Provenance) -> bool {
        let Some(slot) = self.out.get_mut(self.len) else { return false };
        *slot = pc.get();
        self.is_exact = provenance.is_exact();
        self.len = self.len.wrapping_add(1);
        true
    }
}

impl CallerLog for Log<'_> {
    type Sink = AddressSink;

    #[inline]
    fn room(&mut self, most: usize) -> &mut [u64] {
        let room = self.out.get_mut(self.len..).unwrap_or_default();
        let most = most.min(room.len());
        room.get_mut(..most).unwrap_or_default()
    }

    #[inline]
    fn fill(&mut self, count: usize, sink: &AddressSink) -> Option<(VirtAddr, Provenance)> {
        if count == 0 {
            return None;
        }
        let end = self.len.wrapping_add(count);
        let last = self.out.get(end.wrapping_sub(1))?;
        self.len = end;
        self.is_exact = false;
        self.has_gap |= Provenance::from_bits(sink.any).is_after_gap();
        Some((VirtAddr::new(*last), sink.last.provenance()))
    }

    fn replace_last(&mut self, pc: VirtAddr, _: Provenance) {
        if let Some(slot) = self.out.get_mut(self.len.wrapping_sub(1)) {
            *slot = pc.get();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::Origin;

    #[test]
    fn the_last_of_no_addresses_is_not_replaced() {
        let pc = VirtAddr::new(0x1000);
        let provenance = Provenance::new(Origin::Table, FramePc::Return(pc));
        let mut out = [7, 8];
        let mut log = Log { out: &mut out, len: 0, is_exact: false, has_gap: false };
        log.replace_last(pc, provenance);
        log.len = 1;
        log.replace_last(pc, provenance);
        assert_eq!(out, [0x1000, 8]);
    }
}
