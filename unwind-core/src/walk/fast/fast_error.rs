//! Why a walk by compact rows fails: the fast form of
//! [`Frames::find_caller`] where that finds none.

use core::borrow::BorrowMut;

use crate::addr::{FramePc, VirtAddr};
use crate::arch::Arch;
use crate::end::End;
use crate::memory::{Memory, ReadError};
use crate::register::WordSize;
use crate::return_addresses::ReturnAddresses;
use crate::source::{Coverage, RowSource};
use crate::step_error::StepError;
use crate::walk::cursor::Cursor;
use crate::walk::fast::compact_row::CompactRow;
use crate::walk::fast::fast_path::{FastPath, Stop};
use crate::walk::fast::row_cache::{CacheHit, RowStore};
use crate::walk::frames::Frames;
use crate::walk::rules::{check_cfa, check_frame_pointer, check_return_address, is_zero_an_end};
use crate::walk::step::FramePointer;
use crate::walk::walker::Walker;

/// An end that can be seen again by a look at the words that the last step read, none of which
/// led anywhere.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SimpleEnd {
    Outermost,
    /// The return address is zero. No frame pointer alone led to any frame.
    Zero {
        addr: VirtAddr,
    },
    /// By the row, and by that of the fallback if there is another address.
    Unreadable {
        addr: VirtAddr,
        error: ReadError,
        fallback: Option<VirtAddr>,
    },
    /// For a reason that no word has told.
    Failed(StepError),
}

impl SimpleEnd {
    /// Whether the same frame has no caller again, for the same reason. `is_by_fp`: a frame
    /// pointer alone led to it or to a frame before it.
    #[inline]
    pub(in crate::walk) fn is_same<M: Memory>(
        self,
        word: WordSize,
        is_by_fp: bool,
        mem: &mut M,
    ) -> bool {
        let mut is_unreadable =
            |addr, error| !is_lent(addr, word, mem) && mem.read_word(addr, word) == Err(error);
        match self {
            Self::Outermost | Self::Failed(_) => true,
            Self::Zero { addr } => !is_by_fp && mem.read_word(addr, word) == Ok(0),
            Self::Unreadable { addr, error, fallback } => {
                is_unreadable(addr, error)
                    && fallback.is_none_or(|addr| is_unreadable(addr, ReadError::Invalid))
            }
        }
    }

    pub(in crate::walk) const fn end<E>(self) -> End<E> {
        match self {
            Self::Outermost => End::Outermost,
            Self::Zero { .. } => End::ZeroReturnAddress,
            Self::Unreadable { addr, error, .. } => {
                End::Step(StepError::Unreadable { addr, error })
            }
            Self::Failed(error) => End::Step(error),
        }
    }

    /// Of a row that fails so; `None` if a word has told.
    const fn of(error: StepError) -> Option<Self> {
        match error {
            StepError::Unreadable { addr, error } => {
                Some(Self::Unreadable { addr, error, fallback: None })
            }
            StepError::NonCanonical { .. } => None,
            _ => Some(Self::Failed(error)),
        }
    }

    /// The same where the fallback fails too, so.
    const fn and_fallback(self, error: StepError) -> Option<Self> {
        match (self, Self::of(error)) {
            (_, Some(Self::Failed(_))) => Some(self),
            (
                Self::Unreadable { addr, error, .. },
                Some(Self::Unreadable { addr: other, error: ReadError::Invalid, .. }),
            ) => Some(Self::Unreadable { addr, error, fallback: Some(other) }),
            _ => None,
        }
    }
}

/// Whether a walk finds the word at `addr` without reading it.
#[inline]
fn is_lent<M: Memory>(addr: VirtAddr, word: WordSize, mem: &mut M) -> bool {
    let has = |start: VirtAddr, words: usize| {
        let at = usize::try_from(addr.get().wrapping_sub(start.get()) >> 3);
        at.is_ok_and(|at| at < words)
    };
    word == WordSize::Eight
        && (mem.words(addr).is_some_and(|(start, words)| has(start, words.len()))
            || mem.shared_words(addr).is_some_and(|(start, words)| has(start, words.len())))
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
    /// Why the frame at which a walk stands, with this pc, has no caller, neither by the
    /// cached row nor by the fallback's, and how that can be seen again. `None` if that takes the
    /// full step to find out.
    // Part of its callers: not all of them need all of it.
    #[inline(always)]
    pub(in crate::walk) fn fast_error(
        &mut self,
        pc: FramePc,
        at: &FastPath<u64>,
    ) -> Option<(StepError, Option<SimpleEnd>)> {
        let row = self.compact_row(pc)?;
        if row.cfa_slots() == 0 {
            return None;
        }
        let failure = self.error_of(row, at)?;
        let end = SimpleEnd::of(failure);
        let fallback = const { CompactRow::of_all(F::COVERAGE) };
        let is_same_again = fallback == Some(row);
        if matches!(F::COVERAGE, Coverage::Nothing) || is_same_again || failure.is_not_resident() {
            return Some((failure, end));
        }
        let of_fallback = self.error_of(fallback?, at)?;
        Some(match of_fallback.is_not_resident() {
            true => (of_fallback, None),
            false => (failure, end.and_then(|end| end.and_fallback(of_fallback))),
        })
    }

    /// The row of a frame, if it has a compact form and is cached, or is the one of all frames.
    fn compact_row(&mut self, pc: FramePc) -> Option<CompactRow> {
        let of_all = const { CompactRow::of_all(S::COVERAGE) };
        of_all.or_else(|| Some(self.walker.cache.get(pc.lookup_addr(), CacheHit::NONE)?.row))
    }

    /// How it can be seen again that a walk that went on to this frame ends at a return address
    /// of zero.
    pub(in crate::walk) fn zero_end(&mut self, at: &Cursor) -> Option<SimpleEnd> {
        let Cursor { pc, sp, fp: FramePointer::Known(fp), is_by_fp: false, .. } = *at else {
            return None;
        };
        let row = self.compact_row(pc).filter(|row| row.cfa_slots() != 0)?;
        let at = FastPath { at: sp, fp, is_by_fp: false, stop: Stop::Other };
        let (cfa, addr) = self.return_address_of(row, &at).ok()?;
        let is_last = self.walker.stack_end == Some(cfa);
        is_zero_an_end(&row.row(A::WORD)?, false, is_last).then_some(SimpleEnd::Zero { addr })
    }

    /// Why a row leads to no caller. `None` if it leads to one, or to a return address
    /// at which more than the value has to be looked at.
    #[inline(never)]
    fn error_of(&mut self, row: CompactRow, at: &FastPath<u64>) -> Option<StepError> {
        let addr = match self.return_address_of(row, at) {
            Ok((_, addr)) => addr,
            Err(error) => return Some(error),
        };
        let ra = match self.mem.read_word(addr, A::WORD) {
            Ok(0) => return None,
            Ok(ra) => ra,
            Err(error) => return Some(StepError::Unreadable { addr, error }),
        };
        check_return_address(&self.walker.arch, ra).err()
    }

    /// The CFA by a row with one, and where the return address is.
    #[inline]
    fn return_address_of(
        &self,
        row: CompactRow,
        at: &FastPath<u64>,
    ) -> Result<(u64, VirtAddr), StepError> {
        let FastPath { at: sp, fp, .. } = *at;
        let Walker { arch, stack_end, .. } = &*self.walker;
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
