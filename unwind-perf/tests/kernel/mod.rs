//! A small kernel for tests: tasks that enter the kernel and return to user
//! code, over the deferral core.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use unwind_core::{PackedFrame, Trace};

use unwind_core::deferred::{
    DeferredUnwind, Host, Recipients, RequestContext, ScheduleError, SerialCookies, TaskKind,
    TaskState, UnwindCache, UserReturn,
};
use unwind_perf::per_cpu::*;

/// A task, as far as its stack is concerned.
#[derive(Debug)]
pub struct Task {
    pub number: u64,
    pub state: TaskState,
    pub sampled: Mutex<SampledTask>,
    /// How often its stack was walked.
    pub walks: AtomicU64,
    pub cache: Mutex<UnwindCache<[PackedFrame; 4]>>,
}

pub const USER: SampledTask = SampledTask {
    has_memory: true,
    is_kernel_thread: false,
    is_user_worker: false,
    has_user_registers: true,
};

impl Task {
    pub fn new(number: u64) -> Self {
        Self {
            number,
            state: TaskState::new(),
            sampled: Mutex::new(USER),
            walks: AtomicU64::new(0),
            cache: Mutex::new(UnwindCache::new()),
        }
    }
}

/// The kernel around the tasks.
#[derive(Debug, Default)]
pub struct Hooks {
    pub cannot_schedule: AtomicBool,
    pub relaxes: AtomicU32,
}

impl Host for Hooks {
    type Task = Task;

    fn state<'t>(&self, task: &'t Task) -> &'t TaskState {
        &task.state
    }

    fn task_kind(&self, task: &Task) -> TaskKind {
        task.sampled.lock().unwrap().kind()
    }

    fn in_nmi(&self) -> bool {
        false
    }

    fn cpu(&self) -> u32 {
        0
    }

    fn schedule(&self, _: &Task, _: RequestContext) -> Result<(), ScheduleError> {
        if self.cannot_schedule.load(Ordering::Relaxed) { Err(ScheduleError) } else { Ok(()) }
    }

    fn clock(&self) -> u64 {
        0
    }

    fn relax(&self) {
        self.relaxes.fetch_add(1, Ordering::Relaxed);
        std::thread::yield_now();
    }
}

pub type Core = DeferredUnwind<Hooks, SerialCookies>;

pub fn core() -> Core {
    DeferredUnwind::new(Hooks::default(), SerialCookies::new())
}

/// A stack that was handed out: to which event, and with which cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Got {
    pub event: EventKey,
    pub cookie: u64,
}

/// Lets `task` return to user code on `cpu`. `output` is called for each
/// event that gets its stack.
pub fn return_to_user<S: AsRef<[CpuList<EVENTS>]>, const EVENTS: usize>(
    core: &Core,
    registry: &PerCpuRegistry<S, EVENTS>,
    task: &Task,
    cpu: u32,
    output: impl FnMut(Got) -> Result<(), ()>,
) {
    return_as(core, registry, (task, TaskKey(task.number)), cpu, output);
}

/// The same for a task that may be in groups.
pub fn return_as<S: AsRef<[CpuList<EVENTS>]>, const EVENTS: usize>(
    core: &Core,
    registry: &PerCpuRegistry<S, EVENTS>,
    (task, subject): (&Task, impl Subject),
    cpu: u32,
    mut output: impl FnMut(Got) -> Result<(), ()>,
) {
    let mut cache = task.cache.lock().unwrap();
    while core.user_return(task) == UserReturn::Pending {
        let walk = |_: &mut Trace| {
            task.walks.fetch_add(1, Ordering::Relaxed);
        };
        let mut delivery = core.deliver(task, Recipients::Requesters, Some(&mut *cache), walk);
        while let Some(guard) = delivery.next() {
            let cookie = guard.cookie().get();
            registry.deliver(guard.client(), cpu, subject, |event| output(Got { event, cookie }));
        }
    }
}

/// The events that get the stack of `task` when it returns on `cpu`.
pub fn receivers<S: AsRef<[CpuList<EVENTS>]>, const EVENTS: usize>(
    core: &Core,
    registry: &PerCpuRegistry<S, EVENTS>,
    task: &Task,
    cpu: u32,
) -> Vec<u64> {
    let mut all = Vec::new();
    return_to_user(core, registry, task, cpu, |got| {
        all.push(got.event.0);
        Ok(())
    });
    all
}
