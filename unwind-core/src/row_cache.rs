//! A cache of rows by pc, in memory that the host places.

use core::fmt;

use crate::{Arch, FrameContext, Memory, Row, RowSource, ShortRow, VirtAddr, WordSize};

/// How many entries an address may be kept in.
const WAYS: usize = 4;

/// Rows that were looked up before, at most `N`, 16 bytes each.
///
/// `N` is a power of two and at least 4. An address may be kept in each of the
/// four entries of one set, which share a cache line. The cache holds rows of
/// one address space, one CPU and one source; it empties itself when the
/// source's generation changes.
///
/// Each entry remembers which entry the frame's caller had last time. Where
/// callers repeat, and they mostly do, the next row is then at hand before its
/// return address has come from memory.
///
/// A row that has no [`ShortRow`] (a rule on another register than the stack or
/// frame pointer, say) is not kept, but counted.
#[derive(Clone)]
#[repr(align(64))]
pub struct RowCache<const N: usize> {
    entries: [Entry; N],
    generation: u64,
    stats: CacheStats,
}

#[derive(Clone, Copy)]
struct Entry {
    /// The lookup address; `EMPTY` if there is none.
    key: u64,
    row: ShortRow,
}

impl Entry {
    const NONE: Self = Self { key: EMPTY, row: ShortRow::NONE };

    const fn is_used(&self) -> bool {
        self.row.tag() & USED != 0
    }
}

/// How often a cache could answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Lookups that the cache answered.
    pub hits: u64,
    /// Lookups that went to the source.
    pub misses: u64,
    /// Of these, how many found a row that has no short form.
    pub unkept: u64,
}

/// The key of an entry without a row. The last address of all is never kept and
/// never looked for.
const EMPTY: u64 = u64::MAX;

/// Where a cache found a row, and where it expects that of the frame's caller.
#[derive(Clone, Copy, Debug)]
pub struct CacheSlot {
    /// The entry of this row; `NOWHERE` if it is in none.
    here: u16,
    /// The entry of the caller's row, if it is the one of last time.
    caller: u16,
}

impl CacheSlot {
    const NOWHERE: u16 = u16::MAX;

    /// No place: of a row that is in no cache, and before the first one.
    pub const NONE: Self = Self { here: Self::NOWHERE, caller: 0 };
}

/// The lowest bit of a row's tag: it was used since others of its set were.
const USED: u16 = 1;

impl<const N: usize> RowCache<N> {
    /// The highest index.
    const MASK: usize = {
        assert!(N.is_power_of_two() && N >= WAYS, "a power of two, at least 4");
        N.wrapping_sub(1)
    };

    /// An empty cache.
    #[must_use]
    pub const fn new() -> Self {
        let stats = CacheStats { hits: 0, misses: 0, unkept: 0 };
        Self { entries: [Entry::NONE; N], generation: 0, stats }
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.entries = [Entry::NONE; N];
    }

    /// How often the cache could answer since it was made.
    #[must_use]
    pub const fn stats(&self) -> CacheStats {
        self.stats
    }

    /// Forgets all rows if they are of another generation than this.
    fn renew(&mut self, generation: u64) {
        if generation != self.generation {
            self.clear();
            self.generation = generation;
        }
    }

    /// The first index of the set that an address belongs to.
    #[inline]
    fn set_of(addr: u64) -> usize {
        // Fibonacci hashing: the high bits of the product depend on all bits.
        let hash = addr.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        usize::try_from(hash).unwrap_or(0) & Self::MASK & !(WAYS.wrapping_sub(1))
    }

    /// The row of `addr`, which is not `EMPTY`, the caller of the one at
    /// `after`.
    #[inline]
    fn get(&mut self, addr: u64, after: CacheSlot) -> Option<(ShortRow, CacheSlot)> {
        let guess = usize::from(after.caller) & Self::MASK;
        match self.entries.get(guess)? {
            entry if entry.key == addr => self.hit(guess),
            _ => {
                let at = self.search(addr, after)?;
                self.hit(at)
            }
        }
    }

    #[inline]
    fn hit(&mut self, at: usize) -> Option<(ShortRow, CacheSlot)> {
        let entry = self.entries.get(at)?;
        let row = entry.row;
        if !entry.is_used() {
            self.touch(at);
        }
        self.stats.hits = self.stats.hits.wrapping_add(1);
        let here = u16::try_from(at).unwrap_or(CacheSlot::NOWHERE);
        Some((row, CacheSlot { here, caller: row.tag() >> 1 }))
    }

    /// The index of the entry for `addr`, which is remembered as the caller of
    /// the row at `after`.
    #[inline]
    fn search(&mut self, addr: u64, after: CacheSlot) -> Option<usize> {
        let first = Self::set_of(addr);
        let set = self.entries.get(first..)?.first_chunk::<WAYS>()?;
        let way = set.iter().position(|entry| entry.key == addr)?;
        let at = first.wrapping_add(way);
        if let Some(callee) = self.entries.get_mut(usize::from(after.here)) {
            // A tag has room for 2,048 entries. The guesses of a larger cache
            // are wrong more often, which costs time and nothing else.
            let caller = u16::try_from(at & 0x7ff).unwrap_or(0);
            callee.row = callee.row.with_tag(caller << 1 | callee.row.tag() & USED);
        }
        Some(at)
    }

    fn insert(&mut self, addr: u64, row: &Row, word: WordSize) {
        let Some(row) = ShortRow::new(row, word).filter(|_| addr != EMPTY) else {
            self.stats.unkept = self.stats.unkept.wrapping_add(1);
            return;
        };
        let first = Self::set_of(addr);
        let Some(set) = self.entries.get(first..).and_then(|rest| rest.first_chunk::<WAYS>())
        else {
            return;
        };
        let free = set.iter().position(|entry| entry.key == EMPTY);
        let unused = || set.iter().position(|entry| !entry.is_used());
        let at = first.wrapping_add(free.or_else(unused).unwrap_or(0));
        if let Some(entry) = self.entries.get_mut(at) {
            *entry = Entry { key: addr, row };
        }
        self.touch(at);
    }

    /// Marks an entry as used. When all of its set are, it is the only one that
    /// still is.
    #[cold]
    fn touch(&mut self, at: usize) {
        let first = at & !(WAYS.wrapping_sub(1));
        let Some(set) =
            self.entries.get_mut(first..).and_then(|rest| rest.first_chunk_mut::<WAYS>())
        else {
            return;
        };
        let is_it = |way: usize| first.wrapping_add(way) == at;
        let all_others = (0..).zip(&*set).all(|(way, entry)| is_it(way) || entry.is_used());
        for (way, entry) in (0..).zip(set) {
            let tag = entry.row.tag();
            if is_it(way) {
                entry.row = entry.row.with_tag(tag | USED);
            } else if all_others {
                entry.row = entry.row.with_tag(tag & !USED);
            }
        }
    }
}

impl<const N: usize> Default for RowCache<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> fmt::Debug for RowCache<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.entries.iter().filter(|entry| entry.key != EMPTY).count();
        f.debug_struct("RowCache").field("kept", &kept).field("stats", &self.stats).finish()
    }
}

/// A source that remembers the rows of another in a [`RowCache`].
///
/// The other source's rows must depend on the pc alone: tables do, the
/// instructions at the pc of a sample may change.
#[derive(Debug)]
pub struct Cached<'c, S, const N: usize> {
    source: S,
    cache: &'c mut RowCache<N>,
}

impl<'c, S, const N: usize> Cached<'c, S, N> {
    /// Puts `cache` in front of `source`.
    #[must_use]
    pub const fn new(source: S, cache: &'c mut RowCache<N>) -> Self {
        Self { source, cache }
    }
}

impl<A: Arch, S: RowSource<A>, const N: usize> RowSource<A> for Cached<'_, S, N> {
    type Error = S::Error;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Self::Error> {
        self.begin();
        let addr = frame.pc.lookup_addr().get();
        if addr != EMPTY
            && let Some((row, _)) = self.cache.get(addr, CacheSlot::NONE)
        {
            return Ok(Some(row.row(A::WORD)));
        }
        self.cache.stats.misses = self.cache.stats.misses.wrapping_add(1);
        let row = self.source.row(frame, mem)?;
        if let Some(row) = &row {
            self.cache.insert(addr, row, A::WORD);
        }
        Ok(row)
    }

    fn begin(&mut self) {
        self.source.begin();
        self.cache.renew(self.source.generation());
    }

    #[inline]
    fn quick(&mut self, addr: VirtAddr, after: CacheSlot) -> Option<(ShortRow, CacheSlot)> {
        self.cache.get(addr.get(), after)
    }

    #[inline]
    fn generation(&self) -> u64 {
        self.source.generation()
    }
}
