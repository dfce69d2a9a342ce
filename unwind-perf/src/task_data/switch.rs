//! When a context switch has to save and restore.

use core::fmt;

use super::{DataHandle, TaskData};
use crate::sync::{AtomicU32, Ordering, const_unless_loom};

/// The block of a CPU and a PMU: whether anyone on this CPU uses hardware that
/// is shared by its tasks.
///
/// Events of a task count while they are on the CPU, events of the CPU while
/// they are enabled; a PMU that has only the latter needs its hook all the
/// same.
#[derive(Debug)]
pub struct SwitchHook {
    users: AtomicU32,
}

impl SwitchHook {
    const_unless_loom! {
        /// The block of a CPU that no event profiles.
        #[must_use]
        pub fn new() -> Self {
            Self { users: AtomicU32::new(0) }
        }
    }

    /// An event starts to use the hardware on this CPU. Returns whether it is
    /// the first: what the hardware holds is then of no use to anyone.
    ///
    /// # Errors
    ///
    /// [`UserCount::TooMany`]; it does not count then.
    pub fn add_user(&self) -> Result<bool, UserCount> {
        let before = self.change(|users| users.checked_add(1).ok_or(UserCount::TooMany))?;
        Ok(before == 0)
    }

    /// An event that was [added](Self::add_user) has stopped using it. Returns
    /// whether it was the last.
    ///
    /// # Errors
    ///
    /// [`UserCount::None`] if there is no such event; nothing has changed then.
    pub fn remove_user(&self) -> Result<bool, UserCount> {
        let before = self.change(|users| users.checked_sub(1).ok_or(UserCount::None))?;
        Ok(before == 1)
    }

    /// How many events use the hardware on this CPU.
    #[must_use]
    pub fn users(&self) -> u32 {
        self.users.load(Ordering::Relaxed)
    }

    /// Changes the number of users, and returns what it was. A switch reads the
    /// number only, so no other access needs an order.
    fn change(&self, change: impl Fn(u32) -> Result<u32, UserCount>) -> Result<u32, UserCount> {
        let mut users = self.users();
        loop {
            let changed = change(users)?;
            let (done, failed) = (Ordering::Relaxed, Ordering::Relaxed);
            match self.users.compare_exchange(users, changed, done, failed) {
                Ok(before) => return Ok(before),
                Err(found) => users = found,
            }
        }
    }

    /// What the switch from one task to another has to do, or `None` if
    /// nothing. To be called at every switch, in a read section, with `None`
    /// for a task that carries no block, the idle task for example.
    ///
    /// Data also counts when no event uses the hardware: the data becomes out
    /// of date while its task runs unrecorded.
    #[must_use]
    pub fn switch(&self, from: Option<&TaskData>, to: Option<&TaskData>) -> Option<Switch> {
        let (from, to) = (from.and_then(TaskData::handle), to.and_then(TaskData::handle));
        let due = self.users() != 0 || from.is_some() || to.is_some();
        due.then_some(Switch { from, to })
    }
}

impl Default for SwitchHook {
    fn default() -> Self {
        Self::new()
    }
}

/// Users of the hardware that cannot be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UserCount {
    /// As many as can be counted are there.
    TooMany,
    /// One went that had not come.
    None,
}

impl fmt::Display for UserCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooMany => "too many users of the hardware of a cpu",
            Self::None => "the hardware of the cpu has no user to remove",
        })
    }
}

impl core::error::Error for UserCount {}

/// A context switch that concerns the hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Switch {
    /// Where the state of the task that leaves goes, if it has a place.
    pub from: Option<DataHandle>,
    /// Where the state of the task that comes is. Without one the hardware has
    /// to be cleared: what it holds is not this task's.
    pub to: Option<DataHandle>,
}
