//! What an event holds while it uses the data of tasks.

use core::fmt;

use super::DataHandle;
use crate::Errno;
use crate::instance::InstanceNumber;

/// An event of a task uses the task's data for as long as it holds this value.
/// Give the value back by
/// [`TaskDataUsers::detach_task`](super::TaskDataUsers::detach_task) of the
/// users that made it, with the task that it is attached to.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the data stays until it is given back"]
#[expect(missing_copy_implementations, reason = "it is given back once")]
pub struct TaskAttachment {
    pub(super) users: InstanceNumber,
    pub(super) handle: DataHandle,
}

impl TaskAttachment {
    /// The flag of Linux's `attach_state` for it.
    pub const STATE: AttachState = AttachState::TASK_DATA;
}

/// A system-wide event uses the data of all tasks for as long as it holds this
/// value. Give the value back by
/// [`TaskDataUsers::detach_all`](super::TaskDataUsers::detach_all) of the users
/// that made it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the data stays until it is given back"]
#[expect(missing_copy_implementations, reason = "it is given back once")]
pub struct AllAttachment {
    pub(super) users: InstanceNumber,
}

impl AllAttachment {
    /// The flag of Linux's `attach_state` for it.
    pub const STATE: AttachState = AttachState::GLOBAL_DATA;
}

/// Flags of an event's `attach_state`, as Linux numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttachState(u32);

impl AttachState {
    /// `PERF_ATTACH_TASK_DATA`: the event holds the data of its task.
    pub const TASK_DATA: Self = Self(0x0008);
    /// `PERF_ATTACH_GLOBAL_DATA`: the event holds the data of all tasks.
    pub const GLOBAL_DATA: Self = Self(0x0010);
    /// `PERF_ATTACH_ITRACE`: the event traces instructions. It had the value
    /// that is [`GLOBAL_DATA`](Self::GLOBAL_DATA)'s before that existed.
    pub const ITRACE: Self = Self(0x0200);

    /// The bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

/// Why an event cannot have the data it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AttachError {
    /// The PMU keeps no data of tasks.
    NoLayout,
    /// The host has no memory.
    NoMemory,
    /// The task has exited.
    Exiting,
    /// More users than can be counted.
    TooManyUsers,
}

impl AttachError {
    /// What Linux gives back.
    #[must_use]
    pub const fn errno(self) -> Errno {
        match self {
            Self::NoLayout | Self::NoMemory => Errno::NoMemory,
            Self::Exiting => Errno::NoSuchProcess,
            Self::TooManyUsers => Errno::Busy,
        }
    }
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoLayout => "the PMU keeps no data of tasks",
            Self::NoMemory => "no memory for the data of a task",
            Self::Exiting => "the task has exited",
            Self::TooManyUsers => "too many users of the data of a task",
        })
    }
}

impl core::error::Error for AttachError {}

/// An attachment was given back in the wrong place. Nothing has changed, and
/// the attachment is returned.
#[derive(Debug, PartialEq, Eq)]
pub struct DetachError<A> {
    /// What is wrong.
    pub reason: DetachReason,
    /// A [`TaskAttachment`] or an [`AllAttachment`].
    pub attachment: A,
}

/// Why an attachment cannot be given back here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DetachReason {
    /// It is not an attachment to this task.
    OtherTask,
    /// It is an attachment of other [users](super::TaskDataUsers).
    OtherUsers,
}

impl fmt::Display for DetachReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherTask => "not attached to this task",
            Self::OtherUsers => "an attachment of other users of task data",
        })
    }
}

impl<A> fmt::Display for DetachError<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl<A: fmt::Debug> core::error::Error for DetachError<A> {}
