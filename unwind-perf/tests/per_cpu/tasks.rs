//! Events that are bound to tasks: whose stack they ask for and get, also when the task
//! forks, and without a CPU.

use unwind_core::deferred::MAX_CLIENTS;
use unwind_perf::per_cpu::*;

use crate::{
    kernel::{Task, USER, core, receivers},
    registry, spec,
    work::Work,
};

fn about(task: u64, spec: EventSpec) -> EventSpec {
    EventSpec { task: Some(TaskKey(task)), defer_output: true, ..spec }
}

fn ask<S: AsRef<[CpuList<E>]>, const E: usize>(
    core: &crate::kernel::Core,
    registry: &PerCpuRegistry<S, E>,
    task: &Task,
    event: &CpuEvent,
) {
    registry.request(core, task, TaskKey(task.number), event).unwrap();
}

#[test]
fn g2_a_stack_goes_to_the_event_of_its_profiler_that_is_about_the_task() {
    let (core, registry) = (core(), registry());
    let tasks = [1, 2, 3].map(Task::new);
    let of_1 = registry.add(&core, about(1, spec(100, 0, 11))).unwrap();
    let of_2 = registry.add(&core, about(2, spec(100, 0, 12))).unwrap();
    for (task, event, key) in [(&tasks[0], &of_1, 11), (&tasks[1], &of_2, 12)] {
        ask(&core, &registry, task, event);
        assert_eq!(receivers(&core, &registry, task, 0), [key]);
    }
    // Nor when the stack is of a task that neither is about.
    let anyone = registry.add(&core, spec(100, 1, 13)).unwrap();
    ask(&core, &registry, &tasks[2], &anyone);
    assert_eq!(receivers(&core, &registry, &tasks[2], 0), [0; 0]);
    assert_eq!(registry.counters().no_event, 1);
    // One that counts every task comes after the older one that is about this.
    let every = registry.add(&core, spec(100, 0, 14)).unwrap();
    for (task, key) in [(&tasks[1], 12), (&tasks[2], 14)] {
        ask(&core, &registry, task, &every);
        assert_eq!(receivers(&core, &registry, task, 0), [key]);
    }
}

#[test]
fn r3_9_g7_an_event_of_one_task_does_not_ask_for_the_stack_of_another() {
    let (core, registry) = (core(), registry());
    let (own, other) = (Task::new(1), Task::new(2));
    let event = registry.add(&core, about(1, spec(100, 0, 5))).unwrap();
    let error = registry.request(&core, &other, TaskKey(2), &event).unwrap_err();
    assert_eq!(error, RequestError::OtherTask);
    assert_eq!(registry.counters().other_task, 1);
    assert_eq!(receivers(&core, &registry, &other, 0), [0; 0]);
    assert_eq!(other.walks.load(std::sync::atomic::Ordering::Relaxed), 0);
    ask(&core, &registry, &own, &event);
    assert_eq!(receivers(&core, &registry, &own, 0), [5]);
    assert_eq!(registry.counters().other_task, 1);
}

#[test]
fn g4_the_record_of_a_tasks_own_work_has_the_cookie_that_its_samples_were_told() {
    struct OnTask<'a>(&'a crate::kernel::Core, &'a Task, Work);
    impl TaskWork for OnTask<'_> {
        fn cookie(&self) -> Result<unwind_core::deferred::Cookie, unwind_core::deferred::Refusal> {
            self.0.cookie(self.1)
        }
        fn queue(&self) -> Result<(), unwind_core::deferred::ScheduleError> {
            self.2.queue()
        }
        fn unqueue(&self) {
            self.2.unqueue();
        }
        fn is_current(&self) -> bool {
            true
        }
        fn relax(&self) {}
    }
    let (core, registry, task) = (core(), registry(), Task::new(1));
    let work = OnTask(&core, &task, Work::default());
    let hold = SwitchHold::new();
    let receiver = Receiver::open(&registry, &core, about(1, spec(100, -1, 5))).unwrap();
    // Another event of the same task, on the CPU: one cookie for both in one entry.
    let on_cpu = registry.add(&core, spec(100, 0, 6)).unwrap();
    let mut cookies = Vec::new();
    for _ in 0..3 {
        let of = (&task, TaskKey(1));
        let first = receiver.request(&registry, &core, USER, of, (&work, &hold)).unwrap();
        let again = receiver.request(&registry, &core, USER, of, (&work, &hold)).unwrap();
        let beside = registry.request(&core, &task, TaskKey(1), &on_cpu).unwrap();
        let Receiver::Task(event) = &receiver else { panic!("it has no CPU") };
        let mut written = None;
        let ran = event.run(
            &hold,
            |_| Ok::<_, ()>(()),
            |cookie, ()| {
                written = Some(cookie);
                Ok::<_, ()>(())
            },
        );
        assert_eq!(ran, TaskRun::Written);
        assert_eq!([written, Some(again), Some(beside)], [Some(first); 3]);
        assert_eq!(receivers(&core, &registry, &task, 0), [6]);
        assert!(!cookies.contains(&first), "another entry has another cookie");
        cookies.push(first);
    }
}

#[test]
fn g5_children_take_their_events_from_the_profiler_whoever_forks() {
    // As many processes as fork after each other, with a child each, and two CPUs.
    const FORKS: u64 = 200;
    const SPARE: usize = 100;
    let lists = core::array::from_fn(|_| CpuList::new());
    let registry =
        FixedRegistry::<{ 2 + SPARE }, 4>::with_spare(DeliveryPolicy::FirstLive, lists, 2);
    let core = core();
    let mut parents = [0, 1].map(|cpu| registry.add(&core, about(0, spec(100, cpu, 0))).unwrap());
    let mut events = parents.to_vec();
    for child in 1..=FORKS {
        let key = |cpu: u32| EventKey(child << 1 | u64::from(cpu));
        let inherit = |parent: CpuEvent| {
            registry.inherit(&core, parent, TaskKey(child), key(parent.cpu().unwrap())).unwrap()
        };
        parents = parents.map(inherit);
        events.extend(parents);
    }
    // One profiler, one client.
    assert!(events.iter().all(|event| event.client() == events[0].client()));
    assert_eq!(registry.occupied_cpus(GroupLeader(100)), 2);
    let rest: Vec<_> = (1..MAX_CLIENTS).map(|_| core.register().unwrap()).collect();
    // Each child's stack goes to its own event.
    for child in [1, 2, 100, FORKS] {
        let task = Task::new(child);
        let event = events[usize::try_from(child << 1).unwrap()];
        ask(&core, &registry, &task, &event);
        assert_eq!(receivers(&core, &registry, &task, 1), [child << 1 | 1]);
    }
    // Places that were left are taken again.
    for event in &events[2..] {
        registry.remove(&core, None, *event).unwrap();
    }
    let error = registry.inherit(&core, parents[0], TaskKey(1), EventKey(1)).unwrap_err();
    assert_eq!(error, AddError::NoParent);
    for child in 1..FORKS {
        registry.inherit(&core, events[0], TaskKey(child), EventKey(child)).unwrap();
    }
    let on_1: Vec<_> = (1..FORKS)
        .map(|child| registry.inherit(&core, events[1], TaskKey(child), EventKey(child)).unwrap())
        .collect();
    // What cannot be had changes nothing.
    let full = (0..10_000)
        .find_map(|key| registry.inherit(&core, events[0], TaskKey(1), EventKey(key)).err());
    assert_eq!(full, Some(AddError::NoMemory));
    for event in on_1 {
        registry.remove(&core, None, event).unwrap();
    }
    let task = Task::new(7);
    let own = registry.inherit(&core, events[1], TaskKey(7), EventKey(70)).unwrap();
    ask(&core, &registry, &task, &own);
    assert_eq!(receivers(&core, &registry, &task, 1), [70]);
    for client in rest {
        core.cancel(None, client).unwrap();
    }
}

#[test]
fn g6_an_event_without_a_cpu_gets_the_stacks_of_its_task_wherever_that_returns() {
    let core = core();
    let registry = FixedRegistry::<3, 2>::new(DeliveryPolicy::Broadcast);
    let (own, work, hold) = (about(1, spec(100, -1, 5)), Work::default(), SwitchHold::new());
    let receiver = Receiver::open(&registry, &core, own).unwrap();
    let Receiver::Cpu(event) = receiver else { panic!("broadcast needs no work on the task") };
    assert_eq!(event.cpu(), None);
    let on_2 = registry.add(&core, EventSpec { defer_output: true, ..spec(200, 2, 6) }).unwrap();
    let task = Task::new(1);
    for (cpu, expected) in [(0, vec![5]), (1, vec![5]), (2, vec![6, 5])] {
        receiver.request(&registry, &core, USER, (&task, TaskKey(1)), (&work, &hold)).unwrap();
        assert_eq!(receivers(&core, &registry, &task, cpu), expected);
    }
    // Not those of others.
    let other = Task::new(2);
    ask(&core, &registry, &other, &on_2);
    assert_eq!(receivers(&core, &registry, &other, 2), [6]);
    assert_eq!(work.queued.get(), 0);
    // It needs a task all the same.
    assert_eq!(registry.add(&core, spec(100, -1, 7)).unwrap_err(), AddError::NoCpu);
    registry.remove(&core, None, on_2).unwrap();
    ask(&core, &registry, &task, &event);
    registry.remove(&core, None, event).unwrap();
    assert_eq!(receivers(&core, &registry, &task, 0), [0; 0]);
    assert_eq!(registry.client_of(GroupLeader(100)), None);
}

#[test]
fn s3_a_childs_copy_wants_records_if_its_parent_does() {
    for wants in [false, true] {
        let registry = FixedRegistry::<1, 4>::new(DeliveryPolicy::Broadcast);
        let core = core();
        let of = EventSpec { defer_output: wants, ..about(1, spec(100, 0, 1)) };
        let parent = registry.add(&core, of).unwrap();
        registry.inherit(&core, parent, TaskKey(2), EventKey(2)).unwrap();
        let mut got = Vec::new();
        let _ = registry.deliver(parent.client(), 0, TaskKey(2), |key| {
            got.push(key.0);
            Ok::<_, ()>(())
        });
        assert_eq!(got, if wants { vec![2] } else { vec![] });
    }
}

#[test]
fn s3_a_parent_that_was_removed_has_no_children_whoever_has_its_place() {
    let registry = FixedRegistry::<1, 1>::new(DeliveryPolicy::FirstLive);
    let core = core();
    let parent = registry.add(&core, about(1, spec(100, 0, 1))).unwrap();
    registry.remove(&core, None, parent).unwrap();
    // The only place there is.
    let other = registry.add(&core, about(1, spec(200, 0, 2))).unwrap();
    let error = registry.inherit(&core, parent, TaskKey(2), EventKey(3)).unwrap_err();
    assert_eq!(error, AddError::NoParent);
    let error = registry.inherit(&core, other, TaskKey(2), EventKey(3)).unwrap_err();
    assert_eq!(error, AddError::NoMemory, "that of one that lives has no room");
}
