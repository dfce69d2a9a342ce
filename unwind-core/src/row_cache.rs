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
    /// The address behind the lookup address, which is the return address of
    /// a call; `EMPTY` if there is none.
    key: u64,
    row: ShortRow,
}

impl Entry {
    const NONE: Self = Self { key: EMPTY, row: ShortRow::NONE };
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

/// The key of an entry without a row: the last address of all is never kept. If
/// it is looked for, an entry without a row is found.
const EMPTY: u64 = 0;

/// Where a cache found a row, and where it expects that of the frame's caller.
#[derive(Clone, Copy, Debug)]
pub struct CacheSlot {
    /// The entry of this row.
    here: usize,
    /// The entry of the caller's row, if it is the one of last time.
    caller: u16,
}

impl CacheSlot {
    /// No place: of a row that is in no cache, and before the first one.
    pub const NONE: Self = Self { here: 0, caller: 0 };
}

impl<const N: usize> RowCache<N> {
    /// The highest index.
    const MASK: usize = {
        assert!(N.is_power_of_two() && N >= WAYS, "a power of two, at least 4");
        N.wrapping_sub(1)
    };

    /// How many bits of a hash are not used.
    const HASH_SHIFT: u32 = u32::BITS.saturating_sub(N.ilog2());

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

    /// The first index of the set that a key belongs to.
    #[inline]
    fn set_of(key: u64) -> usize {
        // Fibonacci hashing: the high bits of the product depend on all bits. Of
        // an address the lower half tells enough.
        let low = u32::try_from(key & 0xffff_ffff).unwrap_or(0);
        let hash = low.wrapping_mul(0x9e37_79b1) >> Self::HASH_SHIFT;
        usize::try_from(hash).unwrap_or(0) & Self::MASK & !(WAYS.wrapping_sub(1))
    }

    /// The row of `addr`, the caller of the one at `after`.
    #[inline]
    fn get(&mut self, addr: u64, after: CacheSlot) -> Option<(ShortRow, CacheSlot)> {
        let key = addr.wrapping_add(1);
        let guess = usize::from(after.caller) & Self::MASK;
        let at = match self.entries.get(guess)? {
            entry if entry.key == key => guess,
            _ => self.search(key, after)?,
        };
        let row = self.entries.get(at)?.row;
        Some((row, CacheSlot { here: at, caller: row.guess() }))
    }

    /// The index of the entry for `key`, which is remembered as the caller of
    /// the row at `after`.
    #[inline]
    fn search(&mut self, key: u64, after: CacheSlot) -> Option<usize> {
        let first = Self::set_of(key);
        let set = self.entries.get(first..)?.first_chunk::<WAYS>()?;
        let way = set.iter().position(|entry| entry.key == key)?;
        let at = first.wrapping_add(way);
        // Of the first row it is a guess about another one, which costs time and
        // nothing else. So are all in a cache of more than 65,536 entries.
        if let Some(callee) = self.entries.get_mut(after.here & Self::MASK) {
            callee.row.set_guess(u16::try_from(at & 0xffff).unwrap_or(0));
        }
        Some(at)
    }

    /// The row of `addr`, if it is here; counted.
    // With `keep`, not on the stack while the source looks up a row.
    #[inline(never)]
    fn kept(&mut self, addr: u64, word: WordSize) -> Option<Row> {
        let Some((row, at)) = self
            .get(addr, CacheSlot::NONE)
            .and_then(|(row, slot)| Some((row.row(word)?, slot.here)))
        else {
            self.stats.misses = self.stats.misses.wrapping_add(1);
            return None;
        };
        self.touch(at);
        self.stats.hits = self.stats.hits.wrapping_add(1);
        Some(row)
    }

    /// Keeps a row that was missed, or counts it.
    #[inline(never)]
    fn keep(&mut self, addr: u64, row: &Row, word: WordSize) {
        if !self.insert(addr, row, word) {
            self.stats.unkept = self.stats.unkept.wrapping_add(1);
        }
    }

    /// Keeps a row; `false` if it has no short form.
    fn insert(&mut self, addr: u64, row: &Row, word: WordSize) -> bool {
        let key = addr.wrapping_add(1);
        let Some(row) = ShortRow::new(row, word).filter(|_| key != EMPTY) else { return false };
        let first = Self::set_of(key);
        let Some(set) = self.entries.get_mut(first..).and_then(<[_]>::first_chunk_mut::<WAYS>)
        else {
            return false;
        };
        let free = set.iter().position(|entry| entry.key == EMPTY);
        let way = free.or_else(|| set.iter().position(|entry| !entry.row.is_used())).unwrap_or(0);
        if let Some(entry) = set.get_mut(way) {
            *entry = Entry { key, row };
        }
        if set.iter().all(|entry| entry.row.is_used()) {
            self.touch(first.wrapping_add(way));
        }
        true
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
        let all_others = (0..).zip(&*set).all(|(way, entry)| is_it(way) || entry.row.is_used());
        for (way, entry) in (0..).zip(set) {
            if is_it(way) {
                entry.row.set_used(true);
            } else if all_others {
                entry.row.set_used(false);
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
    /// The next answer is one that was just fetched.
    is_fetched: bool,
}

impl<'c, S, const N: usize> Cached<'c, S, N> {
    /// Puts `cache` in front of `source`.
    #[must_use]
    pub const fn new(source: S, cache: &'c mut RowCache<N>) -> Self {
        Self { source, cache, is_fetched: false }
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
        if let Some(row) = self.cache.kept(addr, A::WORD) {
            return Ok(Some(row));
        }
        let found = self.source.row(frame, mem);
        if let Ok(Some(row)) = &found {
            self.cache.keep(addr, row, A::WORD);
        }
        found
    }

    fn fetch<M: Memory>(&mut self, frame: &FrameContext<'_, A::Regs>, mem: &mut M) -> bool {
        let addr = frame.pc.lookup_addr().get();
        match self.source.row(frame, mem) {
            Ok(Some(row)) if self.cache.insert(addr, &row, A::WORD) => {
                self.cache.stats.misses = self.cache.stats.misses.wrapping_add(1);
                self.is_fetched = true;
                true
            }
            _ => false,
        }
    }

    fn begin(&mut self) {
        self.source.begin();
        self.cache.renew(self.source.generation());
    }

    #[inline]
    fn quick(&mut self, addr: VirtAddr, after: CacheSlot) -> Option<(ShortRow, CacheSlot)> {
        self.cache.get(addr.get(), after)
    }

    #[cold]
    fn used(&mut self, slot: CacheSlot) {
        self.cache.touch(slot.here);
    }

    #[inline]
    fn answered(&mut self, count: usize) {
        let fetched = usize::from(core::mem::take(&mut self.is_fetched));
        let count = u64::try_from(count.saturating_sub(fetched)).unwrap_or(0);
        self.cache.stats.hits = self.cache.stats.hits.wrapping_add(count);
    }

    #[inline]
    fn generation(&self) -> u64 {
        self.source.generation()
    }
}
