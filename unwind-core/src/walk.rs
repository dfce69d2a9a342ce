//! The walk: from the registers of a sample to its outermost frame.

#[cfg(all(test, not(loom)))]
mod cached_rows;
mod frames;

use core::borrow::BorrowMut;

pub use self::frames::Frames;
use crate::addr::{FramePc, VirtAddr};
use crate::arch::Arch;
use crate::end::End;
use crate::memory::Memory;
use crate::row::Row;
use crate::row_cache::{Counted, NoCache, RowCache, RowStore};
use crate::source::{FrameContext, NoRows, RowSource};
use crate::trace::{Provenance, Trace};

/// One frame of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// Where its execution stands.
    pub pc: FramePc,
    /// Its stack pointer at that point, a register value.
    pub sp: u64,
    /// Its CFA, a register value: the stack pointer of its caller. `None` if
    /// the walk ends here without having found it.
    pub cfa: Option<u64>,
    /// How the frame was found.
    pub provenance: Provenance,
}

/// What a host knows of the target's code.
pub trait TargetCode {
    /// Returns the real return address if `ra` is a trampoline's.
    ///
    /// A tracer that wants to see a function return (a uretprobe and the like)
    /// replaces its return address by that of a trampoline and remembers the
    /// real one. A walk would show the trampoline in place of the caller.
    ///
    /// `slot` is where `ra` was saved, if it was in memory: it tells apart the
    /// frames that return to the same trampoline. Calls come in the order of
    /// the frames, innermost first. The answer is used without further checks.
    #[inline]
    fn real_return(&mut self, ra: VirtAddr, slot: Option<VirtAddr>) -> Option<VirtAddr> {
        let _ = (ra, slot);
        None
    }

    /// Whether the target has code at `call`, the last byte of what must have
    /// been a call. A return address for which it says no is none, and the
    /// walk ends with [`StepError::NotCode`](crate::StepError::NotCode).
    #[inline]
    fn is_code(&mut self, call: VirtAddr) -> bool {
        let _ = call;
        true
    }

    /// A number that changes whenever an answer given before may no longer be
    /// right. `None` if there is none, as where an answer depends on the calls
    /// before: each return address of a walk is then asked about, and
    /// [`Walker::retrace`] takes nothing over.
    #[inline]
    fn generation(&self) -> Option<u64> {
        None
    }
}

/// Nothing is known of the target's code: every return address is what it
/// seems.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnyCode;

impl TargetCode for AnyCode {
    #[inline]
    fn generation(&self) -> Option<u64> {
        Some(0)
    }
}

/// Walks stacks of one CPU by one set of sources. It keeps nothing of a walk
/// but what its sources keep, and the rows in its [cache](Self::cache).
#[derive(Clone, Copy, Debug)]
pub struct Walker<A, S, F = NoRows, T = AnyCode, C = NoCache> {
    arch: A,
    source: S,
    fallback: F,
    code: T,
    cache: C,
    max_frames: u32,
    stack_end: Option<u64>,
}

impl<A: Arch, S: RowSource<A>> Walker<A, S> {
    /// How many frames a walk has at most unless
    /// [`max_frames`](Self::max_frames) says otherwise.
    pub const DEFAULT_MAX_FRAMES: u32 = 510;

    /// A walker that takes its rows from `source` alone.
    #[must_use]
    pub const fn new(arch: A, source: S) -> Self {
        Self {
            arch,
            source,
            fallback: NoRows,
            code: AnyCode,
            cache: NoCache,
            max_frames: Self::DEFAULT_MAX_FRAMES,
            stack_end: None,
        }
    }
}

impl<A, S, F, T, C> Walker<A, S, F, T, C>
where
    A: Arch,
    S: RowSource<A>,
    F: RowSource<A>,
    F::Error: Into<S::Error>,
    T: TargetCode,
    C: RowStore,
{
    /// Continues by `fallback` where the source has no row, has a malformed one,
    /// or has one that cannot be applied. Frames found so have a
    /// [`Provenance`] that says it. After a failure of a row that is no
    /// [guess](crate::Row::is_guess) they come [after a gap](Provenance::is_after_gap),
    /// whatever the fallback is.
    ///
    /// Absent memory is the exception: it is not a fault of the row, so the
    /// walk ends there and can be tried again.
    #[must_use]
    pub fn fallback<G>(self, fallback: G) -> Walker<A, S, G, T, C>
    where
        G: RowSource<A>,
        G::Error: Into<S::Error>,
    {
        let Self { arch, source, code, cache, max_frames, stack_end, .. } = self;
        Walker { arch, source, fallback, code, cache, max_frames, stack_end }
    }

    /// Asks `code` about each return address.
    #[must_use]
    pub fn code<U: TargetCode>(self, code: U) -> Walker<A, S, F, U, C> {
        let Self { arch, source, fallback, cache, max_frames, stack_end, .. } = self;
        Walker { arch, source, fallback, code, cache, max_frames, stack_end }
    }

    /// Keeps rows of the source in `cache`, for this walk and later ones. A row of the cache
    /// takes a small part of the time of a lookup. All rows in it must be of this source,
    /// for one address space.
    #[must_use]
    pub fn cache<const N: usize>(
        self,
        cache: &mut RowCache<N>,
    ) -> Walker<A, S, F, T, &mut RowCache<N>> {
        let Self { arch, source, fallback, code, max_frames, stack_end, .. } = self;
        Walker { arch, source, fallback, code, cache, max_frames, stack_end }
    }

    /// Ends a walk after `frames` frames, if there are more.
    #[must_use]
    pub const fn max_frames(mut self, frames: u32) -> Self {
        self.max_frames = frames;
        self
    }

    /// Ends a walk that would leave the stack: `end` is the value of the stack
    /// pointer when the stack is empty. With signal handlers on a stack of
    /// their own it must be the higher of the two.
    #[must_use]
    pub const fn stack_end(mut self, end: u64) -> Self {
        self.stack_end = Some(end);
        self
    }

    /// Starts a walk at `regs`: registers, or a reference to some that the caller
    /// lends. What a signal interrupted overwrites them.
    pub fn frames<'w, M: Memory, R: BorrowMut<A::Regs>>(
        &'w mut self,
        regs: R,
        mem: &'w mut M,
    ) -> Frames<'w, A, S, F, T, C, M, R> {
        self.begin();
        Frames::new(self, regs, mem)
    }

    /// Forgets rows that were kept of another generation.
    #[inline]
    fn begin(&mut self) {
        self.cache.renew(self.source.generation());
    }

    /// The row of a frame, from the cache or else from the source.
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, S::Error> {
        if let Some(row) = self.cache.find(frame.lookup_addr(), A::WORD) {
            return Ok(Some(row));
        }
        let found = self.source.row(frame, mem);
        if C::KEEPS {
            let counted = match &found {
                Ok(Some(row)) if self.keep(frame, row) => Counted::Miss,
                Ok(Some(_)) => Counted::Unkept,
                _ => Counted::NoRow,
            };
            self.cache.count(counted);
        }
        found
    }

    /// Looks up the row of a frame so that the cache has it; `false` if it cannot be
    /// kept, or there is none.
    fn fetch<M: Memory>(&mut self, frame: &FrameContext<'_, A::Regs>, mem: &mut M) -> bool {
        let is_kept = C::KEEPS
            && matches!(self.source.row(frame, mem), Ok(Some(row)) if self.keep(frame, &row));
        if is_kept {
            self.cache.count(Counted::Fetched);
        }
        is_kept
    }

    fn keep(&mut self, frame: &FrameContext<'_, A::Regs>, row: &Row) -> bool {
        !frame.needs_more_than_addr() && self.cache.insert(frame.lookup_addr(), row, A::WORD)
    }

    /// Walks the whole stack at `regs`, as [`frames`](Self::frames) takes them,
    /// into `trace`, which is emptied first.
    pub fn trace<M: Memory>(
        &mut self,
        mut regs: impl BorrowMut<A::Regs>,
        mem: &mut M,
        trace: &mut Trace,
    ) {
        trace.clear();
        let mut frames = self.frames(regs.borrow_mut(), mem);
        // After a row was looked up the walk by cached rows is tried once more; a second
        // miss at the same frame means that the row cannot be kept.
        let mut missed_at = None;
        loop {
            let is_missed = frames.run(trace);
            if is_missed && missed_at.replace(trace.len()) != Some(trace.len()) && frames.fetch() {
                continue;
            }
            let Some(frame) = frames.next() else { break };
            if !trace.push(frame.pc.addr(), frame.provenance) {
                return trace.finish(End::<S::Error>::Full);
            }
        }
        // An iterator without a next frame has a reason for it.
        trace.finish(frames.end().unwrap_or(End::Full));
    }
}
