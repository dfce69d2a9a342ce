//! Which processes of a recording have ended.

use std::collections::{HashMap, HashSet, VecDeque};

use unwind_perf::record::Task;

/// What is known of so many processes stays after they have ended.
const MOST_ENDED: usize = 1 << 10;

/// The threads that are known to live, and the processes that have none any more.
#[derive(Debug, Default)]
pub(crate) struct Lifetimes {
    /// By process.
    threads: HashMap<u32, HashSet<u32>>,
    ended: HashSet<u32>,
    /// The same, the oldest first. One that turned out to live may still be among them.
    order: VecDeque<u32>,
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

    /// Takes note of a process that is seen to live, although the beginning of a thread may have been lost.
    pub(crate) fn revive(&mut self, process: u32) {
        if !self.ended.is_empty() {
            self.ended.remove(&process);
        }
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
        if self.ended.insert(task.pid) {
            self.order.push_back(task.pid);
        }
        let oldest = (self.order.len() > MOST_ENDED).then(|| self.order.pop_front()).flatten()?;
        self.ended.remove(&oldest).then_some(oldest)
    }

    /// Whether a process has ended, as far as is known.
    pub(crate) fn has_ended(&self, process: u32) -> bool {
        self.ended.contains(&process)
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
        lifetimes.revive(1);
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
        assert!(lifetimes.order.len() <= MOST_ENDED && lifetimes.threads.is_empty());
    }
}
