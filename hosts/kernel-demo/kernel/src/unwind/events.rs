//! The events of a machine with several CPUs, and who gets the stacks that tasks deliver.
//!
//! There are two registries, one for each policy. A profiler has two events on each CPU, the timer's
//! and the counter's, and gets each stack once, whichever of them asked. A pair of events
//! with one client for all gets its stacks by one of them, which wants the records.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use unwind_core::Trace;
use unwind_core::deferred::{ClientId, Cookie};
use unwind_perf::per_cpu::{
    CpuEvent, DeliveryPolicy, EventKey, EventSpec, GroupLeader, RequestError, TaskKey,
};

use super::counter::count;
use super::event::{BROADCAST, EVENTS, Event, FIRST_LIVE};
use super::host::UNWIND;
use super::{branches, followers, stream};
use crate::cpu;
use crate::cpu::CPUS;
use crate::each_cpu::{EachCpu, online};
use crate::exclusive::Exclusive;
use crate::options::Protection;
use crate::task::schedule;
use crate::task::state::Task;

/// What a CPU has, and has seen.
pub(crate) struct OfCpu {
    /// Its events. Where one is being exchanged, an NMI does without it.
    events: [Exclusive<Option<CpuEvent>>; EVENTS],
    /// Whether the memory of an event is there.
    is_there: [AtomicBool; EVENTS],
    samples: [AtomicU64; EVENTS],
    /// Samples that are promised a stack.
    promised: [AtomicU64; EVENTS],
    /// Stacks that went to each event.
    stacks: [AtomicU64; EVENTS],
    /// Stacks that were asked for on another CPU.
    pub(crate) crossed: AtomicU64,
    /// Stacks for which there was no event here.
    pub(crate) without_event: AtomicU64,
    /// Stacks of tasks that no one follows, for the profiler that follows some.
    pub(crate) strangers: AtomicU64,
    /// Stacks that found no room in the ring.
    pub(crate) failed: AtomicU64,
}

static OF_CPUS: EachCpu<OfCpu> = EachCpu(
    [const {
        OfCpu {
            events: [const { Exclusive::new(None) }; EVENTS],
            is_there: [const { AtomicBool::new(true) }; EVENTS],
            samples: [const { AtomicU64::new(0) }; EVENTS],
            promised: [const { AtomicU64::new(0) }; EVENTS],
            stacks: [const { AtomicU64::new(0) }; EVENTS],
            crossed: AtomicU64::new(0),
            without_event: AtomicU64::new(0),
            strangers: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }; CPUS],
);

impl OfCpu {
    /// Samples, promised stacks and stacks that came, of an event.
    pub(crate) fn of(&self, event: Event) -> [u64; 3] {
        [&self.samples, &self.promised, &self.stacks]
            .map(|counts| counts[event as usize].load(Ordering::Relaxed))
    }
}

/// What a CPU has seen.
pub(crate) fn of_cpu(cpu: usize) -> &'static OfCpu {
    OF_CPUS.of(cpu)
}

/// Adds an event on a CPU.
fn add(event: Event, cpu: usize) -> CpuEvent {
    let spec = EventSpec {
        leader: GroupLeader(1),
        cpu: cpu as i32,
        task: None,
        key: EventKey(event.number()),
        defer_output: event == Event::Watcher,
    };
    match event.registry().add(&UNWIND, spec) {
        Ok(event) => event,
        Err(error) => panic!("{error}"),
    }
}

/// Adds all events. Once, before anything is sampled.
pub(crate) fn add_all() {
    for cpu in 0..online() {
        for event in Event::OF_CPUS {
            let added = add(event, cpu);
            OF_CPUS.of(cpu).events[event as usize].with(|place| *place = Some(added));
        }
    }
}

/// Takes an event away from a CPU while it is in use, and adds it again. Task context.
pub(crate) fn exchange(event: Event, cpu: usize) {
    let place = &OF_CPUS.of(cpu).events[event as usize];
    let Some(old) = place.with(Option::take) else { return };
    let is_there = &OF_CPUS.of(cpu).is_there[event as usize];
    if !Protection::EventRemoval.is_on() {
        is_there.store(false, Ordering::Relaxed);
        schedule::sleep(2);
    }
    if let Err(error) = event.registry().remove(&UNWIND, None, old) {
        panic!("{error}");
    }
    // From here on to the next line nothing is delivered to it.
    is_there.store(false, Ordering::Relaxed);
    is_there.store(true, Ordering::Relaxed);
    let added = add(event, cpu);
    place.with(|place| *place = Some(added));
}

/// The event of which an NMI that interrupted a task is a sample: those of the timer, and
/// those of the counter, by turns.
pub(super) fn due(task: &Task, counter_overflowed: bool) -> Event {
    static TURN: EachCpu<AtomicU32> = EachCpu([const { AtomicU32::new(0) }; CPUS]);
    let turn = TURN.own().fetch_add(1, Ordering::Relaxed);
    match (counter_overflowed, turn % 4) {
        (_, 1 | 2) if task.bound().is_followed() => Event::Follower,
        (_, 1 | 2) if task.bound().has_own() => Event::Own,
        (true, 0) => Event::Spans,
        (true, _) => Event::Instructions,
        (false, 0 | 2) => Event::Watcher,
        (false, _) => Event::Cycles,
    }
}

/// Asks for the stack of a task, for a sample of an event. In NMIs.
pub(super) fn ask(task: &Task, event: Event) -> Option<Cookie> {
    let own = OF_CPUS.own();
    count(&own.samples[event as usize]);
    let asked = match event {
        Event::Follower | Event::Own => followers::ask(task, event),
        _ => own.events[event as usize].try_with(|place| *place).flatten().map(|added| {
            let key = TaskKey(task.id().into());
            event.registry().request(&UNWIND, task, key, &added)
        }),
    };
    match asked? {
        Ok(cookie) => {
            count(&own.promised[event as usize]);
            task.asked_on.store(cpu::number() as u32, Ordering::Relaxed);
            Some(cookie)
        }
        Err(RequestError::Refused(_) | RequestError::Removed | RequestError::Queueing) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Counts a stack that went to an event, here.
pub(super) fn count_stack(event: Event) {
    count(&OF_CPUS.own().stacks[event as usize]);
}

/// Hands a stack to the events of this CPU that get it. Task context.
pub(super) fn deliver(task: &Task, client: ClientId, cookie: Cookie, trace: &Trace) {
    let cpu = cpu::number();
    let own = OF_CPUS.own();
    for registry in [&FIRST_LIVE, &BROADCAST] {
        if !registry.owns(client) {
            continue;
        }
        let is_following = FIRST_LIVE.client_of(followers::FOLLOWING) == Some(client);
        if is_following && !task.bound().is_followed() {
            // It was called without having asked.
            count(&own.strangers);
            continue;
        }
        let key = TaskKey(task.id().into());
        let delivered = registry.deliver(client, cpu as u32, key, |event| {
            if let Some(event) = Event::ALL.iter().find(|of| of.number() == event.0) {
                let is_there = own.is_there[*event as usize].load(Ordering::Relaxed);
                assert!(is_there, "a stack for an event that is freed");
                count(&own.stacks[*event as usize]);
            }
            stream::write_stack(task, event.0, cookie, trace)
        });
        if delivered.failed != 0 {
            count(&own.failed);
        } else if delivered.written == 0 {
            count(&own.without_event);
        }
        if task.asked_on.load(Ordering::Relaxed) != cpu as u32 {
            count(&own.crossed);
        }
        if registry.policy() == DeliveryPolicy::FirstLive && !is_following {
            branches::compare(task, cookie, trace);
        }
    }
}
