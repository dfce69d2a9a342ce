//! Why an event is not added, not removed, or gets no stack.

use core::fmt;

use unwind_core::deferred::{CancelError, ClientId, Refusal};

use crate::Errno;

/// Why an event was not added. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AddError {
    /// The event is not bound to a CPU, and to no task either if it may go
    /// without a CPU.
    NoCpu,
    /// The event that is to be inherited has been removed, or is another registry's.
    NoParent,
    /// The event is to be about a task and about a group.
    TaskAndGroup,
    /// There is no CPU with this number.
    CpuOutOfRange {
        /// The number.
        cpu: u32,
    },
    /// All places of the CPU and all spare lists are taken, or there is no memory for them.
    NoMemory,
    /// The deferral core has no place for another client.
    Busy,
    /// There are no numbers for events any more: 2⁴⁴ were added since the start.
    Exhausted,
}

impl AddError {
    /// What Linux gives back.
    #[must_use]
    pub const fn errno(self) -> Errno {
        match self {
            Self::NoCpu | Self::NoParent | Self::TaskAndGroup | Self::CpuOutOfRange { .. } => {
                Errno::InvalidArgument
            }
            Self::NoMemory => Errno::NoMemory,
            Self::Busy | Self::Exhausted => Errno::Busy,
        }
    }
}

impl fmt::Display for AddError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCpu => f.write_str("the event has no cpu"),
            Self::NoParent => f.write_str("the event to inherit has been removed"),
            Self::TaskAndGroup => f.write_str("the event is about a task and about a group"),
            Self::CpuOutOfRange { cpu } => write!(f, "there is no cpu {cpu}"),
            Self::NoMemory => f.write_str("no room for another event on the cpu"),
            Self::Busy => f.write_str("no room for another client"),
            Self::Exhausted => f.write_str("the numbers for events are used up"),
        }
    }
}

impl core::error::Error for AddError {}

/// Why an event was not removed, or its profiler's client not cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RemoveError {
    /// It has been removed before, or is another registry's. Nothing has
    /// changed.
    Removed,
    /// The caller is in a delivery that the removal would have to wait for.
    /// Nothing has changed.
    OwnDelivery,
    /// A delivery to the event, or its work, does not end. Requests are
    /// refused and no delivery starts any more, but the event is still in use.
    ///
    /// An event of a CPU may be freed when the registry's
    /// [`is_running`](super::PerCpuRegistry::is_running) is false. For an event
    /// that follows a task, remove it again to continue waiting.
    StillRunning {
        /// The client that is still to be cancelled, by the core, if the event
        /// was the last one of its profiler.
        client: Option<ClientId>,
    },
    /// The event is removed, it was the last one of its profiler, and the core
    /// has not cancelled the [client](super::CpuEvent::client): this is not the
    /// core that the event was added with, or other code has cancelled the
    /// client, or a delivery to the client does not end. In the last case the
    /// client is still to be cancelled.
    NotCancelled(CancelError),
}

impl RemoveError {
    /// What Linux would give back.
    #[must_use]
    pub const fn errno(self) -> Errno {
        match self {
            Self::Removed | Self::NotCancelled(_) => Errno::InvalidArgument,
            Self::OwnDelivery => Errno::WouldDeadlock,
            Self::StillRunning { .. } => Errno::Busy,
        }
    }
}

impl fmt::Display for RemoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Removed => f.write_str("the event has been removed"),
            Self::OwnDelivery => f.write_str("an event cannot be removed by its own delivery"),
            Self::StillRunning { .. } => f.write_str("a delivery to the event does not end"),
            Self::NotCancelled(error) => write!(f, "the event is removed, but {error}"),
        }
    }
}

impl core::error::Error for RemoveError {}

/// Why a sample gets no stack later. The sample's stack may be walked at once,
/// as far as the sample's context permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestError {
    /// The task has no user stack.
    NotUser,
    /// The event has been removed.
    Removed,
    /// The event is bound to another task, or to a group that the task is not in. No event may
    /// ask for the stack of a task that it does not count.
    OtherTask,
    /// The sample has interrupted another one of its event, of which it is not
    /// known yet whether it gets a stack.
    Queueing,
    /// The deferral core has refused.
    Refused(Refusal),
}

impl RequestError {
    /// What Linux gives back.
    #[must_use]
    pub const fn errno(self) -> Errno {
        Errno::InvalidArgument
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotUser => f.write_str("the task has no user stack"),
            Self::Removed => f.write_str("the event has been removed"),
            Self::OtherTask => f.write_str("the event is bound to another task"),
            Self::Queueing => f.write_str("another request of the event is under way"),
            Self::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl core::error::Error for RequestError {}
