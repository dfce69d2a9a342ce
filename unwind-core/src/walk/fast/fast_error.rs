//! Why a walk by compact rows fails: the fast form of
//! `Frames::find_caller` where that finds none.

use crate::addr::{FramePc, VirtAddr};
use crate::arch::Arch;
use crate::memory::Memory;
use crate::return_addresses::ReturnAddresses;
use crate::source::{Coverage, RowSource};
use crate::step_error::StepError;
use crate::walk::fast::compact_row::CompactRow;
use crate::walk::fast::fast_path::FastPath;
use crate::walk::fast::row_cache::{CacheHit, RowStore};
use crate::walk::rules::{check_cfa, check_frame_pointer, check_return_address};
use crate::walk::walker::Walker;

impl<A, S, F, T, C> Walker<A, S, F, T, C>
where
    A: Arch,
    S: RowSource<A>,
    F: RowSource<A>,
    F::Error: Into<S::Error>,
    T: ReturnAddresses,
    C: RowStore,
{
    /// Why the frame at which a walk stands, with this pc, has no caller, neither by the
    /// cached row nor by the fallback's. `None` if that takes the full step to find out.
    #[inline(never)]
    pub(in crate::walk) fn fast_error<M: Memory>(
        &mut self,
        pc: FramePc,
        at: &FastPath<u64>,
        mem: &mut M,
    ) -> Option<StepError> {
        let kept = self.compact_row(pc)?;
        let row = kept.in_place_of_none(F::COVERAGE).unwrap_or(kept);
        if row.cfa_slots() == 0 {
            return None;
        }
        let failure = self.error_of(row, at, mem)?;
        // Code without a row in which a process starts has no caller.
        if row != kept && self.arch.is_initial_stack(self.arch.stack_addr(at.at), mem) {
            return None;
        }
        let fallback = const { CompactRow::of_all(F::COVERAGE) };
        let is_same_again = fallback == Some(row);
        if matches!(F::COVERAGE, Coverage::Nothing) || is_same_again || failure.is_not_resident() {
            return Some(failure);
        }
        let of_fallback = self.error_of(fallback?, at, mem)?;
        Some(if of_fallback.is_not_resident() { of_fallback } else { failure })
    }

    /// The row of a frame, if it has a compact form and is cached, or is the one of all frames.
    fn compact_row(&mut self, pc: FramePc) -> Option<CompactRow> {
        let of_all = const { CompactRow::of_all(S::COVERAGE) };
        of_all.or_else(|| Some(self.cache.get(pc.lookup_addr(), CacheHit::NONE)?.row))
    }

    /// Why a row leads to no caller. `None` if it leads to one, or to a return address
    /// at which more than the value has to be looked at.
    #[inline(never)]
    fn error_of<M: Memory>(
        &self,
        row: CompactRow,
        at: &FastPath<u64>,
        mem: &mut M,
    ) -> Option<StepError> {
        let addr = match self.return_address_of(row, at) {
            Ok((_, addr)) => addr,
            Err(error) => return Some(error),
        };
        let ra = match mem.read_word(addr, A::WORD) {
            Ok(0) => return None,
            Ok(ra) => ra,
            Err(error) => return Some(StepError::Unreadable { addr, error }),
        };
        check_return_address(&self.arch, ra).err()
    }

    /// The CFA by a row with one, and where the return address is.
    #[inline]
    fn return_address_of(
        &self,
        row: CompactRow,
        at: &FastPath<u64>,
    ) -> Result<(u64, VirtAddr), StepError> {
        let FastPath { at: sp, fp, .. } = *at;
        let Walker { arch, stack_end, .. } = self;
        let base = if row.is_from_fp() {
            check_frame_pointer(fp, sp)?;
            fp
        } else {
            sp
        };
        let slot = A::WORD.bytes();
        let above = u64::from(row.cfa_slots()).wrapping_mul(slot);
        let cfa = base.checked_add(above).filter(|cfa| *cfa <= A::WORD.max_value());
        let cfa = cfa.ok_or(StepError::Overflow)?;
        // A slot or more above the base, so it rises, and nothing that is saved wraps.
        check_cfa(cfa, A::WORD, *stack_end)?;
        Ok((cfa, arch.stack_addr(cfa.wrapping_sub(slot))))
    }
}
