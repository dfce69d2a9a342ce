//! Which events get the stack that a task delivers.
//!
//! A sample asks for the user stack of its task through one client of
//! [`DeferredUnwind`](unwind_core::deferred::DeferredUnwind), and the task delivers it on
//! its way to user code, perhaps on another CPU. There are two ways to choose
//! the events that get the stack:
//!
//! | [`DeliveryPolicy`] | client | who gets the stack |
//! |---|---|---|
//! | [`FirstLive`](DeliveryPolicy::FirstLive) | one for each profiler | the oldest event about the task that the profiler has on the CPU where the task returns |
//! | [`Broadcast`](DeliveryPolicy::Broadcast) | one for all | every event on that CPU, or without a CPU, that wants records and is about the task |
//!
//! | type | what |
//! |---|---|
//! | [`PerCpuRegistry`] | the events of all CPUs, and their clients |
//! | [`CpuEvent`] | an event in it |
//! | [`TaskEvent`] | an event without a CPU, which has work of its own on its task: under [`FirstLive`](DeliveryPolicy::FirstLive) |
//! | [`Receiver`] | one of the two, whichever the event needs |
//! | [`SampledTask`] | whether a task has a user stack at all |
//! | [`Subject`] | a task and its groups, for events about one task or about a group |
//!
//! # Shape
//!
//! Each CPU has a list of a fixed number of places, which spare lists continue where that
//! is too few (a profiled program that forks has an event on each CPU for each of its
//! processes: [`inherit`](PerCpuRegistry::inherit)). Each place has one word
//! that says whether an event is live there, which one, and how many
//! deliveries to it run. So whether an event may still be chosen and whether a
//! delivery to it runs cannot disagree: a removal clears one bit and waits
//! until the count is zero. A profiler's client and the number of CPUs on which
//! it has events change only when events are added and removed.
//!
//! # Example
//!
//! One sample on CPU 0, of a task that returns there:
//!
//! ```
//! # use unwind_core::deferred::*;
//! # use unwind_core::*;
//! # struct Kernel;
//! # impl Host for Kernel {
//! #     type Task = TaskState;
//! #     fn state<'t>(&self, task: &'t TaskState) -> &'t TaskState { task }
//! #     fn task_kind(&self, _: &TaskState) -> TaskKind { TaskKind::User }
//! #     fn in_nmi(&self) -> bool { false }
//! #     fn cpu(&self) -> u32 { 0 }
//! #     fn schedule(&self, _: &TaskState, _: RequestContext) -> Result<(), ScheduleError> { Ok(()) }
//! #     fn clock(&self) -> u64 { 0 }
//! #     fn relax(&self) {}
//! # }
//! use unwind_perf::per_cpu::{EventKey, EventSpec, FixedRegistry, GroupLeader, DeliveryPolicy, TaskKey};
//!
//! static UNWIND: DeferredUnwind<Kernel> = DeferredUnwind::new(Kernel, SerialCookies::new());
//! static EVENTS: FixedRegistry<8, 4> = FixedRegistry::new(DeliveryPolicy::FirstLive);
//!
//! let (profiler, cycles) = (GroupLeader(100), EventKey(7));
//! let spec =
//!     EventSpec { leader: profiler, cpu: 0, task: None, key: cycles, defer_output: false };
//! let event = EVENTS.add(&UNWIND, spec).unwrap();
//!
//! // In the NMI.
//! let task = TaskState::new();
//! let cookie = EVENTS.request(&UNWIND, &task, TaskKey(1), &event).unwrap();
//!
//! // On the way to user code. The walk, left out here, fills the trace.
//! let mut cache = UnwindCache::<[_; 127]>::new();
//! let walk = |trace: &mut Trace| trace.clear();
//! let mut delivery = UNWIND.deliver(&task, Recipients::Requesters, Some(&mut cache), walk);
//! while let Some(guard) = delivery.next() {
//!     assert_eq!(guard.cookie(), cookie);
//!     let write = |event| if event == cycles { Ok(()) } else { Err("another event's") };
//!     let delivered = EVENTS.deliver(guard.client(), 0, TaskKey(1), write);
//!     assert_eq!(delivered.written, 1);
//! }
//! # drop(delivery);
//! # assert_eq!(UNWIND.user_return(&task), UserReturn::Ready);
//! EVENTS.remove(&UNWIND, Some(&task), event).unwrap();
//! ```
//!
//! # Contexts
//!
//! | call | where | waits |
//! |---|---|---|
//! | [`request`](PerCpuRegistry::request), [`Receiver::request`] | any, NMI included | never |
//! | [`deliver`](PerCpuRegistry::deliver), [`TaskEvent::run`] | task context | never |
//! | [`add`](PerCpuRegistry::add), [`inherit`](PerCpuRegistry::inherit) | task context | for another one's few steps |
//! | [`remove`](PerCpuRegistry::remove), [`TaskEvent::remove`] | task context | for deliveries to the event and to its client that run |

mod chain;
mod cpu_list;
mod deferral;
mod error;
mod event;
mod owners;
mod place;
mod receiver;
mod registry;
mod sampled_task;
mod subject;
mod task_event;

pub use cpu_list::CpuList;
pub use deferral::Deferral;
pub use error::{AddError, RemoveError, RequestError};
pub use event::{CpuEvent, DeliveryPolicy, EventKey, EventSpec, GroupLeader, TaskKey};
pub use receiver::Receiver;
#[cfg(feature = "alloc")]
pub use registry::HeapRegistry;
pub use registry::{Delivered, FixedRegistry, PerCpuRegistry, RegistryCounters};
pub use sampled_task::SampledTask;
pub use subject::{GroupKey, Subject};
pub use task_event::{SwitchHold, TaskEvent, TaskRun, TaskWork};
