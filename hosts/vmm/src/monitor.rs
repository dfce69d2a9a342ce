//! What the monitor tells the unwinder of its vCPUs, and what a sample does.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread;

use unwind_core::deferred::{
    ClientId, DeferredUnwind, Host, RequestContext, RequestOutcome, ScheduleError, SerialCookies,
    TaskKind, TaskState,
};
use unwind_perf::record::{self, ChainBuilder, ChainLimits, Context, Misc, Sample};

use crate::raw;
use crate::samples::{Ring, now};
use crate::vcpu::Vcpu;

/// The instance of this monitor.
pub(crate) static UNWIND: DeferredUnwind<Monitor> =
    DeferredUnwind::new(Monitor, SerialCookies::new());

/// A vCPU, as its thread and handlers of signals share it.
#[derive(Debug)]
pub(crate) struct Task {
    unwind: TaskState,
    /// Work to be done on the way into the guest: KVM looks at it last.
    pub(crate) immediate_exit: &'static AtomicU8,
    client: ClientId,
    pub(crate) number: u64,
    pub(crate) thread: record::Task,
    pub(crate) ring: Ring,
    /// Whether the thread walks at this moment.
    pub(crate) is_walking: AtomicBool,
    pub(crate) counts: Counts,
}

/// What became of samples.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) samples: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Walks that another thread has done.
    pub(crate) left: AtomicU64,
    /// How long the vCPU stood for walks of its own thread, in nanoseconds.
    pub(crate) pause: AtomicU64,
    /// The same of those that were left to another thread.
    pub(crate) long_pause: AtomicU64,
}

impl Task {
    pub(crate) fn new(number: u64, vcpu: &impl Vcpu, client: ClientId) -> Self {
        Self {
            unwind: TaskState::new(),
            immediate_exit: vcpu.immediate_exit(),
            client,
            number,
            thread: raw::this_thread(),
            ring: Ring::new(),
            is_walking: AtomicBool::new(false),
            counts: Counts::default(),
        }
    }

    /// Takes a sample, in the handler of a signal. `callers` are the addresses of the host's part.
    fn sample(&self, callers: &[usize]) {
        count(&self.counts.samples, 1);
        let mut words = [0; 80];
        let mut chain = ChainBuilder::new(&mut words, ChainLimits::default());
        // What has no room the builder counts.
        let _ = chain.context(Context::User);
        for &caller in callers {
            let _ = chain.ip(caller as u64);
        }
        match UNWIND.request(self, self.client) {
            RequestOutcome::Refused(_) => count(&self.counts.refused, 1),
            asked => {
                let _ = asked.cookie().map(|cookie| chain.defer(cookie.get()));
            }
        }
        let at = now(self.thread);
        let sample = Sample {
            misc: Misc::USER,
            identifier: None,
            ip: callers.first().map(|&ip| ip as u64).or(Some(0)),
            task: at.task,
            time: at.time,
            addr: None,
            id: None,
            stream_id: None,
            cpu: None,
            period: Some(1),
            callchain: Some(chain.words().iter().copied()),
        };
        self.ring.write(&sample, self.thread);
    }
}

thread_local! {
    /// The vCPU of this thread.
    static CURRENT: Cell<Option<&'static Task>> = const { Cell::new(None) };
}

/// Says which vCPU the thread is of: its samples begin, or end.
pub(crate) fn set_current(task: Option<&'static Task>) {
    CURRENT.set(task);
}

/// The handler of the timer's signal.
pub(crate) fn on_signal(callers: &[usize]) {
    if let Some(task) = CURRENT.get() {
        task.sample(callers);
    }
}

/// The hooks.
#[derive(Debug)]
pub(crate) struct Monitor;

impl Host for Monitor {
    type Task = Task;

    fn state<'t>(&self, task: &'t Task) -> &'t TaskState {
        &task.unwind
    }

    fn task_kind(&self, _: &Task) -> TaskKind {
        // Samples begin when the vCPU has its registers.
        TaskKind::User
    }

    fn in_nmi(&self) -> bool {
        // Each request is made by the handler of a signal.
        true
    }

    fn cpu(&self) -> u32 {
        0
    }

    fn schedule(&self, task: &Task, _: RequestContext) -> Result<(), ScheduleError> {
        // Where the signal has come between the last check and `KVM_RUN`, that returns at once.
        task.immediate_exit.store(1, Ordering::Relaxed);
        Ok(())
    }

    fn clock(&self) -> u64 {
        0
    }

    fn relax(&self) {
        thread::yield_now();
    }
}

/// Adds to one of the [`Counts`].
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
