//! The merge itself.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::counts::{MergeCounts, bump};
use super::outcome::{Merged, Outcome, Stamp, Unmatched};
use super::policy::Policy;
use super::store::{Entry, Key, State, Store, Waiting};
use crate::record::UserPart;

/// Joins samples and stacks by thread and cookie.
///
/// `S` is what the host keeps of a sample. Each method takes a closure that
/// receives every sample which ends during the call.
///
/// ```
/// use unwind_perf::merge::{Merger, Outcome, Policy, Stamp};
/// use unwind_perf::record::{Task, UserPart};
///
/// let task = Task { pid: 7, tid: 7 };
/// let mut merger = Merger::new(Policy::default());
/// let mut stacks = Vec::new();
/// let mut done = |sample: &str, outcome: Outcome<'_>| {
///     if let Outcome::Merged(merged) = outcome {
///         stacks.push((sample.to_owned(), merged.stack.to_vec()));
///     }
/// };
/// let cookie = 0x3_0000_0001;
/// merger.sample(Stamp { task, time: 10 }, UserPart::Deferred(cookie), "first", 5, &mut done);
/// merger.deferred(Stamp { task, time: 20 }, cookie, [0x401136], &mut done);
/// merger.sample(Stamp { task, time: 21 }, UserPart::Deferred(cookie), "late", 4, &mut done);
/// assert_eq!(merger.finish(&mut done).merged, 2);
/// assert_eq!(stacks[1], ("late".to_owned(), vec![0x401136]));
/// ```
#[derive(Clone, Debug)]
pub struct Merger<S> {
    policy: Policy,
    store: Store<S>,
    threads: BTreeMap<u32, Thread>,
    /// When no more can come from a thread that has ended.
    exits: BTreeSet<(u64, u32)>,
    /// The newest time seen.
    clock: u64,
    /// Counts samples.
    arrivals: u64,
    /// How many samples had come at the last report of a loss.
    arrivals_at_loss: u64,
    counts: MergeCounts,
}

/// What is known of a thread that has entries in the store.
#[derive(Clone, Debug, Default)]
struct Thread {
    /// How many entries it has.
    entries: usize,
    /// Those that no newer cookie is known for: mostly one.
    current: Vec<u64>,
    fate: Fate,
}

/// When a thread last called exec, and when it ended.
#[derive(Clone, Copy, Debug, Default)]
struct Fate {
    exec: Option<u64>,
    exit: Option<u64>,
}

/// More cookies of a thread than this do not overlap in a stream that a
/// kernel wrote.
const MAX_CURRENT: usize = 8;

impl<S> Merger<S> {
    /// A merger that has seen nothing.
    #[must_use]
    pub const fn new(policy: Policy) -> Self {
        Self {
            policy,
            store: Store::new(),
            threads: BTreeMap::new(),
            exits: BTreeSet::new(),
            clock: 0,
            arrivals: 0,
            arrivals_at_loss: 0,
            counts: MergeCounts::NONE,
        }
    }

    /// Takes a sample, of which the host holds `bytes` bytes.
    pub fn sample(
        &mut self,
        at: Stamp,
        user: UserPart,
        sample: S,
        bytes: usize,
        done: &mut impl FnMut(S, Outcome<'_>),
    ) {
        bump(&mut self.counts.samples);
        match user {
            UserPart::Inline => {
                bump(&mut self.counts.inline);
                done(sample, Outcome::Inline);
            }
            UserPart::CookieLost => self.unmatched(sample, None, Unmatched::NoCookie, done),
            UserPart::Deferred(cookie) => {
                self.arrivals = self.arrivals.saturating_add(1);
                let arrival = self.arrivals;
                let key = self.see(at, cookie);
                let waiting = Waiting { sample, time: at.time, arrival, bytes };
                if let Some(late) = self.store.edit(key, |entry| entry.wait(waiting)).flatten() {
                    self.merge(key, late, Merge { late: true, renamed: false }, done);
                }
            }
        }
        self.advance(at.time, done);
    }

    /// Takes a stack.
    pub fn deferred(
        &mut self,
        at: Stamp,
        cookie: u64,
        ips: impl IntoIterator<Item = u64>,
        done: &mut impl FnMut(S, Outcome<'_>),
    ) {
        bump(&mut self.counts.records);
        let ips: Box<[u64]> = ips.into_iter().collect();
        let key = self.see(at, cookie);
        if let Some(State::Stack { ips: earlier, .. }) = self.store.get(key).map(Entry::state) {
            bump(if *earlier == ips {
                &mut self.counts.records_repeated
            } else {
                &mut self.counts.records_conflicting
            });
        } else {
            let renamed = self.take_renamed(key, at);
            let samples = self.store.edit(key, |entry| entry.set_stack(ips, at.time));
            for (waiting, renamed) in
                samples.into_iter().flatten().map(|waiting| (waiting, false)).chain(renamed)
            {
                self.merge(key, waiting, Merge { late: false, renamed }, done);
            }
        }
        self.advance(at.time, done);
    }

    /// Takes a report of `count` lost records, of any kind.
    pub const fn lost(&mut self, count: u64) {
        self.counts.lost = self.counts.lost.saturating_add(count);
        self.arrivals_at_loss = self.arrivals;
    }

    /// Takes an exec: the name that a thread has from it.
    pub fn exec(&mut self, at: Stamp, done: &mut impl FnMut(S, Outcome<'_>)) {
        if let Some(thread) = self.threads.get_mut(&at.task.tid) {
            thread.fate.exec = thread.fate.exec.max(Some(at.time));
        }
        self.advance(at.time, done);
    }

    /// Takes the end of a thread.
    pub fn exit(&mut self, at: Stamp, done: &mut impl FnMut(S, Outcome<'_>)) {
        if let Some(thread) = self.threads.get_mut(&at.task.tid) {
            let exit = thread.fate.exit.map_or(at.time, |exit| exit.max(at.time));
            if let Some(earlier) = thread.fate.exit.replace(exit) {
                self.exits.remove(&(earlier, at.task.tid));
            }
            self.exits.insert((exit, at.task.tid));
        }
        self.advance(at.time, done);
    }

    /// Takes the time of any other event, and ends what is over by then.
    pub fn advance(&mut self, time: u64, done: &mut impl FnMut(S, Outcome<'_>)) {
        self.clock = self.clock.max(time);
        let complete = self.clock.saturating_sub(self.policy.window);
        while let Some((_, key)) = self.store.first_over().filter(|&(over, _)| over <= complete) {
            self.close(key, Unmatched::NewerCookie, done);
        }
        while let Some(&(exit, tid)) = self.exits.first()
            && exit.saturating_add(self.policy.exit_lag) <= complete
        {
            self.exits.remove(&(exit, tid));
            self.close_exited(tid, exit, done);
        }
        while self.store.bytes() > self.policy.max_bytes
            && let Some(key) = self.store.first_victim()
        {
            self.close(key, Unmatched::Evicted, done);
        }
    }

    /// Ends the input: what waits ends unmatched. Returns the final counts.
    pub fn finish(mut self, done: &mut impl FnMut(S, Outcome<'_>)) -> MergeCounts {
        while let Some(key) = self.store.first_victim() {
            self.close(key, Unmatched::End, done);
        }
        self.counts
    }

    /// The counts so far.
    #[must_use]
    pub const fn counts(&self) -> &MergeCounts {
        &self.counts
    }

    /// About how many bytes are held.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.store.bytes()
    }

    /// The time of the oldest sample that waits.
    #[must_use]
    pub fn oldest_waiting(&self) -> Option<u64> {
        self.store.oldest_waiting()
    }

    /// Finds or makes the entry of a cookie, and learns from the sight of it
    /// which other cookies of the thread are over.
    fn see(&mut self, at: Stamp, cookie: u64) -> Key {
        let key = Key { cookie, tid: at.task.tid };
        let thread = self.threads.entry(key.tid).or_default();
        if self.store.edit(key, |entry| entry.seen(at.time)).is_none() {
            self.store.insert(key, Entry::new(at.task.pid, at.time));
            thread.entries = thread.entries.saturating_add(1);
            thread.current.push(cookie);
        }
        let Some((first, last)) = self.store.get(key).map(|entry| (entry.first, entry.last)) else {
            return key;
        };
        let mut over = None;
        thread.current.retain(|&other| {
            let other = Key { cookie: other, ..key };
            let Some(entry) = self.store.get(other).filter(|_| other != key) else {
                return true;
            };
            if entry.last <= first {
                self.store.edit(other, |entry| entry.over = Some(first));
                return false;
            }
            if last <= entry.first {
                over = over.max(Some(entry.first));
            }
            true
        });
        if thread.current.len() > MAX_CURRENT {
            let oldest = Key { cookie: thread.current.remove(0), ..key };
            self.store.edit(oldest, |entry| entry.over = Some(first));
        }
        if over.is_some() {
            thread.current.retain(|&other| other != cookie);
            self.store.edit(key, |entry| entry.over = entry.over.max(over));
        }
        key
    }

    /// Takes the samples that wait for the same cookie under another thread id
    /// of the process.
    ///
    /// An exec gives its thread the id of the process. If it was not the first
    /// thread, its earlier samples have another.
    fn take_renamed(&mut self, key: Key, at: Stamp) -> Vec<(Waiting<S>, bool)> {
        if at.task.pid != at.task.tid {
            return Vec::new();
        }
        let old: Vec<Key> = self
            .store
            .threads_of(key.cookie)
            .take(MAX_CURRENT)
            .filter(|&(other, entry)| other != key && entry.pid == at.task.pid)
            .filter(|(_, entry)| matches!(entry.state(), State::Waiting(_)))
            .map(|(other, _)| other)
            .collect();
        let states = old.into_iter().filter_map(|old| self.forget(old)).map(|(state, _)| state);
        let samples = states.flat_map(|state| match state {
            State::Waiting(samples) => samples,
            State::Stack { .. } => Vec::new(),
        });
        samples.map(|waiting| (waiting, true)).collect()
    }

    /// Hands out a sample with the stack that is here under `key`.
    fn merge(
        &mut self,
        key: Key,
        waiting: Waiting<S>,
        how: Merge,
        done: &mut impl FnMut(S, Outcome<'_>),
    ) {
        self.store.edit(key, Entry::mark_used);
        let Some(State::Stack { ips, time, .. }) = self.store.get(key).map(Entry::state) else {
            return;
        };
        let exec = self.threads.get(&key.tid).and_then(|thread| thread.fate.exec);
        let between = exec.is_some_and(|exec| waiting.time < exec && exec <= *time);
        let across_exec = between || how.renamed;
        bump(&mut self.counts.merged);
        if how.late {
            bump(&mut self.counts.merged_late);
        }
        if across_exec {
            bump(&mut self.counts.merged_across_exec);
        }
        let merged = Merged { stack: ips, across_exec, late: how.late };
        done(waiting.sample, Outcome::Merged(merged));
    }

    /// Ends an entry.
    fn close(&mut self, key: Key, cause: Unmatched, done: &mut impl FnMut(S, Outcome<'_>)) {
        let Some((state, fate)) = self.forget(key) else {
            return;
        };
        match state {
            State::Waiting(samples) => {
                for waiting in samples {
                    let reason = self.reason(fate, &waiting, cause);
                    self.unmatched(waiting.sample, Some(key.cookie), reason, done);
                }
            }
            State::Stack { used, .. } => {
                if !used {
                    bump(&mut self.counts.records_unused);
                }
                if cause == Unmatched::Evicted {
                    bump(&mut self.counts.records_evicted);
                }
            }
        }
    }

    /// Ends what a thread left when it ended at `exit`.
    fn close_exited(&mut self, tid: u32, exit: u64, done: &mut impl FnMut(S, Outcome<'_>)) {
        let current = self.threads.get(&tid).map(|thread| thread.current.clone());
        for cookie in current.unwrap_or_default() {
            let key = Key { cookie, tid };
            // A later thread may have got the id.
            if self.store.get(key).is_some_and(|entry| entry.first <= exit) {
                self.close(key, Unmatched::Exit, done);
            }
        }
    }

    /// Removes an entry, and with its last entry the thread.
    fn forget(&mut self, key: Key) -> Option<(State<S>, Fate)> {
        let entry = self.store.remove(key)?;
        let thread = self.threads.get_mut(&key.tid)?;
        thread.current.retain(|&cookie| cookie != key.cookie);
        thread.entries = thread.entries.saturating_sub(1);
        let fate = thread.fate;
        if thread.entries == 0 {
            self.threads.remove(&key.tid);
            fate.exit.map(|exit| self.exits.remove(&(exit, key.tid)));
        }
        Some((entry.into_state(), fate))
    }

    fn reason(&self, fate: Fate, waiting: &Waiting<S>, cause: Unmatched) -> Unmatched {
        let before = |event: Option<u64>| event.is_some_and(|event| waiting.time <= event);
        match cause {
            Unmatched::Evicted => Unmatched::Evicted,
            _ if before(fate.exit) => Unmatched::Exit,
            _ if waiting.arrival <= self.arrivals_at_loss => Unmatched::Lost,
            _ if before(fate.exec) => Unmatched::Exec,
            cause => cause,
        }
    }

    fn unmatched(
        &mut self,
        sample: S,
        cookie: Option<u64>,
        reason: Unmatched,
        done: &mut impl FnMut(S, Outcome<'_>),
    ) {
        bump(self.counts.unmatched_by(reason));
        done(sample, Outcome::Unmatched { cookie, reason });
    }
}

/// How a stack comes to a sample.
#[derive(Clone, Copy, Debug)]
struct Merge {
    late: bool,
    renamed: bool,
}
