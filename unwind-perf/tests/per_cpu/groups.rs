//! Events that are about the tasks of a group, as a cgroup.

use std::cell::Cell;

use unwind_perf::per_cpu::*;

use crate::kernel::{Core, Task, USER, core, return_as};
use crate::work::Work;
use crate::{registry, spec};

/// Group 1 has groups 2 and 3 within it, group 4 has none.
const PARENTS: [u64; 5] = [0, 0, 1, 1, 0];

/// A task that moves between groups.
struct Member {
    task: Task,
    group: Cell<u64>,
}

impl Member {
    fn new(number: u64, group: u64) -> Self {
        Self { task: Task::new(number), group: Cell::new(group) }
    }
}

impl Subject for &Member {
    fn key(self) -> TaskKey {
        TaskKey(self.task.number)
    }

    fn is_in(self, group: GroupKey) -> bool {
        let parent = |&group: &u64| PARENTS.get(usize::try_from(group).unwrap()).copied();
        let mut groups = std::iter::successors(Some(self.group.get()), parent);
        groups.by_ref().take_while(|&group| group != 0).any(|own| own == group.0)
    }
}

fn ask(
    core: &Core,
    registry: &FixedRegistry<4, 4>,
    member: &Member,
    event: &CpuEvent,
) -> Result<(), RequestError> {
    registry.request(core, &member.task, member, event).map(|_| ())
}

fn receivers(core: &Core, registry: &FixedRegistry<4, 4>, member: &Member, cpu: u32) -> Vec<u64> {
    let mut all = Vec::new();
    return_as(core, registry, (&member.task, member), cpu, |got| {
        all.push(got.event.0);
        Ok(())
    });
    all
}

#[test]
fn g15_an_event_of_a_group_asks_for_the_tasks_that_are_in_it_and_for_no_other() {
    let (core, registry) = (core(), registry());
    let event = registry.add_for_group(&core, spec(100, 0, 5), GroupKey(1)).unwrap();
    // In the group, in groups within it, in another, in none.
    for (group, is_in) in [(1, true), (2, true), (3, true), (4, false), (0, false)] {
        let member = Member::new(group + 10, group);
        let asked = ask(&core, &registry, &member, &event);
        assert_eq!(asked, if is_in { Ok(()) } else { Err(RequestError::OtherTask) }, "{group}");
        assert_eq!(receivers(&core, &registry, &member, 0).len(), usize::from(is_in));
    }
    assert_eq!(registry.counters().other_task, 2);
    // A task that the host does not look up groups for is in none, whatever its number.
    let task = Task::new(1);
    let asked = registry.request(&core, &task, TaskKey(1), &event);
    assert_eq!(asked, Err(RequestError::OtherTask));
    // A part of a group does not have what the whole has.
    let part = registry.add_for_group(&core, spec(100, 1, 6), GroupKey(2)).unwrap();
    assert_eq!(ask(&core, &registry, &Member::new(20, 1), &part), Err(RequestError::OtherTask));
    let receiver = Receiver::Cpu(part);
    let (member, work, hold) = (Member::new(21, 2), Work::default(), SwitchHold::new());
    let of = (&member.task, &member);
    assert!(receiver.request(&registry, &core, USER, of, (&work, &hold)).is_ok());
}

#[test]
fn g15_a_stack_goes_to_an_event_of_a_group_that_the_task_is_in_when_it_returns() {
    let (core, registry) = (core(), registry());
    let of_2 = registry.add_for_group(&core, spec(100, 0, 2), GroupKey(2)).unwrap();
    let of_1 = registry.add_for_group(&core, spec(100, 0, 1), GroupKey(1)).unwrap();
    let own = EventSpec { task: Some(TaskKey(7)), ..spec(100, 0, 7) };
    let own = registry.add(&core, own).unwrap();
    // The oldest event that is about the task.
    for (group, key) in [(2, 2), (1, 1), (3, 1), (4, 7)] {
        let member = Member::new(7, group);
        ask(&core, &registry, &member, &own).unwrap();
        assert_eq!(receivers(&core, &registry, &member, 0), [key], "{group}");
    }
    // It leaves the group after its sample.
    let member = Member::new(8, 2);
    ask(&core, &registry, &member, &of_2).unwrap();
    member.group.set(3);
    assert_eq!(receivers(&core, &registry, &member, 0), [1]);
    ask(&core, &registry, &member, &of_1).unwrap();
    member.group.set(4);
    assert_eq!(registry.counters().no_event, 0);
    assert_eq!(receivers(&core, &registry, &member, 0), [0; 0]);
    assert_eq!(registry.counters().no_event, 1);
}

#[test]
fn g15_a_broadcast_reaches_the_events_of_the_groups_that_the_task_is_in() {
    let (core, registry) = (core(), FixedRegistry::<4, 4>::new(DeliveryPolicy::Broadcast));
    let wants = |key| EventSpec { defer_output: true, ..spec(key, 0, key) };
    let events = [1, 2, 4]
        .map(|group| registry.add_for_group(&core, wants(group), GroupKey(group)).unwrap());
    for (group, event, keys) in [(2, 1, vec![1, 2]), (3, 0, vec![1]), (4, 2, vec![4])] {
        let member = Member::new(9, group);
        ask(&core, &registry, &member, &events[event]).unwrap();
        assert_eq!(receivers(&core, &registry, &member, 0), keys, "{group}");
    }
    // A group is on CPUs, under either policy, and not about one task as well.
    let anywhere = EventSpec { cpu: -1, ..wants(9) };
    let refused = registry.add_for_group(&core, anywhere, GroupKey(1)).unwrap_err();
    assert_eq!(refused, AddError::NoCpu);
    let of_a_task = EventSpec { task: Some(TaskKey(1)), ..wants(9) };
    let refused = registry.add_for_group(&core, of_a_task, GroupKey(1)).unwrap_err();
    assert_eq!(refused, AddError::TaskAndGroup);
    assert_eq!(registry.occupied_cpus(GroupLeader(9)), 1, "nothing was added");
    // A child's copy of an event is the child's alone.
    let child = registry.inherit(&core, events[0], TaskKey(30), EventKey(30)).unwrap();
    assert_eq!(ask(&core, &registry, &Member::new(31, 1), &child), Err(RequestError::OtherTask));
    assert_eq!(ask(&core, &registry, &Member::new(30, 4), &child), Ok(()));
}
