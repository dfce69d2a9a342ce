//! What a merge holds, and the orders it is held in.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

/// A cookie of a thread. The cookie comes first, so that one whose thread got
/// another id can be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) cookie: u64,
    pub(super) tid: u32,
}

impl Key {
    /// All threads with this cookie.
    pub(super) const fn any_thread(cookie: u64) -> RangeInclusive<Self> {
        Self { cookie, tid: 0 }..=Self { cookie, tid: u32::MAX }
    }
}

/// One kernel entry of a thread: its samples, until its stack comes.
#[derive(Clone, Debug)]
pub(super) struct KernelEntry<S> {
    pub(super) pid: u32,
    /// The oldest and the newest time seen.
    pub(super) first: u64,
    pub(super) last: u64,
    /// When it is over, as a newer cookie of the thread tells.
    over: Option<u64>,
    state: State<S>,
    /// Bytes of the state.
    held: usize,
}

#[derive(Clone, Debug)]
pub(super) enum State<S> {
    Waiting(Vec<Waiting<S>>),
    Stack { ips: Arc<[u64]>, time: u64, used: bool },
}

#[derive(Clone, Debug)]
pub(super) struct Waiting<S> {
    pub(super) sample: S,
    pub(super) time: u64,
    /// Counts samples.
    pub(super) arrival: u64,
    /// What the host holds.
    pub(super) bytes: usize,
}

impl<S> KernelEntry<S> {
    /// What an entry takes beside its state, its places in the orders
    /// included: an estimate.
    const OWN_BYTES: usize = size_of::<Self>().saturating_add(256);

    /// What a sample takes beside the host's bytes: a list that grows has up
    /// to as much again in reserve.
    const PER_SAMPLE: usize = size_of::<Waiting<S>>().saturating_mul(2);

    pub(super) const fn new(pid: u32, time: u64) -> Self {
        let state = State::Waiting(Vec::new());
        Self { pid, first: time, last: time, over: None, state, held: 0 }
    }

    pub(super) const fn state(&self) -> &State<S> {
        &self.state
    }

    pub(super) fn into_state(self) -> State<S> {
        self.state
    }

    /// Takes note that it was seen at `time`.
    pub(super) fn seen(&mut self, time: u64) {
        self.first = self.first.min(time);
        self.last = self.last.max(time);
    }

    /// Takes note that it is over at `time` at the latest.
    pub(super) fn over_from(&mut self, time: u64) {
        self.over = Some(self.over.map_or(time, |over| over.min(time)));
    }

    /// Takes another sample, unless the stack is here: then the sample comes
    /// back.
    pub(super) fn wait(&mut self, waiting: Waiting<S>) -> Option<Waiting<S>> {
        let State::Waiting(samples) = &mut self.state else {
            return Some(waiting);
        };
        let bytes = waiting.bytes.saturating_add(Self::PER_SAMPLE);
        self.held = self.held.saturating_add(bytes);
        samples.push(waiting);
        None
    }

    /// Gives out the samples that wait.
    pub(super) fn take_waiting(&mut self) -> Vec<Waiting<S>> {
        match &mut self.state {
            State::Waiting(samples) => {
                self.held = 0;
                core::mem::take(samples)
            }
            State::Stack { .. } => Vec::new(),
        }
    }

    /// The stack and its time, for a sample that came after it.
    pub(super) fn use_stack(&mut self) -> Option<(Arc<[u64]>, u64)> {
        match &mut self.state {
            State::Stack { ips, time, used } => {
                *used = true;
                Some((Arc::clone(ips), *time))
            }
            State::Waiting(_) => None,
        }
    }

    /// Takes the stack, with whether a sample was merged with it. No samples
    /// wait.
    pub(super) fn set_stack(&mut self, ips: Arc<[u64]>, time: u64, used: bool) {
        self.held = size_of_val::<[u64]>(&ips);
        self.state = State::Stack { ips, time, used };
    }

    const fn bytes(&self) -> usize {
        self.held.saturating_add(Self::OWN_BYTES)
    }

    /// Its place in the order of giving up.
    fn rank(&self) -> (Class, u64) {
        match self.state {
            State::Stack { .. } => (Class::Stack, self.last),
            State::Waiting(_) => (Class::Samples, self.first),
        }
    }
}

/// Stacks are given up before samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Stack,
    Samples,
}

/// The entries, by cookie, by age, and by when they are over.
#[derive(Clone, Debug)]
pub(super) struct Store<S> {
    entries: BTreeMap<Key, KernelEntry<S>>,
    by_rank: BTreeSet<((Class, u64), Key)>,
    by_over: BTreeSet<(u64, Key)>,
    bytes: usize,
}

impl<S> Store<S> {
    pub(super) const fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            by_rank: BTreeSet::new(),
            by_over: BTreeSet::new(),
            bytes: 0,
        }
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn get(&self, key: Key) -> Option<&KernelEntry<S>> {
        self.entries.get(&key)
    }

    /// The threads that have an entry with this cookie.
    pub(super) fn threads_of(&self, cookie: u64) -> impl Iterator<Item = (Key, &KernelEntry<S>)> {
        self.entries.range(Key::any_thread(cookie)).map(|(&key, entry)| (key, entry))
    }

    /// Adds an entry that is not there, and not known to be over.
    pub(super) fn insert(&mut self, key: Key, entry: KernelEntry<S>) {
        self.bytes = self.bytes.saturating_add(entry.bytes());
        self.by_rank.insert((entry.rank(), key));
        self.entries.insert(key, entry);
    }

    /// Changes an entry that is there, and its places in the orders with it.
    pub(super) fn edit<R>(
        &mut self,
        key: Key,
        change: impl FnOnce(&mut KernelEntry<S>) -> R,
    ) -> Option<R> {
        let entry = self.entries.get_mut(&key)?;
        let (rank, over, bytes) = (entry.rank(), entry.over, entry.bytes());
        let result = change(entry);
        if rank != entry.rank() {
            self.by_rank.remove(&(rank, key));
            self.by_rank.insert((entry.rank(), key));
        }
        if over != entry.over {
            over.map(|over| self.by_over.remove(&(over, key)));
            entry.over.map(|over| self.by_over.insert((over, key)));
        }
        self.bytes = self.bytes.saturating_sub(bytes).saturating_add(entry.bytes());
        Some(result)
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<KernelEntry<S>> {
        let entry = self.entries.remove(&key)?;
        self.bytes = self.bytes.saturating_sub(entry.bytes());
        self.by_rank.remove(&(entry.rank(), key));
        if let Some(over) = entry.over {
            self.by_over.remove(&(over, key));
        }
        Some(entry)
    }

    /// The entry to give up first.
    pub(super) fn first_victim(&self) -> Option<Key> {
        self.by_rank.first().map(|&(_, key)| key)
    }

    /// The entry that has been over for longest, and since when.
    pub(super) fn first_over(&self) -> Option<(u64, Key)> {
        self.by_over.first().copied()
    }

    /// The time of the oldest sample that waits.
    pub(super) fn oldest_waiting(&self) -> Option<u64> {
        let from = ((Class::Samples, 0), Key { cookie: 0, tid: 0 });
        self.by_rank.range(from..).next().map(|&((_, time), _)| time)
    }
}
