//! Two profilers: one has an event on each CPU, about all tasks; the other one follows some tasks,
//! by an event of each that has no CPU.

use core::convert::Infallible;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::Mutex;
use std::thread;

use unwind_core::deferred::{
    Cookie, DeliveryGuard, Refusal, SampleOutcome, ScheduleError, UnwindCache,
};
use unwind_core::{PackedFrame, Trace};
use unwind_perf::per_cpu::{
    DeliveryPolicy, EventKey, EventSpec, FixedRegistry, GroupLeader, Receiver, TaskRun, TaskWork,
};

use crate::branches;
use crate::kernel::{CPUS, UNWIND, cpu, is_current};
use crate::ledger::{self, Outcome, Profiler, count, get};
use crate::program::Program;
use crate::task::Task;

/// The events that deliveries of clients go to.
static EVENTS: FixedRegistry<CPUS, 2> = FixedRegistry::new(DeliveryPolicy::FirstLive);
/// Of the first profiler, one on each CPU.
static OF_CPUS: [Mutex<Option<Receiver>>; CPUS] = [const { Mutex::new(None) }; CPUS];

static EXCHANGES: AtomicU64 = AtomicU64::new(0);
/// Stacks for which there was no event.
static WITHOUT_EVENT: AtomicU64 = AtomicU64::new(0);

/// `perf_event_open` for a CPU.
fn open_on(cpu: usize) -> Receiver {
    let spec = EventSpec {
        leader: GroupLeader(1),
        cpu: cpu as i32,
        task: None,
        key: EventKey(cpu as u64),
        defer_output: false,
    };
    Receiver::open(&EVENTS, &UNWIND, spec).expect("there is room")
}

/// The first profiler starts.
pub(crate) fn open() {
    for (cpu, place) in OF_CPUS.iter().enumerate() {
        *place.lock().expect("no panic") = Some(open_on(cpu));
    }
}

/// It ends: the client goes with the last event.
pub(crate) fn close() {
    for place in &OF_CPUS {
        if let Some(Receiver::Cpu(event)) = place.lock().expect("no panic").take() {
            EVENTS.remove(&UNWIND, None, event).expect("nothing is delivered any more");
        }
    }
}

/// Removes the event of a CPU while that is in use, and opens another one a little later. Samples
/// meanwhile are refused, and stacks of tasks that return there are lost, and counted.
pub(crate) fn exchange(cpu: usize) {
    let old = match &*OF_CPUS[cpu].lock().expect("no panic") {
        Some(Receiver::Cpu(event)) => *event,
        _ => return,
    };
    EVENTS.remove(&UNWIND, None, old).expect("deliveries end");
    thread::sleep(Duration::from_millis(1));
    let new = open_on(cpu);
    *OF_CPUS[cpu].lock().expect("no panic") = Some(new);
    count(&EXCHANGES);
    thread::sleep(Duration::from_millis(3));
}

/// A task was created and has not run: the second profiler follows one in three.
pub(crate) fn created(task: &'static Task) {
    if task.key.0 % 3 != 1 {
        return;
    }
    let spec = EventSpec {
        leader: GroupLeader(2),
        cpu: -1,
        task: Some(task.key),
        key: EventKey(100 + task.key.0),
        defer_output: false,
    };
    let receiver = Receiver::open(&EVENTS, &UNWIND, spec).expect("it needs no room");
    task.own.set(receiver).expect("it is set once");
    branches::follow(task);
}

/// A task ends, and has delivered.
pub(crate) fn exited(task: &Task) {
    if let Some(receiver) = task.own.get() {
        let own = (&OwnWork(task), &task.hold);
        receiver.remove(&EVENTS, &UNWIND, Some(task), own).expect("no work runs");
    }
}

/// A sample of both profilers. Any context.
pub(crate) fn sample(task: &Task) {
    // Where the event is being exchanged, an NMI does without.
    let of_cpu = OF_CPUS[cpu()].try_lock().ok().and_then(|event| {
        event.as_ref().and_then(|receiver| ask(task, Profiler::OfCpus, receiver))
    });
    let of_task = task.own.get().and_then(|receiver| ask(task, Profiler::OfTasks, receiver));
    if let Some(cookie) = of_cpu.or(of_task) {
        branches::sample(task, cookie);
    }
}

fn ask(task: &Task, profiler: Profiler, receiver: &Receiver) -> Option<Cookie> {
    let at = task.place()?;
    ledger::asked(profiler);
    let own = (&OwnWork(task), &task.hold);
    let asked = receiver.request(&EVENTS, &UNWIND, task.sampled(), (task, task.key), own);
    match asked {
        Ok(cookie) => {
            ledger::promised(profiler);
            task.keep(at, profiler, cookie);
            Some(cookie)
        }
        Err(error) => {
            // A real sampler walks at once now, as far as pages are present.
            ledger::ended(profiler, Outcome::of_error(error));
            None
        }
    }
}

/// Hands the stack of a delivery to the event on this CPU that gets it.
pub(crate) fn deliver(
    task: &Task,
    program: &Program,
    guard: &DeliveryGuard<'_>,
    stacks: &mut HashMap<(Profiler, Cookie), Outcome>,
) {
    let of_it = (Profiler::OfCpus, guard.cookie());
    let outcome = match (guard.outcome(), guard.trace()) {
        (SampleOutcome::Matched, Some(trace)) => judge(program, trace),
        _ => Outcome::Wrong,
    };
    let here = cpu();
    let delivered = EVENTS.deliver(guard.client(), here as u32, task.key, |event| {
        // Where the records would be written.
        assert_eq!(event, EventKey(here as u64), "it is this CPU's");
        stacks.insert(of_it, outcome);
        Ok::<_, Infallible>(())
    });
    if delivered.written == 0 {
        count(&WITHOUT_EVENT);
        stacks.insert(of_it, Outcome::NoEvent);
    }
}

fn judge(program: &Program, trace: &Trace) -> Outcome {
    if trace.is_complete() && program.has_frames(trace.pcs()) {
        Outcome::Right
    } else {
        Outcome::Wrong
    }
}

/// Whether the task's own event has work on it.
pub(crate) fn is_work_due(task: &Task) -> bool {
    task.own_is_due.load(Ordering::Relaxed)
}

/// Does that work, if there is some: a walk, which a delivery in the same entry uses too, and a
/// record.
pub(crate) fn run_work(
    task: &Task,
    program: &Program,
    cache: &mut UnwindCache<[PackedFrame; 127]>,
    walk: impl FnOnce(&mut Trace),
    stacks: &mut HashMap<(Profiler, Cookie), Outcome>,
) {
    if !task.own_is_due.swap(false, Ordering::Acquire) {
        return;
    }
    let Some(Receiver::Task(event)) = task.own.get() else { return };
    let ran = event.run(
        &task.hold,
        |cookie| Ok::<_, Infallible>(UNWIND.stack(cookie, cache, walk)),
        |cookie, trace: &Trace| {
            stacks.insert((Profiler::OfTasks, cookie), judge(program, trace));
            Ok::<_, Infallible>(())
        },
    );
    assert_eq!(ran, TaskRun::Written, "it was queued");
}

/// The work of a task's own event.
struct OwnWork<'t>(&'t Task);

impl TaskWork for OwnWork<'_> {
    fn cookie(&self) -> Result<Cookie, Refusal> {
        UNWIND.cookie(self.0)
    }

    fn queue(&self) -> Result<(), ScheduleError> {
        self.0.own_is_due.store(true, Ordering::Release);
        self.0.work.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn unqueue(&self) {
        self.0.own_is_due.store(false, Ordering::Relaxed);
    }

    fn is_current(&self) -> bool {
        is_current(self.0)
    }

    fn relax(&self) {
        thread::yield_now();
    }
}

pub(crate) fn print_and_check() -> bool {
    let (lost, drops) = (EVENTS.counters(), UNWIND.drops());
    println!("events exchanged: {}", get(&EXCHANGES));
    println!(
        "  {} stacks without an event, {} requests refused",
        lost.no_event, lost.stale_requests
    );
    let removed = ledger::of(Profiler::OfCpus, &[Outcome::EventRemoved]);
    let exiting: u64 =
        Profiler::ALL.iter().map(|&profiler| ledger::of(profiler, &[Outcome::TaskExits])).sum();
    lost.no_event == get(&WITHOUT_EVENT)
        && lost.stale_requests == removed
        && (lost.other_task, lost.unknown_cpu, lost.output_failed) == (0, 0, 0)
        && drops.exiting == exiting
        && EVENTS.client_of(GroupLeader(1)).is_none()
}
