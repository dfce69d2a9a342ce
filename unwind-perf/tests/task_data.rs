//! The rules of task data: who brings it, who takes it away, what a task
//! inherits, and what a context switch sees.
#![cfg(not(loom))]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::std_instead_of_core,
    clippy::std_instead_of_alloc,
    missing_debug_implementations,
    unreachable_pub,
    reason = "tests"
)]

mod arena;

use std::sync::Arc;

use arena::{Host, Task};
use unwind_perf::Errno;
use unwind_perf::task_data::*;

fn lbr_layout() -> DataLayout {
    DataLayout::new(788, 64).unwrap()
}

fn users() -> Arc<TaskDataUsers> {
    Arc::new(TaskDataUsers::new(Some(lbr_layout())))
}

/// Every piece was freed, and the counters agree.
fn assert_nothing_left(host: &Host, users: &TaskDataUsers) {
    assert_eq!((host.live(), host.live_bytes()), (0, 0));
    let counters = users.counters();
    assert_eq!(counters.allocated, counters.freed);
    assert_eq!(counters.allocated, host.allocations());
    assert_eq!(users.system_wide(), 0);
    for task in host.tasks() {
        assert_eq!((task.data.users(), task.data.is_marked()), (0, false), "{task:?}");
    }
}

#[test]
fn r2_1_a_task_has_no_data_until_someone_needs_it_and_a_child_inherits_none() {
    assert_eq!(size_of::<TaskData>(), 8);
    let host = Host::with_tasks(1);
    let (users, parent) = (users(), host.task(0));
    assert_eq!(parent.data.handle(), None);
    let attachment = users.attach_task(&host, &parent).unwrap();
    assert!(parent.data.handle().is_some());

    let child = host.spawn(1);
    users.fork(&host, &child).unwrap();
    assert_eq!(child.data.handle(), None);
    users.detach_task(&host, &parent, attachment).unwrap();
    assert_nothing_left(&host, &users);
}

#[test]
fn r2_2_size_and_alignment_are_the_pmus() {
    let host = Host::with_tasks(5);
    for (size, align) in [(788, 64), (1, 1), (4096, 4096), (0, 8)] {
        let layout = DataLayout::new(size, align).unwrap();
        let users = TaskDataUsers::new(Some(layout));
        let all = users.attach_all(&host).unwrap();
        for task in host.tasks() {
            let placed = host.access(task.data.handle().unwrap());
            assert_eq!(placed.layout, layout);
            assert_eq!(placed.addr % align, 0);
        }
        users.detach_all(&host, all);
        assert_eq!(host.live(), 0);
    }
}

#[test]
fn r2_3_memory_is_there_only_while_someone_monitors() {
    let host = Host::with_tasks(10_000);
    let users = users();
    assert_eq!(host.live_bytes(), 0);
    let first = users.attach_all(&host).unwrap();
    assert_eq!(host.live_bytes(), 7_880_000, "about 8 MB for 10,000 threads");
    let second = users.attach_all(&host).unwrap();
    users.detach_all(&host, first);
    assert_eq!(host.live_bytes(), 7_880_000, "the last user takes it away");
    users.detach_all(&host, second);
    assert_nothing_left(&host, &users);
}

#[test]
fn r2_4_what_a_context_switch_reads_is_freed_after_it() {
    let host = Host::with_tasks(2);
    let (users, task) = (users(), host.task(0));
    let hook = SwitchHook::new();
    let attachment = users.attach_task(&host, &task).unwrap();

    let section = host.open_section();
    let seen = hook.switch(Some(&task.data), None).unwrap().from.unwrap();
    users.detach_task(&host, &task, attachment).unwrap();
    assert_eq!(task.data.handle(), None, "the next switch does not see it");
    host.access(seen);
    let later = host.open_section();
    host.close_section(section);
    assert_eq!(host.live(), 0, "a section that was opened later does not hold it");
    host.close_section(later);
    assert_nothing_left(&host, &users);
}

/// What an event of one task holds, in the context of that task's events.
struct Context {
    attachment: TaskAttachment,
    target: Arc<Task>,
}

#[test]
fn r2_6_swapping_event_contexts_moves_no_data() {
    let host = Host::with_tasks(2);
    let (users, a, b) = (users(), host.task(0), host.task(1));
    let context = |task: &Arc<Task>| Context {
        attachment: users.attach_task(&host, task).unwrap(),
        target: Arc::clone(task),
    };
    let (mut of_a, mut of_b) = (context(&a), context(&b));
    let (data_a, data_b) = (a.data.handle(), b.data.handle());

    // The optimised switch between tasks with equal events: the contexts
    // change hands, and nothing has to be done about the data.
    std::mem::swap(&mut of_a, &mut of_b);
    assert_eq!((a.data.handle(), b.data.handle()), (data_a, data_b));
    let switch = SwitchHook::new().switch(Some(&a.data), Some(&b.data)).unwrap();
    assert_eq!((switch.from, switch.to), (data_a, data_b));

    // Each event takes away what it brought, and where it brought it.
    for (context, left) in [(of_a, 1), (of_b, 0)] {
        users.detach_task(&host, &context.target, context.attachment).unwrap();
        assert_eq!(host.live(), left);
    }
    assert_nothing_left(&host, &users);
}

#[test]
fn r2_7_an_attach_uses_the_data_that_is_there() {
    let host = Host::with_tasks(1);
    let (users, task) = (users(), host.task(0));
    let first = users.attach_task(&host, &task).unwrap();
    let handle = task.data.handle();
    let second = users.attach_task(&host, &task).unwrap();
    assert_eq!((task.data.handle(), task.data.users()), (handle, 2));
    assert_eq!(host.allocations(), 1);
    users.detach_task(&host, &task, first).unwrap();
    assert_eq!(task.data.handle(), handle);
    users.detach_task(&host, &task, second).unwrap();
    assert_nothing_left(&host, &users);
}

#[test]
fn r2_7_of_two_that_install_data_the_loser_frees_its_own_and_uses_the_winners() {
    let host = Host::with_tasks(1);
    let (users, task) = (users(), host.task(0));
    let (u, winner) = (Arc::clone(&users), Arc::new(std::sync::Mutex::new(None)));
    let slot = Arc::clone(&winner);
    host.at_next_alloc(move |host| {
        let attachment = u.attach_task(host, &host.task(0)).unwrap();
        *slot.lock().unwrap() = Some((attachment, host.task(0).data.handle()));
    });
    let loser = users.attach_task(&host, &task).unwrap();
    let (winner, handle) = winner.lock().unwrap().take().unwrap();
    assert_eq!((task.data.handle(), task.data.users()), (handle, 2));
    assert_eq!((host.allocations(), host.live()), (2, 1));
    users.detach_task(&host, &task, loser).unwrap();
    users.detach_task(&host, &task, winner).unwrap();
    assert_nothing_left(&host, &users);
}

#[test]
fn r2_7_data_that_is_dying_is_replaced_and_freed_after_its_readers() {
    let host = Host::with_tasks(1);
    let (users, task) = (users(), host.task(0));
    let first = users.attach_task(&host, &task).unwrap();
    let dying = task.data.handle().unwrap();
    let section = host.open_section();
    users.detach_task(&host, &task, first).unwrap();
    let second = users.attach_task(&host, &task).unwrap();
    let installed = task.data.handle().unwrap();
    assert_ne!(installed, dying);
    host.access(dying);
    host.close_section(section);
    assert_eq!(host.live(), 1);
    host.access(installed);
    users.detach_task(&host, &task, second).unwrap();
    assert_nothing_left(&host, &users);
}

#[test]
fn r2_8_the_first_system_wide_event_brings_data_to_every_task_and_others_count() {
    let host = Host::with_tasks(50);
    let (users, with_event) = (users(), host.task(7));
    let own = users.attach_task(&host, &with_event).unwrap();
    let first = users.attach_all(&host).unwrap();
    assert_eq!((host.walks(), host.allocations()), (1, 50));
    let second = users.attach_all(&host).unwrap();
    assert_eq!((host.walks(), host.allocations(), users.system_wide()), (1, 50, 2));
    for task in host.tasks() {
        let expected = if task.number == 7 { 2 } else { 1 };
        assert_eq!((task.data.users(), task.data.is_marked()), (expected, true));
    }
    users.detach_all(&host, first);
    assert_eq!(host.walks(), 1);
    users.detach_all(&host, second);
    assert_eq!(host.walks(), 2);
    users.detach_task(&host, &with_event, own).unwrap();
    assert_nothing_left(&host, &users);
}

#[test]
fn r2_8_a_failure_at_any_task_undoes_everything() {
    let tasks = 20;
    for succeeding in 0..tasks {
        let host = Host::with_tasks(tasks);
        let (users, with_event) = (users(), host.task(3));
        let own = users.attach_task(&host, &with_event).unwrap();
        host.fail_after(succeeding);
        if succeeding == tasks - 1 {
            // One of them has data already.
            let all = users.attach_all(&host).unwrap();
            users.detach_all(&host, all);
        } else {
            let error = users.attach_all(&host).unwrap_err();
            assert_eq!((error, error.errno()), (AttachError::NoMemory, Errno::NoMemory));
        }
        for task in host.tasks() {
            let expected = u32::from(task.number == 3);
            assert_eq!((task.data.users(), task.data.is_marked()), (expected, false));
        }
        assert_eq!((host.live(), users.system_wide()), (1, 0));
        host.fail_no_more();
        let all = users.attach_all(&host).unwrap();
        users.detach_all(&host, all);
        users.detach_task(&host, &with_event, own).unwrap();
        assert_nothing_left(&host, &users);
    }
}

#[test]
fn r2_8_a_second_system_wide_event_waits_for_the_walk_of_the_first() {
    let host = Arc::new(Host::with_tasks(3));
    let users = users();
    let (entered, left) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    let (in_walk, go_on) = (entered.0, std::sync::Mutex::new(left.1));
    host.at_next_alloc(move |_| {
        in_walk.send(()).unwrap();
        go_on.lock().unwrap().recv().unwrap();
    });
    let attach = |users: &Arc<TaskDataUsers>| {
        let (users, host) = (Arc::clone(users), Arc::clone(&host));
        std::thread::spawn(move || {
            let all = users.attach_all(&*host).unwrap();
            let missing = host.tasks().iter().filter(|task| !task.data.is_marked()).count();
            (all, missing)
        })
    };
    let first = attach(&users);
    entered.1.recv().unwrap();
    let second = attach(&users);
    while host.relaxes() == 0 {
        assert!(!second.is_finished(), "it did not wait");
        std::thread::yield_now();
    }
    left.0.send(()).unwrap();
    for attaching in [first, second] {
        let (all, missing) = attaching.join().unwrap();
        assert_eq!(missing, 0);
        users.detach_all(&*host, all);
    }
    assert_nothing_left(&host, &users);
}

#[test]
fn r2_9_a_child_gets_data_while_there_are_system_wide_events() {
    let host = Host::with_tasks(1);
    let users = users();
    let all = users.attach_all(&host).unwrap();
    let child = host.spawn(1);
    assert_eq!(child.data.handle(), None);
    users.fork(&host, &child).unwrap();
    assert_eq!((child.data.users(), child.data.is_marked()), (1, true));
    let of_parent = host.access(host.task(0).data.handle().unwrap());
    assert_eq!(host.access(child.data.handle().unwrap()).layout, of_parent.layout);
    users.fork(&host, &child).unwrap();
    assert_eq!(child.data.users(), 1, "the mark comes with one reference, once");
    users.detach_all(&host, all);
    assert_nothing_left(&host, &users);
}

#[test]
fn r2_9_a_child_with_an_event_of_its_own_gets_the_mark_and_its_reference_once() {
    let host = Host::with_tasks(1);
    let users = users();
    let all = users.attach_all(&host).unwrap();
    let child = host.spawn(1);
    let inherited = users.attach_task(&host, &child).unwrap();
    users.fork(&host, &child).unwrap();
    users.fork(&host, &child).unwrap();
    assert_eq!((child.data.users(), child.data.is_marked()), (2, true));
    users.detach_all(&host, all);
    assert_eq!((child.data.users(), child.data.is_marked()), (1, false));
    users.detach_task(&host, &child, inherited).unwrap();
    assert_nothing_left(&host, &users);
}

#[test]
fn r2_9_a_child_goes_without_if_the_last_system_wide_event_leaves_meanwhile() {
    let host = Host::with_tasks(1);
    let users = users();
    let all = users.attach_all(&host).unwrap();
    let child = host.spawn(1);
    let (u, all) = (Arc::clone(&users), std::sync::Mutex::new(Some(all)));
    host.at_next_alloc(move |host| u.detach_all(host, all.lock().unwrap().take().unwrap()));
    users.fork(&host, &child).unwrap();
    assert_eq!(child.data.handle(), None);
    assert_nothing_left(&host, &users);
}

#[test]
fn r2_9_a_child_is_right_when_the_events_leave_and_come_back_meanwhile() {
    let host = Host::with_tasks(1);
    let users = users();
    let all = users.attach_all(&host).unwrap();
    let child = host.spawn(1);
    let back = Arc::new(std::sync::Mutex::new(None));
    let (u, b, all) = (Arc::clone(&users), Arc::clone(&back), std::sync::Mutex::new(Some(all)));
    host.at_next_alloc(move |host| {
        u.detach_all(host, all.lock().unwrap().take().unwrap());
        *b.lock().unwrap() = Some(u.attach_all(host).unwrap());
    });
    users.fork(&host, &child).unwrap();
    assert_eq!((child.data.users(), child.data.is_marked()), (1, true));
    users.detach_all(&host, back.lock().unwrap().take().unwrap());
    assert_nothing_left(&host, &users);
}

#[test]
fn x2_a_child_without_memory_goes_without_and_is_counted() {
    let host = Host::with_tasks(1);
    let users = users();
    let all = users.attach_all(&host).unwrap();
    let child = host.spawn(1);
    host.fail_after(0);
    assert_eq!(users.fork(&host, &child), Err(AttachError::NoMemory));
    assert_eq!((child.data.handle(), users.counters().missed_forks), (None, 1));
    users.detach_all(&host, all);
    assert_nothing_left(&host, &users);
}

#[test]
fn r2_10_the_last_detach_frees_and_no_other() {
    let host = Host::with_tasks(2);
    let (users, task) = (users(), host.task(0));
    let attachments: Vec<_> = (0..5).map(|_| users.attach_task(&host, &task).unwrap()).collect();
    for (left, attachment) in (0..5).rev().zip(attachments) {
        users.detach_task(&host, &task, attachment).unwrap();
        assert_eq!(task.data.users(), left);
        assert_eq!(host.live(), usize::from(left != 0));
    }
    assert_nothing_left(&host, &users);

    // An attachment to one task does nothing to another.
    let of_first = users.attach_task(&host, &task).unwrap();
    let other = host.task(1);
    let of_other = users.attach_task(&host, &other).unwrap();
    let error = users.detach_task(&host, &other, of_first).unwrap_err();
    assert_eq!(error, DetachError::NotAttached);
    assert_eq!((task.data.users(), other.data.users()), (1, 1));
    users.detach_task(&host, &other, of_other).unwrap();
    users.exit(&host, &task);
    assert_nothing_left(&host, &users);
}

#[test]
fn r2_11_the_last_system_wide_event_takes_one_reference_from_each_task() {
    let host = Host::with_tasks(4);
    let (users, busy) = (users(), host.task(2));
    let all = users.attach_all(&host).unwrap();
    let own: Vec<_> = (0..3).map(|_| users.attach_task(&host, &busy).unwrap()).collect();
    assert_eq!(busy.data.users(), 4);
    users.detach_all(&host, all);
    assert_eq!((busy.data.users(), busy.data.is_marked()), (3, false));
    assert_eq!(host.live(), 1);
    for attachment in own {
        users.detach_task(&host, &busy, attachment).unwrap();
    }
    assert_nothing_left(&host, &users);
}

#[test]
fn r2_12_each_event_of_a_task_counts_and_all_system_wide_ones_together_count_once() {
    let host = Host::with_tasks(1);
    let (users, task) = (users(), host.task(0));
    let own = [users.attach_task(&host, &task).unwrap(), users.attach_task(&host, &task).unwrap()];
    let all: Vec<_> = (0..7).map(|_| users.attach_all(&host).unwrap()).collect();
    assert_eq!((task.data.users(), users.system_wide()), (3, 7));
    for attachment in all {
        assert_eq!(task.data.users(), 3);
        users.detach_all(&host, attachment);
    }
    assert_eq!(task.data.users(), 2);
    for attachment in own {
        users.detach_task(&host, &task, attachment).unwrap();
    }
    assert_nothing_left(&host, &users);
}

#[test]
fn r2_13_an_event_without_its_data_is_not_opened() {
    let host = Host::with_tasks(1);
    let (users, task) = (users(), host.task(0));
    host.fail_after(0);
    let error = users.attach_task(&host, &task).unwrap_err();
    assert_eq!((error, error.errno()), (AttachError::NoMemory, Errno::NoMemory));
    assert_nothing_left(&host, &users);

    let without = TaskDataUsers::new(None);
    host.fail_no_more();
    for error in
        [without.attach_task(&host, &task).unwrap_err(), without.attach_all(&host).unwrap_err()]
    {
        assert_eq!((error, error.errno()), (AttachError::NoLayout, Errno::NoMemory));
    }
    assert_eq!((host.allocations(), host.walks()), (0, 0));
    without.fork(&host, &task).unwrap();
}

/// An event in the making: its teardown runs however far it has come.
#[derive(Default)]
struct Event {
    attachment: Option<TaskAttachment>,
}

impl Event {
    fn tear_down(self, host: &Host, users: &TaskDataUsers, task: &Arc<Task>) {
        if let Some(attachment) = self.attachment {
            users.detach_task(host, task, attachment).unwrap();
        }
    }
}

#[test]
fn r2_14_the_teardown_of_a_failed_event_detaches_nothing() {
    let host = Host::with_tasks(1);
    let (users, task) = (users(), host.task(0));
    let good = Event { attachment: Some(users.attach_task(&host, &task).unwrap()) };

    // Fails before it comes to attach.
    Event::default().tear_down(&host, &users, &task);
    assert_eq!(task.data.users(), 1);

    // Fails in the attach itself.
    let other = host.spawn(1);
    host.fail_after(0);
    let failed = Event { attachment: users.attach_task(&host, &other).ok() };
    assert!(failed.attachment.is_none());
    failed.tear_down(&host, &users, &other);
    assert_eq!((task.data.users(), other.data.users()), (1, 0));

    good.tear_down(&host, &users, &task);
    assert_nothing_left(&host, &users);
}

#[test]
fn r2_15_the_flags_have_linuxs_values() {
    assert_eq!(TaskAttachment::STATE.bits(), 0x0008);
    assert_eq!(AllAttachment::STATE.bits(), 0x0010);
    assert_eq!(AttachState::ITRACE.bits(), 0x0200);
}

#[test]
fn r2_16_an_exit_within_the_walk_waits_for_nothing_and_leaves_nothing() {
    for exiting in 0..3 {
        let host = Host::with_tasks(3);
        let users = users();
        let u = Arc::clone(&users);
        // The walk is at the first task, with everything prepared.
        host.at_next_alloc(move |host| u.exit(host, &host.task(exiting)));
        let all = users.attach_all(&host).unwrap();
        assert_eq!((host.relaxes(), host.walks()), (0, 1));
        let gone = host.task(exiting);
        assert!(gone.data.is_exited());
        assert_eq!((gone.data.handle(), gone.data.users()), (None, 0));
        assert_eq!(host.live(), 2);
        users.detach_all(&host, all);
        assert_nothing_left(&host, &users);
    }
}

#[test]
fn r2_16_an_exited_task_gets_no_data_and_its_events_detach_in_peace() {
    let host = Host::with_tasks(2);
    let (users, task) = (users(), host.task(0));
    let (first, second) =
        (users.attach_task(&host, &task).unwrap(), users.attach_task(&host, &task).unwrap());
    let all = users.attach_all(&host).unwrap();
    assert_eq!((task.data.users(), host.live()), (3, 2));
    users.exit(&host, &task);
    assert_eq!((task.data.handle(), host.live()), (None, 1));
    let error = users.attach_task(&host, &task).unwrap_err();
    assert_eq!((error, error.errno()), (AttachError::Exiting, Errno::NoSuchProcess));
    users.detach_task(&host, &task, first).unwrap();
    users.exit(&host, &task);
    users.detach_all(&host, all);
    users.detach_task(&host, &task, second).unwrap();
    assert_nothing_left(&host, &users);
}

#[test]
fn r2_17_an_attach_within_the_walk_leaks_no_reference() {
    let host = Host::with_tasks(2);
    let users = users();
    let own = Arc::new(std::sync::Mutex::new(None));
    let (u, o) = (Arc::clone(&users), Arc::clone(&own));
    // The walk has seen that the task has no data. Before it can install some,
    // an event of the task does, without the mark.
    host.at_next_alloc(move |host| {
        let task = host.task(0);
        *o.lock().unwrap() = Some(u.attach_task(host, &task).unwrap());
        assert!(!task.data.is_marked());
    });
    let all = users.attach_all(&host).unwrap();
    let task = host.task(0);
    assert_eq!((task.data.users(), task.data.is_marked()), (2, true));
    users.detach_all(&host, all);
    assert_eq!((task.data.users(), task.data.is_marked()), (1, false));
    users.detach_task(&host, &task, own.lock().unwrap().take().unwrap()).unwrap();
    assert_nothing_left(&host, &users);
}

#[test]
fn r2_18_the_hook_runs_for_cpu_wide_events_and_copes_with_tasks_without_data() {
    let host = Host::with_tasks(2);
    let (users, task, other) = (users(), host.task(0), host.task(1));
    let hook = SwitchHook::new();
    assert_eq!(hook.switch(None, Some(&task.data)), None, "nobody profiles");

    // A CPU-wide event: no task has data, and the hardware is to be cleared.
    assert!(hook.add_user());
    assert!(!hook.add_user());
    let switch = hook.switch(Some(&task.data), None).unwrap();
    assert_eq!((switch.from, switch.to), (None, None));
    assert!(!hook.remove_user());
    assert!(hook.remove_user());
    assert_eq!(hook.switch(Some(&task.data), Some(&other.data)), None);

    // Data counts without users: it goes out of date.
    let attachment = users.attach_task(&host, &other).unwrap();
    let switch = hook.switch(Some(&task.data), Some(&other.data)).unwrap();
    assert_eq!((switch.from, switch.to), (None, other.data.handle()));
    users.detach_task(&host, &other, attachment).unwrap();
    assert_nothing_left(&host, &users);
}
