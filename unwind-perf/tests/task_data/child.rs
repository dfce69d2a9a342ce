//! What a child gets.

use std::sync::Arc;

use unwind_perf::task_data::*;

use crate::{arena::Host, assert_nothing_left, users};

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
    users.detach_all(&host, all).unwrap();
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
    users.detach_all(&host, all).unwrap();
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
    host.at_next_alloc(move |host| {
        u.detach_all(host, all.lock().unwrap().take().unwrap()).unwrap()
    });
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
        u.detach_all(host, all.lock().unwrap().take().unwrap()).unwrap();
        *b.lock().unwrap() = Some(u.attach_all(host).unwrap());
    });
    users.fork(&host, &child).unwrap();
    assert_eq!((child.data.users(), child.data.is_marked()), (1, true));
    users.detach_all(&host, back.lock().unwrap().take().unwrap()).unwrap();
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
    users.detach_all(&host, all).unwrap();
    assert_nothing_left(&host, &users);
}
