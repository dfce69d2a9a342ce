//! Models of the per-CPU event registry: removal against delivery, request and
//! add, in every interleaving.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p unwind-perf --release --test loom_per_cpu`
#![cfg(loom)]
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod apart;
#[path = "../guarded/mod.rs"]
mod guarded;

use std::sync::atomic::{AtomicBool as Seen, Ordering as Plain};

use apart::{Apart, Clears};
use guarded::Guarded;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use unwind_core::deferred::{
    CancelError, ClientId, Cookie, Refusal, RequestOutcome, TooManyClients,
};
use unwind_perf::per_cpu::*;

/// A core with clients that are registered or not, and which orders nothing.
/// That a cancellation waits for the client's deliveries is the core's own
/// model.
#[derive(Debug)]
struct Core {
    registered: [AtomicBool; 4],
    next: AtomicU64,
    /// A thread waits.
    waiting: AtomicBool,
}

impl Core {
    fn new() -> Self {
        Self {
            registered: core::array::from_fn(|_| AtomicBool::new(false)),
            next: AtomicU64::new(0),
            waiting: AtomicBool::new(false),
        }
    }

    fn slot(&self, client: ClientId) -> &AtomicBool {
        &self.registered[usize::try_from(client.registration()).unwrap() - 1]
    }

    fn live_clients(&self) -> usize {
        self.registered.iter().filter(|client| client.load(Ordering::Relaxed)).count()
    }
}

impl Deferral for Core {
    type Task = ();

    fn register(&self) -> Result<ClientId, TooManyClients> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let client = ClientId::from_bits((number + 1) << 6 | 1 << 5 | number % 2);
        self.slot(client).store(true, Ordering::Relaxed);
        Ok(client)
    }

    fn cancel(&self, _: Option<&()>, client: ClientId) -> Result<(), CancelError> {
        let registered = self.slot(client).swap(false, Ordering::Relaxed);
        assert!(registered, "cancelled twice");
        Ok(())
    }

    fn is_delivering(&self, (): &(), _: ClientId) -> bool {
        false
    }

    fn request(&self, (): &(), client: ClientId) -> RequestOutcome {
        if self.slot(client).load(Ordering::Relaxed) {
            RequestOutcome::Queued(Cookie::new(1).unwrap())
        } else {
            RequestOutcome::Refused(Refusal::UnknownClient)
        }
    }

    fn relax(&self) {
        self.waiting.store(true, Ordering::Release);
        thread::yield_now();
    }

    fn wait_while(&self, is_running: impl Fn() -> bool) {
        while is_running() {
            self.relax();
        }
    }
}

/// Two CPUs and a spare list.
type Registry = PerCpuRegistry<[CpuList<2>; 3], 2>;

/// A registry, its core, and events whose memory is freed when they are
/// removed.
#[derive(Debug)]
struct Machine {
    core: Core,
    registry: Registry,
    /// The events: written when they are made and when they are freed.
    events: [Guarded; 3],
    /// What deliveries have written into an event.
    written: [AtomicBool; 3],
}

impl Machine {
    fn new() -> Arc<Self> {
        Self::with_policy(DeliveryPolicy::FirstLive)
    }

    fn with_policy(policy: DeliveryPolicy) -> Arc<Self> {
        Arc::new(Self {
            core: Core::new(),
            registry: Registry::with_spare(policy, core::array::from_fn(|_| CpuList::new()), 2),
            events: core::array::from_fn(|_| Guarded::new()),
            written: core::array::from_fn(|_| AtomicBool::new(false)),
        })
    }

    fn add(&self, key: u64) -> CpuEvent {
        self.add_on(0, key)
    }

    fn add_on(&self, cpu: i32, key: u64) -> CpuEvent {
        self.add_for(GroupLeader(7), cpu, key)
    }

    fn add_for(&self, leader: GroupLeader, cpu: i32, key: u64) -> CpuEvent {
        self.event(key).write();
        let spec = EventSpec { leader, cpu, task: None, key: EventKey(key), defer_output: true };
        self.registry.add(&self.core, spec).unwrap()
    }

    /// Adds the event that the task which returns has from its parent's.
    fn inherit(&self, parent: CpuEvent, key: u64) -> CpuEvent {
        self.event(key).write();
        self.registry.inherit(&self.core, parent, TaskKey(1), EventKey(key)).unwrap()
    }

    fn event(&self, key: u64) -> &Guarded {
        &self.events[usize::try_from(key).unwrap()]
    }

    /// Removes and frees an event. Returns whether a delivery has written into
    /// it, as far as can be seen then.
    fn remove(&self, key: usize, event: CpuEvent) -> bool {
        self.registry.remove(&self.core, None, event).unwrap();
        self.events[key].write();
        self.written[key].load(Ordering::Relaxed)
    }

    /// Delivers, and uses the event that gets the stack: it must not be freed
    /// while that lasts.
    fn deliver(&self, client: ClientId) -> Vec<u64> {
        let mut got = Vec::new();
        self.registry.deliver(client, 0, TaskKey(1), |event| {
            self.written[usize::try_from(event.0).unwrap()].store(true, Ordering::Relaxed);
            self.event(event.0).read_slowly();
            got.push(event.0);
            Ok::<(), ()>(())
        });
        got
    }
}

fn spawn<T: 'static>(body: impl FnOnce() -> T + 'static) -> thread::JoinHandle<T> {
    thread::spawn(body)
}

#[test]
fn r0_15_removal_of_the_only_event_against_a_delivery() {
    loom::model(|| {
        let machine = Machine::new();
        let event = machine.add(0);
        let there = Arc::clone(&machine);
        let delivery = spawn(move || there.deliver(event.client()));
        let written = machine.remove(0, event);
        assert_eq!(machine.deliver(event.client()), [0; 0], "after the removal");
        let got = delivery.join().unwrap();
        assert_eq!(written, got == [0], "what a delivery did comes before the end of the removal");
        let lost = machine.registry.counters().no_event;
        assert_eq!(got.len() + usize::try_from(lost).unwrap(), 2, "delivered or counted");
        assert_eq!(machine.core.live_clients(), 0);
        assert!(!machine.registry.owns(event.client()));
    });
}

#[test]
fn r0_15_removal_against_a_broadcast() {
    loom::model(|| {
        let machine = Machine::with_policy(DeliveryPolicy::Broadcast);
        let (gone, stays) = (machine.add(0), machine.add(1));
        let there = Arc::clone(&machine);
        let delivery = spawn(move || there.deliver(stays.client()));
        let written = machine.remove(0, gone);
        let got = delivery.join().unwrap();
        assert_eq!(got.contains(&0), written);
        assert!(got.ends_with(&[1]) && got.len() <= 2, "{got:?}");
    });
}

#[test]
fn r0_12_removal_of_the_first_event_against_a_delivery() {
    loom::model(|| {
        let machine = Machine::new();
        let (first, second) = (machine.add(0), machine.add(1));
        let there = Arc::clone(&machine);
        let delivery = spawn(move || there.deliver(first.client()));
        machine.remove(0, first);
        // The event that is first at that moment gets it: it is never lost, and
        // never delivered twice.
        let got = delivery.join().unwrap();
        assert!(got == [0] || got == [1], "{got:?}");
        assert_eq!(machine.deliver(second.client()), [1]);
        machine.remove(1, second);
        assert_eq!(machine.core.live_clients(), 0);
    });
}

#[test]
fn r0_12_the_next_event_is_whole_when_it_is_seen() {
    loom::model(|| {
        let machine = Machine::new();
        let elsewhere = machine.add_on(1, 1);
        let gone = machine.add(0);
        machine.remove(0, gone);
        let there = Arc::clone(&machine);
        let delivery = spawn(move || there.deliver(elsewhere.client()));
        // Into the place of the one that was freed.
        machine.add(2);
        let got = delivery.join().unwrap();
        assert!(got == [0; 0] || got == [2], "{got:?}");
    });
}

#[test]
fn r0_12_an_event_that_comes_before_the_last_goes_is_found() {
    loom::model(|| {
        let machine = Machine::new();
        let (gone, last) = (machine.add(0), machine.add(1));
        machine.remove(0, gone);
        let there = Arc::clone(&machine);
        let delivery = spawn(move || there.deliver(last.client()));
        // Into the place that is looked at first.
        machine.add(2);
        machine.remove(1, last);
        let got = delivery.join().unwrap();
        assert!(got == [1] || got == [2], "{got:?}");
    });
}

#[test]
fn r0_12_an_event_is_found_though_another_profiler_gets_the_place_of_the_last() {
    loom::model(|| {
        let machine = Machine::new();
        let (gone, last) = (machine.add(0), machine.add(1));
        machine.remove(0, gone);
        let there = Arc::clone(&machine);
        let delivery = spawn(move || there.deliver(last.client()));
        machine.add(2);
        machine.remove(1, last);
        // The delivery may have seen that the last one was live, and now sees
        // whose the place is.
        machine.add_for(GroupLeader(8), 0, 0);
        let got = delivery.join().unwrap();
        assert!(got == [1] || got == [2], "{got:?}");
    });
}

#[test]
fn g5_an_event_in_a_list_that_was_added_is_found_when_all_before_it_go() {
    loom::model(|| {
        let machine = Machine::new();
        let (gone, last) = (machine.add(0), machine.add(1));
        machine.remove(0, gone);
        let first = machine.add(0);
        let there = Arc::clone(&machine);
        let delivery = spawn(move || there.deliver(last.client()));
        // The CPU's own list is full.
        let child = machine.inherit(last, 2);
        machine.remove(0, first);
        machine.remove(1, last);
        let got = delivery.join().unwrap();
        assert!(matches!(got[..], [_]), "{got:?}");
        assert_eq!(machine.deliver(child.client()), [2]);
        machine.remove(2, child);
        assert_eq!(machine.core.live_clients(), 0);
    });
}

#[test]
fn g5_a_broadcast_reaches_a_list_that_is_added_meanwhile_whole_or_not_at_all() {
    loom::model(|| {
        let machine = Machine::with_policy(DeliveryPolicy::Broadcast);
        let (first, second) = (machine.add(0), machine.add(1));
        let there = Arc::clone(&machine);
        let delivery = spawn(move || there.deliver(first.client()));
        machine.inherit(second, 2);
        let got = delivery.join().unwrap();
        assert!(got == [0, 1] || got == [0, 1, 2], "{got:?}");
    });
}

#[test]
fn r0_16_removal_against_two_deliveries_on_one_cpu() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let machine = Machine::new();
        let event = machine.add(0);
        let deliveries = [Arc::clone(&machine), Arc::clone(&machine)]
            .map(|machine| spawn(move || machine.deliver(event.client()).len()));
        machine.remove(0, event);
        let written: usize = deliveries.into_iter().map(|d| d.join().unwrap()).sum();
        let lost = machine.registry.counters().no_event;
        assert_eq!(written + usize::try_from(lost).unwrap(), 2);
    });
}

#[test]
fn r0_15b_what_starts_while_a_removal_waits_does_not_pick_the_event() {
    let seen = std::sync::Arc::new(Seen::new(false));
    let in_model = std::sync::Arc::clone(&seen);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let machine = Machine::new();
        let (event, _other) = (machine.add(0), machine.add(1));
        let (there, elsewhere) = (Arc::clone(&machine), Arc::clone(&machine));
        let first = spawn(move || there.deliver(event.client()));
        let second = spawn(move || {
            // Seen before anything starts: the remover waits.
            let waiting = elsewhere.core.waiting.load(Ordering::Acquire);
            let asked =
                elsewhere.registry.request(&elsewhere.core, &(), TaskKey(1), &event).is_ok();
            let picked = elsewhere.deliver(event.client()).contains(&0);
            assert!(!(waiting && (asked || picked)), "a dying event is picked");
            waiting
        });
        machine.remove(0, event);
        first.join().unwrap();
        if second.join().unwrap() {
            in_model.store(true, Plain::Relaxed);
        }
    });
    assert!(seen.load(Plain::Relaxed), "no interleaving has the remover wait");
}

#[test]
fn r0_4_the_last_removal_against_an_add_of_the_same_profiler() {
    loom::model(|| {
        let machine = Machine::new();
        let event = machine.add(0);
        let there = Arc::clone(&machine);
        let adding = spawn(move || there.add(1));
        machine.remove(0, event);
        let added = adding.join().unwrap();
        // The new event has a client that is registered, whichever came first.
        assert_eq!(machine.core.live_clients(), 1);
        assert!(machine.registry.request(&machine.core, &(), TaskKey(1), &added).is_ok());
        assert_eq!(machine.deliver(added.client()), [1]);
        assert_eq!(machine.registry.occupied_cpus(GroupLeader(7)), 1);
        machine.remove(1, added);
        assert_eq!(machine.core.live_clients(), 0);
        assert_eq!(machine.registry.occupied_cpus(GroupLeader(7)), 0);
    });
}

#[test]
fn r0_3_two_removals_of_one_profiler() {
    loom::model(|| {
        let machine = Machine::new();
        let (first, second) = (machine.add(0), machine.add(1));
        let there = Arc::clone(&machine);
        let removing = spawn(move || there.remove(0, first));
        machine.remove(1, second);
        removing.join().unwrap();
        assert_eq!(machine.core.live_clients(), 0);
        assert_eq!(machine.registry.occupied_cpus(GroupLeader(7)), 0);
    });
}

#[test]
fn a_place_is_reused_while_a_delivery_looks_at_it() {
    loom::model(|| {
        let machine = Machine::new();
        let first = machine.add(0);
        let _keep = machine.add(1);
        let there = Arc::clone(&machine);
        let delivery = spawn(move || there.deliver(first.client()));
        machine.remove(0, first);
        let _next = machine.add(2);
        // The oldest one that is live: never the one that came last.
        let got = delivery.join().unwrap();
        assert!(got == [0] || got == [1], "{got:?}");
    });
}

#[test]
fn b10_events_that_two_registries_add_at_once_are_told_apart() {
    loom::model(|| {
        let (one, other) = (Machine::new(), Machine::new());
        let there = Arc::clone(&other);
        let adding = spawn(move || there.add(0));
        let own = one.add(0);
        let stranger = adding.join().unwrap();
        for (machine, event) in [(&one, stranger), (&other, own)] {
            let removed = machine.registry.remove(&machine.core, None, event);
            assert_eq!(removed, Err(RemoveError::Removed));
        }
        assert_eq!((one.remove(0, own), other.remove(0, stranger)), (false, false));
    });
}

/// What a look at the profilers finds while the place of `GroupLeader(7)`, with an
/// event on one CPU, becomes that of `GroupLeader(8)`, with events on two.
fn look_while_a_place_changes_hands(
    look: impl Fn(&Registry, ClientId) + Copy + Send + Sync + 'static,
) {
    loom::model(move || {
        let machine = Machine::new();
        let event = machine.add(0);
        let there = Arc::clone(&machine);
        let looking = spawn(move || look(&there.registry, event.client()));
        machine.remove(0, event);
        machine.add_for(GroupLeader(8), 0, 1);
        machine.add_for(GroupLeader(8), 1, 2);
        looking.join().unwrap();
    });
}

#[test]
fn b_a_profiler_is_never_given_the_client_of_the_next_one_in_its_place() {
    look_while_a_place_changes_hands(|registry, client| {
        let found = registry.client_of(GroupLeader(7));
        assert!(found.is_none() || found == Some(client), "{found:?}");
    });
}

#[test]
fn b_a_profiler_is_never_given_the_client_of_the_last_one_in_its_place() {
    look_while_a_place_changes_hands(|registry, client| {
        let found = registry.client_of(GroupLeader(8));
        assert!(found.is_none_or(|found| found != client && found.to_bits() != 0), "{found:?}");
    });
}

#[test]
fn b_a_profiler_never_has_the_cpus_of_the_next_one_in_its_place() {
    look_while_a_place_changes_hands(|registry, _| {
        assert!(registry.occupied_cpus(GroupLeader(7)) <= 1);
    });
}

/// Whether any interleaving has a delivery, or a request, pick an event while
/// its remover waits.
fn picks_dying(clears: Clears, request: bool) -> bool {
    let seen = std::sync::Arc::new(Seen::new(false));
    let in_model = std::sync::Arc::clone(&seen);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let event = Arc::new(Apart::new());
        let there = Arc::clone(&event);
        let delivery = spawn(move || there.deliver());
        let elsewhere = Arc::clone(&event);
        let asking = spawn(move || request && elsewhere.picks_dying().1);
        event.remove(clears);
        let dying = delivery.join().unwrap() | asking.join().unwrap();
        if dying {
            in_model.store(true, Plain::Relaxed);
        }
    });
    seen.load(Plain::Relaxed)
}

#[test]
fn r0_15b_both_orders_on_the_twin() {
    assert!(picks_dying(Clears::AfterTheWait, false), "a delivery picks the dying event");
    assert!(picks_dying(Clears::AfterTheWait, true), "so does a request");
    assert!(!picks_dying(Clears::BeforeTheWait, false));
    assert!(!picks_dying(Clears::BeforeTheWait, true));
}
