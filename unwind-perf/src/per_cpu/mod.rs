//! Which events get the stack that a task delivers.
//!
//! A sample asks for the user stack of its task through one client of
//! [`DeferredUnwind`](unwind_core::DeferredUnwind), and the task delivers it on its way to user code,
//! perhaps on another CPU. There are two ways to say who gets it:
//!
//! | [`Policy`] | client | who gets the stack |
//! |---|---|---|
//! | [`FirstLive`](Policy::FirstLive) | one for each profiler | the oldest event that the profiler has on the CPU where the task returns |
//! | [`Broadcast`](Policy::Broadcast) | one for all | every event on that CPU that wants records, as far as it is about the task |
//!
//! | type | what |
//! |---|---|
//! | [`PerCpuRegistry`] | the events of all CPUs, and their clients |
//! | [`CpuEvent`] | an event in it |
//! | [`TaskEvent`] | an event without a CPU, which has work of its own on its task |
//! | [`Receiver`] | one of the two, whichever the event needs |
//! | [`SampledTask`] | whether a task has a user stack at all |
//!
//! # Shape
//!
//! Each CPU has a list of a fixed number of places, and each place one word
//! that says whether an event is live there, which one, and how many
//! deliveries to it run. So whether an event may still be chosen and whether
//! somebody is with it cannot disagree: a removal clears one bit, waits until
//! the count is zero, and is done. What belongs to a profiler, its client and
//! on how many CPUs it has events, is touched only when events come and go.
//!
//! # Contexts
//!
//! | call | where | waits |
//! |---|---|---|
//! | [`request`](PerCpuRegistry::request), [`Receiver::request`] | any, NMI included | never |
//! | [`deliver`](PerCpuRegistry::deliver), [`TaskEvent::run`] | task context | never |
//! | [`add`](PerCpuRegistry::add) | task context | for another one's few steps |
//! | [`remove`](PerCpuRegistry::remove), [`TaskEvent::remove`] | task context | for deliveries to the event and to its client that run |

mod cpu_list;
mod deferral;
mod error;
mod owners;
mod place;
mod receiver;
mod registry;
mod sampled_task;
mod task_event;

pub use cpu_list::CpuList;
pub use deferral::Deferral;
pub use error::{AddError, RemoveError, RequestError};
pub use receiver::Receiver;
#[cfg(feature = "alloc")]
pub use registry::HeapRegistry;
pub use registry::{
    CpuEvent, Delivered, EventKey, EventSpec, FixedRegistry, Leader, PerCpuRegistry, Policy,
    RegistryCounters, TaskKey,
};
pub use sampled_task::SampledTask;
pub use task_event::{SwitchHold, TaskEvent, TaskRun, TaskWork};
