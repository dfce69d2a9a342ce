//! Whom a sample is of.

use super::TaskKey;

/// A group of tasks, by a number of the host's: a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupKey(pub u64);

/// Whom a sample or a stack is of: a task, and the groups that it is in at this moment.
///
/// A [`TaskKey`] is in no group. A host with groups passes a type of its own, which looks into
/// the task:
///
/// ```
/// use unwind_perf::per_cpu::{GroupKey, Subject, TaskKey};
///
/// /// Groups within groups: each is in its parent, too.
/// struct Group { id: u64, parent: Option<&'static Group> }
/// #[derive(Clone, Copy)]
/// struct Task { id: u64, group: &'static Group }
///
/// impl Subject for Task {
///     fn key(self) -> TaskKey { TaskKey(self.id) }
///     fn is_in(self, group: GroupKey) -> bool {
///         let of = |group: &&'static Group| group.parent;
///         core::iter::successors(Some(self.group), of).any(|it| it.id == group.0)
///     }
/// }
/// ```
pub trait Subject: Copy {
    /// The task.
    fn key(self) -> TaskKey;

    /// Whether the task is in `group`, or in a group within it. Any context, NMI included: it
    /// neither locks, allocates nor faults.
    fn is_in(self, group: GroupKey) -> bool;
}

impl Subject for TaskKey {
    fn key(self) -> TaskKey {
        self
    }

    fn is_in(self, _: GroupKey) -> bool {
        false
    }
}

/// Whose samples an event counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    /// Those of all tasks.
    All,
    /// Those of one.
    Task(TaskKey),
    /// Those of the tasks in a group.
    Group(GroupKey),
}

impl Filter {
    pub(super) const fn task(task: Option<TaskKey>) -> Self {
        match task {
            Some(task) => Self::Task(task),
            None => Self::All,
        }
    }

    /// As a number, and what that is of.
    pub(super) const fn to_bits(self) -> (u64, u64) {
        match self {
            Self::All => (0, 0),
            Self::Task(task) => (Self::TASK, task.0),
            Self::Group(group) => (Self::GROUP, group.0),
        }
    }

    const TASK: u64 = 1;
    const GROUP: u64 = 2;

    pub(super) const fn from_bits(kind: u64, key: u64) -> Self {
        match kind {
            Self::TASK => Self::Task(TaskKey(key)),
            Self::GROUP => Self::Group(GroupKey(key)),
            _ => Self::All,
        }
    }

    pub(super) fn is_about(self, subject: impl Subject) -> bool {
        match self {
            Self::All => true,
            Self::Task(task) => subject.key() == task,
            Self::Group(group) => subject.is_in(group),
        }
    }
}
