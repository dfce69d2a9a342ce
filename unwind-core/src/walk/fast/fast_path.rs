//! A walk by compact rows: the fast form of [`crate::walk::step`].

use crate::hint::cold_path;

use crate::addr::{FramePc, VirtAddr};
use crate::arch::Arch;
use crate::return_addresses::ReturnAddresses;
use crate::source::RowSource;
use crate::walk::fast::compact_row::CompactRow;
use crate::walk::fast::row_cache::{CacheHit, RowStore};
use crate::walk::fast::stack::{SliceWord, SlotIndex, Stack, StackSlice};

/// Where a walk stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FastPath<At> {
    /// The stack pointer, as the stack has it.
    pub(crate) at: At,
    pub(crate) fp: u64,
    /// A frame pointer alone led to one of the frames.
    pub(crate) is_by_fp: bool,
    /// Why it stopped.
    pub(crate) stop: Stop,
    /// Where the cache has the row of the first frame, if that is known.
    pub(crate) first: usize,
}

impl<At> FastPath<At> {
    /// At a frame with these values of the stack and the frame pointer.
    #[inline]
    pub(crate) const fn new(at: At, fp: u64, is_by_fp: bool) -> Self {
        Self { at, fp, is_by_fp, stop: Stop::Other, first: CacheHit::NONE.place() }
    }
}

/// Why a walk by compact rows stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The last frame's row could not be applied, or there is no more room.
    Other,
    /// The last frame's row is not in the cache.
    NoRow,
    /// The last frame's row says that it has no caller.
    Outermost,
    /// The last frame's row asks to be marked as used.
    Unused,
    /// The last return address is a trampoline's, and this is the real one.
    Trampoline(VirtAddr),
}

/// What becomes of the callers that a walk finds.
pub(crate) trait FrameSink: Copy {
    /// What is kept of one.
    type Kept;

    /// The entry of a caller.
    fn entry(caller: Caller) -> Self::Kept;

    /// Takes note of the row that led to a caller.
    #[inline]
    fn note(&mut self, row: CompactRow) {
        let _ = row;
    }
}

/// A caller that a walk has found.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    pub(crate) pc: VirtAddr,
    /// Where its return address is: a value of the stack pointer, in slots.
    pub(crate) slot: u64,
    /// The row that led there.
    pub(crate) row: CompactRow,
}

impl<At: Copy + PartialEq> FastPath<At> {
    /// Finds callers of the frame with this lookup address for as long as it can and the
    /// sink has room, writes them to `room`, and returns how many they are. Changes
    /// `stop` from `Other` where it is another.
    ///
    /// Never inlined, and without calls: as arguments, the parts are known to lie
    /// apart, so that the loop keeps what it needs of them in registers. `F` is the fallback.
    #[inline(never)]
    pub(crate) fn run<A, F, C, T, K, L>(
        &mut self,
        addr: VirtAddr,
        arch: &A,
        (cache, keep): (&mut C, &mut impl FnMut(&mut C, VirtAddr) -> bool),
        code: &mut T,
        stack: &mut K,
        (room, sink): (&mut [L::Kept], &mut L),
    ) -> usize
    where
        A: Arch,
        F: RowSource<A>,
        C: RowStore,
        T: ReturnAddresses,
        K: Stack<At = At>,
        L: FrameSink,
    {
        let Self { mut at, mut fp, .. } = *self;
        let size = room.len();
        let mut refused = 0;
        let mut room = room.iter_mut();
        // Where the first step by a frame pointer alone starts.
        let mut before_by_fp = None;
        // Of a caller its return address: one register for that and for the address before.
        let mut pc_after = VirtAddr::new(addr.get().wrapping_add(1));
        let lookup_addr = |pc_after| FramePc::Return(pc_after).lookup_addr();
        'walk: loop {
            let mut kept = CacheHit::before(self.first);
            // A loop of its own, so that what it has in registers stays there.
            while let Some(found) = cache.get(lookup_addr(pc_after), kept) {
                kept = found;
                let mut row = kept.row;
                // Branches, not selects: guessed right, they keep what is loaded and need not
                // be waited for, a saved frame pointer or the row, out of the chain from
                // frame to frame.
                let (cfa, ra, caller_fp) = if let Some(slots) = row.slots_from_sp() {
                    let cfa = stack.above(at, slots);
                    let Some(ra) = stack.return_address(cfa) else { break 'walk };
                    let Some(fp) = caller_fp(stack, cfa, row, fp) else { break 'walk };
                    (cfa, ra, fp)
                } else if row.is_record() {
                    let Some((cfa, [caller_fp, ra])) = stack.frame_record(at, fp) else {
                        break 'walk;
                    };
                    (cfa, ra, caller_fp)
                } else {
                    let slots = if let Some(slots) = row.slots_from_fp() {
                        slots
                    } else {
                        let slots = if let Some(slots) = row.slots_by_fp() {
                            slots
                        } else if let Some(of_all) = row.in_place_of_none(F::COVERAGE) {
                            row = of_all;
                            of_all.cfa_slots().into()
                        } else {
                            self.stop =
                                if row.is_outermost() { Stop::Outermost } else { Stop::Unused };
                            break 'walk;
                        };
                        if !self.is_by_fp {
                            self.is_by_fp = true;
                            before_by_fp = Some(at);
                        }
                        slots
                    };
                    let Some(base) = stack.at_fp(at, fp) else { break 'walk };
                    let cfa = stack.above(base, slots);
                    let Some(ra) = stack.return_address(cfa) else { break 'walk };
                    let Some(fp) = caller_fp(stack, cfa, row, fp) else { break 'walk };
                    (cfa, ra, fp)
                };
                let pc = VirtAddr::new(ra);
                if !arch.is_plain_code_addr(ra) {
                    cold_path();
                    if ra == 0 || arch.code_addr(ra) != Some(pc) {
                        break 'walk;
                    }
                }
                let caller = Caller { pc, slot: stack.slot_below(cfa), row };
                let Some(entry) = room.next() else { break 'walk };
                *entry = L::entry(caller);
                pc_after = pc;
                let ra_slot = arch.stack_addr(stack.sp(cfa).wrapping_sub(A::WORD.bytes()));
                let real = code.resolve(pc, Some(ra_slot));
                if real.is_none() && !code.is_code(lookup_addr(pc)) {
                    refused = 1;
                    break 'walk;
                }
                sink.note(row);
                (at, fp) = (cfa, caller_fp);
                if let Some(real) = real {
                    self.stop = Stop::Trampoline(real);
                    break 'walk;
                }
            }
            if !keep(cache, lookup_addr(pc_after)) {
                self.stop = Stop::NoRow;
                break;
            }
        }
        (self.at, self.fp) = (at, fp);
        if before_by_fp == Some(at) {
            self.is_by_fp = false;
        }
        // Less the one that was refused.
        size.wrapping_sub(room.len()).wrapping_sub(refused)
    }
}

impl FastPath<u64> {
    /// The same on a stack in memory, if the stack pointer is on it.
    #[inline(always)]
    pub(crate) fn run_slice<A, F, C, T, W, L>(
        &mut self,
        addr: VirtAddr,
        arch: &A,
        rows: (&mut C, &mut impl FnMut(&mut C, VirtAddr) -> bool),
        code: &mut T,
        stack: Option<(StackSlice<'_, W>, SlotIndex)>,
        log: (&mut [L::Kept], &mut L),
    ) -> usize
    where
        A: Arch,
        F: RowSource<A>,
        C: RowStore,
        T: ReturnAddresses,
        W: SliceWord,
        L: FrameSink,
    {
        let Some((mut stack, at)) = stack else { return 0 };
        let Self { fp, is_by_fp, stop, first, .. } = *self;
        let mut walk = FastPath { at, fp, is_by_fp, stop, first };
        let steps = walk.run::<A, F, C, T, _, L>(addr, arch, rows, code, &mut stack, log);
        let FastPath { at, fp, is_by_fp, stop, .. } = walk;
        *self = Self { at: stack.sp(at), fp, is_by_fp, stop, first };
        steps
    }
}

/// The frame pointer of the caller of a frame with this row, CFA and frame pointer.
#[inline]
fn caller_fp<K: Stack>(stack: &mut K, cfa: K::At, row: CompactRow, fp: u64) -> Option<u64> {
    if row.keeps_fp() { Some(fp) } else { stack.below_return_address(cfa, row.fp_slots()) }
}
