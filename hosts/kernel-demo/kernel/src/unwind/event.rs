//! The kinds of events, and the registries that they are in: one for each policy.

use demo_format::{CYCLES, FOLLOWER, INSTRUCTIONS, OWN, SPANS, WATCHER};
use unwind_perf::per_cpu::{CpuList, DeliveryPolicy, PerCpuRegistry};

use crate::cpu::CPUS;

/// Places for events in a list.
const PLACES: usize = 4;
/// Lists for CPUs whose own are full.
const SPARE: usize = 4 * CPUS;

pub(super) type Registry = PerCpuRegistry<[CpuList<PLACES>; CPUS + SPARE], PLACES>;

pub(super) static FIRST_LIVE: Registry = registry(DeliveryPolicy::FirstLive);
pub(super) static BROADCAST: Registry = registry(DeliveryPolicy::Broadcast);

const fn registry(policy: DeliveryPolicy) -> Registry {
    Registry::with_spare(policy, [const { CpuList::new() }; CPUS + SPARE], CPUS)
}

/// An event, of each CPU or of a task.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Cycles,
    Instructions,
    Watcher,
    Spans,
    /// That of a profiler that follows tasks.
    Follower,
    /// One that is a task's own.
    Own,
}

/// How many there are.
pub(super) const EVENTS: usize = Event::ALL.len();

impl Event {
    pub(crate) const ALL: [Self; 6] =
        [Self::Cycles, Self::Instructions, Self::Watcher, Self::Spans, Self::Follower, Self::Own];

    /// Those that each CPU has.
    pub(super) const OF_CPUS: [Self; 4] =
        [Self::Cycles, Self::Instructions, Self::Watcher, Self::Spans];

    /// Its number in the records.
    pub(crate) const fn number(self) -> u64 {
        match self {
            Self::Cycles => CYCLES,
            Self::Instructions => INSTRUCTIONS,
            Self::Watcher => WATCHER,
            Self::Spans => SPANS,
            Self::Follower => FOLLOWER,
            Self::Own => OWN,
        }
    }

    pub(super) fn registry(self) -> &'static Registry {
        match self {
            Self::Cycles | Self::Instructions | Self::Follower | Self::Own => &FIRST_LIVE,
            Self::Watcher | Self::Spans => &BROADCAST,
        }
    }

    /// Whether samples of it are joined with the branch record.
    pub(super) const fn has_branches(self) -> bool {
        matches!(self, Self::Cycles | Self::Instructions)
    }
}
