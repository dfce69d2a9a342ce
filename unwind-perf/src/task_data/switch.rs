//! When a context switch has to save and restore.

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
        /// The block of a CPU that nobody profiles.
        #[must_use]
        pub fn new() -> Self {
            Self { users: AtomicU32::new(0) }
        }
    }

    /// An event starts to use the hardware on this CPU. Returns whether it is
    /// the first: what the hardware holds is then of no use to anyone.
    pub fn add_user(&self) -> bool {
        self.users.fetch_add(1, Ordering::AcqRel) == 0
    }

    /// An event that was [added](Self::add_user) has stopped using it. Returns
    /// whether it was the last.
    pub fn remove_user(&self) -> bool {
        self.users.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// How many events use the hardware on this CPU.
    #[must_use]
    pub fn users(&self) -> u32 {
        self.users.load(Ordering::Acquire)
    }

    /// What the switch from one task to another has to do, or `None` if
    /// nothing. To be called at every switch, in a read section, with `None`
    /// for a task that carries no block, the idle task for example.
    ///
    /// Data also counts when nobody uses the hardware: what it holds goes out
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
