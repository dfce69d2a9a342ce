//! CPUs that take tasks from a run queue, and the NMIs that come between.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering, compiler_fence};
use core::time::Duration;
use std::collections::VecDeque;
use std::thread;
use std::time::Instant;
use unwind_core::Trace;

use unwind_core::deferred::{
    DeferredUnwind, Host, Recipients, RequestContext, RequestOutcome, ScheduleError, SerialCookies,
    TaskKind, TaskState, UserReturn,
};

use crate::clients::{self, Clients};
use crate::machine::{self, NmiTimer, SpinLock};
use crate::random::Random;
use crate::report::{NMIS_IN_KERNEL, NMIS_IN_USER, NO_ROOM, REQUESTS, Report};
use crate::tasks::{Rest, Task};

static UNWIND: DeferredUnwind<Kernel> = DeferredUnwind::new(Kernel, SerialCookies::new());

/// Whether NMIs are raised inside hooks.
static INJECT: AtomicBool = AtomicBool::new(false);

pub(crate) struct Options {
    pub(crate) seconds: u32,
    pub(crate) tasks: u32,
    pub(crate) cpus: u32,
    pub(crate) hertz: u32,
    pub(crate) inject: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { seconds: 10, tasks: 64, cpus: 4, hertz: 4_000, inject: false }
    }
}

thread_local! {
    static CURRENT: Cell<Option<&'static Task>> = const { Cell::new(None) };
    static IN_NMI: Cell<bool> = const { Cell::new(false) };
    static CPU: Cell<u32> = const { Cell::new(0) };
    /// Where the random numbers of this CPU's NMIs stand.
    static DICE: Cell<Random> = const { Cell::new(Random::new(1)) };
}

/// The hooks.
pub(crate) struct Kernel;

impl Host for Kernel {
    type Task = Task;

    fn state<'t>(&self, task: &'t Task) -> &'t TaskState {
        &task.unwind
    }

    fn task_kind(&self, _: &Task) -> TaskKind {
        inject_nmi();
        TaskKind::User
    }

    fn in_nmi(&self) -> bool {
        inject_nmi();
        IN_NMI.get()
    }

    fn cpu(&self) -> u32 {
        inject_nmi();
        CPU.get()
    }

    fn schedule(&self, task: &Task, _: RequestContext) -> Result<(), ScheduleError> {
        inject_nmi();
        task.work.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn clock(&self) -> u64 {
        0
    }

    fn relax(&self) {
        thread::yield_now();
    }
}

fn roll(sides: usize) -> usize {
    let mut dice = DICE.get();
    let side = dice.below(sides);
    DICE.set(dice);
    side
}

fn inject_nmi() {
    if INJECT.load(Ordering::Relaxed) && !IN_NMI.get() && roll(16) == 0 {
        machine::raise_nmi();
    }
}

/// The NMI.
extern "C" fn nmi(_: libc::c_int) {
    let Some(task) = CURRENT.get() else { return };
    let outer = IN_NMI.replace(true);
    if task.in_user.load(Ordering::Relaxed) {
        NMIS_IN_USER.fetch_add(1, Ordering::Relaxed);
    } else {
        NMIS_IN_KERNEL.fetch_add(1, Ordering::Relaxed);
        let mut dice = DICE.get();
        for _ in 0..1 + dice.below(3) {
            take_sample(task, &mut dice);
        }
        DICE.set(dice);
    }
    IN_NMI.set(outer);
}

/// Asks for the stack on behalf of some client, and records the cookie.
fn take_sample(task: &Task, dice: &mut Random) {
    let Some(client) = clients::any_client(dice) else { return };
    let outcome = UNWIND.request(task, client);
    let kind = match outcome {
        RequestOutcome::Queued(_) => 0,
        RequestOutcome::AlreadyPending(_) => 1,
        RequestOutcome::AlreadyExecuted(_) => 2,
        RequestOutcome::Refused(_) => 3,
    };
    REQUESTS[kind].fetch_add(1, Ordering::Relaxed);
    if let Some(cookie) = outcome.cookie()
        && !task.record(client, cookie)
    {
        NO_ROOM.fetch_add(1, Ordering::Relaxed);
    }
}

/// Lets user code run from here on, as far as NMIs are concerned; or not.
fn set_in_user(task: &Task, in_user: bool) {
    compiler_fence(Ordering::SeqCst);
    task.in_user.store(in_user, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
}

/// One CPU.
fn run_cpu(
    number: u32,
    options: &Options,
    queue: &SpinLock<VecDeque<&'static Task>>,
    clients: &Clients,
    stop: &AtomicBool,
) -> Report {
    CPU.set(number);
    DICE.set(Random::new(u64::from(number) + 77));
    let mut random = Random::new(u64::from(number) + 1);
    let mut report = Report::default();
    let timer = (!options.inject).then(|| NmiTimer::start(options.hertz));
    while !stop.load(Ordering::Relaxed) {
        let Some(task) = queue.lock().pop_front() else { continue };
        CURRENT.set(Some(task));
        {
            let mut rest = task.rest.lock();
            // Some steps, then another CPU may continue with it.
            for _ in 0..1 + random.below(4) {
                step(task, &mut rest, clients, &mut random, &mut report);
            }
        }
        CURRENT.set(None);
        report.switches += 1;
        queue.lock().push_back(task);
    }
    drop(timer);
    report
}

/// Takes a task one step further.
fn step(
    task: &'static Task,
    rest: &mut Rest,
    clients: &Clients,
    random: &mut Random,
    report: &mut Report,
) {
    if task.in_user.load(Ordering::Relaxed) {
        task.run_user_code(rest, random.next());
        set_in_user(task, false);
        rest.steps = 1 + random.below(5) as u32;
        return;
    }
    for _ in 0..random.below(3) {
        take_sample(task, random);
    }
    for _ in 0..random.below(500) {
        core::hint::spin_loop();
    }
    // Some work of the kernel delivers early: a system call that is restarted.
    if random.below(4) == 0 {
        deliver(task, rest, clients, random, report);
    }
    match rest.steps.checked_sub(1) {
        Some(left) => rest.steps = left,
        None => exit_to_user(task, rest, clients, random, report),
    }
}

fn exit_to_user(
    task: &'static Task,
    rest: &mut Rest,
    clients: &Clients,
    random: &mut Random,
    report: &mut Report,
) {
    loop {
        task.work.store(false, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        deliver(task, rest, clients, random, report);
        if UNWIND.user_return(task) == UserReturn::Pending {
            continue;
        }
        set_in_user(task, true);
        if !task.work.load(Ordering::Relaxed) {
            break;
        }
        set_in_user(task, false);
    }
    report.entries += 1;
    task.match_samples(rest, clients, report);
}

fn deliver(
    task: &Task,
    rest: &mut Rest,
    clients: &Clients,
    random: &mut Random,
    report: &mut Report,
) {
    let stack = rest.stack();
    let mut cache = core::mem::take(&mut rest.cache);
    let walk = |trace: &mut Trace| task.walk(&stack, trace);
    let mut delivery = UNWIND.deliver(task, Recipients::Requesters, Some(&mut cache), walk);
    while let Some(guard) = delivery.next() {
        clients.call(guard.client(), || {
            let key = (guard.client(), guard.cookie());
            report.calls += 1;
            report.twice += u64::from(!rest.keep(key, guard.outcome(), guard.trace()));
            if random.below(8) == 0 {
                // What a client does in its callback may ask again.
                take_sample(task, random);
            }
            if random.below(500) == 0 {
                thread::yield_now();
            }
        });
    }
    drop(delivery);
    rest.cache = cache;
}

/// Runs it all.
pub(crate) fn run(options: &Options) -> Report {
    INJECT.store(options.inject, Ordering::SeqCst);
    machine::handle_nmis(nmi);
    let tasks: Vec<&'static Task> =
        (0..options.tasks).map(|task| &*Box::leak(Box::new(Task::new(u64::from(task))))).collect();
    let queue = SpinLock::new(tasks.iter().copied().collect());
    let clients = Clients::default();
    let (stop, stop_clients) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut report = Report::default();
    let end = Instant::now() + Duration::from_secs(u64::from(options.seconds));
    thread::scope(|scope| {
        let churn = core::array::from_fn::<_, { clients::CHURNERS }, _>(|number| {
            scope.spawn({
                let (clients, stop) = (&clients, &stop_clients);
                move || clients.churn(&UNWIND, number, stop)
            })
        });
        let cpus: Vec<_> = (0..options.cpus)
            .map(|cpu| {
                let (queue, clients, stop) = (&queue, &clients, &stop);
                scope.spawn(move || run_cpu(cpu, options, queue, clients, stop))
            })
            .collect();
        while Instant::now() < end {
            thread::sleep(Duration::from_millis(50));
        }
        stop.store(true, Ordering::SeqCst);
        for cpu in cpus {
            report.add(&cpu.join().expect("a cpu"));
        }
        // What is still in the kernel goes to user mode.
        let mut random = Random::new(99);
        for &task in &tasks {
            let rest = &mut task.rest.lock();
            if !task.in_user.load(Ordering::Relaxed) {
                exit_to_user(task, rest, &clients, &mut random, &mut report);
            }
        }
        stop_clients.store(true, Ordering::SeqCst);
        report.client_changes = churn.map(|thread| thread.join().expect("clients")).iter().sum();
    });
    report.drops = UNWIND.drops();
    report
}
