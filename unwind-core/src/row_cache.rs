//! A cache of rows by pc, in memory that the host places.

use core::fmt;

use crate::{Arch, Base, CfaRule, FrameContext, Memory, Origin, RegRule, Row, RowSource};

/// How many entries an address may be kept in.
const WAYS: usize = 4;

/// Rows that were looked up before, at most `N`, 16 bytes each.
///
/// `N` is a power of two and at least 4. Each address may be kept in one of
/// four entries. The cache holds rows of one address space and one source: it
/// empties itself when the source's generation changes.
///
/// A row that has no short form (a rule on another register than the stack or
/// frame pointer, say) is not kept, but counted.
#[derive(Clone)]
pub struct RowCache<const N: usize> {
    /// Lookup addresses; `EMPTY` where there is none.
    keys: [u64; N],
    rows: [Short; N],
    generation: u64,
    /// Which way of a full set makes room next.
    victim: usize,
    stats: CacheStats,
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

/// The key of an entry without a row. The last address of all is never kept.
const EMPTY: u64 = u64::MAX;

/// A row of a frame whose CFA is a register plus an offset, whose return
/// address lies right below the CFA and whose frame pointer is unchanged or
/// saved near it: nearly all there are.
#[derive(Clone, Copy)]
struct Short {
    cfa_offset: i32,
    /// In bytes from the CFA; 0, where the return address is, for unchanged.
    fp_offset: i16,
    /// Bit 0: the CFA is computed from the frame pointer; bit 1: signal frame;
    /// bit 2: slots have 4 bytes; bits 4-6: origin.
    meta: u8,
}

impl Short {
    const NONE: Self = Self { cfa_offset: 0, fp_offset: 0, meta: 0 };
    const FROM_FP: u8 = 1;
    const SIGNAL: u8 = 2;
    const NARROW: u8 = 4;

    fn new(row: &Row) -> Option<Self> {
        let (from_fp, cfa_offset) = match row.cfa() {
            CfaRule::Offset(Base::Sp, offset) => (0, offset),
            CfaRule::Offset(Base::Fp, offset) => (Self::FROM_FP, offset),
            _ => return None,
        };
        let narrow = match row.ra() {
            RegRule::AtCfa(-8) => 0,
            RegRule::AtCfa(-4) => Self::NARROW,
            _ => return None,
        };
        let fp_offset = match row.fp() {
            RegRule::Same => 0,
            RegRule::AtCfa(0) => return None,
            RegRule::AtCfa(offset) => i16::try_from(offset).ok()?,
            _ => return None,
        };
        if row.is_ra_signed() {
            return None;
        }
        let signal = if row.is_signal() { Self::SIGNAL } else { 0 };
        let meta = from_fp | narrow | signal | (row.origin().code() << 4);
        Some(Self { cfa_offset, fp_offset, meta })
    }

    fn row(self) -> Row {
        let cfa = match self.meta & Self::FROM_FP {
            0 => CfaRule::sp(self.cfa_offset),
            _ => CfaRule::fp(self.cfa_offset),
        };
        let ra = RegRule::AtCfa(if self.meta & Self::NARROW == 0 { -8 } else { -4 });
        let fp = match self.fp_offset {
            0 => RegRule::Same,
            offset => RegRule::AtCfa(offset.into()),
        };
        let row = Row::new(cfa, ra, fp).with_origin(Origin::from_code(self.meta >> 4));
        if self.meta & Self::SIGNAL == 0 { row } else { row.with_signal() }
    }
}

impl<const N: usize> RowCache<N> {
    const SETS: usize = {
        assert!(N.is_power_of_two() && N >= WAYS, "a power of two, at least 4");
        N / WAYS
    };

    /// An empty cache.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            keys: [EMPTY; N],
            rows: [Short::NONE; N],
            generation: 0,
            victim: 0,
            stats: CacheStats { hits: 0, misses: 0, unkept: 0 },
        }
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.keys = [EMPTY; N];
    }

    /// How often the cache could answer since it was made.
    #[must_use]
    pub const fn stats(&self) -> CacheStats {
        self.stats
    }

    /// Where the set of an address begins.
    #[inline]
    fn set(addr: u64) -> usize {
        // Fibonacci hashing: the high bits of the product depend on all bits.
        let hash = addr.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        // Lossless: the mask leaves less than SETS.
        let set = usize::try_from(hash).unwrap_or(0) & Self::SETS.wrapping_sub(1);
        set.wrapping_mul(WAYS)
    }

    #[inline]
    fn get(&self, addr: u64) -> Option<Row> {
        let set = Self::set(addr);
        let keys = self.keys.get(set..)?.first_chunk::<WAYS>()?;
        let way = keys.iter().position(|&key| key == addr && key != EMPTY)?;
        self.rows.get(set.wrapping_add(way)).map(|short| short.row())
    }

    fn insert(&mut self, addr: u64, row: &Row) {
        let Some(short) = Short::new(row).filter(|_| addr != EMPTY) else {
            self.stats.unkept = self.stats.unkept.wrapping_add(1);
            return;
        };
        let set = Self::set(addr);
        let keys = self.keys.get(set..).and_then(|keys| keys.first_chunk::<WAYS>());
        let free = keys.and_then(|keys| keys.iter().position(|&key| key == EMPTY));
        let way = free.unwrap_or_else(|| {
            self.victim = self.victim.wrapping_add(1);
            self.victim % WAYS
        });
        let at = set.wrapping_add(way);
        if let (Some(key), Some(slot)) = (self.keys.get_mut(at), self.rows.get_mut(at)) {
            (*key, *slot) = (addr, short);
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
        let kept = self.keys.iter().filter(|&&key| key != EMPTY).count();
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

    #[inline]
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Self::Error> {
        let generation = self.source.generation();
        if generation != self.cache.generation {
            self.cache.clear();
            self.cache.generation = generation;
        }
        let addr = frame.pc.lookup_addr().get();
        if let Some(row) = self.cache.get(addr) {
            self.cache.stats.hits = self.cache.stats.hits.wrapping_add(1);
            return Ok(Some(row));
        }
        self.cache.stats.misses = self.cache.stats.misses.wrapping_add(1);
        let row = self.source.row(frame, mem)?;
        if let Some(row) = &row {
            self.cache.insert(addr, row);
        }
        Ok(row)
    }

    #[inline]
    fn generation(&self) -> u64 {
        self.source.generation()
    }
}
