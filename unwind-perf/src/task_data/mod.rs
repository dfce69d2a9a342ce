//! Data that a PMU keeps for each task: the hardware's call stack while the
//! task does not run.
//!
//! Hardware that records calls (LBR) knows nothing of tasks. At a context
//! switch the record is saved with the task that leaves and restored for the
//! task that comes; otherwise a system-wide profile has only the calls since
//! the last switch. The memory for the record exists only while a profiler uses
//! it: an event of one task allocates it for that task, an event of the whole
//! system for every task that exists and every task that is created later.
//!
//! | type | what |
//! |---|---|
//! | [`TaskData`] | the block of a task: one word |
//! | [`TaskDataUsers`] | who needs the data: attach, detach, fork, exit |
//! | [`DataHandle`], [`DataLayout`] | the memory itself, which belongs to the host |
//! | [`SwitchHook`] | when a context switch has to save and restore |
//!
//! # One word
//!
//! The handle, the number of users, the mark of the system-wide events and
//! whether the task is exiting are one word, so each change is one
//! compare-exchange that sees all of it. An object without users cannot be
//! found, a mark never lacks its reference, and nothing attaches to a task
//! after its exit.
//!
//! # Contexts
//!
//! | call | where | waits |
//! |---|---|---|
//! | [`TaskData::handle`], [`SwitchHook::switch`] | context switch, NMI | never |
//! | [`TaskDataUsers::exit`] | exit | never |
//! | [`TaskDataUsers::fork`], [`TaskDataUsers::moved`] | task context | never; may allocate |
//! | [`attach_task`](TaskDataUsers::attach_task), [`detach_task`](TaskDataUsers::detach_task) | task context | never; may allocate |
//! | [`attach_all`](TaskDataUsers::attach_all), [`detach_all`](TaskDataUsers::detach_all), [`refilter`](TaskDataUsers::refilter) | task context | for another one's walk over the tasks |

mod attachment;
mod handle;
mod host;
mod switch;
mod system_wide;
mod task;
mod users;

pub use attachment::{
    AllAttachment, AttachError, AttachState, DetachError, DetachReason, TaskAttachment,
};
pub use handle::{DataHandle, DataLayout};
pub use host::DataHost;
pub use switch::{Switch, SwitchHook, UserCount};
pub use task::TaskData;
pub use users::{DataCounters, TaskDataUsers};
