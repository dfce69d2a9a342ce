//! A host for models of several CPUs.

#![allow(dead_code, unreachable_pub, reason = "each model uses a part of it")]

use core::sync::atomic::{AtomicBool, Ordering};
use unwind_core::Trace;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use unwind_core::deferred::{
    ClientId, Cookie, CookieSource, DeferredUnwind, Delivery, Host, Recipients, RequestContext,
    ScheduleError, SerialCookies, TaskKind, TaskState, UserReturn,
};

/// Runs a model with every order of accesses in which a thread is preempted at
/// most three times: what goes wrong with few threads does so with few
/// preemptions. `LOOM_MAX_PREEMPTIONS` sets another bound.
pub fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(body);
}

/// A task, and whether its next request cannot be scheduled.
///
/// The flag is no part of what is modelled, so it is not one of loom's.
#[derive(Default)]
pub struct Task {
    state: TaskState,
    pub schedule_fails: AtomicBool,
}

/// Data that only one CPU at a time may use. loom reports two accesses that are
/// not ordered.
#[derive(Default)]
pub struct Guarded(UnsafeCell<u32>);

impl Guarded {
    pub fn access(&self) {
        // SAFETY: none is claimed: loom checks that no other access runs.
        self.0.with_mut(|data| unsafe { *data += 1 });
    }
}

// SAFETY: loom checks every access.
unsafe impl Send for Guarded {}
// SAFETY: as above.
unsafe impl Sync for Guarded {}

/// A host whose CPUs are loom's threads.
pub struct LoomHost;

impl Host for LoomHost {
    type Task = Task;

    fn state<'t>(&self, task: &'t Task) -> &'t TaskState {
        &task.state
    }

    fn task_kind(&self, _: &Task) -> TaskKind {
        TaskKind::User
    }

    fn in_nmi(&self) -> bool {
        false
    }

    fn cpu(&self) -> u32 {
        0
    }

    fn schedule(&self, task: &Task, _: RequestContext) -> Result<(), ScheduleError> {
        if task.schedule_fails.swap(false, Ordering::Relaxed) { Err(ScheduleError) } else { Ok(()) }
    }

    fn clock(&self) -> u64 {
        7
    }

    fn relax(&self) {
        loom::thread::yield_now();
    }
}

/// A delivery without a cache.
pub type LoomDelivery<'a> = Delivery<'a, fn(&mut Trace)>;

/// An instance with a task, shared by the threads of a model.
pub struct Shared<C = SerialCookies> {
    pub unwind: DeferredUnwind<LoomHost, C>,
    pub task: Task,
}

impl Shared {
    pub fn new() -> Arc<Self> {
        Self::with_cookies(SerialCookies::new())
    }
}

impl<C: CookieSource> Shared<C> {
    pub fn with_cookies(cookies: C) -> Arc<Self> {
        Arc::new(Self { unwind: DeferredUnwind::new(LoomHost, cookies), task: Task::default() })
    }

    /// One delivery, without a cache: who is called, and with which cookie.
    pub fn deliver(&self) -> Vec<(ClientId, Cookie)> {
        let mut called = Vec::new();
        let mut delivery = self.begin(&self.task);
        while let Some(guard) = delivery.next() {
            called.push((guard.client(), guard.cookie()));
        }
        called
    }

    /// Begins a delivery without a cache.
    pub fn begin<'a>(&'a self, task: &'a Task) -> LoomDelivery<'a> {
        self.unwind.deliver(task, Recipients::Requesters, None, |_| ())
    }

    /// Delivers until the task may continue to user code.
    pub fn return_to_user(&self) -> Vec<(ClientId, Cookie)> {
        let mut called = self.deliver();
        while self.unwind.user_return(&self.task) == UserReturn::Pending {
            called.extend(self.deliver());
        }
        called
    }
}
