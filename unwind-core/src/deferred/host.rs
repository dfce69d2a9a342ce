//! What the core asks of the system that embeds it.

use core::fmt;

use super::TaskState;

/// The kernel, hypervisor or program around an instance.
///
/// `task` is whatever runs user code: a task of a kernel that returns to user
/// mode, a vCPU of a hypervisor that enters its VM.
pub trait Host {
    /// A task.
    type Task: ?Sized;

    /// Whether an NMI may interrupt a compare-exchange of another context and
    /// make one itself. Where it may not, requests in NMIs are refused.
    const NMI_SAFE_COMPARE_EXCHANGE: bool = true;

    /// How often [`wait_while`](Self::wait_while), as it is by itself, calls
    /// [`relax`](Self::relax) before it gives up. A client whose callback runs for
    /// longer is not cancelled, so choose this by what `relax` does: 2²⁸, the
    /// default, is some ten seconds of spinning, or three days of sleeps of a
    /// millisecond.
    const MAX_RELAXES: u64 = 1 << 28;

    /// The task's block. Any context.
    fn state<'t>(&self, task: &'t Self::Task) -> &'t TaskState;

    /// What the task is at this moment. Any context.
    fn task_kind(&self, task: &Self::Task) -> TaskKind;

    /// Whether this CPU handles an NMI. Any context.
    fn in_nmi(&self) -> bool;

    /// The number of this CPU: the cookies of
    /// [`PerCpuCookies`](super::PerCpuCookies) hold it. Any context; it may be
    /// out of date when it is used.
    fn cpu(&self) -> u32;

    /// Has the task deliver before it runs user code, and takes effect at
    /// once: when it returns, the task will not get back to user code without
    /// a delivery.
    ///
    /// Called by the first request of an entry, before the request is on
    /// record, and again if further ones come between; so it must not matter
    /// how often it is called. A delivery that then finds nothing is in order.
    ///
    /// [`RequestContext::Nmi`] is for a host that cannot do in an NMI what it does
    /// elsewhere. If the NMI arrived on the way to user mode, after the last
    /// check for work, then something has to lead the task there again before
    /// its first user instruction, an interrupt of the CPU to itself for
    /// example.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`] if it cannot be done. The request is refused and
    /// leaves no trace.
    fn schedule(&self, task: &Self::Task, context: RequestContext) -> Result<(), ScheduleError>;

    /// The time for [`ClockCookies`](super::ClockCookies), in any unit. Any
    /// context.
    fn clock(&self) -> u64;

    /// Called again and again by what waits for another CPU or task: spins,
    /// yields or sleeps. Task context.
    fn relax(&self);

    /// Waits until `is_running` says that no delivery runs to a client that is
    /// being cancelled, or gives up: then the cancellation is
    /// [`StillRunning`](super::CancelError::StillRunning). Task context.
    ///
    /// By itself this calls [`relax`](Self::relax), [`MAX_RELAXES`](Self::MAX_RELAXES)
    /// times at most. A host whose callbacks sleep does better to sleep in a queue
    /// of its own: it looks at `is_running` with the queue's lock taken, before
    /// each sleep, and after the guard of a delivery is dropped, the task that
    /// delivers takes the lock and wakes the queue. A bound on the time is for the
    /// host to set. `examples/sleeping_callbacks.rs` of this crate has both halves.
    fn wait_while(&self, is_running: impl Fn() -> bool) {
        relax_while(is_running, Self::MAX_RELAXES, || self.relax());
    }
}

/// Calls `relax` while `is_running` says so, `most` times at most: how the hosts' waits are by
/// themselves. Does not sleep unless `relax` does.
pub fn relax_while(is_running: impl Fn() -> bool, most: u64, relax: impl Fn()) {
    let mut left = most;
    while left > 0 && is_running() {
        relax();
        left = left.wrapping_sub(1);
    }
}

/// What a task is, as far as its stack can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TaskKind {
    /// It runs user code and will return to it.
    User,
    /// It has no user code.
    KernelThread,
    /// It shares the memory of a user task but never returns to user code: an
    /// I/O worker.
    UserWorker,
    /// It will not return to user code any more.
    Exiting,
    /// It has no saved user registers: its first return to user code is still
    /// to come, or the entry saved none.
    NoUserRegisters,
}

/// How an entry's first request comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestContext {
    /// In task context or in an interrupt.
    Normal,
    /// In an NMI.
    Nmi,
}

/// The host could not arrange for a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScheduleError;

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no delivery could be scheduled")
    }
}

impl core::error::Error for ScheduleError {}
