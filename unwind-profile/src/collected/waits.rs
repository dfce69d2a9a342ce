//! What samples weigh: the CPU time that they stand for, and waits of threads among them
//! (`unwind report --off-cpu`).

use std::collections::HashMap;

use unwind_perf::record::{Attr, AttrFlags};

use crate::recording::events::{Event, Events};
use crate::walks::shown::Shown;

/// How many samples waits stand for: as many as their threads would have had if they had run
/// in the meantime. So the widths of a thread's stacks are shares of its whole time.
#[derive(Debug, Default)]
pub(crate) struct WaitCounts {
    /// Whether waits are shown.
    pub(crate) are_shown: bool,
    /// What is left over of each thread's waits, in billionths of a sample.
    rest: HashMap<u32, u64>,
}

/// The rate if a recording does not say it, in samples a second.
const USUAL_RATE: u64 = 1_000;

const NANOSECONDS: u64 = 1_000_000_000;

impl WaitCounts {
    /// How many samples a wait stands for; `None` if the sample is not of a wait.
    pub(crate) fn count(&mut self, events: &Events, shown: &Shown) -> Option<u64> {
        let event = events.get(shown.held.event)?;
        if !event.is_of_waits() {
            return None;
        }
        if !self.are_shown {
            return Some(0);
        }
        let rate = rate(events);
        Some(self.of_time(shown.held.task.tid, shown.held.period().unwrap_or(0), rate))
    }

    fn of_time(&mut self, thread: u32, nanoseconds: u64, rate: u64) -> u64 {
        let rest = self.rest.entry(thread).or_default();
        let all = nanoseconds.saturating_mul(rate).saturating_add(*rest);
        *rest = all % NANOSECONDS;
        all / NANOSECONDS
    }
}

/// How many samples waits without a stack stand for.
pub(crate) fn of_unseen(events: &Events, nanoseconds: u64) -> u64 {
    nanoseconds.saturating_mul(rate(events)) / NANOSECONDS
}

/// How many nanoseconds of CPU time a sample stands for; zero if its event does not tell, or another
/// one before it does.
pub(crate) fn cpu_time(events: &Events, shown: &Shown) -> u64 {
    let first = events.all().iter().position(|event| time_of(event, None).is_some());
    if first != Some(shown.held.event) {
        return 0;
    }
    let event = events.get(shown.held.event);
    event.and_then(|event| time_of(event, shown.held.period())).unwrap_or(0)
}

/// The nanoseconds of CPU time of a sample with this period, if the event tells them.
fn time_of(event: &Event, period: Option<u64>) -> Option<u64> {
    let Attr { kind, config, sample_period, format, .. } = event.attr;
    let is_by_rate = format.flags.contains(AttrFlags::FREQ);
    match kind {
        // Clocks count nanoseconds.
        1 if config <= 1 && !is_by_rate => Some(period.unwrap_or(sample_period)),
        1 if config <= 1 => period.or_else(|| NANOSECONDS.checked_div(sample_period)),
        // What the CPU counts: the kernel takes as many samples in a second of running as asked for.
        0 | 4 if is_by_rate => NANOSECONDS.checked_div(sample_period),
        _ => None,
    }
}

/// How many samples a second of running has.
fn rate(events: &Events) -> u64 {
    let running = events.all().iter().find(|event| !event.is_of_waits());
    let rate = running.and_then(|event| match event.attr {
        Attr { sample_period, format, .. } if format.flags.contains(AttrFlags::FREQ) => {
            Some(sample_period)
        }
        // Clocks count nanoseconds.
        Attr { kind: 1, config: 0 | 1, sample_period, .. } => {
            NANOSECONDS.checked_div(sample_period)
        }
        _ => None,
    });
    rate.filter(|&rate| rate > 0).unwrap_or(USUAL_RATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d14_waits_stand_for_the_samples_that_would_have_been_and_nothing_is_lost_by_rounding() {
        let mut waits = WaitCounts::default();
        assert_eq!(waits.of_time(1, NANOSECONDS, 999), 999);
        // A thousand waits of 0.6 samples each.
        let sum: u64 = (0..1_000).map(|_| waits.of_time(2, 600_000, 1_000)).sum();
        assert_eq!(sum, 600);
        assert_eq!(waits.of_time(3, 600_000, 1_000), 0);
    }
}
