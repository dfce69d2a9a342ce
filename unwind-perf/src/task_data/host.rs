//! What the users of task data ask of the system around them.

use super::{DataHandle, DataLayout, TaskData};

/// The kernel or hypervisor around the tasks.
pub trait DataHost {
    /// A counted reference to a task: the task's block stays while it lives.
    type Task;

    /// The task's block.
    fn data<'t>(&'t self, task: &'t Self::Task) -> &'t TaskData;

    /// Whether a system-wide event is about the task: always, unless there is a filter, as for
    /// events about the tasks of a cgroup. Any other task has data only if an event of its own
    /// needs it.
    ///
    /// Who changes the answer for many tasks calls [`refilter`] afterwards, and who changes it
    /// for one, [`moved`].
    ///
    /// [`refilter`]: super::TaskDataUsers::refilter
    /// [`moved`]: super::TaskDataUsers::moved
    fn is_wanted(&self, _: &Self::Task) -> bool {
        true
    }

    /// Allocates a piece of memory, in the state that the PMU starts from
    /// (zeroes for LBR), or returns `None` if there is none. Task context.
    fn alloc(&self, layout: DataLayout) -> Option<DataHandle>;

    /// Frees a piece that no task has ever had. Task context.
    fn free(&self, handle: DataHandle);

    /// Frees a piece that a task had, as soon as every read section that is
    /// open at this moment has ended. Returns at once.
    ///
    /// A read section is what a context switch or an NMI opens before it asks
    /// a task for its [`handle`](TaskData::handle), and closes when it is done
    /// with the memory. In Linux it is RCU's.
    ///
    /// Called at exit too.
    fn free_after_readers(&self, handle: DataHandle);

    /// The tasks one by one in a fixed order, by number for example: the first
    /// one if `after` is `None`, else the one that comes next after it, even if
    /// `after` is gone by now.
    ///
    /// A task that was there before [`attach_all`] or [`detach_all`] was
    /// called, and still is, is seen by their walk. One that appears later may
    /// or may not be.
    ///
    /// [`attach_all`]: super::TaskDataUsers::attach_all
    /// [`detach_all`]: super::TaskDataUsers::detach_all
    fn next_task(&self, after: Option<&Self::Task>) -> Option<Self::Task>;

    /// Called repeatedly during a wait for another caller's walk over the
    /// tasks: spins, yields or sleeps.
    fn relax(&self);
}
