//! An event, and who gets its stacks.

use core::fmt;

use unwind_core::deferred::ClientId;

#[cfg(doc)]
use super::PerCpuRegistry;
use super::chain::PlaceIndex;
use super::place::Generation;

/// Who gets a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DeliveryPolicy {
    /// The oldest live event of the profiler that asked which is about the task, on the
    /// CPU where the task returns: several events of one profiler (cycles and
    /// instructions, say) do not make several records.
    #[default]
    FirstLive,
    /// All live events on the CPU, and of those without a CPU, that
    /// [want records](EventSpec::defer_output) and are about the task. All events share
    /// one client.
    Broadcast,
}

/// A profiler: the group leader of the task that *opens* an event, not of
/// the one that is profiled, nor of one that forks and so gives a child a copy of it
/// ([`PerCpuRegistry::inherit`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupLeader(pub u64);

/// An event, by a number of the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventKey(pub u64);

/// A task, by a number of the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskKey(pub u64);

/// An event that is to be added.
#[derive(Clone, Copy, Debug)]
pub struct EventSpec {
    /// Who creates it.
    pub leader: GroupLeader,
    /// The CPU on which the event counts; negative for any CPU, which
    /// [`DeliveryPolicy::Broadcast`] takes for an event that is bound to a task.
    pub cpu: i32,
    /// The only task that the event counts, if it is bound to one.
    pub task: Option<TaskKey>,
    /// The host's name for the event: deliveries pass it on.
    pub key: EventKey,
    /// Whether the event gets records under [`DeliveryPolicy::Broadcast`]:
    /// `defer_output`.
    pub defer_output: bool,
}

/// An event in a registry. No other registry accepts it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CpuEvent {
    pub(super) generation: Generation,
    pub(super) client: ClientId,
    pub(super) cpu: Option<u32>,
    pub(super) at: PlaceIndex,
}

impl CpuEvent {
    /// The client through which the event asks for stacks.
    #[must_use]
    pub const fn client(&self) -> ClientId {
        self.client
    }

    /// The CPU on which it counts; `None` for any.
    #[must_use]
    pub const fn cpu(&self) -> Option<u32> {
        self.cpu
    }
}

impl fmt::Debug for CpuEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cpu {
            Some(cpu) => write!(f, "CpuEvent({cpu}#{})", self.generation.0),
            None => write!(f, "CpuEvent(any#{})", self.generation.0),
        }
    }
}
