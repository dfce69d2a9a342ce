//! Sorting a stream by time within bounded memory.

use alloc::collections::BTreeMap;

use super::counts::bump;

/// What a [`Reorder`] could not do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReorderCounts {
    /// Items that left before their round was over, to keep to the memory
    /// limit.
    pub early: u64,
    /// Items that came too late to be put in order.
    pub disordered: u64,
}

/// Puts items in order of time.
///
/// A recorder that drains several rings writes a round mark after each pass
/// over all of them. Items after a mark are not older than items before the
/// *previous* mark, so at each mark every item up to the newest time of the
/// round before can leave. Without marks items leave only when the memory limit
/// makes them, oldest first, or at the end.
///
/// Items of equal time keep the order in which they came.
#[derive(Clone, Debug)]
pub struct Reorder<T> {
    /// By time, then by arrival.
    held: BTreeMap<(u64, u64), Held<T>>,
    arrivals: u64,
    bytes: usize,
    max_bytes: usize,
    /// Up to which time items may leave.
    ready: Option<u64>,
    /// The newest time at the last round mark, and of all.
    newest_at_mark: Option<u64>,
    newest: Option<u64>,
    /// The newest time that has left.
    left: Option<u64>,
    counts: ReorderCounts,
}

#[derive(Clone, Debug)]
struct Held<T> {
    item: T,
    bytes: usize,
}

impl<T> Reorder<T> {
    /// The memory of one item besides its own bytes, as an estimate.
    const OVERHEAD: usize = size_of::<Held<T>>().saturating_add(32);

    /// A sorter that holds about `max_bytes` at most.
    #[must_use]
    pub const fn new(max_bytes: usize) -> Self {
        Self {
            held: BTreeMap::new(),
            arrivals: 0,
            bytes: 0,
            max_bytes,
            ready: None,
            newest_at_mark: None,
            newest: None,
            left: None,
            counts: ReorderCounts { early: 0, disordered: 0 },
        }
    }

    /// Takes an item of `bytes` bytes with its time in nanoseconds.
    pub fn push(&mut self, time: u64, bytes: usize, item: T) {
        let bytes = bytes.saturating_add(Self::OVERHEAD);
        self.held.insert((time, self.arrivals), Held { item, bytes });
        self.arrivals = self.arrivals.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        self.newest = self.newest.max(Some(time));
        if self.left > Some(time) {
            bump(&mut self.counts.disordered);
        }
    }

    /// Takes a round mark.
    pub fn round(&mut self) {
        self.ready = self.ready.max(self.newest_at_mark);
        self.newest_at_mark = self.newest;
    }

    /// Ends the input: everything may leave.
    pub fn finish(&mut self) {
        self.ready = Some(u64::MAX);
    }

    /// Returns the next item in order, if one may leave.
    pub fn pop(&mut self) -> Option<T> {
        let entry = self.held.first_entry()?;
        let (time, _) = *entry.key();
        let is_ready = Some(time) <= self.ready || Some(time) < self.left;
        if !is_ready && self.bytes <= self.max_bytes {
            return None;
        }
        if !is_ready {
            bump(&mut self.counts.early);
        }
        let Held { item, bytes } = entry.remove();
        self.bytes = self.bytes.saturating_sub(bytes);
        self.left = self.left.max(Some(time));
        Some(item)
    }

    /// The estimated bytes held.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The oldest time that an item to come can have, as far as the order of
    /// the input is known: no item held is older.
    #[must_use]
    pub fn oldest(&self) -> Option<u64> {
        self.held.first_key_value().map(|(&(time, _), _)| time)
    }

    /// What could not be put in order so far.
    #[must_use]
    pub const fn counts(&self) -> ReorderCounts {
        self.counts
    }
}
