//! Rows that are kept once for all address spaces that map the same files.
//!
//! With a cache by address for each process, no row is in the CPU's own caches when it is needed. Here
//! an address becomes a key, its table and the place in it, by one addition as long as a walk stays in
//! one module. A module that comes or goes empties nothing, since what is known of a table does not
//! depend on where it is.

use core::ops::Range;

use crate::addr::VirtAddr;
use crate::modules::map::Module;
use crate::modules::shared::SharedModuleMap;
use crate::register::WordSize;
use crate::row::Row;
use crate::source::RowKey;
use crate::walk::fast::row_cache::{CacheHit, Counted, RowCache, RowStore, Store};

/// A range of addresses whose rows one table names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedRange {
    /// The addresses, of one address space.
    pub text: Range<VirtAddr>,
    /// What names the row of the first one. The others follow by their distance from it.
    pub key: RowKey,
}

/// Who knows which table has the rows of an address: see [`RowKey`].
pub trait RowKeys {
    /// The range that an address lies in, if a table with a number has its rows.
    ///
    /// Where the source of the walk has a row that no table is needed for but the address,
    /// it is the row of this table: a host's own rows of a module that has keys would be
    /// kept for all address spaces.
    fn find(&mut self, addr: VirtAddr) -> Option<KeyedRange>;
}

/// Of modules whose tables [have a number](crate::TableLocation::id). While the modules change
/// too fast to be read there is no key.
impl<const N: usize> RowKeys for &SharedModuleMap<N> {
    fn find(&mut self, addr: VirtAddr) -> Option<KeyedRange> {
        let Module { text, table } = SharedModuleMap::find(self, addr).ok()??;
        let offset = text.start.get().wrapping_sub(table.addr.get());
        Some(KeyedRange { text, key: RowKey { table: table.id?.get(), offset } })
    }
}

/// A [`RowCache`] of the rows of many address spaces, by [what names
/// them](RowKey): made by [`Walker::cache_by_key`](crate::Walker::cache_by_key).
#[derive(Debug)]
pub struct RowsByKey<'c, K, const N: usize> {
    cache: &'c mut RowCache<N>,
    keys: K,
    /// The range that was found last.
    start: u64,
    len: u64,
    /// Of its start.
    first: u64,
    /// What differs between tables in the bits that the cache is searched by.
    mix: u64,
}

/// A key in one word: the number of the table above the offset, which may be negative.
const OFFSET_BITS: u32 = 40;
const OFFSETS: u64 = 1 << OFFSET_BITS;
/// The numbers of tables that have keys.
const TABLES: u64 = (1 << (u64::BITS - OFFSET_BITS)) - 1;

impl<'c, K: RowKeys, const N: usize> RowsByKey<'c, K, N> {
    pub(in crate::walk) const fn new(cache: &'c mut RowCache<N>, keys: K) -> Self {
        Self { cache, keys, start: 0, len: 0, first: 0, mix: 0 }
    }

    /// What the cache keeps the row of an address by.
    #[inline]
    fn key(&mut self, addr: VirtAddr) -> Option<VirtAddr> {
        let mut at = addr.get().wrapping_sub(self.start);
        if at >= self.len {
            self.enter(addr)?;
            at = addr.get().wrapping_sub(self.start);
        }
        Some(VirtAddr::new(self.first.wrapping_add(at) ^ self.mix))
    }

    /// Makes the range of an address the one that is known.
    #[cold]
    #[inline(never)]
    fn enter(&mut self, addr: VirtAddr) -> Option<()> {
        let KeyedRange { text, key } =
            self.keys.find(addr).filter(|found| found.text.contains(&addr))?;
        let len = text.end.get().wrapping_sub(text.start.get());
        // From half of them below the table on.
        let offset = key.offset.wrapping_add(OFFSETS >> 1);
        // No key of the range may reach the number of the table.
        let is_near = offset.checked_add(len).is_some_and(|end| end <= OFFSETS);
        if key.table >= TABLES || !is_near {
            return None;
        }
        (self.start, self.len) = (text.start.get(), len);
        self.first = key.table << OFFSET_BITS | offset;
        self.mix = key.table.wrapping_mul(0x9e37_79b1) & u64::from(u32::MAX);
        Some(())
    }
}

impl<K: RowKeys, const N: usize> RowStore for RowsByKey<'_, K, N> {}

impl<K: RowKeys, const N: usize> Store for RowsByKey<'_, K, N> {
    #[inline]
    fn keeps(&self) -> bool {
        true
    }

    /// What is kept of a table holds as long as its number does. Where it lies may have
    /// changed.
    #[inline]
    fn renew(&mut self, _: u64) {
        self.len = 0;
    }

    #[inline]
    fn get(&mut self, addr: VirtAddr, after: CacheHit) -> Option<CacheHit> {
        let key = self.key(addr)?;
        Store::get(&mut self.cache, key, after)
    }

    #[inline]
    fn insert(&mut self, addr: VirtAddr, row: &Row, word: WordSize) -> bool {
        self.key(addr).is_some_and(|key| Store::insert(&mut self.cache, key, row, word))
    }

    #[inline]
    fn insert_absent(&mut self, addr: VirtAddr) -> bool {
        self.key(addr).is_some_and(|key| Store::insert_absent(&mut self.cache, key))
    }

    #[inline]
    fn touch(&mut self, row: CacheHit) {
        Store::touch(&mut self.cache, row);
    }

    #[inline]
    fn find(&mut self, addr: VirtAddr, word: WordSize) -> Option<Option<Row>> {
        let key = self.key(addr)?;
        Store::find(&mut self.cache, key, word)
    }

    #[inline]
    fn count(&mut self, counted: Counted) {
        Store::count(&mut self.cache, counted);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    extern crate std;
    use std::collections::HashMap;

    use super::*;

    /// One range at an address.
    struct One(KeyedRange);

    impl RowKeys for One {
        fn find(&mut self, _: VirtAddr) -> Option<KeyedRange> {
            Some(self.0.clone())
        }
    }

    fn range(start: u64, len: u64, table: u64, offset: u64) -> One {
        let text = VirtAddr::new(start)..VirtAddr::new(start.wrapping_add(len));
        One(KeyedRange { text, key: RowKey { table, offset } })
    }

    fn key(range: One, addr: u64) -> Option<u64> {
        let mut cache = RowCache::<4>::new();
        RowsByKey::new(&mut cache, range).key(VirtAddr::new(addr)).map(VirtAddr::get)
    }

    #[test]
    fn two_keys_are_one_word_only_where_they_are_the_same() {
        let half = OFFSETS >> 1;
        let offsets =
            [0, 1, 0x1000, u64::MAX, 0x1000_u64.wrapping_neg(), half - 1, half.wrapping_neg()];
        let mut seen = HashMap::new();
        for table in [0, 1, 2, 3, 0x1000, 0x9e37, TABLES - 1] {
            for offset in offsets {
                // Wherever it is mapped, and whatever the range begins with.
                for (start, before) in [(0x1000, 0), (0x7f00_0000_0000, 0), (0x5000_0000, 16)] {
                    let first = offset.wrapping_sub(before);
                    let Some(word) = key(range(start, before + 1, table, first), start + before)
                    else {
                        assert_eq!((offset, before), (half.wrapping_neg(), 16));
                        continue;
                    };
                    assert_ne!(word, u64::MAX);
                    assert_eq!(*seen.entry(word).or_insert((table, offset)), (table, offset));
                }
            }
        }
        assert_eq!(seen.len(), 7 * offsets.len());
    }

    #[test]
    fn what_has_no_word_has_no_key() {
        assert_eq!(key(range(0x1000, 16, TABLES, 0), 0x1000), None, "too many tables");
        assert_eq!(key(range(0x1000, 16, 1, OFFSETS >> 1), 0x1000), None, "too far above");
        assert_eq!(key(range(0x1000, 17, 1, (OFFSETS >> 1) - 16), 0x1000), None, "its end is");
        assert_eq!(key(range(0x1000, u64::MAX, 1, 0), 0x1000), None, "too long");
        assert_eq!(key(range(0x1000, 16, 1, 0), 0x1010), None, "another range than was asked for");
        assert!(key(range(0x1000, 16, 1, (OFFSETS >> 1) - 16), 0x100f).is_some());
    }
}
