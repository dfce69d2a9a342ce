//! The kernel: which of its hooks calls what.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};
use core::time::Duration;
use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use unwind_core::Trace;
use unwind_core::deferred::{
    DeferredUnwind, Host, Recipients, RequestContext, ScheduleError, SerialCookies, TaskKind,
    TaskState, UserReturn,
};

use crate::ledger::{self, Outcome, count, get};
use crate::machine::{self, NmiTimer};
use crate::program::{Step, SystemCall};
use crate::task::{Rest, Task};
use crate::{aux_trace, branches, events, task};

pub(crate) const CPUS: usize = 4;
/// Tasks at the start.
const TASKS: usize = 12;
const NMIS_PER_SECOND: u32 = 2_000;
/// Instructions and steps in the kernel until a task has to give its CPU to another one.
const TURN: u32 = 60;
/// Steps of a system call.
const CALL_STEPS: u32 = 4;

/// The one instance of this kernel.
pub(crate) static UNWIND: DeferredUnwind<Kernel> =
    DeferredUnwind::new(Kernel, SerialCookies::new());

/// Tasks that wait for a CPU.
static QUEUE: Mutex<VecDeque<&'static Task>> = Mutex::new(VecDeque::new());
static STOPS: AtomicBool = AtomicBool::new(false);

static ENTRIES: AtomicU64 = AtomicU64::new(0);
static MOVED: AtomicU64 = AtomicU64::new(0);
static CREATED: AtomicU64 = AtomicU64::new(0);
static EXITED: AtomicU64 = AtomicU64::new(0);
static WALKS: AtomicU64 = AtomicU64::new(0);
/// Kernel entries of which some profiler was told the stack.
static TOLD: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The task that runs on this CPU.
    static CURRENT: Cell<Option<&'static Task>> = const { Cell::new(None) };
    static CPU: Cell<usize> = const { Cell::new(0) };
    static IN_NMI: Cell<bool> = const { Cell::new(false) };
    /// An NMI came in the middle of an instruction of user code and waits for its end.
    static NMI_WAITS: Cell<bool> = const { Cell::new(false) };
}

/// The number of this CPU.
pub(crate) fn cpu() -> usize {
    CPU.get()
}

/// Whether the caller is this task.
pub(crate) fn is_current(task: &Task) -> bool {
    CURRENT.get().is_some_and(|current| core::ptr::eq(current, task))
}

/// The hooks.
pub(crate) struct Kernel;

impl Host for Kernel {
    type Task = Task;

    fn state<'t>(&self, task: &'t Task) -> &'t TaskState {
        &task.unwind
    }

    fn task_kind(&self, task: &Task) -> TaskKind {
        task.sampled().kind()
    }

    fn in_nmi(&self) -> bool {
        IN_NMI.get()
    }

    fn cpu(&self) -> u32 {
        CPU.get() as u32
    }

    fn schedule(&self, task: &Task, _: RequestContext) -> Result<(), ScheduleError> {
        // The way to user code looks at this flag when NMIs already wait for the first instruction.
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

/// The NMI. In user code it waits for the end of an instruction, as in hardware; in the kernel it
/// may come anywhere, inside a request, a delivery or a walk too.
extern "C" fn nmi(_: libc::c_int) {
    match CURRENT.get() {
        Some(task) if task.in_user.load(Ordering::Relaxed) => NMI_WAITS.set(true),
        Some(task) => handle_nmi(task),
        None => {}
    }
}

fn handle_nmi(task: &Task) {
    let outer = IN_NMI.replace(true);
    events::sample(task);
    IN_NMI.set(outer);
}

/// Lets user code run from here on, as far as NMIs are concerned; or not.
fn set_in_user(task: &Task, in_user: bool) {
    compiler_fence(Ordering::SeqCst);
    task.in_user.store(in_user, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
}

/// Runs a task for a turn; whether it lives.
fn run_turn(task: &'static Task) -> bool {
    let rest = &mut *task.rest.lock().expect("no panic");
    for _ in 0..TURN {
        if task.in_user.load(Ordering::Relaxed) {
            run_user_code(task, rest);
        } else if !run_system_call(task, rest) {
            return false;
        }
        if NMI_WAITS.take() {
            let in_user = task.in_user.load(Ordering::Relaxed);
            set_in_user(task, false);
            handle_nmi(task);
            if in_user {
                // An NMI in user code is a kernel entry of its own. A real one sends its CPU an
                // interrupt, whose exit is this.
                leave(task, rest);
            }
        }
    }
    true
}

/// An instruction.
fn run_user_code(task: &Task, rest: &mut Rest) {
    match rest.program.step() {
        Step::Call { from, to } => branches::call(from, to),
        Step::Return => branches::ret(),
        Step::SystemCall(call) => {
            set_in_user(task, false);
            rest.call = (call, CALL_STEPS);
        }
    }
}

/// A step of a system call; whether the task lives.
fn run_system_call(task: &'static Task, rest: &mut Rest) -> bool {
    let (call, steps) = &mut rest.call;
    if *steps > 0 {
        *steps -= 1;
        (0..200).for_each(|_| core::hint::spin_loop());
        return true;
    }
    match *call {
        SystemCall::Work => {}
        SystemCall::BeginPart => aux_trace::begin(task),
        SystemCall::EndPart { branches } => aux_trace::end(branches),
        SystemCall::HandOver => {
            if create() {
                exit(task, rest);
                return false;
            }
        }
    }
    leave(task, rest);
    true
}

/// The way to user code.
fn leave(task: &Task, rest: &mut Rest) {
    let mut nmi_comes = get(&ENTRIES) % 64 == 0;
    loop {
        task.work.store(false, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        deliver(task, rest);
        if events::is_work_due(task) || UNWIND.user_return(task) == UserReturn::Pending {
            continue;
        }
        if core::mem::take(&mut nmi_comes) {
            // By themselves NMIs seldom hit this: it is asked for in the next entry, and delivered
            // before that has run user code.
            machine::raise_nmi();
        }
        // From here on an NMI waits for the first instruction.
        set_in_user(task, true);
        if !task.work.load(Ordering::Relaxed) {
            break;
        }
        set_in_user(task, false);
    }
    count(&ENTRIES);
    settle(task, rest);
}

/// Walks the user stack, once in an entry whoever asked, and hands it out.
fn deliver(task: &Task, rest: &mut Rest) {
    let Rest { program, cache, stacks, .. } = rest;
    let program = &*program;
    let walk = |trace: &mut Trace| {
        count(&WALKS);
        program.walk(trace);
    };
    events::run_work(task, program, cache, walk, stacks);
    let mut delivery = UNWIND.deliver(task, Recipients::Requesters, Some(cache), walk);
    while let Some(guard) = delivery.next() {
        events::deliver(task, program, &guard, stacks);
    }
}

/// What the profilers do with their samples and stacks, later and elsewhere.
fn settle(task: &Task, rest: &mut Rest) {
    for promise in task.take_promises() {
        let outcome = rest.stacks.get(&promise).copied().unwrap_or(Outcome::Missing);
        ledger::ended(promise.0, outcome);
    }
    let cookies: HashSet<_> = rest.stacks.drain().map(|((_, cookie), _)| cookie).collect();
    TOLD.fetch_add(cookies.len() as u64, Ordering::Relaxed);
    branches::compare(task, rest, |cookie| cookies.contains(&cookie));
}

/// A task comes into being: by itself at the start, later by a fork. `false` if there is no room.
fn create() -> bool {
    let Some(child) = task::create() else { return false };
    count(&CREATED);
    branches::created(child);
    events::created(child);
    QUEUE.lock().expect("no panic").push_back(child);
    true
}

/// A task ends. Its memory is in place still, so what was promised is delivered.
fn exit(task: &'static Task, rest: &mut Rest) {
    UNWIND.close(task);
    deliver(task, rest);
    settle(task, rest);
    events::exited(task);
    branches::exited(task);
    task.is_alive.store(false, Ordering::Relaxed);
    count(&EXITED);
}

/// The context switch. An NMI in the middle of it is of the task that leaves.
fn switch(from: Option<&'static Task>, to: Option<&'static Task>) {
    aux_trace::switch(from, false);
    branches::switch(from, to, || CURRENT.set(to));
    aux_trace::switch(to, true);
}

/// One CPU.
fn run_cpu(number: usize) {
    CPU.set(number);
    branches::start();
    let timer = NmiTimer::start(NMIS_PER_SECOND, nmi);
    let mut current: Option<&'static Task> = None;
    while !STOPS.load(Ordering::Relaxed) {
        let next = QUEUE.lock().expect("no panic").pop_front();
        let Some(next) = next else { continue };
        switch(current, Some(next));
        // Not before the switch: another CPU may take it at once.
        requeue(current);
        MOVED.fetch_add(u64::from(next.moves_to(number)), Ordering::Relaxed);
        current = run_turn(next).then_some(next);
    }
    switch(current, None);
    requeue(current);
    drop(timer);
    branches::stop();
}

fn requeue(task: Option<&'static Task>) {
    QUEUE.lock().expect("no panic").extend(task);
}

/// Runs it all for a while.
pub(crate) fn run(duration: Duration) {
    let end = Instant::now() + duration;
    events::open();
    branches::open();
    aux_trace::open();
    assert!((0..TASKS).all(|_| create()), "there is room");
    thread::scope(|scope| {
        let cpus: [_; CPUS] = core::array::from_fn(|cpu| scope.spawn(move || run_cpu(cpu)));
        for cpu in (0..CPUS).cycle() {
            if Instant::now() >= end {
                break;
            }
            events::exchange(cpu);
        }
        STOPS.store(true, Ordering::Relaxed);
        cpus.into_iter().for_each(|cpu| cpu.join().expect("a cpu"));
    });
    // Each task ends, wherever it is.
    while let Some(task) = task::next(None) {
        CURRENT.set(Some(task));
        exit(task, &mut task.rest.lock().expect("no panic"));
    }
    CURRENT.set(None);
    branches::close();
    events::close();
}

pub(crate) fn print_and_check() -> bool {
    let (walks, told) = (get(&WALKS), get(&TOLD));
    println!("kernel entries: {}, of {} tasks", get(&ENTRIES), get(&CREATED));
    println!("  {walks} stacks walked, {told} told; tasks moved {} times", get(&MOVED));
    walks == told && get(&CREATED) == get(&EXITED) && get(&MOVED) != 0
}
