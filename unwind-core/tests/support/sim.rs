//! A simulated kernel: a host, tasks with user stacks, and the way out.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};

use test_support::cpu::{Cpu64, FramePointers, Regs};
use unwind_core::deferred::*;
use unwind_core::*;

/// What the hooks of the instance answer.
#[derive(Default)]
pub struct SimHost {
    pub in_nmi: AtomicBool,
    pub cpu: AtomicU32,
    pub clock: AtomicU64,
    pub schedule_fails: AtomicBool,
    /// How often a cancellation has waited.
    pub relaxed: AtomicU64,
    /// Where cancellations sleep, if not by `relax`.
    pub queue: Option<WaitQueue>,
    /// Whether a hook that is called is an error.
    pub silent: AtomicBool,
    /// What happens while the next delivery is being scheduled.
    pub in_schedule: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

/// Where cancellations sleep until a callback has ended.
#[derive(Default)]
pub struct WaitQueue {
    lock: Mutex<()>,
    woken: Condvar,
    /// How often one went to sleep.
    pub sleeps: AtomicU64,
}

impl WaitQueue {
    /// Sleeps while `is_running`. A wake between the look and the sleep waits for the lock.
    fn sleep_while(&self, is_running: impl Fn() -> bool) {
        let mut held = self.lock.lock().unwrap();
        while is_running() {
            self.sleeps.fetch_add(1, Ordering::SeqCst);
            held = self.woken.wait(held).unwrap();
        }
    }

    /// Called once the guard of a delivery is gone.
    pub fn wake(&self) {
        let _held = self.lock.lock().unwrap();
        self.woken.notify_all();
    }
}

impl SimHost {
    fn hook(&self) {
        assert!(!self.silent.load(Ordering::SeqCst), "a hook was called");
    }

    /// Runs `handler` as an NMI.
    pub fn nmi<R>(&self, handler: impl FnOnce() -> R) -> R {
        let outer = self.in_nmi.swap(true, Ordering::SeqCst);
        let result = handler();
        self.in_nmi.store(outer, Ordering::SeqCst);
        result
    }
}

/// A task with a user stack.
pub struct Task {
    pub state: TaskState,
    pub kind: Mutex<TaskKind>,
    /// How deliveries were scheduled since the exit path last looked.
    pub scheduled: Mutex<Vec<RequestContext>>,
    /// The code addresses on the user stack, innermost first.
    pub stack: Mutex<Vec<u64>>,
    pub walks: AtomicU32,
}

impl Task {
    pub fn new(stack: &[u64]) -> Self {
        Self {
            state: TaskState::new(),
            kind: Mutex::new(TaskKind::User),
            scheduled: Mutex::default(),
            stack: Mutex::new(stack.to_vec()),
            walks: AtomicU32::new(0),
        }
    }

    pub fn set_stack(&self, stack: &[u64]) {
        *self.stack.lock().unwrap() = stack.to_vec();
    }

    pub fn set_kind(&self, kind: TaskKind) {
        *self.kind.lock().unwrap() = kind;
    }

    pub fn walks(&self) -> u32 {
        self.walks.load(Ordering::SeqCst)
    }

    /// Walks the user stack by its frame pointers.
    pub fn walk(&self, trace: &mut Trace) {
        self.walks.fetch_add(1, Ordering::SeqCst);
        walk_frames(&self.stack.lock().unwrap(), trace);
    }
}

/// Lays a stack out in memory and walks it.
pub fn walk_frames(pcs: &[u64], trace: &mut Trace) {
    const BASE: u64 = 0x7000;
    let Some((&pc, callers)) = pcs.split_first() else { return };
    // Each frame: the caller's frame pointer, then the return address.
    let mut words = Vec::new();
    for (&ra, at) in callers.iter().chain(&[0]).zip(1_u64..) {
        // Start-up code leaves a zero for the frame pointer, too.
        words.extend([if ra == 0 { 0 } else { BASE + 16 * at }, ra]);
    }
    let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
    let mut memory = SliceMemory::new(VirtAddr::new(BASE), &bytes);
    Walker::new(Cpu64, FramePointers).trace(Regs::new(pc, BASE, Some(BASE)), &mut memory, trace);
}

impl Host for SimHost {
    type Task = Task;

    fn state<'t>(&self, task: &'t Task) -> &'t TaskState {
        &task.state
    }

    fn task_kind(&self, task: &Task) -> TaskKind {
        self.hook();
        *task.kind.lock().unwrap()
    }

    fn in_nmi(&self) -> bool {
        self.hook();
        self.in_nmi.load(Ordering::SeqCst)
    }

    fn cpu(&self) -> u32 {
        self.hook();
        self.cpu.load(Ordering::SeqCst)
    }

    fn schedule(&self, task: &Task, context: RequestContext) -> Result<(), ScheduleError> {
        self.hook();
        let action = self.in_schedule.lock().unwrap().take();
        if let Some(action) = action {
            action();
        }
        if self.schedule_fails.load(Ordering::SeqCst) {
            return Err(ScheduleError);
        }
        task.scheduled.lock().unwrap().push(context);
        Ok(())
    }

    fn clock(&self) -> u64 {
        self.hook();
        self.clock.load(Ordering::SeqCst)
    }

    fn relax(&self) {
        self.relaxed.fetch_add(1, Ordering::SeqCst);
        std::thread::yield_now();
    }

    fn wait_while(&self, is_running: impl Fn() -> bool) {
        match &self.queue {
            Some(queue) => queue.sleep_while(is_running),
            None => relax_while(is_running, Self::MAX_RELAXES, || self.relax()),
        }
    }
}

/// A host with other constants than the usual ones.
#[derive(Default)]
pub struct SpecialHost<const NMI_SAFE: bool, const MAX_RELAXES: u64>(pub SimHost);

impl<const NMI_SAFE: bool, const MAX_RELAXES: u64> Host for SpecialHost<NMI_SAFE, MAX_RELAXES> {
    type Task = Task;
    const NMI_SAFE_COMPARE_EXCHANGE: bool = NMI_SAFE;
    const MAX_RELAXES: u64 = MAX_RELAXES;

    fn state<'t>(&self, task: &'t Task) -> &'t TaskState {
        self.0.state(task)
    }

    fn task_kind(&self, task: &Task) -> TaskKind {
        self.0.task_kind(task)
    }

    fn in_nmi(&self) -> bool {
        self.0.in_nmi()
    }

    fn cpu(&self) -> u32 {
        self.0.cpu()
    }

    fn schedule(&self, task: &Task, context: RequestContext) -> Result<(), ScheduleError> {
        self.0.schedule(task, context)
    }

    fn clock(&self) -> u64 {
        self.0.clock()
    }

    fn relax(&self) {
        self.0.relax();
    }
}

/// What a client got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub client: ClientId,
    pub cookie: Cookie,
    pub end: SampleOutcome,
    /// The frames; `None` if there is no trace.
    pub stack: Option<Vec<u64>>,
}

impl Call {
    pub fn of(guard: &DeliveryGuard<'_>) -> Self {
        Self {
            client: guard.client(),
            cookie: guard.cookie(),
            end: guard.outcome(),
            stack: guard.trace().map(pcs_of),
        }
    }
}

/// The addresses of a trace.
pub fn pcs_of(trace: &Trace) -> Vec<u64> {
    trace.pcs().map(VirtAddr::get).collect()
}

pub type Cache = UnwindCache<[PackedFrame; 16]>;

/// An instance and the cache that its tasks share.
pub struct Kernel<C = SerialCookies> {
    pub unwind: DeferredUnwind<SimHost, C>,
    pub cache: Mutex<Cache>,
}

impl Kernel {
    pub fn new() -> Self {
        Self::with_cookies(SerialCookies::new())
    }
}

impl<C: CookieSource> Kernel<C> {
    pub fn with_cookies(cookies: C) -> Self {
        Self::with_host(SimHost::default(), cookies)
    }

    pub fn with_host(host: SimHost, cookies: C) -> Self {
        Self { unwind: DeferredUnwind::new(host, cookies), cache: Mutex::new(Cache::new()) }
    }

    pub fn register<const N: usize>(&self) -> [ClientId; N] {
        [(); N].map(|()| self.unwind.register().unwrap())
    }

    pub fn request(&self, task: &Task, client: ClientId) -> RequestOutcome {
        self.unwind.request(task, client)
    }

    /// A request that stalls, after it has looked at the task and before it
    /// makes its mark, while something else happens.
    pub fn stalled_request(
        &self,
        task: &Task,
        client: ClientId,
        meanwhile: impl FnOnce() + Send + 'static,
    ) -> RequestOutcome {
        *self.unwind.host().in_schedule.lock().unwrap() = Some(Box::new(meanwhile));
        self.request(task, client)
    }

    /// A request that is granted.
    pub fn ask(&self, task: &Task, client: ClientId) -> Cookie {
        let outcome = self.request(task, client);
        outcome.cookie().unwrap_or_else(|| panic!("{outcome:?}"))
    }

    pub fn deliver(&self, task: &Task) -> Vec<Call> {
        self.deliver_and(task, |_| ())
    }

    /// Delivers, and runs `callback` while each client is being called.
    pub fn deliver_and(&self, task: &Task, mut callback: impl FnMut(&Call)) -> Vec<Call> {
        let mut cache = self.cache.lock().unwrap();
        let walk = |trace: &mut Trace| task.walk(trace);
        let mut delivery =
            self.unwind.deliver(task, Recipients::Requesters, Some(&mut *cache), walk);
        let mut calls = Vec::new();
        while let Some(guard) = delivery.next() {
            let call = Call::of(&guard);
            callback(&call);
            calls.push(call);
            drop(guard);
            if let Some(queue) = &self.unwind.host().queue {
                queue.wake();
            }
        }
        calls
    }

    /// The way out of the kernel: deliveries, until the task may go.
    pub fn return_to_user(&self, task: &Task) -> Vec<Call> {
        let mut calls = Vec::new();
        loop {
            task.scheduled.lock().unwrap().clear();
            calls.extend(self.deliver(task));
            let ready = self.unwind.user_return(task) == UserReturn::Ready;
            if ready && task.scheduled.lock().unwrap().is_empty() {
                return calls;
            }
        }
    }

    pub fn drops(&self) -> DropCounts {
        self.unwind.drops()
    }
}
