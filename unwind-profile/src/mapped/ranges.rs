//! Ranges of addresses with the file that is mapped there.

use std::sync::Arc;

use crate::mapped::recorded_file::RecordedFile;

/// A range of addresses and what is there. Cloning costs nothing that grows with it.
#[derive(Clone, Debug)]
pub struct Range {
    pub start: u64,
    pub end: u64,
    /// Where in the file `start` is.
    pub offset: u64,
    pub executable: bool,
    /// The program has moved it there from where the file was mapped.
    pub is_moved: bool,
    pub file: Arc<RecordedFile>,
}

impl Range {
    /// The address that symbols and tables of the file know `addr` by, if the file can be
    /// used and has code there.
    pub(crate) fn link_time(&self, addr: u64) -> Option<u64> {
        Some(addr.wrapping_sub(self.bias()?))
    }

    /// How far the file is above its link-time addresses, wrapping.
    pub(crate) fn bias(&self) -> Option<u64> {
        if self.file.is_jit() {
            return Some(0);
        }
        if let Some(shift) = self.file.told_shift() {
            return Some(self.start.wrapping_sub(self.offset).wrapping_sub(shift));
        }
        self.file.elf().ok()?.bias(self.start, self.offset)
    }

    /// Where in the file `addr` is.
    #[must_use]
    pub fn file_offset(&self, addr: u64) -> u64 {
        addr.wrapping_sub(self.start).wrapping_add(self.offset)
    }
}

/// Ranges that do not overlap: the mappings of one process at one time.
///
/// A treap whose nodes are shared: a child of a fork shares its parent's, and a sample
/// that waits for its walk keeps those of its time. Changes copy the way to their place.
#[derive(Clone, Debug, Default)]
pub struct Ranges(Option<Arc<Node>>);

#[derive(Clone, Debug)]
struct Node {
    range: Range,
    priority: u64,
    below: Ranges,
    above: Ranges,
}

impl Ranges {
    /// The range that holds an address.
    pub(crate) fn find(&self, addr: u64) -> Option<&Range> {
        self.at_or_before(addr).filter(|range| addr < range.end)
    }

    /// The last range that starts at an address or before it.
    pub(crate) fn at_or_before(&self, addr: u64) -> Option<&Range> {
        let (mut at, mut found) = (self, None);
        while let Some(node) = &at.0 {
            let is_one = node.range.start <= addr;
            found = if is_one { Some(&node.range) } else { found };
            at = if is_one { &node.above } else { &node.below };
        }
        found
    }

    /// The first range that starts after an address.
    pub(crate) fn after(&self, addr: u64) -> Option<&Range> {
        let (mut at, mut found) = (self, None);
        while let Some(node) = &at.0 {
            let is_one = node.range.start > addr;
            found = if is_one { Some(&node.range) } else { found };
            at = if is_one { &node.below } else { &node.above };
        }
        found
    }

    /// Whether this very range is among them.
    pub(crate) fn has(&self, range: &Range) -> bool {
        let found = self.find(range.start);
        found.is_some_and(|found| {
            let key = |range: &Range| (range.start, range.end, range.offset, range.executable);
            key(found) == key(range) && Arc::ptr_eq(&found.file, &range.file)
        })
    }

    /// Whether a range that reaches into `start..end` `is_wanted`.
    pub(crate) fn any_in(&self, start: u64, end: u64, is_wanted: &impl Fn(&Range) -> bool) -> bool {
        let Some(node) = &self.0 else { return false };
        let range = &node.range;
        (range.start < end && start < range.end && is_wanted(range))
            || (start < range.start && node.below.any_in(start, end, is_wanted))
            || (range.start < end && node.above.any_in(start, end, is_wanted))
    }

    /// All of them, in order.
    #[must_use]
    pub fn all(&self) -> Vec<&Range> {
        let (mut all, mut path, mut at) = (Vec::new(), Vec::new(), self);
        loop {
            while let Some(node) = &at.0 {
                path.push(node);
                at = &node.below;
            }
            let Some(node) = path.pop() else { return all };
            all.push(&node.range);
            at = &node.above;
        }
    }

    /// The first range that `is_wanted`.
    pub(crate) fn find_range(&self, is_wanted: &impl Fn(&Range) -> bool) -> Option<&Range> {
        let node = self.0.as_ref()?;
        if is_wanted(&node.range) {
            return Some(&node.range);
        }
        node.below.find_range(is_wanted).or_else(|| node.above.find_range(is_wanted))
    }

    /// The same ranges, but for those that `range` takes the place of.
    pub(crate) fn with(&self, range: Range, priority: u64) -> Self {
        let (mut below, rest) = self.split(range.start);
        let (covered, mut above) = rest.split(range.end);
        // The last of the ranges that start before one end may reach past it.
        let cut = |last: &Self, at: u64| {
            let last = last.last()?;
            let tail =
                Range { start: at, offset: last.range.file_offset(at), ..last.range.clone() };
            (last.range.end > at).then_some((tail, last.priority))
        };
        let tail = cut(&covered, range.end).or_else(|| cut(&below, range.end));
        if cut(&below, range.start).is_some() {
            below = below.with_last_cut(range.start);
        }
        if let Some((tail, priority)) = tail {
            above = Self::node(tail, priority, Self::default(), Self::default()).join(above);
        }
        below.join(Self::node(range, priority, Self::default(), Self::default())).join(above)
    }

    fn node(range: Range, priority: u64, below: Self, above: Self) -> Self {
        Self(Some(Arc::new(Node { range, priority, below, above })))
    }

    fn last(&self) -> Option<&Node> {
        let mut last = self.0.as_ref()?;
        while let Some(above) = &last.above.0 {
            last = above;
        }
        Some(last)
    }

    /// With the last range ending at `end`.
    fn with_last_cut(&self, end: u64) -> Self {
        let Some(node) = &self.0 else {
            return Self::default();
        };
        let Node { range, priority, below, above } = &**node;
        if above.0.is_some() {
            Self::node(range.clone(), *priority, below.clone(), above.with_last_cut(end))
        } else {
            let range = Range { end, ..range.clone() };
            Self::node(range, *priority, below.clone(), Self::default())
        }
    }

    /// The ranges that start before an address, and the others.
    fn split(&self, at: u64) -> (Self, Self) {
        let Some(node) = &self.0 else {
            return (Self::default(), Self::default());
        };
        let Node { range, priority, below, above } = &**node;
        if range.start < at {
            let (inner, rest) = above.split(at);
            (Self::node(range.clone(), *priority, below.clone(), inner), rest)
        } else {
            let (rest, inner) = below.split(at);
            (rest, Self::node(range.clone(), *priority, inner, above.clone()))
        }
    }

    /// These ranges and those of `above`, which are all above them.
    fn join(self, above: Self) -> Self {
        let (Some(low), Some(high)) = (&self.0, &above.0) else {
            return if self.0.is_some() { self } else { above };
        };
        if low.priority > high.priority {
            let rest = low.above.clone().join(above.clone());
            Self::node(low.range.clone(), low.priority, low.below.clone(), rest)
        } else {
            let rest = self.clone().join(high.below.clone());
            Self::node(high.range.clone(), high.priority, rest, high.above.clone())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher as _, RandomState};

    use super::*;

    fn files(count: u64) -> Vec<Arc<RecordedFile>> {
        (0..count).map(|_| Arc::new(RecordedFile::nameless())).collect()
    }

    #[test]
    fn a7_the_newest_mapping_of_an_address_is_found_and_older_spaces_stay() {
        let files = files(200);
        let random = RandomState::new();
        let mut state = 7_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut plain: Vec<Option<(usize, u64)>> = vec![None; 300];
        let mut space = Ranges::default();
        let mut earlier = Vec::new();
        for (index, file) in files.iter().enumerate() {
            let start = next(290);
            let end = start + 1 + next(if index % 3 == 0 { 10 } else { 100 }).min(299 - start);
            let offset = 1000 * next(5);
            let file = Arc::clone(file);
            let range = Range { start, end, offset, executable: true, is_moved: false, file };
            space = space.with(range, random.hash_one(start));
            for addr in start..end {
                let at = usize::try_from(addr).unwrap_or(0);
                plain[at] = Some((index, offset + addr - start));
            }
            earlier.push((space.clone(), plain.clone()));
        }
        for (space, plain) in &earlier {
            for (addr, expected) in (0..).zip(plain) {
                let found = space.find(addr).map(|range| {
                    let file = files.iter().position(|file| Arc::ptr_eq(file, &range.file));
                    (file.unwrap_or(usize::MAX), range.file_offset(addr))
                });
                assert_eq!(found, *expected, "{addr}");
            }
            for start in 0..plain.len() {
                for len in [1, 7, 40] {
                    let covered = plain.iter().skip(start).take(len).flatten();
                    let expected = covered.into_iter().any(|(file, _)| file % 5 == 0);
                    let is_wanted = |range: &Range| {
                        files.iter().step_by(5).any(|file| Arc::ptr_eq(file, &range.file))
                    };
                    let from = u64::try_from(start).unwrap();
                    let end = from + u64::try_from(len).unwrap();
                    assert_eq!(space.any_in(from, end, &is_wanted), expected, "{start} {len}");
                }
            }
        }
    }
}
