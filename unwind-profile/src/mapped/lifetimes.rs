//! Which processes of a recording have ended.

use std::collections::{HashMap, HashSet, VecDeque};

use unwind_perf::record::Task;

/// How many processes that have ended are still known.
const MOST_ENDED: usize = 1 << 10;

/// The threads that are known to live, and the processes that have none any more.
#[derive(Debug, Default)]
pub(crate) struct Lifetimes {
    /// By process.
    threads: HashMap<u32, HashSet<u32>>,
    ended: HashMap<u32, End>,
    /// Processes and their ends, the oldest first. Who turned out to live may still be among them.
    order: VecDeque<(u32, u64)>,
    /// How many ends there were.
    ends: u64,
}

/// The end of a process.
#[derive(Debug)]
struct End {
    number: u64,
    /// The thread that ended last, which may still be sampled on its way out.
    last: u32,
}

impl Lifetimes {
    /// Takes note of a thread that is there.
    pub(crate) fn live(&mut self, task: Task) {
        self.threads.entry(task.pid).or_default().insert(task.tid);
        self.revive(task.pid);
    }

    /// Takes note of an exec: other threads are gone without a word, and who called it has the process's number.
    pub(crate) fn exec(&mut self, process: u32) {
        self.threads.insert(process, [process].into());
        self.revive(process);
    }

    /// Takes note of a thread that is sampled, although its beginning may have been lost.
    pub(crate) fn sampled(&mut self, task: Task) {
        if self.ended.get(&task.pid).is_some_and(|end| end.last != task.tid) {
            self.revive(task.pid);
        }
    }

    /// Takes note of a process that lives.
    pub(crate) fn revive(&mut self, process: u32) {
        self.ended.remove(&process);
    }

    /// Takes note of a thread that ends. Returns a process that has ended long enough ago to be forgotten.
    pub(crate) fn exit(&mut self, task: Task) -> Option<u32> {
        if let Some(threads) = self.threads.get_mut(&task.pid) {
            threads.remove(&task.tid);
            if !threads.is_empty() {
                return None;
            }
            self.threads.remove(&task.pid);
        }
        let (number, last) = (self.ends, task.tid);
        self.ends = number.saturating_add(1);
        self.ended.insert(task.pid, End { number, last });
        self.order.push_back((task.pid, number));
        let oldest = (self.order.len() > MOST_ENDED).then(|| self.order.pop_front()).flatten();
        let (oldest, number) = oldest?;
        let is_it = self.ended.get(&oldest).is_some_and(|end| end.number == number);
        (is_it && self.ended.remove(&oldest).is_some()).then_some(oldest)
    }

    /// Whether a process has ended, as far as is known.
    pub(crate) fn has_ended(&self, process: u32) -> bool {
        self.ended.contains_key(&process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(pid: u32, tid: u32) -> Task {
        Task { pid, tid }
    }

    #[test]
    fn a_process_ends_with_its_last_thread() {
        let mut lifetimes = Lifetimes::default();
        lifetimes.live(task(1, 1));
        lifetimes.live(task(1, 2));
        assert_eq!(lifetimes.exit(task(1, 1)), None);
        assert!(!lifetimes.has_ended(1));
        assert_eq!(lifetimes.exit(task(1, 2)), None);
        assert!(lifetimes.has_ended(1));
        // Its number is used anew.
        lifetimes.live(task(1, 1));
        assert!(!lifetimes.has_ended(1));
        lifetimes.live(task(1, 2));
        lifetimes.exec(1);
        assert_eq!(lifetimes.exit(task(1, 1)), None);
        assert!(lifetimes.has_ended(1));
        // On its way out, and as another thread whose beginning was lost.
        lifetimes.sampled(task(1, 1));
        assert!(lifetimes.has_ended(1));
        lifetimes.sampled(task(1, 3));
        assert!(!lifetimes.has_ended(1));
    }

    #[test]
    fn those_that_ended_first_are_forgotten_first() {
        let mut lifetimes = Lifetimes::default();
        let most = u32::try_from(MOST_ENDED).unwrap();
        for process in 1..=most {
            assert_eq!(lifetimes.exit(task(process, process)), None);
        }
        lifetimes.revive(2);
        assert_eq!(lifetimes.exit(task(most + 1, most + 1)), Some(1));
        assert_eq!(lifetimes.exit(task(most + 2, most + 2)), None, "it lives");
        assert_eq!(lifetimes.exit(task(most + 3, most + 3)), Some(3));
        // One that ends again, as other threads of it were not known, is forgotten by its last end.
        lifetimes.exit(task(4, 5));
        assert_eq!(lifetimes.exit(task(most + 5, most + 5)), Some(5));
        assert!(lifetimes.has_ended(4));
        assert!(lifetimes.order.len() <= MOST_ENDED && lifetimes.threads.is_empty());
    }
}
