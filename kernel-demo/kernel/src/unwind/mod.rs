//! The unwinder, embedded. This folder is what a kernel has to write to have
//! one; all else in this crate is a small kernel around it.
//!
//! | hook | where it is called | file |
//! |---|---|---|
//! | what the unwinder asks of the kernel | by the unwinder, in any context | [`host`] |
//! | a sample is due | the NMI | [`sampler`] |
//! | a system call begins | [`kernel_entry`] | [`tracer`] |
//! | a task goes back to user mode | [`leave`], on every way out | [`delivery`] |
//! | a task starts, forks, executes another program or ends | `task/life.rs` | [`delivery`], [`branches`] |
//! | the CPU switches tasks | `task/schedule.rs`, by the hook of [`register`] | [`branches`], [`aux_trace`] |
//! | kernel frames | the NMI | [`kernel_stack`] |
//! | user frames | a delivery; an NMI that may not defer | [`user_stack`] |
//! | records out | the NMI, deliveries, life-cycle events | [`stream`] |
//!
//! [`kernel_entry`]: crate::entry
//! [`leave`]: crate::entry

pub(crate) mod aux_trace;
pub(crate) mod branches;
mod counter;
pub(crate) mod delivery;
pub(crate) mod event;
pub(crate) mod events;
pub(crate) mod followers;
mod host;
pub(crate) mod kernel_modules;
pub(crate) mod kernel_stack;
pub(crate) mod panic_trace;
pub(crate) mod rows;
pub(crate) mod sampler;
pub(crate) mod shared_trace;
pub(crate) mod stream;
pub(crate) mod tracer;
pub(crate) mod user_stack;

use core::sync::atomic::{AtomicU64, Ordering};

use unwind_core::Trace;
use unwind_core::deferred::{ClientId, Cookie, DeferredUnwind, SerialCookies};

use self::host::Kernel;
use crate::each_cpu::online;
use crate::task::schedule;
use crate::task::state::Task;

/// The kernel's one instance.
pub(crate) static UNWIND: DeferredUnwind<Kernel, SerialCookies> =
    DeferredUnwind::new(Kernel, SerialCookies::new());

/// The clients that ask for stacks. Each has one registration, and its own
/// event in the records.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Client {
    /// The NMI.
    Profiler,
    /// The system-call tracer.
    Tracer,
}

static IDS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

impl Client {
    const ALL: [Self; 2] = [Self::Profiler, Self::Tracer];

    /// The number of its event in the records.
    pub(crate) const fn event(self) -> u64 {
        match self {
            Self::Profiler => demo_format::PROFILER,
            Self::Tracer => demo_format::TRACER,
        }
    }

    /// Its registration. Before [`register`] it is one that is refused.
    pub(crate) fn id(self) -> ClientId {
        ClientId::from_bits(IDS[self as usize].load(Ordering::Relaxed))
    }

    /// Whose registration `id` is.
    pub(crate) fn from_id(id: ClientId) -> Option<Self> {
        Self::ALL.into_iter().find(|client| client.id() == id)
    }
}

/// The events that hear of all tasks. On several CPUs those of a registry stand for the
/// profiler.
fn events_of_all_tasks() -> &'static [u64] {
    if is_on_several_cpus() {
        use demo_format::{CYCLES, FOLLOWER, OWN, TRACER, WATCHER};
        &[CYCLES, WATCHER, TRACER, FOLLOWER, OWN]
    } else {
        &[demo_format::PROFILER, demo_format::TRACER]
    }
}

/// Whether the scenario is that of several CPUs.
pub(crate) fn is_on_several_cpus() -> bool {
    online() > 1
}

/// Hands a stack to a client. Task context.
fn hand_out(task: &Task, client: ClientId, cookie: Cookie, trace: &Trace) {
    let Some(known) = Client::from_id(client) else {
        return events::deliver(task, client, cookie, trace);
    };
    // What is lost is counted by the ring.
    let _ = stream::write_stack(task, known.event(), cookie, trace);
    if known == Client::Profiler {
        branches::compare(task, cookie, trace);
    }
}

/// Registers all clients, and the hook of the scheduler. Once, before anything
/// is sampled.
pub(crate) fn register() {
    schedule::set_hook(switch);
    for client in Client::ALL {
        if client == Client::Profiler && is_on_several_cpus() {
            events::add_all();
            continue;
        }
        match UNWIND.register() {
            Ok(id) => IDS[client as usize].store(id.to_bits(), Ordering::Relaxed),
            Err(error) => panic!("{error}"),
        }
    }
}

/// The context switch, on the way from one task to the other. Interrupts are
/// off.
fn switch(from: &Task, to: &Task) {
    branches::switch(from, to);
    aux_trace::schedule(from, false);
    aux_trace::schedule(to, true);
}
