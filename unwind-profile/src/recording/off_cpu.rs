//! How long threads wait: from the sample that is taken when a CPU switches away from one to
//! the record that it runs again.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};
use unwind_perf::record::{Lifecycle, Misc, RecordType};

use crate::recording::held::{Held, Meaning};

/// Of how many threads that have ended a CPU may still be about to switch away from.
const MOST_ENDED: usize = 256;

/// The thread of a CPU that has nothing to do.
const IDLE: u32 = 0;

/// What the kernel calls a thread that is no longer among those that can be found.
const GONE: u32 = u32::MAX;

/// What is known of waiting in a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffCpu {
    /// Waits with a sample.
    pub samples: u64,
    /// How long these are together.
    pub nanoseconds: u64,
    /// Waits whose sample was not taken, or was lost.
    pub without_sample: u64,
    /// How long these are together.
    pub nanoseconds_without_sample: u64,
    /// Samples of waits whose end was not told: they stand for no time.
    pub without_end: u64,
    /// Samples of threads that had ended when a CPU switched away from them for the last time, and of idle CPUs: they
    /// stand for no time.
    #[serde(default)]
    pub without_wait: u64,
}

impl OffCpu {
    /// The sum of two.
    pub(crate) const fn with(self, other: Self) -> Self {
        Self {
            samples: self.samples.saturating_add(other.samples),
            nanoseconds: self.nanoseconds.saturating_add(other.nanoseconds),
            without_sample: self.without_sample.saturating_add(other.without_sample),
            nanoseconds_without_sample: self
                .nanoseconds_without_sample
                .saturating_add(other.nanoseconds_without_sample),
            without_end: self.without_end.saturating_add(other.without_end),
            without_wait: self.without_wait.saturating_add(other.without_wait),
        }
    }
}

/// The threads that wait.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// By thread.
    waiting: HashMap<u32, Wait>,
    /// The threads that ended last.
    ended: VecDeque<u32>,
    /// The latest time that was seen.
    now: u64,
    pub(crate) counts: OffCpu,
}

#[derive(Debug)]
enum Wait {
    /// Since its sample was taken; its stack, if that was walked then.
    Sampled(Box<Ended>),
    /// Since this time.
    Unseen(u64),
}

/// A sample, and the stack that comes after it.
type Ended = (Held, Option<Held>);

impl Waits {
    /// Takes a record, of the event in place `event` or another, and hands on what comes now: the sample of a wait that
    /// is over and its stack, and the record. Until then a sample is held back, as its period is not known.
    pub(crate) fn pass(&mut self, held: Held, event: usize) -> [Option<Held>; 3] {
        let is_switch = || {
            let kind = held.record().map(|record| record.kind());
            matches!(kind, Some(RecordType::SWITCH | RecordType::SWITCH_CPU_WIDE))
        };
        let ended = match held.meaning {
            Meaning::Sample(_) if held.event == event => self.sample(held),
            Meaning::Stack(cookie) => return [self.stack(held, cookie), None, None],
            _ if is_switch() => self.switch(&held),
            _ => {
                self.now = self.now.max(held.time);
                let (sample, stack) = self.learn(&held).unzip();
                return [sample, stack.flatten(), Some(held)];
            }
        };
        ended.map_or([None, None, None], |(sample, stack)| [Some(sample), stack, None])
    }

    /// Takes note of a thread that begins or ends. Returns the sample of a wait that is open then, whose end was not
    /// told.
    fn learn(&mut self, held: &Held) -> Option<Ended> {
        match held.meaning {
            Meaning::Exit => {
                if self.ended.len() == MOST_ENDED {
                    self.ended.pop_front();
                }
                self.ended.push_back(held.task.tid);
                self.leave_open(held.task.tid)
            }
            // Who called it has the number of the first thread, which has ended.
            Meaning::Exec => {
                self.ended.retain(|&thread| thread != held.task.tid);
                None
            }
            _ => {
                let fork = held.record().filter(|record| record.kind() == RecordType::FORK)?;
                let thread = Lifecycle::decode(&fork, held.format).ok()?.task.tid;
                self.ended.retain(|&ended| ended != thread);
                self.leave_open(thread)
            }
        }
    }

    /// The sample of a wait whose end was not told.
    fn leave_open(&mut self, thread: u32) -> Option<Ended> {
        match self.waiting.remove(&thread)? {
            Wait::Sampled(waiting) => {
                let (sample, stack) = *waiting;
                self.counts.without_end = self.counts.without_end.saturating_add(1);
                let time = sample.time;
                Some((sample.with_time_and_period(time, 0), stack))
            }
            Wait::Unseen(_) => None,
        }
    }

    /// Whether a thread waits when a CPU switches away from it.
    fn can_wait(&self, thread: u32) -> bool {
        !matches!(thread, IDLE | GONE) && !self.ended.contains(&thread)
    }

    /// Keeps the stack of a thread that waits, if it is that of its sample; else returns it.
    fn stack(&mut self, held: Held, cookie: Option<u64>) -> Option<Held> {
        self.now = self.now.max(held.time);
        match self.waiting.get_mut(&held.task.tid) {
            Some(Wait::Sampled(waiting)) if cookie.is_some() && waiting.0.cookie() == cookie => {
                waiting.1 = Some(held.apart());
                None
            }
            _ => Some(held),
        }
    }

    /// Takes the sample of a thread that a CPU switches away from. Returns the sample of its
    /// last wait, if the end of that was not told.
    fn sample(&mut self, held: Held) -> Option<Ended> {
        self.now = self.now.max(held.time);
        if !self.can_wait(held.task.tid) {
            self.counts.without_wait = self.counts.without_wait.saturating_add(1);
            let time = held.time;
            return Some((held.with_time_and_period(time, 0), None));
        }
        let thread = held.task.tid;
        let last = self.leave_open(thread);
        self.waiting.insert(thread, Wait::Sampled(Box::new((held.apart(), None))));
        last
    }

    /// Takes note of a switch. Returns the sample of a wait that ends by it, with the time of its end and with its
    /// length as its period.
    fn switch(&mut self, held: &Held) -> Option<Ended> {
        self.now = self.now.max(held.time);
        let header = held.record()?.header();
        let thread = held.task.tid;
        if header.misc.contains(Misc::SWITCH_OUT) {
            if self.can_wait(thread) {
                self.waiting.entry(thread).or_insert(Wait::Unseen(held.time));
            }
            return None;
        }
        match self.waiting.remove(&thread)? {
            Wait::Sampled(waiting) => {
                let (sample, stack) = *waiting;
                Some((self.end(sample, held.time), stack))
            }
            Wait::Unseen(since) => {
                self.count_unseen(held.time.saturating_sub(since));
                None
            }
        }
    }

    /// The samples of threads that wait at the end of the recording.
    pub(crate) fn finish(&mut self) -> Vec<Held> {
        let (now, waiting) = (self.now, std::mem::take(&mut self.waiting));
        let mut samples = Vec::new();
        for wait in waiting.into_values() {
            match wait {
                Wait::Sampled(waiting) => {
                    let (sample, stack) = *waiting;
                    samples.push((self.end(sample, now), stack));
                }
                Wait::Unseen(since) => self.count_unseen(now.saturating_sub(since)),
            }
        }
        samples.sort_by_key(|(sample, _)| sample.task.tid);
        samples.into_iter().flat_map(|(sample, stack)| [Some(sample), stack]).flatten().collect()
    }

    fn end(&mut self, sample: Held, time: u64) -> Held {
        let length = time.saturating_sub(sample.time);
        self.counts.samples = self.counts.samples.saturating_add(1);
        self.counts.nanoseconds = self.counts.nanoseconds.saturating_add(length);
        sample.with_time_and_period(time, length)
    }

    fn count_unseen(&mut self, length: u64) {
        let counts = &mut self.counts;
        counts.without_sample = counts.without_sample.saturating_add(1);
        counts.nanoseconds_without_sample =
            counts.nanoseconds_without_sample.saturating_add(length);
    }
}

#[cfg(test)]
mod tests {
    use unwind_perf::record::{
        AttrFlags, Context, DeferredLayout, Endian, EventFormat, SampleType, UserPart,
    };

    use super::*;

    fn format() -> EventFormat {
        let sample_type = SampleType::IDENTIFIER
            | SampleType::IP
            | SampleType::TID
            | SampleType::TIME
            | SampleType::CPU
            | SampleType::PERIOD;
        EventFormat { sample_type, flags: AttrFlags::SAMPLE_ID_ALL, ..EventFormat::default() }
    }

    fn held(kind: RecordType, misc: Misc, words: &[u64]) -> Held {
        held_as(format(), kind, misc, words)
    }

    fn held_as(format: EventFormat, kind: RecordType, misc: Misc, words: &[u64]) -> Held {
        let mut bytes = kind.0.to_le_bytes().to_vec();
        bytes.extend(misc.0.to_le_bytes());
        bytes.extend(
            u16::try_from(size_of_val(words)).unwrap().checked_add(8).unwrap().to_le_bytes(),
        );
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        Held::new(bytes.into(), Endian::Little, 0, format, DeferredLayout::Cookie).unwrap()
    }

    fn task(thread: u64) -> u64 {
        thread << 32 | 1
    }

    fn sample(thread: u64, time: u64) -> Held {
        held(RecordType::SAMPLE, Misc::KERNEL, &[7, 0x1000, task(thread), time, 3, 1])
    }

    fn switch(thread: u64, time: u64, misc: Misc) -> Held {
        held(RecordType::SWITCH, misc, &[task(thread), time, 3, 7])
    }

    const IN: Misc = Misc::UNKNOWN;
    const OUT: Misc = Misc::SWITCH_OUT;

    fn told(held: &Held) -> (u32, u64, Option<u64>, Option<u64>, Option<u32>) {
        (held.task.tid, held.time, held.period(), held.ip(), held.cpu())
    }

    #[test]
    fn d14_a_wait_lasts_from_its_sample_to_the_switch_back() {
        let mut waits = Waits::default();
        assert!(waits.sample(sample(5, 100)).is_none());
        assert!(waits.switch(&switch(5, 101, OUT)).is_none());
        assert!(waits.switch(&switch(6, 110, IN)).is_none());
        let (ended, _) = waits.switch(&switch(5, 160, IN)).unwrap();
        assert_eq!(told(&ended), (5, 160, Some(60), Some(0x1000), Some(3)));
        assert!(waits.switch(&switch(5, 170, IN)).is_none());
        let counts = OffCpu { samples: 1, nanoseconds: 60, ..OffCpu::default() };
        assert_eq!(waits.counts, counts);
    }

    #[test]
    fn d14_waits_without_a_sample_or_an_end_are_counted_apart() {
        let mut waits = Waits::default();
        waits.switch(&switch(5, 100, OUT));
        assert!(waits.switch(&switch(5, 130, IN)).is_none());
        assert!(waits.sample(sample(6, 140)).is_none());
        let (unended, _) = waits.sample(sample(6, 150)).unwrap();
        assert_eq!(told(&unended), (6, 140, Some(0), Some(0x1000), Some(3)));
        waits.switch(&switch(7, 180, OUT));
        waits.switch(&switch(8, 200, IN));
        let last = waits.finish();
        assert_eq!(
            last.iter().map(told).collect::<Vec<_>>(),
            [(6, 200, Some(50), Some(0x1000), Some(3))]
        );
        let counts = OffCpu {
            samples: 1,
            nanoseconds: 50,
            without_sample: 2,
            nanoseconds_without_sample: 50,
            without_end: 1,
            without_wait: 0,
        };
        assert_eq!(waits.counts, counts);
        assert!(waits.finish().is_empty());
    }

    #[test]
    fn d14_threads_that_have_ended_and_idle_cpus_wait_for_nothing() {
        let lifecycle = |kind, thread| {
            held(kind, IN, &[1 << 32 | 1, 1 << 32 | thread, 90, task(thread), 90, 3, 7])
        };
        let told =
            |passed: [Option<Held>; 3]| -> Vec<_> { passed.iter().flatten().map(told).collect() };
        let mut waits = Waits::default();
        for (thread, shown) in [(0, 0), (u64::from(u32::MAX), u32::MAX)] {
            let at_once = (shown, 100, Some(0), Some(0x1000), Some(3));
            assert_eq!(told(waits.pass(sample(thread, 100), 0)), [at_once]);
            assert_eq!(told(waits.pass(switch(thread, 101, OUT), 0)), []);
        }
        waits.pass(lifecycle(RecordType::EXIT, 5), 0);
        let last = (5, 110, Some(0), Some(0x1000), Some(3));
        assert_eq!(told(waits.pass(sample(5, 110), 0)), [last]);
        assert_eq!(told(waits.pass(switch(5, 111, OUT), 0)), []);
        assert!(waits.finish().is_empty());
        let counts = OffCpu { without_wait: 3, ..OffCpu::default() };
        assert_eq!(waits.counts, counts);
        // Another thread of the process executes a program.
        let exec = held(
            RecordType::COMM,
            Misc::COMM_EXEC,
            &[task(5), u64::from_le_bytes(*b"program\0"), task(5), 112, 3, 7],
        );
        assert_eq!(exec.meaning, Meaning::Exec);
        waits.pass(exec, 0);
        assert_eq!(told(waits.pass(sample(5, 113), 0)), []);
        assert_eq!(
            told(waits.pass(switch(5, 115, IN), 0)),
            [(5, 115, Some(2), Some(0x1000), Some(3))]
        );
        // It ends while its last wait is open.
        waits.pass(sample(5, 116), 0);
        let [unended, _, exit] = waits.pass(lifecycle(RecordType::EXIT, 5), 0);
        assert_eq!((unended.unwrap().period(), exit.unwrap().meaning), (Some(0), Meaning::Exit));
        let counts = OffCpu { samples: 1, nanoseconds: 2, without_end: 1, ..counts };
        // A new thread has the number.
        waits.pass(lifecycle(RecordType::FORK, 5), 0);
        assert_eq!(told(waits.pass(sample(5, 120), 0)), []);
        assert_eq!(waits.finish().len(), 1);
        assert_eq!(waits.counts, OffCpu { samples: 2, ..counts });
        // What is kept of those that have ended has a bound.
        for thread in 1..1000 {
            waits.pass(lifecycle(RecordType::EXIT, thread), 0);
        }
        assert_eq!(waits.ended.len(), MOST_ENDED);
    }

    #[test]
    fn d14_the_stack_of_a_wait_that_is_walked_at_its_beginning_comes_after_its_sample() {
        let format =
            EventFormat { sample_type: format().sample_type | SampleType::CALLCHAIN, ..format() };
        let deferred = Context::UserDeferred.word();
        let sample = |cookie| {
            let words = [7, 0x1000, task(5), 100, 3, 1, 2, deferred, cookie];
            held_as(format, RecordType::SAMPLE, Misc::KERNEL, &words)
        };
        let stack = |cookie| {
            let words = [cookie, 1, 0x1000, task(5), 101, 3, 7];
            held_as(format, RecordType::CALLCHAIN_DEFERRED, Misc::USER, &words)
        };
        let order = |passed: [Option<Held>; 3]| -> Vec<_> {
            passed.into_iter().flatten().map(|held| (held.meaning, held.time)).collect()
        };
        let mut waits = Waits::default();
        assert_eq!(order(waits.pass(sample(9), 0)), []);
        // That of an earlier sample is not held back.
        let other = (Meaning::Stack(Some(8)), 101);
        assert_eq!(order(waits.pass(stack(8), 0)), [other]);
        assert_eq!(order(waits.pass(stack(9), 0)), []);
        assert_eq!(order(waits.pass(switch(5, 102, OUT), 0)), []);
        let ended = (Meaning::Sample(UserPart::Deferred(9)), 160);
        let its_own = (Meaning::Stack(Some(9)), 101);
        assert_eq!(order(waits.pass(switch(5, 160, IN), 0)), [ended, its_own]);
        // A thread that waits at the end.
        waits.pass(sample(9), 0);
        waits.pass(stack(9), 0);
        let last: Vec<Meaning> = waits.finish().iter().map(|held| held.meaning).collect();
        assert_eq!(last, [ended.0, its_own.0]);
    }
}
