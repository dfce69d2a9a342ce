//! The merge itself.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::counts::{MergeCounts, bump};
use super::outcome::{Merged, Outcome, Timestamped, Unmatched};
use super::policy::Policy;
use super::store::{KernelEntry, Key, State, Store, Waiting};
use super::thread::{Thread, ThreadEnd};
use crate::record::UserPart;

/// Joins samples and stacks by thread and cookie.
///
/// `S` is what the host keeps of a sample. The host hands in what comes and takes the
/// samples that have ended by [`pop`](Self::pop), after each call.
///
/// ```
/// use unwind_perf::merge::{Merger, Outcome, Policy, Timestamped};
/// use unwind_perf::record::{Task, UserPart};
///
/// let task = Task { pid: 7, tid: 7 };
/// let cookie = 0x3_0000_0001;
/// let user = UserPart::Deferred(cookie);
/// let mut merger = Merger::new(Policy::default());
///
/// merger.sample(Timestamped { task, time: 10 }, user, "first", 5);
/// assert!(merger.pop().is_none());
/// merger.deferred(Timestamped { task, time: 20 }, cookie, [0x401136]);
/// let Some(("first", Outcome::Merged(merged))) = merger.pop() else { unreachable!() };
/// assert_eq!(*merged.stack, [0x401136]);
///
/// merger.sample(Timestamped { task, time: 21 }, user, "late", 4);
/// merger.finish();
/// while let Some((sample, outcome)) = merger.pop() {
///     assert!(sample == "late" && matches!(outcome, Outcome::Merged(_)));
/// }
/// assert_eq!(merger.counts().merged, 2);
/// ```
#[derive(Clone, Debug)]
pub struct Merger<S> {
    policy: Policy,
    store: Store<S>,
    threads: BTreeMap<u32, Thread>,
    /// The time after which no record can come from a thread that has ended.
    exits: BTreeSet<(u64, u32)>,
    /// The newest time seen.
    clock: u64,
    /// Counts samples.
    arrivals: u64,
    /// How many samples had come at the last report of a loss.
    arrivals_at_loss: u64,
    /// The samples that have ended, in that order.
    ended: VecDeque<(S, Outcome)>,
    counts: MergeCounts,
}

/// In a stream that a kernel wrote, no more threads than this share a cookie.
const MAX_RENAMED: usize = 8;

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
            ended: VecDeque::new(),
            counts: MergeCounts::NONE,
        }
    }

    /// Takes a sample, of which the host holds `bytes` bytes.
    pub fn sample(&mut self, at: Timestamped, user: UserPart, sample: S, bytes: usize) {
        bump(&mut self.counts.samples);
        match user {
            UserPart::Inline => {
                bump(&mut self.counts.inline);
                self.ended.push_back((sample, Outcome::Inline));
            }
            UserPart::CookieLost => self.unmatched(sample, None, Unmatched::NoCookie),
            UserPart::Deferred(cookie) => {
                self.arrivals = self.arrivals.saturating_add(1);
                let arrival = self.arrivals;
                let key = self.observe(at, cookie, false);
                let waiting = Waiting { sample, time: at.time, arrival, bytes };
                if let Some(late) = self.store.edit(key, |entry| entry.wait(waiting)).flatten() {
                    self.merge_late(key, late);
                }
            }
        }
        self.advance(at.time);
    }

    /// Takes a stack.
    pub fn deferred(&mut self, at: Timestamped, cookie: u64, ips: impl IntoIterator<Item = u64>) {
        bump(&mut self.counts.records);
        let ips: Arc<[u64]> = ips.into_iter().collect();
        let key = self.observe(at, cookie, true);
        if let Some(State::Stack { ips: earlier, .. }) = self.store.get(key).map(KernelEntry::state)
        {
            bump(if *earlier == ips {
                &mut self.counts.records_repeated
            } else {
                &mut self.counts.records_conflicting
            });
        } else {
            self.merge_waiting(key, at, ips);
        }
        self.advance(at.time);
    }

    /// Counts a stack for which no sample waits and none can come.
    pub const fn unused(&mut self) {
        bump(&mut self.counts.records);
        bump(&mut self.counts.records_unused);
    }

    /// Takes a report of `count` lost records, of any kind.
    pub const fn lost(&mut self, count: u64) {
        self.counts.lost = self.counts.lost.saturating_add(count);
        self.arrivals_at_loss = self.arrivals;
    }

    /// Takes an exec: the name that a thread has from it.
    pub fn exec(&mut self, at: Timestamped) {
        if let Some(thread) = self.threads.get_mut(&at.task.tid) {
            thread.thread_end.exec = thread.thread_end.exec.max(Some(at.time));
        }
        self.advance(at.time);
    }

    /// Takes the end of a thread.
    pub fn exit(&mut self, at: Timestamped) {
        if let Some(thread) = self.threads.get_mut(&at.task.tid) {
            let exit = thread.thread_end.exit.map_or(at.time, |exit| exit.max(at.time));
            if let Some(earlier) = thread.thread_end.exit.replace(exit) {
                self.exits.remove(&(earlier, at.task.tid));
            }
            self.exits.insert((exit, at.task.tid));
        }
        self.advance(at.time);
    }

    /// Takes the time of any other event, and ends the cookies that are over by
    /// then.
    pub fn advance(&mut self, time: u64) {
        self.expire(time);
        while self.store.bytes() > self.policy.max_bytes {
            let Some(key) = self.store.first_victim() else { break };
            self.close(key, Unmatched::Evicted);
        }
    }

    /// Ends the input: the samples that wait end unmatched, in the order in
    /// which they came.
    pub fn finish(&mut self) {
        let mut ends = Vec::new();
        while let Some(key) = self.store.first_victim() {
            let removed = self.remove(key, Unmatched::End);
            ends.extend(removed.into_iter().map(|(waiting, reason)| (key.cookie, waiting, reason)));
        }
        ends.sort_unstable_by_key(|(_, waiting, _)| waiting.arrival);
        for (cookie, waiting, reason) in ends {
            self.unmatched(waiting.sample, Some(cookie), reason);
        }
    }

    /// Takes out the sample that ended first, with how it ended; `None` if no sample has
    /// ended that was not taken out.
    ///
    /// What has ended is not limited by [`Policy::max_bytes`] any more, so take it out
    /// after each call.
    pub fn pop(&mut self) -> Option<(S, Outcome)> {
        self.ended.pop_front()
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

    /// Ends what is over at `time`.
    fn expire(&mut self, time: u64) {
        self.clock = self.clock.max(time);
        while let Some((_, key)) = self.store.first_over().filter(|&(over, _)| over <= self.clock) {
            self.close(key, Unmatched::NewerCookie);
        }
        while let Some(&(exit, tid)) = self.exits.first() {
            if exit.saturating_add(self.policy.exit_lag) > self.clock {
                break;
            }
            self.exits.remove(&(exit, tid));
            self.close_exited(tid, exit);
        }
    }

    /// Finds or makes the entry of a cookie, and notes which cookies of the
    /// thread are over because it was seen.
    fn observe(&mut self, at: Timestamped, cookie: u64, is_stack: bool) -> Key {
        let key = Key { cookie, tid: at.task.tid };
        let thread = self.threads.entry(key.tid).or_default();
        if self.store.edit(key, |entry| entry.seen(at.time)).is_none() {
            self.store.insert(key, KernelEntry::new(at.task.pid, at.time));
            thread.add(cookie, at.time);
        }
        thread.observe(cookie, at.time, is_stack, self.policy, |cookie, over| {
            self.store.edit(Key { cookie, ..key }, |entry| entry.over_from(over));
        });
        key
    }

    /// Merges a stack into the samples that wait for it, and keeps it for late
    /// samples.
    fn merge_waiting(&mut self, key: Key, at: Timestamped, ips: Arc<[u64]>) {
        let exec = self.exec_of(key);
        let renamed = self.take_renamed(key, at);
        let samples = self.store.edit(key, KernelEntry::take_waiting).unwrap_or_default();
        let used = !(samples.is_empty() && renamed.is_empty());
        // What the stack shows to be over ends first: it is older.
        self.expire(at.time);
        for Waiting { sample, time, .. } in samples {
            let across_exec = exec.is_some_and(|exec| time < exec && exec <= at.time);
            let stack = Arc::clone(&ips);
            self.merged(sample, Merged { stack, across_exec, late: false });
        }
        for Waiting { sample, .. } in renamed {
            let stack = Arc::clone(&ips);
            self.merged(sample, Merged { stack, across_exec: true, late: false });
        }
        let kept = self.store.edit(key, |entry| entry.set_stack(ips, at.time, used)).is_some();
        if !kept && !used {
            bump(&mut self.counts.records_unused);
        }
    }

    /// Merges the stack that is here under `key` into a sample that came after
    /// it.
    fn merge_late(&mut self, key: Key, late: Waiting<S>) {
        let exec = self.exec_of(key);
        let Some((stack, time)) = self.store.edit(key, KernelEntry::use_stack).flatten() else {
            return;
        };
        let across_exec = exec.is_some_and(|exec| late.time < exec && exec <= time);
        self.merged(late.sample, Merged { stack, across_exec, late: true });
    }

    fn merged(&mut self, sample: S, merged: Merged) {
        bump(&mut self.counts.merged);
        if merged.late {
            bump(&mut self.counts.merged_late);
        }
        if merged.across_exec {
            bump(&mut self.counts.merged_across_exec);
        }
        self.ended.push_back((sample, Outcome::Merged(merged)));
    }

    fn exec_of(&self, key: Key) -> Option<u64> {
        self.threads.get(&key.tid).and_then(|thread| thread.thread_end.exec)
    }

    /// Takes the samples that wait for the same cookie under another thread id
    /// of the process.
    ///
    /// An exec gives its thread the id of the process. If it was not the first
    /// thread, its earlier samples have another.
    fn take_renamed(&mut self, key: Key, at: Timestamped) -> Vec<Waiting<S>> {
        if at.task.pid != at.task.tid {
            return Vec::new();
        }
        let old: Vec<Key> = self
            .store
            .threads_of(key.cookie)
            .take(MAX_RENAMED)
            .filter(|&(other, entry)| other != key && entry.pid == at.task.pid)
            .filter(|(_, entry)| matches!(entry.state(), State::Waiting(_)))
            .map(|(other, _)| other)
            .collect();
        let mut renamed = Vec::new();
        for old in old {
            if let Some((State::Waiting(samples), _)) = self.forget(old) {
                renamed.extend(samples);
            }
        }
        renamed
    }

    /// Ends an entry.
    fn close(&mut self, key: Key, cause: Unmatched) {
        for (waiting, reason) in self.remove(key, cause) {
            self.unmatched(waiting.sample, Some(key.cookie), reason);
        }
    }

    /// Removes an entry; gives out its samples, and why they are unmatched.
    fn remove(&mut self, key: Key, cause: Unmatched) -> Vec<(Waiting<S>, Unmatched)> {
        match self.forget(key) {
            Some((State::Waiting(samples), thread_end)) => {
                let mut ends = Vec::with_capacity(samples.len());
                for waiting in samples {
                    let reason = self.reason(thread_end, &waiting, cause);
                    ends.push((waiting, reason));
                }
                ends
            }
            Some((State::Stack { used, .. }, _)) => {
                if !used {
                    bump(&mut self.counts.records_unused);
                }
                if cause == Unmatched::Evicted {
                    bump(&mut self.counts.records_evicted);
                }
                Vec::new()
            }
            None => Vec::new(),
        }
    }

    /// Ends the entries that a thread left when it ended at `exit`.
    fn close_exited(&mut self, tid: u32, exit: u64) {
        let open: Vec<u64> =
            self.threads.get(&tid).map(|thread| thread.open().collect()).unwrap_or_default();
        for cookie in open {
            let key = Key { cookie, tid };
            // A later thread may have got the id.
            if self.store.get(key).is_some_and(|entry| entry.first <= exit) {
                self.close(key, Unmatched::Exit);
            }
        }
    }

    /// Removes an entry, and with its last entry the thread.
    fn forget(&mut self, key: Key) -> Option<(State<S>, ThreadEnd)> {
        let entry = self.store.remove(key)?;
        let thread = self.threads.get_mut(&key.tid)?;
        thread.remove(key.cookie);
        let thread_end = thread.thread_end;
        if thread.entries == 0 {
            self.threads.remove(&key.tid);
            thread_end.exit.map(|exit| self.exits.remove(&(exit, key.tid)));
        }
        Some((entry.into_state(), thread_end))
    }

    fn reason(&self, thread_end: ThreadEnd, waiting: &Waiting<S>, cause: Unmatched) -> Unmatched {
        let before = |event: Option<u64>| event.is_some_and(|event| waiting.time <= event);
        match cause {
            Unmatched::Evicted => Unmatched::Evicted,
            _ if before(thread_end.exit) => Unmatched::Exit,
            _ if waiting.arrival <= self.arrivals_at_loss => Unmatched::Lost,
            _ if before(thread_end.exec) => Unmatched::Exec,
            cause => cause,
        }
    }

    fn unmatched(&mut self, sample: S, cookie: Option<u64>, reason: Unmatched) {
        bump(self.counts.unmatched_by(reason));
        self.ended.push_back((sample, Outcome::Unmatched { cookie, reason }));
    }
}
