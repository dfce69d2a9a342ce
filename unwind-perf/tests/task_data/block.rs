//! The block of memory: when there is one, its layout, and who reads it.

use std::sync::Arc;

use unwind_perf::task_data::*;

use crate::{
    arena::{Host, Task},
    assert_nothing_left, users,
};

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
        users.detach_all(&host, all).unwrap();
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
    users.detach_all(&host, first).unwrap();
    assert_eq!(host.live_bytes(), 7_880_000, "the last user takes it away");
    users.detach_all(&host, second).unwrap();
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
fn r2_15_the_flags_have_linuxs_values() {
    assert_eq!(TaskAttachment::STATE.bits(), 0x0008);
    assert_eq!(AllAttachment::STATE.bits(), 0x0010);
    assert_eq!(AttachState::ITRACE.bits(), 0x0200);
}

#[test]
fn p5_a_user_that_was_not_added_cannot_be_removed() {
    let hook = SwitchHook::new();
    assert_eq!((hook.remove_user(), hook.users()), (Err(UserCount::None), 0));
    assert_eq!(hook.add_user(), Ok(true));
    assert_eq!(hook.remove_user(), Ok(true));
    assert_eq!((hook.remove_user(), hook.users()), (Err(UserCount::None), 0));
    let data = TaskData::new();
    assert_eq!(hook.switch(Some(&data), None), None, "no profiler");
    assert_eq!(hook.add_user(), Ok(true), "the next one is the first");
}

#[test]
fn r2_18_the_hook_runs_for_cpu_wide_events_and_copes_with_tasks_without_data() {
    let host = Host::with_tasks(2);
    let (users, task, other) = (users(), host.task(0), host.task(1));
    let hook = SwitchHook::new();
    assert_eq!(hook.switch(None, Some(&task.data)), None, "no profiler");

    // A CPU-wide event: no task has data, and the hardware is to be cleared.
    assert_eq!(hook.add_user(), Ok(true));
    assert_eq!(hook.add_user(), Ok(false));
    let switch = hook.switch(Some(&task.data), None).unwrap();
    assert_eq!((switch.from, switch.to), (None, None));
    assert_eq!(hook.remove_user(), Ok(false));
    assert_eq!(hook.remove_user(), Ok(true));
    assert_eq!(hook.switch(Some(&task.data), Some(&other.data)), None);

    // Data counts without users: it goes out of date.
    let attachment = users.attach_task(&host, &other).unwrap();
    let switch = hook.switch(Some(&task.data), Some(&other.data)).unwrap();
    assert_eq!((switch.from, switch.to), (None, other.data.handle()));
    users.detach_task(&host, &other, attachment).unwrap();
    assert_nothing_left(&host, &users);
}
