//! The rules of the per-CPU event registry: whose client asks, and which event
//! gets the stack.
#![cfg(not(loom))]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::std_instead_of_core,
    clippy::std_instead_of_alloc,
    unreachable_pub,
    reason = "tests"
)]

mod kernel;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};

use kernel::{Core, Task, USER, core, receivers, return_to_user};
use unwind_core::{
    CancelError, ClientId, MAX_CLIENTS, Refusal, RequestOutcome, ScheduleError, TableFull, TaskKind,
};
use unwind_perf::Errno;
use unwind_perf::per_cpu::*;
use unwind_perf::record::{
    AttrFlags, CallchainDeferred, EventFormat, Output, Ring, RingWriter, SampleId, SampleType,
};

type Registry = FixedRegistry<4, 4>;

fn registry() -> Registry {
    Registry::new(Policy::FirstLive)
}

fn spec(leader: u64, cpu: i32, key: u64) -> EventSpec {
    EventSpec { leader: Leader(leader), cpu, task: None, key: EventKey(key), wants_records: false }
}

/// A registry in which nothing is left, over a core in which nobody is
/// registered.
fn assert_empty(core: &Core, registry: &Registry, leaders: &[u64]) {
    for &leader in leaders {
        assert_eq!(registry.occupied_cpus(Leader(leader)), 0);
        assert_eq!(registry.client_of(Leader(leader)), None);
    }
    // Every slot of the core and every place of the registry can be had.
    let all: Vec<_> = (0..MAX_CLIENTS).map(|_| core.register().unwrap()).collect();
    for client in all {
        core.cancel(None, client).unwrap();
    }
    let events: Vec<_> =
        (0..16).map(|n| registry.add(core, spec(1000, n % 4, 0)).unwrap()).collect();
    for event in events {
        registry.remove(core, None, event).unwrap();
    }
}

#[test]
fn r0_1_a_descriptor_is_found_by_the_leader_of_the_creating_task() {
    let (core, registry) = (core(), registry());
    // One profiler, events about different tasks.
    let about = |task| EventSpec { task: Some(TaskKey(task)), ..spec(100, 0, task) };
    let (a, b) = (
        registry.add(&core, about(1)).unwrap(),
        registry.add(&core, EventSpec { cpu: 1, ..about(2) }).unwrap(),
    );
    assert_eq!(a.client(), b.client());
    // Another profiler, about the same task.
    let other = EventSpec { leader: Leader(200), ..about(1) };
    let c = registry.add(&core, other).unwrap();
    assert_ne!(a.client(), c.client());
    assert_eq!(registry.client_of(Leader(100)), Some(a.client()));
    assert_eq!(registry.client_of(Leader(200)), Some(c.client()));
    assert!(registry.owns(a.client()) && registry.owns(c.client()));
    for event in [a, b, c] {
        registry.remove(&core, None, event).unwrap();
    }
    assert!(!registry.owns(a.client()));
    assert_empty(&core, &registry, &[100, 200, 1, 2]);
}

/// A core that counts, fails when told, and says in which order it is called.
#[derive(Default)]
struct Recorder {
    registered: Cell<u64>,
    cancelled: Cell<u64>,
    requested: Cell<u64>,
    full: Cell<bool>,
    delivering: Cell<Option<ClientId>>,
    refusal: Cell<Option<Refusal>>,
    /// What has happened before each cancel.
    at_cancel: Cell<Option<fn(&Self)>>,
}

impl Deferral for Recorder {
    type Task = ();

    fn register(&self) -> Result<ClientId, TableFull> {
        if self.full.get() {
            return Err(TableFull);
        }
        self.registered.set(self.registered.get() + 1);
        Ok(ClientId::from_bits((self.registered.get() << 5) | (self.registered.get() % 32)))
    }

    fn cancel(&self, _: Option<&()>, _: ClientId) -> Result<(), CancelError> {
        if let Some(hook) = self.at_cancel.get() {
            hook(self);
        }
        self.cancelled.set(self.cancelled.get() + 1);
        Ok(())
    }

    fn is_delivering(&self, (): &(), client: ClientId) -> bool {
        self.delivering.get() == Some(client)
    }

    fn request(&self, (): &(), _: ClientId) -> RequestOutcome {
        self.requested.set(self.requested.get() + 1);
        let cookie = unwind_core::Cookie::new(7).unwrap();
        match (self.refusal.get(), self.requested.get()) {
            (Some(refusal), _) => RequestOutcome::Refused(refusal),
            (None, 1) => RequestOutcome::Queued(cookie),
            (None, 2) => RequestOutcome::AlreadyPending(cookie),
            (None, _) => RequestOutcome::AlreadyExecuted(cookie),
        }
    }

    fn relax(&self) {
        std::thread::yield_now();
    }
}

#[test]
fn r0_2_the_first_event_registers_one_client_and_there_is_room_on_every_cpu() {
    let (core, registry) = (Recorder::default(), registry());
    let events: Vec<_> =
        (0..16).map(|n| registry.add(&core, spec(100, n % 4, 0)).unwrap()).collect();
    assert_eq!(core.registered.get(), 1);
    assert!(events.iter().all(|event| event.client() == events[0].client()));
    registry.remove(&core, None, events[3]).unwrap();
    registry.add(&core, spec(200, 3, 0)).unwrap();
    assert_eq!((core.registered.get(), core.cancelled.get()), (2, 0));
}

#[test]
fn r0_3_occupied_cpus_are_counted_and_not_events() {
    let (core, registry) = (core(), registry());
    let mut events = Vec::new();
    for (cpu, occupied) in [(0, 1), (0, 1), (2, 2), (0, 2), (2, 2), (3, 3)] {
        events.push(registry.add(&core, spec(100, cpu, 0)).unwrap());
        assert_eq!(registry.occupied_cpus(Leader(100)), occupied);
    }
    // Another profiler's events on the same CPUs do not count.
    let other = registry.add(&core, spec(200, 1, 0)).unwrap();
    for (event, occupied) in events.into_iter().zip([3, 3, 3, 2, 1, 0]) {
        registry.remove(&core, None, event).unwrap();
        assert_eq!(registry.occupied_cpus(Leader(100)), occupied);
    }
    registry.remove(&core, None, other).unwrap();
    assert_empty(&core, &registry, &[100, 200]);
}

#[test]
fn r0_4_the_last_cpu_cancels_the_client_and_frees_the_descriptor() {
    let (core, registry) = (core(), registry());
    let task = Task::new(1);
    for round in 0..100 {
        let (a, b) = (
            registry.add(&core, spec(100, 0, 0)).unwrap(),
            registry.add(&core, spec(100, 1, 1)).unwrap(),
        );
        registry.remove(&core, None, a).unwrap();
        assert!(registry.request(&core, &task, &b).is_ok(), "the client is still there");
        assert_eq!(receivers(&core, &registry, &task, 1), [1]);
        registry.remove(&core, None, b).unwrap();
        // The client is gone from the core, and none is left behind.
        let outcome = core.request(&task, b.client());
        assert_eq!(outcome, RequestOutcome::Refused(Refusal::UnknownClient), "round {round}");
    }
    assert_empty(&core, &registry, &[100]);
}

#[test]
fn r0_5_what_cannot_be_added_is_refused_and_leaves_nothing() {
    let (core, registry) = (core(), registry());
    for cpu in [-1, -2, i32::MIN] {
        let error = registry.add(&core, spec(100, cpu, 0)).unwrap_err();
        assert_eq!((error, error.errno()), (AddError::NoCpu, Errno::InvalidArgument));
    }
    // No memory: a new profiler finds the CPU full.
    let full: Vec<_> = (0..4).map(|n| registry.add(&core, spec(100, 2, n)).unwrap()).collect();
    for leader in [100, 200] {
        let error = registry.add(&core, spec(leader, 2, 9)).unwrap_err();
        assert_eq!((error, error.errno()), (AddError::NoMemory, Errno::NoMemory));
    }
    assert_eq!(registry.client_of(Leader(200)), None);
    assert_eq!(registry.occupied_cpus(Leader(100)), 1);
    // The client table is full.
    let others: Vec<_> = (1..MAX_CLIENTS).map(|_| core.register().unwrap()).collect();
    let error = registry.add(&core, spec(200, 0, 9)).unwrap_err();
    assert_eq!((error, error.errno()), (AddError::Busy, Errno::Busy));
    assert_eq!(registry.client_of(Leader(200)), None);
    // A profiler that has a client needs no other one.
    let second = registry.add(&core, spec(100, 0, 9)).unwrap();
    for client in others {
        core.cancel(None, client).unwrap();
    }
    for event in full.into_iter().chain([second]) {
        registry.remove(&core, None, event).unwrap();
    }
    assert_empty(&core, &registry, &[100, 200]);
}

#[test]
fn r0_5_a_registry_on_the_heap_has_as_many_cpus_as_there_is_memory_for() {
    let error = HeapRegistry::<4>::try_with_cpus(Policy::FirstLive, usize::MAX / 64).unwrap_err();
    assert_eq!((error, error.errno()), (AddError::NoMemory, Errno::NoMemory));
    let (core, task) = (core(), Task::new(1));
    let registry = HeapRegistry::<4>::try_with_cpus(Policy::FirstLive, 300).unwrap();
    let event = registry.add(&core, spec(100, 299, 5)).unwrap();
    assert_eq!(
        registry.add(&core, spec(100, 300, 5)).unwrap_err(),
        AddError::CpuOutOfRange { cpu: 300 }
    );
    registry.request(&core, &task, &event).unwrap();
    assert_eq!(receivers(&core, &registry, &task, 299), [5]);
    registry.remove(&core, None, event).unwrap();
}

#[test]
fn r0_6_cpu_numbers_may_have_gaps_and_those_out_of_range_are_refused() {
    // Four CPUs, numbered as on a machine with gaps.
    let (core, task) = (core(), Task::new(1));
    let registry = FixedRegistry::<67, 2>::new(Policy::FirstLive);
    let cpus = [0, 2, 64, 66];
    let events = cpus.map(|cpu| {
        let spec = spec(100, i32::try_from(cpu).unwrap(), u64::from(cpu));
        registry.add(&core, spec).unwrap()
    });
    assert_eq!(registry.occupied_cpus(Leader(100)), 4);
    for cpu in cpus {
        registry.request(&core, &task, &events[0]).unwrap();
        assert_eq!(receivers(&core, &registry, &task, cpu), [u64::from(cpu)]);
    }
    for cpu in [67, 1000, i32::MAX] {
        let error = registry.add(&core, spec(100, cpu, 0)).unwrap_err();
        let out_of_range = AddError::CpuOutOfRange { cpu: cpu.unsigned_abs() };
        assert_eq!((error, error.errno()), (out_of_range, Errno::InvalidArgument));
    }
    // A delivery out of range is lost, and counted.
    registry.request(&core, &task, &events[0]).unwrap();
    assert_eq!(receivers(&core, &registry, &task, 67), [0; 0]);
    assert_eq!(registry.counters().unknown_cpu, 1);
    for event in events {
        registry.remove(&core, None, event).unwrap();
    }
}

#[test]
fn r0_7_a_failure_leaves_no_half_made_descriptor_behind() {
    let (core, registry) = (Recorder::default(), registry());
    // The profiler's last event goes, then adding fails, then it works: each
    // time with a fresh client.
    for round in 1..=5 {
        let event = registry.add(&core, spec(100, 0, 0)).unwrap();
        registry.remove(&core, None, event).unwrap();
        core.full.set(true);
        assert_eq!(registry.add(&core, spec(100, 0, 0)).unwrap_err(), AddError::Busy);
        assert_eq!(registry.client_of(Leader(100)), None);
        assert_eq!(registry.occupied_cpus(Leader(100)), 0);
        core.full.set(false);
        assert_eq!((core.registered.get(), core.cancelled.get()), (round, round));
    }
}

#[test]
fn r0_7_an_add_that_finds_no_descriptor_gives_its_client_back() {
    // A core with more clients than there are descriptors.
    let (core, registry) = (Recorder::default(), FixedRegistry::<64, 1>::new(Policy::FirstLive));
    let profilers = u64::try_from(MAX_CLIENTS).unwrap();
    for n in 0..profilers {
        registry.add(&core, spec(100 + n, i32::try_from(n).unwrap(), 0)).unwrap();
    }
    assert_eq!((core.registered.get(), core.cancelled.get()), (profilers, 0));
    assert_eq!(registry.add(&core, spec(99, 63, 0)).unwrap_err(), AddError::Busy);
    assert_eq!((core.registered.get(), core.cancelled.get()), (profilers + 1, 1));
    assert_eq!(registry.client_of(Leader(99)), None);
}

#[test]
fn r0_8_any_outcome_but_a_refusal_is_success() {
    let (core, registry) = (Recorder::default(), registry());
    let event = registry.add(&core, spec(100, 0, 0)).unwrap();
    // Queued, already pending, already executed.
    for _ in 0..3 {
        assert_eq!(registry.request(&core, &(), &event).unwrap().get(), 7);
    }
    core.refusal.set(Some(Refusal::ScheduleFailed));
    let error = registry.request(&core, &(), &event).unwrap_err();
    let refused = RequestError::Refused(Refusal::ScheduleFailed);
    assert_eq!((error, error.errno()), (refused, Errno::InvalidArgument));
    // An event without a descriptor asks nobody, and is counted.
    registry.remove(&core, None, event).unwrap();
    let error = registry.request(&core, &(), &event).unwrap_err();
    assert_eq!((error, error.errno()), (RequestError::Removed, Errno::InvalidArgument));
    assert_eq!((core.requested.get(), registry.counters().stale_requests), (4, 1));
}

/// Work of an event on its task.
#[derive(Default)]
struct Work {
    queued: Cell<u32>,
    unqueued: Cell<u32>,
    current: Cell<bool>,
    fails: Cell<bool>,
}

impl TaskWork for Work {
    fn queue(&self) -> Result<(), ScheduleError> {
        if self.fails.get() {
            return Err(ScheduleError);
        }
        self.queued.set(self.queued.get() + 1);
        Ok(())
    }

    fn unqueue(&self) {
        self.unqueued.set(self.unqueued.get() + 1);
    }

    fn is_current(&self) -> bool {
        self.current.get()
    }

    fn relax(&self) {
        std::thread::yield_now();
    }
}

#[test]
fn f14_and_f15_only_tasks_with_memory_and_without_kernel_flags_have_a_user_stack() {
    let (core, registry, task) = (core(), registry(), Task::new(1));
    let receivers = [spec(100, 0, 0), EventSpec { task: Some(TaskKey(1)), ..spec(100, -1, 1) }]
        .map(|spec| Receiver::open(&registry, &core, spec).unwrap());
    let (work, hold) = (Work::default(), SwitchHold::new());
    for bits in 0..16 {
        let sampled = SampledTask {
            has_memory: bits & 1 != 0,
            is_kernel_thread: bits & 2 != 0,
            is_user_worker: bits & 4 != 0,
            has_user_registers: bits & 8 != 0,
        };
        *task.sampled.lock().unwrap() = sampled;
        // F14: at exit the memory goes while the flags say nothing. F15: a
        // kernel thread may have memory, and a worker always has.
        let user = bits & 1 != 0 && bits & 2 == 0 && bits & 4 == 0;
        assert_eq!(sampled.is_user(), user);
        assert_eq!(sampled.kind() == TaskKind::User, user && bits & 8 != 0);
        for receiver in &receivers {
            let asked = receiver.request(&registry, &core, sampled, &task, (&work, &hold));
            if user && bits & 8 != 0 {
                asked.unwrap();
            } else {
                let error = asked.unwrap_err();
                assert_eq!(error, RequestError::NotUser);
                assert_eq!(error.errno(), Errno::InvalidArgument);
            }
        }
    }
    // The core says the same of a task that has not been asked yet.
    let task = Task::new(2);
    *task.sampled.lock().unwrap() = SampledTask { has_memory: false, ..USER };
    let Receiver::Cpu(event) = &receivers[0] else { panic!("it has a CPU") };
    let error = registry.request(&core, &task, event).unwrap_err();
    assert_eq!(error, RequestError::Refused(Refusal::Exiting));
}

#[test]
fn r0_9_one_walk_serves_all_events_on_all_cpus_that_asked() {
    let (core, registry, task) = (core(), registry(), Task::new(1));
    // Three profilers, each with events on all CPUs.
    let events: Vec<Vec<CpuEvent>> = [100, 200, 300]
        .iter()
        .map(|&leader| {
            (0..4).map(|cpu| registry.add(&core, spec(leader, cpu, leader)).unwrap()).collect()
        })
        .collect();
    for entry in 1..=3 {
        // The task migrates while it is in the kernel, and is sampled on the
        // way by everyone.
        let mut cookies = Vec::new();
        for event in events.iter().flatten() {
            cookies.push(registry.request(&core, &task, event).unwrap());
        }
        cookies.dedup();
        assert_eq!(cookies.len(), 1, "one entry, one cookie");
        let mut got = receivers(&core, &registry, &task, 3);
        got.sort_unstable();
        assert_eq!(got, [100, 200, 300]);
        assert_eq!(task.walks.load(Ordering::Relaxed), entry);
    }
    // And one CPU waits for many tasks.
    let tasks: Vec<Task> = (10..15).map(Task::new).collect();
    for task in &tasks {
        registry.request(&core, task, &events[1][2]).unwrap();
    }
    for task in &tasks {
        assert_eq!(receivers(&core, &registry, task, 2), [200]);
    }
}

#[test]
fn r0_10_the_stack_goes_to_the_cpu_where_the_task_returns() {
    let (core, registry, task) = (core(), registry(), Task::new(1));
    let on_0 = registry.add(&core, spec(100, 0, 10)).unwrap();
    let on_1 = registry.add(&core, spec(100, 1, 11)).unwrap();
    let other = registry.add(&core, spec(200, 2, 22)).unwrap();
    registry.request(&core, &task, &on_0).unwrap();
    assert_eq!(receivers(&core, &registry, &task, 1), [11], "sampled on 0, returned on 1");
    assert_eq!(registry.counters(), RegistryCounters::default());
    // On CPU 2 there is only an event of another profiler.
    registry.request(&core, &task, &on_0).unwrap();
    assert_eq!(receivers(&core, &registry, &task, 2), [0; 0]);
    assert_eq!(registry.counters().no_event, 1);
    for event in [on_0, on_1, other] {
        registry.remove(&core, None, event).unwrap();
    }
}

#[test]
fn r0_11_only_the_first_event_of_the_cpu_gets_the_stack() {
    let (core, registry, task) = (core(), registry(), Task::new(1));
    let cycles = registry.add(&core, spec(100, 0, 1)).unwrap();
    let instructions = registry.add(&core, spec(100, 0, 2)).unwrap();
    for event in [&cycles, &instructions, &cycles] {
        registry.request(&core, &task, event).unwrap();
        registry.request(&core, &task, &instructions).unwrap();
        assert_eq!(receivers(&core, &registry, &task, 0), [1], "whichever of them asked");
    }
    registry.remove(&core, None, cycles).unwrap();
    // A place that was freed does not make its next event the first.
    let third = registry.add(&core, spec(100, 0, 3)).unwrap();
    registry.request(&core, &task, &third).unwrap();
    assert_eq!(receivers(&core, &registry, &task, 0), [2]);
}

#[test]
fn r0_12_events_that_go_away_are_skipped() {
    let (core, registry, task) = (core(), registry(), Task::new(1));
    let keys = [1, 2, 3, 4];
    let events = keys.map(|key| registry.add(&core, spec(100, 0, key)).unwrap());
    let asking = registry.add(&core, spec(100, 1, 9)).unwrap();
    for gone in 0..4 {
        registry.request(&core, &task, &asking).unwrap();
        assert_eq!(receivers(&core, &registry, &task, 0), [keys[gone]]);
        registry.remove(&core, None, events[gone]).unwrap();
    }
    registry.request(&core, &task, &asking).unwrap();
    assert_eq!(receivers(&core, &registry, &task, 0), [0; 0]);
    assert_eq!(registry.counters().no_event, 1);
}

/// A ring that can be full.
#[derive(Default)]
struct Page {
    bytes: Vec<u8>,
    full: bool,
}

impl Output for Page {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }
}

impl Ring for Page {
    fn reserve(&mut self, _: usize) -> bool {
        !self.full
    }

    fn commit(&mut self) {}
}

#[test]
fn r0_13_the_record_has_the_user_mark_first_and_a_failed_output_is_counted() {
    let (core, registry, task) = (core(), registry(), Task::new(1));
    let event = registry.add(&core, spec(100, 0, 1)).unwrap();
    let now = SampleId { cpu: Some(3), ..SampleId::default() };
    let (sample_type, flags) = (SampleType::CPU, AttrFlags::SAMPLE_ID_ALL);
    let format = EventFormat { sample_type, flags, ..EventFormat::default() };
    let mut written = Vec::new();
    for full in [false, true] {
        let page = Page { full, ..Page::default() };
        let mut writer = RingWriter::new(page, unwind_perf::record::Endian::Little);
        registry.request(&core, &task, &event).unwrap();
        return_to_user(&core, &registry, &task, 0, |got| {
            let ips = [0x40_1136, 0x40_1020].into_iter();
            let record = CallchainDeferred { cookie: None, ips, id: now };
            writer.write(&record, format, got.event.0, now).map_err(|_| ())
        });
        written.extend_from_slice(&writer.ring().bytes);
        assert_eq!(registry.counters().output_failed, u64::from(full));
        assert_eq!(registry.counters().no_event, 0);
    }
    #[rustfmt::skip]
    let expected: &[u8] = &[
        22, 0, 0, 0, 2, 0, 48, 0, // type, misc: user, size
        3, 0, 0, 0, 0, 0, 0, 0, // nr: the depth and one
        0x00, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, // the user mark, -512
        0x36, 0x11, 0x40, 0, 0, 0, 0, 0,
        0x20, 0x10, 0x40, 0, 0, 0, 0, 0,
        3, 0, 0, 0, 0, 0, 0, 0, // sample_id: the CPU
    ];
    assert_eq!(written, expected);
}

#[test]
fn r0_14_a_removal_unlinks_then_cancels_then_waits_then_frees() {
    let (core, registry) = (Recorder::default(), registry());
    let registry: &'static Registry = Box::leak(Box::new(registry));
    let event = registry.add(&core, spec(100, 0, 1)).unwrap();
    thread_local! {
        static REGISTRY: Cell<Option<(&'static Registry, CpuEvent)>> = const { Cell::new(None) };
    }
    REGISTRY.set(Some((registry, event)));
    core.at_cancel.set(Some(|core| {
        let (registry, event) = REGISTRY.get().unwrap();
        // Unlinked: neither a delivery nor a request picks it.
        let delivered = registry.deliver(event.client(), 0, TaskKey(1), |_| Ok::<(), ()>(()));
        assert_eq!(delivered, Delivered::default());
        assert!(registry.request(core, &(), &event).is_err());
        // The counts are adjusted: the profiler is not found any more, but its
        // client is still its own.
        assert_eq!(registry.client_of(Leader(100)), None);
        assert!(registry.owns(event.client()));
        // Nobody holds a lock while this may wait.
        let again = registry.add(core, spec(100, 0, 2)).unwrap();
        assert_ne!(again.client(), event.client());
        core.at_cancel.set(None);
        registry.remove(core, None, again).unwrap();
    }));
    registry.remove(&core, None, event).unwrap();
    assert_eq!((core.registered.get(), core.cancelled.get()), (2, 2));
    assert!(!registry.owns(event.client()));
}

/// Runs `remove` in another thread while a delivery to `event` runs, and
/// returns what the delivery saw of it in the meantime: whether it returned.
fn remove_within_delivery(
    registry: &'static Registry,
    core: &'static Core,
    task: &'static Task,
    event: CpuEvent,
) -> bool {
    let (done, removed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let remover = {
        let (done, removed) = (Arc::clone(&done), Arc::clone(&removed));
        let (start, started) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            started.recv().unwrap();
            registry.remove(core, None, event).unwrap();
            assert!(done.load(Ordering::SeqCst), "it did not wait for the delivery");
            removed.store(true, Ordering::SeqCst);
        });
        (thread, start)
    };
    registry.request(core, task, &event).unwrap();
    let mut early = false;
    return_to_user(core, registry, task, 0, |_| {
        remover.1.send(()).unwrap();
        // The remover unlinks and waits, which it shows by relaxing.
        while core.host().relaxes.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        early = removed.load(Ordering::SeqCst);
        done.store(true, Ordering::SeqCst);
        Ok(())
    });
    remover.0.join().unwrap();
    early
}

#[test]
fn r0_15_a_removal_waits_for_the_delivery_and_is_seen_by_no_later_one() {
    // The last event of its profiler, whose client is cancelled, and one that
    // leaves another behind.
    for with_other in [false, true] {
        let core: &Core = Box::leak(Box::new(core()));
        let registry: &Registry = Box::leak(Box::new(registry()));
        let task: &Task = Box::leak(Box::new(Task::new(1)));
        let event = registry.add(core, spec(100, 0, 1)).unwrap();
        let other = with_other.then(|| registry.add(core, spec(100, 0, 2)).unwrap());
        assert!(!remove_within_delivery(registry, core, task, event));
        if let Some(other) = other {
            registry.request(core, task, &other).unwrap();
            assert_eq!(receivers(core, registry, task, 0), [2]);
            registry.remove(core, None, other).unwrap();
        }
        assert_empty(core, registry, &[100]);
    }
}

#[test]
fn r0_15b_an_event_is_refused_as_soon_as_its_removal_waits() {
    let core: &Core = Box::leak(Box::new(core()));
    let registry: &Registry = Box::leak(Box::new(registry()));
    let (task, other_task) = (Task::new(1), Task::new(2));
    let event = registry.add(core, spec(100, 0, 1)).unwrap();
    let second = registry.add(core, spec(100, 0, 2)).unwrap();
    registry.request(core, &task, &event).unwrap();
    let mut remover = None;
    return_to_user(core, registry, &task, 0, |got| {
        assert_eq!(got.event.0, 1);
        remover = Some(std::thread::spawn(move || registry.remove(core, None, event).unwrap()));
        while core.host().relaxes.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        // While the remover waits, neither a request nor another delivery
        // picks the dying event.
        let error = registry.request(core, &other_task, &event).unwrap_err();
        assert_eq!(error, RequestError::Removed);
        registry.request(core, &other_task, &second).unwrap();
        assert_eq!(receivers(core, registry, &other_task, 0), [2]);
        Ok(())
    });
    remover.unwrap().join().unwrap();
    registry.remove(core, None, second).unwrap();
}

#[test]
fn r0_16_a_removal_waits_for_every_delivery_that_runs_at_once() {
    let core: &Core = Box::leak(Box::new(core()));
    let registry: &Registry = Box::leak(Box::new(registry()));
    let event = registry.add(core, spec(100, 0, 1)).unwrap();
    let keep = registry.add(core, spec(100, 1, 2)).unwrap();
    // Two tasks return on one CPU and are preempted within their deliveries.
    let inside = Arc::new(AtomicU32::new(0));
    let leave: Vec<_> = (1..=2)
        .map(|number| {
            let (go, wait) = mpsc::channel();
            let inside = Arc::clone(&inside);
            let thread = std::thread::spawn(move || {
                let task = Task::new(number);
                registry.request(core, &task, &event).unwrap();
                return_to_user(core, registry, &task, 0, |_| {
                    inside.fetch_add(1, Ordering::SeqCst);
                    wait.recv().unwrap();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                });
            });
            (go, thread)
        })
        .collect();
    while inside.load(Ordering::SeqCst) != 2 {
        std::thread::yield_now();
    }
    let seen = Arc::clone(&inside);
    let remover = std::thread::spawn(move || {
        registry.remove(core, None, event).unwrap();
        seen.load(Ordering::SeqCst)
    });
    for (left, (go, thread)) in [1, 0].into_iter().zip(leave) {
        assert!(!remover.is_finished(), "with {} inside", left + 1);
        go.send(()).unwrap();
        thread.join().unwrap();
        assert_eq!(inside.load(Ordering::SeqCst), left);
        if left == 1 {
            let relaxes = core.host().relaxes.load(Ordering::SeqCst);
            while core.host().relaxes.load(Ordering::SeqCst) < relaxes + 10 {
                std::thread::yield_now();
            }
        }
    }
    assert_eq!(remover.join().unwrap(), 0);
    registry.remove(core, None, keep).unwrap();
}

#[test]
fn r0_17_an_event_with_a_task_and_a_cpu_goes_to_the_registry() {
    let (core, registry) = (core(), registry());
    let with = |task: Option<u64>, cpu| {
        let spec = EventSpec { task: task.map(TaskKey), ..spec(100, cpu, 0) };
        Receiver::open(&registry, &core, spec)
    };
    assert!(matches!(with(Some(1), 2), Ok(Receiver::Cpu(_))));
    assert!(matches!(with(None, 2), Ok(Receiver::Cpu(_))));
    assert!(matches!(with(Some(1), -1), Ok(Receiver::Task(_))));
    assert_eq!(with(None, -1).unwrap_err(), AddError::NoCpu);
    assert_eq!(registry.occupied_cpus(Leader(100)), 1);
}

#[test]
fn r0_18_exactly_one_of_the_two_ways_is_set_up() {
    let (core, registry) = (Recorder::default(), registry());
    let (work, hold) = (Work::default(), SwitchHold::new());
    let on_cpu = Receiver::open(&registry, &core, spec(100, 0, 0)).unwrap();
    let on_task = EventSpec { task: Some(TaskKey(1)), ..spec(100, -1, 0) };
    let on_task = Receiver::open(&registry, &core, on_task).unwrap();
    assert_eq!(core.registered.get(), 1);

    let cookie = on_cpu.request(&registry, &core, USER, &(), (&work, &hold)).unwrap();
    assert!(cookie.is_some() && work.queued.get() == 0 && hold.is_free());
    let cookie = on_task.request(&registry, &core, USER, &(), (&work, &hold)).unwrap();
    assert!(cookie.is_none() && core.requested.get() == 1);
    assert_eq!((work.queued.get(), hold.is_free()), (1, false));
    work.current.set(true);
    for receiver in [on_cpu, on_task] {
        receiver.remove(&registry, &core, Some(&()), (&work, &hold)).unwrap();
    }
    assert_eq!((core.cancelled.get(), work.unqueued.get(), hold.is_free()), (1, 1, true));
}

#[test]
fn r0_19_several_events_that_asked_for_one_task_make_one_record() {
    let (core, registry, task) = (core(), registry(), Task::new(1));
    let events = [1, 2, 3].map(|key| registry.add(&core, spec(100, 0, key)).unwrap());
    for event in &events {
        registry.request(&core, &task, event).unwrap();
    }
    assert_eq!(receivers(&core, &registry, &task, 0).len(), 1);
    // An interrupt on the way out asks again: the entry has had its record.
    for event in &events {
        registry.request(&core, &task, event).unwrap();
    }
    assert_eq!(receivers(&core, &registry, &task, 0).len(), 1, "the next entry");
}

#[test]
fn r0_20_the_work_of_an_event_runs_once_per_request_and_always_ends() {
    let (event, work, hold) = (TaskEvent::new(), Work::default(), SwitchHold::new());
    let never = || -> Result<u32, ()> { panic!("nothing was asked for") };
    assert_eq!(event.run(&hold, never, |_| Ok::<(), ()>(())), TaskRun::NotPending);
    for (walk, output, expected) in [
        (Ok(5), Ok(()), TaskRun::Written),
        (Err(()), Ok(()), TaskRun::NoStack),
        (Ok(5), Err(()), TaskRun::OutputFailed),
    ] {
        let before = work.queued.get();
        event.request(&work, &hold).unwrap();
        event.request(&work, &hold).unwrap();
        assert_eq!(work.queued.get(), before + 1, "queued once");
        assert!(event.is_pending() && !hold.is_free());
        let written = Cell::new(None);
        let ran = event.run(
            &hold,
            || {
                // Still pending while it runs: asking again queues nothing.
                event.request(&work, &hold).unwrap();
                assert!(!hold.is_free());
                walk
            },
            |stack| {
                written.set(Some(stack));
                output
            },
        );
        assert_eq!(ran, expected);
        assert_eq!(written.get(), walk.ok());
        assert_eq!(work.queued.get(), before + 1);
        assert!(!event.is_pending() && hold.is_free());
    }
    assert_eq!((event.no_stack(), event.output_failed()), (1, 1));
    // What cannot be queued is not pending.
    work.fails.set(true);
    let error = event.request(&work, &hold).unwrap_err();
    assert_eq!(error, RequestError::Refused(Refusal::ScheduleFailed));
    assert!(!event.is_pending() && hold.is_free());
}

#[test]
fn r0_20_a_removal_waits_for_pending_work_and_takes_back_its_own() {
    // By the task itself: it cannot wait for itself.
    let (event, work, hold) = (TaskEvent::new(), Work::default(), SwitchHold::new());
    work.current.set(true);
    event.request(&work, &hold).unwrap();
    event.remove(&work, &hold).unwrap();
    assert_eq!((work.unqueued.get(), event.is_pending(), hold.is_free()), (1, false, true));
    assert_eq!(event.request(&work, &hold).unwrap_err(), RequestError::Removed);
    assert_eq!(work.queued.get(), 1);

    // From within the work: refused, and nothing is changed.
    let (event, work, hold) = (TaskEvent::new(), Work::default(), SwitchHold::new());
    work.current.set(true);
    event.request(&work, &hold).unwrap();
    let removed = Cell::new(None);
    let ran = event.run(
        &hold,
        || {
            removed.set(Some(event.remove(&work, &hold)));
            Ok::<_, ()>(())
        },
        |()| Ok::<_, ()>(()),
    );
    assert_eq!(ran, TaskRun::Written);
    assert_eq!(removed.get(), Some(Err(RemoveError::OwnDelivery)));
    event.request(&work, &hold).unwrap();

    // By another task: it waits until the work has run.
    struct Elsewhere;
    impl TaskWork for Elsewhere {
        fn queue(&self) -> Result<(), ScheduleError> {
            Ok(())
        }
        fn unqueue(&self) {
            panic!("it is not this task's");
        }
        fn is_current(&self) -> bool {
            false
        }
        fn relax(&self) {
            std::thread::yield_now();
        }
    }
    let (event, hold) = (Arc::new(TaskEvent::new()), Arc::new(SwitchHold::new()));
    event.request(&Elsewhere, &hold).unwrap();
    let remover = {
        let (event, hold) = (Arc::clone(&event), Arc::clone(&hold));
        std::thread::spawn(move || {
            event.remove(&Elsewhere, &hold).unwrap();
            assert!(!event.is_pending());
        })
    };
    // The removal has begun when requests are refused.
    while event.request(&Elsewhere, &hold).is_ok() {
        std::thread::yield_now();
    }
    assert!(!remover.is_finished());
    let ran = event.run(&hold, || Ok::<_, ()>(()), |()| Ok::<_, ()>(()));
    assert_eq!(ran, TaskRun::Written);
    remover.join().unwrap();
    assert_eq!(event.run(&hold, || Ok::<_, ()>(()), |()| Ok::<_, ()>(())), TaskRun::NotPending);
}

#[test]
fn broadcast_reaches_every_event_that_wants_records_and_is_about_the_task() {
    let (core, registry) = (core(), Registry::new(Policy::Broadcast));
    let (task, other) = (Task::new(1), Task::new(2));
    let add = |leader, cpu, key, task: Option<u64>, wants_records| {
        let task = task.map(TaskKey);
        let event =
            EventSpec { leader: Leader(leader), cpu, task, key: EventKey(key), wants_records };
        registry.add(&core, event).unwrap()
    };
    let events = [
        add(100, 0, 1, None, false),
        add(100, 0, 2, None, true),
        add(200, 0, 3, Some(1), true),
        add(200, 0, 4, Some(2), true),
        add(200, 1, 5, None, true),
    ];
    assert!(events.iter().all(|event| event.client() == events[0].client()), "one for all");
    assert_eq!(registry.occupied_cpus(Leader(77)), 2);
    for event in &events {
        registry.request(&core, &task, event).unwrap();
    }
    assert_eq!(receivers(&core, &registry, &task, 0), [2, 3]);
    registry.request(&core, &other, &events[0]).unwrap();
    assert_eq!(receivers(&core, &registry, &other, 0), [2, 4]);
    registry.request(&core, &other, &events[0]).unwrap();
    assert_eq!(receivers(&core, &registry, &other, 1), [5]);
    registry.request(&core, &other, &events[0]).unwrap();
    assert_eq!(receivers(&core, &registry, &other, 3), [0; 0]);
    assert_eq!(registry.counters().no_event, 1);
    for event in events {
        registry.remove(&core, None, event).unwrap();
    }
    assert_empty(&core, &registry, &[100, 200]);
}

#[test]
fn x3_a_delivery_that_removes_its_own_event_is_told_so() {
    let (core, registry, task) = (core(), registry(), Task::new(1));
    let event = registry.add(&core, spec(100, 0, 1)).unwrap();
    let sibling = registry.add(&core, spec(100, 1, 2)).unwrap();
    registry.request(&core, &task, &event).unwrap();
    return_to_user(&core, &registry, &task, 0, |_| {
        for event in [event, sibling] {
            let error = registry.remove(&core, Some(&task), event).unwrap_err();
            assert_eq!((error, error.errno()), (RemoveError::OwnDelivery, Errno::WouldDeadlock));
        }
        Ok(())
    });
    assert_eq!(registry.occupied_cpus(Leader(100)), 2, "nothing has changed");
    for event in [event, sibling] {
        registry.remove(&core, Some(&task), event).unwrap();
        let error = registry.remove(&core, Some(&task), event).unwrap_err();
        assert_eq!((error, error.errno()), (RemoveError::Removed, Errno::InvalidArgument));
    }
    assert_empty(&core, &registry, &[100]);
}

#[test]
fn x4_a_stale_event_removes_nobody_elses() {
    let (core, registry) = (core(), registry());
    let first = registry.add(&core, spec(100, 0, 1)).unwrap();
    registry.remove(&core, None, first).unwrap();
    let next = registry.add(&core, spec(100, 0, 2)).unwrap();
    assert_eq!(registry.remove(&core, None, first).unwrap_err(), RemoveError::Removed);
    assert_eq!(registry.occupied_cpus(Leader(100)), 1);
    registry.remove(&core, None, next).unwrap();
    assert_empty(&core, &registry, &[100]);
}

#[test]
fn x1_a_registry_lives_in_a_static() {
    static REGISTRY: FixedRegistry<64, 8> = FixedRegistry::new(Policy::FirstLive);
    let (core, task) = (core(), Task::new(1));
    let event = REGISTRY.add(&core, spec(100, 63, 7)).unwrap();
    REGISTRY.request(&core, &task, &event).unwrap();
    assert_eq!(receivers(&core, &REGISTRY, &task, 63), [7]);
    REGISTRY.remove(&core, None, event).unwrap();
}
