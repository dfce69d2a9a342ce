//! What a walk is made of, and what is kept from one walk to the next.

use crate::addr::{FramePc, VirtAddr};
use crate::arch::Arch;
use crate::memory::{Memory, SliceMemory};
use crate::return_addresses::{ReturnAddresses, Unchecked};
use crate::row::Row;
use crate::source::{Empty, FrameContext, RowSource};
use crate::walk::cursor::Cursor;
use crate::walk::fast::row_cache::{Counted, NoCache, RowCache, RowStore};
use crate::walk::fast::rows_by_key::{RowKeys, RowsByKey};

/// Walks stacks of one CPU by one set of sources. Between walks only its sources and its
/// [cache](Self::cache) keep anything.
#[derive(Clone, Copy, Debug)]
pub struct Walker<A, S, F = Empty, T = Unchecked, C = NoCache> {
    pub(super) arch: A,
    pub(super) source: S,
    pub(super) fallback: F,
    pub(super) code: T,
    pub(super) cache: C,
    pub(super) max_frames: u32,
    pub(super) stack_end: Option<u64>,
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
            fallback: Empty,
            code: Unchecked,
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
    T: ReturnAddresses,
    C: RowStore,
{
    /// Continues by `fallback` where the source has no row, has a malformed one,
    /// or has one that cannot be applied. Frames found so have a
    /// [`Provenance`](crate::Provenance) that says it. After a failure of a row that is no
    /// [guess](crate::Row::is_guess) they come [after a gap](crate::Provenance::is_after_gap),
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
    pub fn return_addresses<U: ReturnAddresses>(self, code: U) -> Walker<A, S, F, U, C> {
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

    /// The same where there is a cache. The walk's code is the same with one and without.
    #[must_use]
    pub fn cache_if_any<const N: usize>(
        self,
        cache: Option<&mut RowCache<N>>,
    ) -> Walker<A, S, F, T, Option<&mut RowCache<N>>> {
        let Self { arch, source, fallback, code, max_frames, stack_end, .. } = self;
        Walker { arch, source, fallback, code, cache, max_frames, stack_end }
    }

    /// Keeps rows of tables in `cache`, for walks of all address spaces that have these tables:
    /// `keys` knows which table has the rows of an address, in the address space of this
    /// walk. Rows that no table with a number has are not kept.
    ///
    /// A cache is for one walk at a time. Where several walk at once each has its own, as
    /// each CPU: no lock is needed, and what many processes share is kept once a CPU. A program
    /// may use a cache by keys or by addresses, but not in both ways.
    #[must_use]
    pub fn cache_by_key<K: RowKeys, const N: usize>(
        self,
        cache: &mut RowCache<N>,
        keys: K,
    ) -> Walker<A, S, F, T, RowsByKey<'_, K, N>> {
        let Self { arch, source, fallback, code, max_frames, stack_end, .. } = self;
        let cache = RowsByKey::new(cache, keys);
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

    /// Forgets rows that were kept of another generation.
    #[inline]
    pub(super) fn begin(&mut self) {
        self.cache.renew(self.source.generation());
    }

    /// How many frames a walk has at most.
    #[inline]
    pub(super) fn most_frames(&self) -> usize {
        usize::try_from(self.max_frames).unwrap_or(usize::MAX)
    }

    /// The row of a frame, from the cache or the source. `registers` are the frame's, if all are known.
    // All of a walk asks the source here, which becomes one with it: so it takes no frame of its own.
    #[inline(never)]
    pub(super) fn look_up<M: Memory>(
        &mut self,
        at: &Cursor,
        registers: Option<&A::Regs>,
        whom: Whom,
        mem: &mut M,
    ) -> LookedUp<S::Error> {
        let Self { source, cache, .. } = self;
        if S::IS_BY_ADDR {
            return look_up_by_addr(source, cache, at.pc.lookup_addr(), whom);
        }
        ask(source, cache, &at.context(registers), whom, mem)
    }
}

/// The same of a source that needs no more than an address.
#[inline(never)]
pub(super) fn look_up_by_addr<A: Arch, S: RowSource<A>, C: RowStore>(
    source: &mut S,
    cache: &mut C,
    addr: VirtAddr,
    whom: Whom,
) -> LookedUp<S::Error> {
    let frame = FrameContext::new(FramePc::Exact(addr), 0, None, None);
    let mem = &mut SliceMemory::new(VirtAddr::new(0), &[]);
    ask(source, cache, &frame, whom, mem)
}

// In one place, where the source becomes one with it.
#[inline(always)]
fn ask<A: Arch, S: RowSource<A>, C: RowStore, M: Memory>(
    source: &mut S,
    cache: &mut C,
    frame: &FrameContext<'_, A::Regs>,
    whom: Whom,
    mem: &mut M,
) -> LookedUp<S::Error> {
    let is_missed = whom == Whom::SourceAndKeep;
    if whom == Whom::CacheFirst {
        if let Some(row) = cache.find(frame.lookup_addr(), A::WORD) {
            return LookedUp::Row(Ok(row));
        }
    }
    // Looked at where it is returned, so that it is not copied.
    let found = LookedUp::Row(source.row(frame, mem));
    let counted = match &found {
        _ if whom == Whom::SourceAlone => return found,
        LookedUp::Row(Ok(Some(row))) => {
            let is_kept =
                !frame.needs_more_than_addr() && cache.insert(frame.lookup_addr(), row, A::WORD);
            match is_kept {
                true if is_missed => {
                    cache.count(Counted::Fetched);
                    return LookedUp::Kept;
                }
                true => Counted::Missed,
                false => Counted::Unkept,
            }
        }
        LookedUp::Row(Ok(None)) if !frame.needs_more_than_addr() => {
            match cache.insert_absent(frame.lookup_addr()) && is_missed {
                true => {
                    cache.count(Counted::Fetched);
                    return LookedUp::Kept;
                }
                false => Counted::Missed,
            }
        }
        _ => Counted::Missed,
    };
    cache.count(counted);
    found
}

/// Who is asked for a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whom {
    /// The cache, or else the source.
    CacheFirst,
    /// The source: the cache does not have it, and gets it.
    SourceAndKeep,
    /// The source, and the cache does not get what it says.
    SourceAlone,
}

/// What a look-up has found.
pub(super) enum LookedUp<E> {
    /// What is not in the cache, or is and was asked for.
    Row(Result<Option<Row>, E>),
    /// A row, or that there is none, that is in the cache from now on.
    Kept,
}

impl<E> LookedUp<E> {
    /// The row that was asked for; `None` if there is none, or none that can be used.
    pub(super) fn row(self) -> Option<Row> {
        match self {
            Self::Row(row) => row.ok().flatten(),
            Self::Kept => None,
        }
    }
}
