//! Tasks that exit while others attach and detach.

use std::sync::Arc;

use unwind_perf::Errno;
use unwind_perf::task_data::*;

use crate::{arena::Host, assert_nothing_left, users};

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
        users.detach_all(&host, all).unwrap();
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
    users.detach_all(&host, all).unwrap();
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
    users.detach_all(&host, all).unwrap();
    assert_eq!((task.data.users(), task.data.is_marked()), (1, false));
    users.detach_task(&host, &task, own.lock().unwrap().take().unwrap()).unwrap();
    assert_nothing_left(&host, &users);
}
