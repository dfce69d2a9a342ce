//! Descriptors: one for each leader and CPU, one client for all of them.

use unwind_core::deferred::{CancelError, ClientId, MAX_CLIENTS, Refusal, RequestOutcome};
use unwind_perf::Errno;
use unwind_perf::per_cpu::*;

use crate::{
    assert_empty,
    kernel::{self, Task, core, receivers},
    recorder::Recorder,
    registry, spec,
};

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
    let other = EventSpec { leader: GroupLeader(200), ..about(1) };
    let c = registry.add(&core, other).unwrap();
    assert_ne!(a.client(), c.client());
    assert_eq!(registry.client_of(GroupLeader(100)), Some(a.client()));
    assert_eq!(registry.client_of(GroupLeader(200)), Some(c.client()));
    assert!(registry.owns(a.client()) && registry.owns(c.client()));
    for event in [a, b, c] {
        registry.remove(&core, None, event).unwrap();
    }
    assert!(!registry.owns(a.client()));
    assert_empty(&core, &registry, &[100, 200, 1, 2]);
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
        assert_eq!(registry.occupied_cpus(GroupLeader(100)), occupied);
    }
    // Another profiler's events on the same CPUs do not count.
    let other = registry.add(&core, spec(200, 1, 0)).unwrap();
    for (event, occupied) in events.into_iter().zip([3, 3, 3, 2, 1, 0]) {
        registry.remove(&core, None, event).unwrap();
        assert_eq!(registry.occupied_cpus(GroupLeader(100)), occupied);
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
        assert!(
            registry.request(&core, &task, TaskKey(task.number), &b).is_ok(),
            "the client is still there"
        );
        assert_eq!(receivers(&core, &registry, &task, 1), [1]);
        registry.remove(&core, None, b).unwrap();
        // The client is gone from the core, and no other remains.
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
    assert_eq!(registry.client_of(GroupLeader(200)), None);
    assert_eq!(registry.occupied_cpus(GroupLeader(100)), 1);
    // The client table is full.
    let others: Vec<_> = (1..MAX_CLIENTS).map(|_| core.register().unwrap()).collect();
    let error = registry.add(&core, spec(200, 0, 9)).unwrap_err();
    assert_eq!((error, error.errno()), (AddError::Busy, Errno::Busy));
    assert_eq!(registry.client_of(GroupLeader(200)), None);
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
    let error = HeapRegistry::<4>::try_with_cpus(DeliveryPolicy::FirstLive, usize::MAX / 64, 0)
        .unwrap_err();
    assert_eq!((error, error.errno()), (AddError::NoMemory, Errno::NoMemory));
    let (core, task) = (core(), Task::new(1));
    let registry = HeapRegistry::<4>::try_with_cpus(DeliveryPolicy::FirstLive, 300, 0).unwrap();
    let event = registry.add(&core, spec(100, 299, 5)).unwrap();
    assert_eq!(
        registry.add(&core, spec(100, 300, 5)).unwrap_err(),
        AddError::CpuOutOfRange { cpu: 300 }
    );
    registry.request(&core, &task, TaskKey(task.number), &event).unwrap();
    assert_eq!(receivers(&core, &registry, &task, 299), [5]);
    registry.remove(&core, None, event).unwrap();
}

#[test]
fn r0_6_cpu_numbers_may_have_gaps_and_those_out_of_range_are_refused() {
    // Four CPUs, numbered as on a machine with gaps.
    let (core, task) = (core(), Task::new(1));
    let registry = FixedRegistry::<67, 2>::new(DeliveryPolicy::FirstLive);
    let cpus = [0, 2, 64, 66];
    let events = cpus.map(|cpu| {
        let spec = spec(100, i32::try_from(cpu).unwrap(), u64::from(cpu));
        registry.add(&core, spec).unwrap()
    });
    assert_eq!(registry.occupied_cpus(GroupLeader(100)), 4);
    for cpu in cpus {
        registry.request(&core, &task, TaskKey(task.number), &events[0]).unwrap();
        assert_eq!(receivers(&core, &registry, &task, cpu), [u64::from(cpu)]);
    }
    for cpu in [67, 1000, i32::MAX] {
        let error = registry.add(&core, spec(100, cpu, 0)).unwrap_err();
        let out_of_range = AddError::CpuOutOfRange { cpu: cpu.unsigned_abs() };
        assert_eq!((error, error.errno()), (out_of_range, Errno::InvalidArgument));
    }
    // A delivery out of range is lost, and counted.
    registry.request(&core, &task, TaskKey(task.number), &events[0]).unwrap();
    assert_eq!(receivers(&core, &registry, &task, 67), [0; 0]);
    assert_eq!(registry.counters().unknown_cpu, 1);
    for event in events {
        registry.remove(&core, None, event).unwrap();
    }
}

#[test]
fn r0_7_a_failure_leaves_no_half_made_descriptor() {
    let (core, registry) = (Recorder::default(), registry());
    // The profiler's last event goes, then adding fails, then it works: each
    // time with a fresh client.
    for round in 1..=5 {
        let event = registry.add(&core, spec(100, 0, 0)).unwrap();
        registry.remove(&core, None, event).unwrap();
        core.full.set(true);
        assert_eq!(registry.add(&core, spec(100, 0, 0)).unwrap_err(), AddError::Busy);
        assert_eq!(registry.client_of(GroupLeader(100)), None);
        assert_eq!(registry.occupied_cpus(GroupLeader(100)), 0);
        core.full.set(false);
        assert_eq!((core.registered.get(), core.cancelled.get()), (round, round));
    }
}

#[test]
fn r0_7_an_add_that_finds_no_descriptor_registers_no_client() {
    // A core with more clients than there are descriptors.
    let (core, registry) =
        (Recorder::default(), FixedRegistry::<64, 1>::new(DeliveryPolicy::FirstLive));
    let profilers = u64::try_from(MAX_CLIENTS).unwrap();
    for n in 0..profilers {
        registry.add(&core, spec(100 + n, i32::try_from(n).unwrap(), 0)).unwrap();
    }
    assert_eq!((core.registered.get(), core.cancelled.get()), (profilers, 0));
    assert_eq!(registry.add(&core, spec(99, 63, 0)).unwrap_err(), AddError::Busy);
    // There is nothing to cancel, which could wait for a delivery to all clients
    // while the registry is locked.
    assert_eq!((core.registered.get(), core.cancelled.get()), (profilers, 0));
    assert_eq!(registry.client_of(GroupLeader(99)), None);
}

#[test]
fn x4_a_stale_event_removes_nobody_elses() {
    let (core, registry) = (core(), registry());
    let first = registry.add(&core, spec(100, 0, 1)).unwrap();
    registry.remove(&core, None, first).unwrap();
    let next = registry.add(&core, spec(100, 0, 2)).unwrap();
    assert_eq!(registry.remove(&core, None, first).unwrap_err(), RemoveError::Removed);
    assert_eq!(registry.occupied_cpus(GroupLeader(100)), 1);
    registry.remove(&core, None, next).unwrap();
    assert_empty(&core, &registry, &[100]);
}

#[test]
fn b10_the_events_of_another_registry_are_none_of_this_ones() {
    let (core, registry, other) = (core(), registry(), registry());
    let (of_core, task) = (kernel::core(), Task::new(1));
    // The same profiler, CPU and place, and each the first event of its
    // registry and the first client of its core.
    let own = registry.add(&core, spec(100, 0, 1)).unwrap();
    let stranger = other.add(&of_core, spec(100, 0, 2)).unwrap();
    let error = registry.request(&core, &task, TaskKey(task.number), &stranger).unwrap_err();
    assert_eq!((error, registry.counters().stale_requests), (RequestError::Removed, 1));
    assert_eq!(registry.remove(&core, None, stranger).unwrap_err(), RemoveError::Removed);
    assert_eq!(
        (registry.occupied_cpus(GroupLeader(100)), other.occupied_cpus(GroupLeader(100))),
        (1, 1)
    );
    registry.request(&core, &task, TaskKey(task.number), &own).unwrap();
    assert_eq!(receivers(&core, &registry, &task, 0), [1]);
    registry.remove(&core, None, own).unwrap();
    other.remove(&of_core, None, stranger).unwrap();
    assert_empty(&core, &registry, &[100]);
}

#[test]
fn b10_a_client_that_the_core_does_not_cancel_is_an_error_and_the_event_is_gone() {
    let (core, other_core, registry) = (Recorder::default(), Recorder::default(), registry());
    let event = registry.add(&core, spec(100, 0, 1)).unwrap();
    let error = registry.remove(&other_core, None, event).unwrap_err();
    assert_eq!(error, RemoveError::NotCancelled(CancelError::UnknownClient));
    assert_eq!(error.errno(), Errno::InvalidArgument);
    assert_eq!((core.cancelled.get(), other_core.cancelled.get()), (0, 0));
    assert_eq!(
        (registry.occupied_cpus(GroupLeader(100)), registry.owns(event.client())),
        (0, false)
    );
    assert_eq!(registry.remove(&core, None, event).unwrap_err(), RemoveError::Removed);
}

#[test]
fn b1_an_id_that_was_never_granted_is_no_profilers() {
    let (core, registry) = (core(), registry());
    for bits in 0..64 {
        assert!(!registry.owns(ClientId::from_bits(bits)), "{bits}");
    }
    let event = registry.add(&core, spec(100, 0, 1)).unwrap();
    assert!(registry.owns(event.client()));
    assert!(!registry.owns(ClientId::from_bits(0)));
}

#[test]
fn x1_a_registry_lives_in_a_static() {
    static REGISTRY: FixedRegistry<64, 8> = FixedRegistry::new(DeliveryPolicy::FirstLive);
    let (core, task) = (core(), Task::new(1));
    let event = REGISTRY.add(&core, spec(100, 63, 7)).unwrap();
    REGISTRY.request(&core, &task, TaskKey(task.number), &event).unwrap();
    assert_eq!(receivers(&core, &REGISTRY, &task, 63), [7]);
    REGISTRY.remove(&core, None, event).unwrap();
}
