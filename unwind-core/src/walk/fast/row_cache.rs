//! A cache of rows by pc, in memory that the host places.

use core::fmt;
use core::num::NonZero;

use crate::addr::VirtAddr;
use crate::register::WordSize;
use crate::row::Row;
use crate::walk::fast::compact_row::CompactRow;

/// How many entries an address may be kept in.
const WAYS: usize = 4;

/// Rows that were looked up before, at most `N`, 16 bytes each, for a walker to
/// [borrow](crate::Walker::cache).
///
/// `N` is a power of two and at least 4. An address may be kept in each of the
/// four entries of one set, which share a cache line. The cache holds rows of
/// one address space, one CPU and one source; it empties itself when the
/// source's generation changes. A cache whose bytes are all zero is an empty one.
///
/// Where the source is known to have no row, that is kept in place of one, or the row of the walker's
/// [fallback](crate::Walker::fallback) if that has the same one for all frames.
///
/// Each entry remembers which entry the frame's caller had last time. Where
/// callers repeat, and they mostly do, the next row is then in a register before its
/// return address has come from memory.
///
/// A row that has no compact form (a rule on another register than the stack or
/// frame pointer, say), or that took more than its
/// [lookup address](crate::FrameContext::lookup_addr) and the code there to find, is not kept, but
/// counted.
#[derive(Clone)]
#[repr(align(64))]
pub struct RowCache<const N: usize> {
    /// As words: the keys of a set, then its rows, then the next set.
    sets: [[CacheWord; 2]; N],
    /// How many rows were needed.
    asked: u64,
    // Not next to each other: what is counted of a walk and of a miss in it would be one store
    // and, soon after, a wider load that has to wait for it.
    generation: u64,
    misses: u64,
    unkept: u64,
}

/// How often a cache could answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Lookups that the cache answered.
    pub hits: u64,
    /// Lookups that went to the source.
    pub misses: u64,
    /// Of these, how many found a row that could not be kept.
    pub unkept: u64,
}

impl CacheStats {
    /// The counts of two caches together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self {
            hits: self.hits.saturating_add(other.hits),
            misses: self.misses.saturating_add(other.misses),
            unkept: self.unkept.saturating_add(other.unkept),
        }
    }
}

/// A word in bytes, so that a part of it can be read by itself.
type CacheWord = [u8; 8];

/// The key of an entry without a row, which is all zeroes: the last address of
/// all is never kept.
const EMPTY: CacheWord = [0; 8];

/// What a walker keeps rows in: [`NoCache`], or a [`RowCache`] that it borrows, always or
/// where one is to be had.
pub trait RowStore: Store {}

impl RowStore for NoCache {}
impl<const N: usize> RowStore for &mut RowCache<N> {}
impl<const N: usize> RowStore for Option<&mut RowCache<N>> {}

/// A walker without a cache: it asks its sources for the row of each frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCache;

/// What a walk does with a store. Public in name only.
pub trait Store {
    /// Whether it can keep a row.
    fn keeps(&self) -> bool;

    /// Forgets all rows if they are of another generation than this.
    fn renew(&mut self, generation: u64);

    /// The row for a lookup address, if it is kept. `after` is the row of the frame's
    /// callee, so that the same caller as last time is found at once.
    fn get(&mut self, addr: VirtAddr, after: CacheHit) -> Option<CacheHit>;

    /// Keeps a row; `false` if it cannot.
    fn insert(&mut self, addr: VirtAddr, row: &Row, word: WordSize) -> bool;

    /// Keeps that there is no row; `false` if it cannot.
    fn insert_absent(&mut self, addr: VirtAddr) -> bool;

    /// Remembers that a row is used.
    fn touch(&mut self, row: CacheHit);

    /// The row for a lookup address in full, or that there is none, if that is kept; counted, and
    /// remembered as used.
    fn find(&mut self, addr: VirtAddr, word: WordSize) -> Option<Option<Row>>;

    /// Counts rows.
    fn count(&mut self, counted: Counted);
}

/// What is counted of rows.
#[derive(Clone, Copy, Debug)]
pub enum Counted {
    /// How many were needed; the store had most of them.
    Asked(usize),
    /// One was looked up and is kept, for who asks for it again.
    Fetched,
    /// One was looked up for who needs it, or the source has none.
    Missed,
    /// One was looked up, and cannot be kept.
    Unkept,
}

impl Store for NoCache {
    #[inline]
    fn keeps(&self) -> bool {
        false
    }

    #[inline]
    fn renew(&mut self, _: u64) {}

    #[inline]
    fn get(&mut self, _: VirtAddr, _: CacheHit) -> Option<CacheHit> {
        None
    }

    #[inline]
    fn insert(&mut self, _: VirtAddr, _: &Row, _: WordSize) -> bool {
        false
    }

    #[inline]
    fn insert_absent(&mut self, _: VirtAddr) -> bool {
        false
    }

    #[inline]
    fn touch(&mut self, _: CacheHit) {}

    #[inline]
    fn find(&mut self, _: VirtAddr, _: WordSize) -> Option<Option<Row>> {
        None
    }

    #[inline]
    fn count(&mut self, _: Counted) {}
}

impl<const N: usize> Store for &mut RowCache<N> {
    #[inline]
    fn keeps(&self) -> bool {
        true
    }

    #[inline]
    fn renew(&mut self, generation: u64) {
        if generation != self.generation {
            self.begin(generation);
        }
    }

    #[inline]
    fn get(&mut self, addr: VirtAddr, after: CacheHit) -> Option<CacheHit> {
        RowCache::get(self, addr.get(), after)
    }

    #[inline]
    fn insert(&mut self, addr: VirtAddr, row: &Row, word: WordSize) -> bool {
        CompactRow::new(row, word).is_some_and(|row| RowCache::insert(self, addr.get(), row))
    }

    #[inline]
    fn insert_absent(&mut self, addr: VirtAddr) -> bool {
        RowCache::insert(self, addr.get(), CompactRow::ABSENT)
    }

    #[inline]
    fn touch(&mut self, row: CacheHit) {
        RowCache::touch(self, row.place);
    }

    // Not on the stack while the source looks up a row.
    #[inline(never)]
    fn find(&mut self, addr: VirtAddr, word: WordSize) -> Option<Option<Row>> {
        let kept = RowCache::get(self, addr.get(), CacheHit::NONE)?;
        let row = kept.row.row(word);
        if row.is_none() && !kept.row.is_absent() {
            return None;
        }
        RowCache::touch(self, kept.place);
        self.count(Counted::Asked(1));
        Some(row)
    }

    #[inline]
    fn count(&mut self, counted: Counted) {
        let (asked, misses, unkept) = match counted {
            Counted::Asked(rows) => (u64::try_from(rows).unwrap_or(0), 0, 0),
            Counted::Fetched => (0, 1, 0),
            Counted::Missed => (1, 1, 0),
            Counted::Unkept => (1, 1, 1),
        };
        self.asked = self.asked.wrapping_add(asked);
        self.misses = self.misses.wrapping_add(misses);
        self.unkept = self.unkept.wrapping_add(unkept);
    }
}

/// One walk's code for both: programs that have both take less room.
impl<const N: usize> Store for Option<&mut RowCache<N>> {
    #[inline]
    fn keeps(&self) -> bool {
        self.is_some()
    }

    #[inline]
    fn renew(&mut self, generation: u64) {
        if let Some(cache) = self {
            cache.renew(generation);
        }
    }

    #[inline]
    fn get(&mut self, addr: VirtAddr, after: CacheHit) -> Option<CacheHit> {
        Store::get(self.as_mut()?, addr, after)
    }

    #[inline]
    fn insert(&mut self, addr: VirtAddr, row: &Row, word: WordSize) -> bool {
        self.as_mut().is_some_and(|cache| Store::insert(cache, addr, row, word))
    }

    #[inline]
    fn insert_absent(&mut self, addr: VirtAddr) -> bool {
        self.as_mut().is_some_and(|cache| Store::insert_absent(cache, addr))
    }

    #[inline]
    fn touch(&mut self, row: CacheHit) {
        if let Some(cache) = self {
            Store::touch(cache, row);
        }
    }

    #[inline]
    fn find(&mut self, addr: VirtAddr, word: WordSize) -> Option<Option<Row>> {
        self.as_mut()?.find(addr, word)
    }

    #[inline]
    fn count(&mut self, counted: Counted) {
        if let Some(cache) = self {
            cache.count(counted);
        }
    }
}

/// A row that a walk has, and where the cache that keeps it has it.
#[derive(Clone, Copy, Debug)]
pub struct CacheHit {
    pub(crate) row: CompactRow,
    /// The place of the row.
    place: usize,
    /// Where the caller's row is expected.
    guess: usize,
}

impl CacheHit {
    /// No row: what comes before the first one.
    pub(crate) const NONE: Self = Self { row: CompactRow::NONE, place: NO_PLACE, guess: NO_PLACE };

    /// What comes before a row that is expected at a place.
    #[inline]
    pub(crate) const fn before(guess: usize) -> Self {
        Self { guess, ..Self::NONE }
    }

    #[inline]
    pub(crate) const fn place(self) -> usize {
        self.place
    }
}

/// The place of a row that is in no cache: no cache has as many.
const NO_PLACE: usize = usize::MAX >> 1;

/// A set as it lies in memory, where it is a cache line.
const SET: usize = 2 * WAYS;

/// The entries of a set.
struct Set<'a> {
    keys: &'a mut [CacheWord; WAYS],
    rows: &'a mut [CacheWord; WAYS],
}

impl<const N: usize> RowCache<N> {
    /// The bits that a place may have, which is the number of the word with the
    /// key. The row is `WAYS` words after it.
    const PLACES: usize = {
        assert!(N.is_power_of_two() && N >= WAYS, "a power of two, at least 4");
        N.wrapping_mul(2).wrapping_sub(1) & !WAYS
    };

    /// How many bits of a hash are not used.
    const HASH_SHIFT: u32 = u32::BITS.saturating_sub(N.ilog2()).saturating_sub(1);

    /// An empty cache.
    #[must_use]
    pub const fn new() -> Self {
        let sets = const { [[EMPTY; 2]; N] };
        Self { sets, generation: 0, asked: 0, misses: 0, unkept: 0 }
    }

    /// Forgets the rows of another generation than this.
    #[cold]
    #[inline(never)]
    fn begin(&mut self, generation: u64) {
        self.clear();
        self.generation = generation;
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.sets = const { [[EMPTY; 2]; N] };
    }

    /// How often the cache could answer since it was made.
    #[must_use]
    pub const fn stats(&self) -> CacheStats {
        let Self { asked, misses, unkept, .. } = *self;
        CacheStats { hits: asked.wrapping_sub(misses), misses, unkept }
    }

    /// The first place of the set that a key belongs to.
    #[inline]
    fn set_of(key: u64) -> usize {
        // Fibonacci hashing: the high bits of the product depend on all bits. Of
        // an address the lower half tells enough, but for those a multiple of 4 GiB apart.
        let low = u32::try_from(key & 0xffff_ffff).unwrap_or(0);
        let hash = low.wrapping_mul(0x9e37_79b1) >> Self::HASH_SHIFT;
        usize::try_from(hash).unwrap_or(0) & Self::PLACES & !(SET.wrapping_sub(1))
    }

    /// The set with these places.
    #[inline]
    fn set_at(&mut self, place: usize) -> Option<Set<'_>> {
        let first = place & Self::PLACES & !(SET.wrapping_sub(1));
        let set = self.sets.as_flattened_mut().get_mut(first..)?.first_chunk_mut::<SET>()?;
        let (keys, rows) = set.split_first_chunk_mut()?;
        Some(Set { keys, rows: rows.first_chunk_mut()? })
    }

    /// The row of `addr`, whose callee's is `after`.
    #[inline]
    fn get(&mut self, addr: u64, after: CacheHit) -> Option<CacheHit> {
        // A return address is never zero, which shows where a walk asks.
        let key = NonZero::new(addr.wrapping_add(1))?.get();
        let place = match self.sets.as_flattened().get(after.guess) {
            Some(found) if after.guess <= Self::PLACES && u64::from_le_bytes(*found) == key => {
                after.guess
            }
            _ => self.search(key, after)?,
        };
        self.row_at(place)
    }

    /// The row of a place.
    #[inline]
    fn row_at(&self, place: usize) -> Option<CacheHit> {
        let [low, high, row @ ..] = self.sets.as_flattened().get(place.wrapping_add(WAYS))?;
        let guess = u16::from_le_bytes([*low, *high]).into();
        Some(CacheHit { row: CompactRow::from_bytes(row), place, guess })
    }

    /// The place of `key`, which is remembered at `after`, its callee's row.
    #[inline]
    fn search(&mut self, key: u64, after: CacheHit) -> Option<usize> {
        let first = Self::set_of(key);
        let keys = self.sets.as_flattened().get(first..)?.first_chunk::<WAYS>()?;
        let way = keys.iter().position(|found| u64::from_le_bytes(*found) == key)?;
        let place = first.wrapping_add(way);
        // Bits of a place may be lost: a wrong guess costs time and nothing else.
        let guess = u16::try_from(place & 0xffff).unwrap_or(0).to_le_bytes();
        let callee = after.place.wrapping_add(WAYS);
        let word = self.sets.as_flattened_mut().get_mut(callee);
        if let Some(to) = word.and_then(|word| word.first_chunk_mut()) {
            *to = guess;
        }
        Some(place)
    }

    /// Keeps a row; `false` if its address is the last one.
    fn insert(&mut self, addr: u64, row: CompactRow) -> bool {
        let key = addr.wrapping_add(1);
        let first = Self::set_of(key);
        let key = key.to_le_bytes();
        if key == EMPTY {
            return false;
        }
        let Some(Set { keys, rows }) = self.set_at(first) else { return false };
        // They are taken in order, so if the last one is, all are.
        let room = match keys.last() {
            Some(&EMPTY) => keys.iter().position(|key| *key == EMPTY),
            _ => rows.iter().position(|word| !row_in(word).is_used()),
        };
        let way = room.unwrap_or_else(|| {
            // All were used: what is used from now on stays.
            for [_, _, _, _, shape @ ..] in rows.iter_mut() {
                CompactRow::forget_use(shape);
            }
            0
        });
        if let (Some(at), Some(to)) = (keys.get_mut(way), rows.get_mut(way)) {
            *at = key;
            put(to, row);
        }
        true
    }

    /// Marks a row as used.
    #[inline]
    fn touch(&mut self, place: usize) {
        if let Some(word) = self.sets.as_flattened_mut().get_mut(place.wrapping_add(WAYS)) {
            put(word, row_in(word).with_use(true));
        }
    }
}

/// The row in a word, after the guess.
#[inline]
#[expect(clippy::trivially_copy_pass_by_ref, reason = "each part is read by itself")]
fn row_in([_, _, row @ ..]: &CacheWord) -> CompactRow {
    CompactRow::from_bytes(row)
}

/// Writes a row to its word, and leaves the guess as it is.
#[inline]
fn put(word: &mut CacheWord, row: CompactRow) {
    let guess = u64::from_le_bytes(*word) & 0xffff;
    *word = (row.to_bits() << 16 | guess).to_le_bytes();
}

impl<const N: usize> Default for RowCache<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> fmt::Debug for RowCache<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sets = self.sets.as_flattened().chunks(SET);
        let keys = sets.flat_map(|set| set.iter().take(WAYS));
        let kept = keys.filter(|key| **key != EMPTY).count();
        f.debug_struct("RowCache").field("kept", &kept).field("stats", &self.stats()).finish()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use super::*;
    use crate::rule::{CfaRule, RegRule};

    const WORD: WordSize = WordSize::Eight;
    const ROW: Row = Row::new(CfaRule::sp(16), RegRule::Offset(-8), RegRule::SameValue);

    fn with_rows<const N: usize>(addrs: impl IntoIterator<Item = u64>) -> RowCache<N> {
        let mut cache = RowCache::new();
        for addr in addrs {
            assert!(cache.insert(addr, CompactRow::new(&ROW, WORD).unwrap()));
        }
        cache
    }

    #[test]
    fn neighbours_spread_over_all_sets() {
        let cache = with_rows::<64>(1..=64);
        let kept = cache.sets.as_flattened().chunks(SET).map(|set| set[..WAYS].iter());
        for mut set in kept {
            assert!(set.any(|key| *key != EMPTY), "{cache:?}");
        }
    }

    #[test]
    fn a_row_remembers_where_its_callers_is() {
        let mut cache = with_rows::<64>([0x1000, 0x2000]);
        let callee = cache.get(0x1000, CacheHit::NONE).unwrap();
        let caller = cache.get(0x2000, callee).unwrap();
        assert_ne!(caller.place, callee.place);
        let callee = cache.get(0x1000, CacheHit::NONE).unwrap();
        assert_eq!(callee.guess, caller.place);
    }

    #[test]
    fn the_callers_row_is_first_looked_for_where_the_callee_remembers_it() {
        let mut cache = with_rows::<64>([0x1000]);
        // Where no other way leads to it.
        let place = RowCache::<64>::set_of(0x2001) ^ SET;
        let words = cache.sets.as_flattened_mut();
        words[place] = 0x2001_u64.to_le_bytes();
        put(&mut words[place + WAYS], CompactRow::new(&ROW, WORD).unwrap());
        let callee = cache.get(0x1000, CacheHit::NONE).unwrap();
        assert!(cache.get(0x2000, callee).is_none());
        let expecting = |guess| CacheHit { guess, ..callee };
        assert_eq!(cache.get(0x2000, expecting(place)).unwrap().place, place);
        // Neither a place with a row in place of a key nor one that is not there.
        for no_place in [place | WAYS, 2 * 64 - 1, 2 * 64 + place, NO_PLACE] {
            assert!(cache.get(0x2000, expecting(no_place)).is_none());
        }
    }

    #[test]
    fn a_mark_of_a_row_that_is_not_there_changes_nothing() {
        let mut cache = with_rows::<4>(1..=4);
        let before = cache.sets;
        cache.touch(NO_PLACE);
        Store::touch(&mut &mut cache, CacheHit::NONE);
        Store::touch(&mut Some(&mut cache), CacheHit::NONE);
        assert_eq!(cache.sets, before);
        Store::touch(&mut None::<&mut RowCache<4>>, CacheHit::NONE);
    }

    #[test]
    fn in_a_full_set_the_first_that_was_not_used_since_makes_room() {
        // All were used when they came. The fifth begins again, at the first.
        let mut cache = with_rows::<4>(1..=5);
        for (used, addr, gone) in [(2, 6, 3), (6, 7, 4), (2, 8, 5)] {
            let row = cache.get(used, CacheHit::NONE).unwrap();
            cache.touch(row.place);
            assert!(cache.insert(addr, CompactRow::new(&ROW, WORD).unwrap()));
            assert!(cache.get(gone, CacheHit::NONE).is_none(), "{gone}");
            assert!(cache.get(used, CacheHit::NONE).is_some(), "{used}");
        }
    }
}
