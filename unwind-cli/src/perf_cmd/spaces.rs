//! What code is where in each process of a recording, as its records so far say.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use unwind_perf::record::{Comm, Lifecycle, Mapping, Misc, RecordType, Task};

use crate::perf_cmd::files::{RecordedFile, RecordedFiles};
use crate::perf_cmd::pipeline::{Held, Meaning};

/// The process that mappings of the kernel itself are said to be of.
const KERNEL: u32 = u32::MAX;

/// The address spaces of all processes, and that of the kernel.
#[derive(Debug, Default)]
pub(crate) struct Spaces {
    processes: HashMap<u32, Space>,
    kernel: Space,
    files: RecordedFiles,
    /// Makes the priorities of ranges, which nobody can foresee.
    random: RandomState,
}

impl Spaces {
    /// Spaces of a recording that knows these build ids, by the names of files.
    pub(crate) fn new(files: RecordedFiles) -> Self {
        Self { files, ..Self::default() }
    }

    /// Learns from a record of a mapping, a fork or an exec.
    pub(crate) fn take(&mut self, held: &Held) {
        let Some(record) = held.record() else {
            return;
        };
        match record.kind() {
            RecordType::MMAP | RecordType::MMAP2 => {
                if let Ok(mapping) = Mapping::decode(&record, held.format) {
                    let is_kernel = record.header().misc.cpu_mode() == Misc::KERNEL;
                    self.map(&mapping, is_kernel || mapping.task.pid == KERNEL);
                }
            }
            RecordType::FORK => {
                if let Ok(fork) = Lifecycle::decode(&record, held.format) {
                    self.fork(fork.parent, fork.task);
                }
            }
            RecordType::COMM if held.meaning == Meaning::Exec => {
                if let Ok(comm) = Comm::decode(&record, held.format) {
                    self.processes.remove(&comm.task.pid);
                }
            }
            _ => {}
        }
    }

    fn map(&mut self, mapping: &Mapping<'_>, is_kernel: bool) {
        let Some(end) = mapping.addr.checked_add(mapping.len).filter(|_| mapping.len != 0) else {
            return;
        };
        let range = Range {
            start: mapping.addr,
            end,
            offset: mapping.offset,
            executable: mapping.executable,
            file: self.files.file(mapping),
        };
        let priority = self.random.hash_one(range.start);
        let space = match is_kernel {
            true => &mut self.kernel,
            false => self.processes.entry(mapping.task.pid).or_default(),
        };
        *space = space.with(range, priority);
    }

    /// A new process has what the one that started it had. A new thread has its process's.
    fn fork(&mut self, parent: Task, child: Task) {
        if parent.pid != child.pid {
            let space = self.processes.get(&parent.pid).cloned().unwrap_or_default();
            self.processes.insert(child.pid, space);
        }
    }

    /// What a process has now.
    pub(crate) fn of(&self, task: Task) -> Space {
        self.processes.get(&task.pid).cloned().unwrap_or_default()
    }

    /// What the kernel has now.
    pub(crate) fn of_kernel(&self) -> Space {
        self.kernel.clone()
    }
}

/// A range of addresses and what is there. Cloning costs nothing that grows with it.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Where in the file `start` is.
    pub(crate) offset: u64,
    pub(crate) executable: bool,
    pub(crate) file: Arc<RecordedFile>,
}

impl Range {
    /// The address that symbols and tables of the file know `addr` by, if the file can be
    /// used and has code there.
    pub(crate) fn link_time(&self, addr: u64) -> Option<u64> {
        Some(addr.wrapping_sub(self.bias()?))
    }

    /// How far the file is above its link-time addresses, wrapping.
    pub(crate) fn bias(&self) -> Option<u64> {
        self.file.elf().ok()?.bias(self.start, self.offset)
    }

    /// Where in the file `addr` is.
    pub(crate) fn file_offset(&self, addr: u64) -> u64 {
        addr.wrapping_sub(self.start).wrapping_add(self.offset)
    }
}

/// The mappings of one process at one time: ranges that do not overlap.
///
/// A treap whose nodes are shared: a child of a fork shares its parent's, and a sample
/// that waits for its walk keeps those of its time. Changes copy the way to their place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Space(Option<Arc<Node>>);

#[derive(Clone, Debug)]
struct Node {
    range: Range,
    priority: u64,
    below: Space,
    above: Space,
}

impl Space {
    /// The range that holds an address.
    pub(crate) fn find(&self, addr: u64) -> Option<&Range> {
        let mut at = self;
        let mut found = None;
        while let Some(node) = &at.0 {
            if node.range.start <= addr {
                found = Some(&node.range);
                at = &node.above;
            } else {
                at = &node.below;
            }
        }
        found.filter(|range| addr < range.end)
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
    fn with(&self, range: Range, priority: u64) -> Self {
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
        let mut space = Space::default();
        let mut earlier = Vec::new();
        for (index, file) in files.iter().enumerate() {
            let start = next(290);
            let end = start + 1 + next(if index % 3 == 0 { 10 } else { 100 }).min(299 - start);
            let offset = 1000 * next(5);
            let file = Arc::clone(file);
            let range = Range { start, end, offset, executable: true, file };
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
        }
    }
}
