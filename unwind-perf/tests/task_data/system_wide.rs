//! System-wide events: one reference for all of them, in every task.

use std::sync::Arc;

use unwind_perf::Errno;
use unwind_perf::task_data::*;

use crate::{arena::Host, assert_nothing_left, users};

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
    users.detach_all(&host, first).unwrap();
    assert_eq!(host.walks(), 1);
    users.detach_all(&host, second).unwrap();
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
            users.detach_all(&host, all).unwrap();
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
        users.detach_all(&host, all).unwrap();
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
        users.detach_all(&*host, all).unwrap();
    }
    assert_nothing_left(&host, &users);
}

#[test]
fn r2_11_the_last_system_wide_event_takes_one_reference_from_each_task() {
    let host = Host::with_tasks(4);
    let (users, busy) = (users(), host.task(2));
    let all = users.attach_all(&host).unwrap();
    let own: Vec<_> = (0..3).map(|_| users.attach_task(&host, &busy).unwrap()).collect();
    assert_eq!(busy.data.users(), 4);
    users.detach_all(&host, all).unwrap();
    assert_eq!((busy.data.users(), busy.data.is_marked()), (3, false));
    assert_eq!(host.live(), 1);
    for attachment in own {
        users.detach_task(&host, &busy, attachment).unwrap();
    }
    assert_nothing_left(&host, &users);
}
