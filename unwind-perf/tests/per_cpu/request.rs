//! Requests, and which event gets the stack.

use std::sync::atomic::Ordering;

use unwind_core::deferred::{Refusal, TaskKind};
use unwind_perf::Errno;
use unwind_perf::per_cpu::*;
use unwind_perf::record::{
    AttrFlags, CallchainDeferred, EventFormat, Output, Ring, RingWriter, SampleId, SampleType,
};

use crate::{
    Registry, assert_empty,
    kernel::{Task, USER, core, receivers, return_to_user},
    recorder::Recorder,
    registry, spec,
    work::Work,
};

#[test]
fn r0_8_any_outcome_but_a_refusal_is_success() {
    let (core, registry) = (Recorder::default(), registry());
    let event = registry.add(&core, spec(100, 0, 0)).unwrap();
    // Queued, already pending, already executed.
    for _ in 0..3 {
        assert_eq!(registry.request(&core, &(), TaskKey(1), &event).unwrap().get(), 7);
    }
    core.refusal.set(Some(Refusal::ScheduleFailed));
    let error = registry.request(&core, &(), TaskKey(1), &event).unwrap_err();
    let refused = RequestError::Refused(Refusal::ScheduleFailed);
    assert_eq!((error, error.errno()), (refused, Errno::InvalidArgument));
    // An event without a descriptor sends no request, and is counted.
    registry.remove(&core, None, event).unwrap();
    let error = registry.request(&core, &(), TaskKey(1), &event).unwrap_err();
    assert_eq!((error, error.errno()), (RequestError::Removed, Errno::InvalidArgument));
    assert_eq!((core.requested.get(), registry.counters().stale_requests), (4, 1));
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
            let asked = receiver.request(
                &registry,
                &core,
                sampled,
                (&task, TaskKey(task.number)),
                (&work, &hold),
            );
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
    let error = registry.request(&core, &task, TaskKey(task.number), event).unwrap_err();
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
            cookies.push(registry.request(&core, &task, TaskKey(task.number), event).unwrap());
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
        registry.request(&core, task, TaskKey(task.number), &events[1][2]).unwrap();
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
    registry.request(&core, &task, TaskKey(task.number), &on_0).unwrap();
    assert_eq!(receivers(&core, &registry, &task, 1), [11], "sampled on 0, returned on 1");
    assert_eq!(registry.counters(), RegistryCounters::default());
    // On CPU 2 there is only an event of another profiler.
    registry.request(&core, &task, TaskKey(task.number), &on_0).unwrap();
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
        registry.request(&core, &task, TaskKey(task.number), event).unwrap();
        registry.request(&core, &task, TaskKey(task.number), &instructions).unwrap();
        assert_eq!(receivers(&core, &registry, &task, 0), [1], "whichever of them asked");
    }
    registry.remove(&core, None, cycles).unwrap();
    // A place that was freed does not make its next event the first.
    let third = registry.add(&core, spec(100, 0, 3)).unwrap();
    registry.request(&core, &task, TaskKey(task.number), &third).unwrap();
    assert_eq!(receivers(&core, &registry, &task, 0), [2]);
}

#[test]
fn r0_12_events_that_go_away_are_skipped() {
    let (core, registry, task) = (core(), registry(), Task::new(1));
    let keys = [1, 2, 3, 4];
    let events = keys.map(|key| registry.add(&core, spec(100, 0, key)).unwrap());
    let asking = registry.add(&core, spec(100, 1, 9)).unwrap();
    for gone in 0..4 {
        registry.request(&core, &task, TaskKey(task.number), &asking).unwrap();
        assert_eq!(receivers(&core, &registry, &task, 0), [keys[gone]]);
        registry.remove(&core, None, events[gone]).unwrap();
    }
    registry.request(&core, &task, TaskKey(task.number), &asking).unwrap();
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
        registry.request(&core, &task, TaskKey(task.number), &event).unwrap();
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
fn broadcast_reaches_every_event_that_wants_records_and_is_about_the_task() {
    let (core, registry) = (core(), Registry::new(DeliveryPolicy::Broadcast));
    let (task, other) = (Task::new(1), Task::new(2));
    let add = |leader, cpu, key, task: Option<u64>, defer_output| {
        let task = task.map(TaskKey);
        let event =
            EventSpec { leader: GroupLeader(leader), cpu, task, key: EventKey(key), defer_output };
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
    assert_eq!(registry.occupied_cpus(GroupLeader(77)), 2);
    for event in &events {
        let asked = registry.request(&core, &task, TaskKey(task.number), event);
        assert_eq!(asked.is_ok(), *event != events[3], "that one is about the other task");
    }
    assert_eq!(receivers(&core, &registry, &task, 0), [2, 3]);
    registry.request(&core, &other, TaskKey(other.number), &events[0]).unwrap();
    assert_eq!(receivers(&core, &registry, &other, 0), [2, 4]);
    registry.request(&core, &other, TaskKey(other.number), &events[0]).unwrap();
    assert_eq!(receivers(&core, &registry, &other, 1), [5]);
    registry.request(&core, &other, TaskKey(other.number), &events[0]).unwrap();
    assert_eq!(receivers(&core, &registry, &other, 3), [0; 0]);
    assert_eq!(registry.counters().no_event, 1);
    for event in events {
        registry.remove(&core, None, event).unwrap();
    }
    assert_empty(&core, &registry, &[100, 200]);
}

#[test]
fn an_event_says_where_it_counts() {
    let (core, registry) = (core(), Registry::new(DeliveryPolicy::Broadcast));
    let on_cpu = registry.add(&core, spec(100, 2, 0)).unwrap();
    let anywhere = EventSpec { task: Some(TaskKey(1)), ..spec(100, -1, 0) };
    let anywhere = registry.add(&core, anywhere).unwrap();
    assert_eq!((on_cpu.cpu(), anywhere.cpu()), (Some(2), None));
    let texts = [format!("{on_cpu:?}"), format!("{anywhere:?}")];
    assert!(
        texts[0].starts_with("CpuEvent(2#") && texts[1].starts_with("CpuEvent(any#"),
        "{texts:?}"
    );
}
