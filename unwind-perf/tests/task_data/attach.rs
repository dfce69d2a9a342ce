//! Events of one task: the first brings the data, the last takes it away.

use std::sync::Arc;

use unwind_perf::task_data::*;

use crate::{arena::Host, assert_nothing_left, users};

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
    assert_eq!(error.reason, DetachReason::OtherTask);
    assert_eq!((task.data.users(), other.data.users()), (1, 1));
    users.detach_task(&host, &other, of_other).unwrap();
    users.exit(&host, &task);
    assert_nothing_left(&host, &users);
}

#[test]
fn p3_an_attachment_that_is_refused_comes_back_and_can_be_given_back_where_it_belongs() {
    let host = Host::with_tasks(3);
    let (users, task) = (users(), host.task(0));
    let (without_data, with_data, exited) = (host.spawn(7), host.task(1), host.task(2));
    let of_other = users.attach_task(&host, &with_data).unwrap();
    let of_exited = users.attach_task(&host, &exited).unwrap();
    users.exit(&host, &exited);
    let exited_without = host.spawn(8);
    users.exit(&host, &exited_without);

    let mut attachment = users.attach_task(&host, &task).unwrap();
    for wrong in [&without_data, &with_data, &exited, &exited_without] {
        let error = users.detach_task(&host, wrong, attachment).unwrap_err();
        assert_eq!(error.reason, DetachReason::OtherTask, "{wrong:?}");
        assert_eq!((task.data.users(), with_data.data.users()), (1, 1));
        attachment = error.attachment;
    }
    users.detach_task(&host, &task, attachment).unwrap();
    users.detach_task(&host, &with_data, of_other).unwrap();
    users.detach_task(&host, &exited, of_exited).unwrap();
    assert_nothing_left(&host, &users);
}

#[test]
fn b10_attachments_of_other_users_are_refused_and_come_back() {
    // Two PMUs, each with memory and blocks of its own: the handles are equal.
    let (host, other_host) = (Host::with_tasks(1), Host::with_tasks(1));
    let (users, other_users) = (users(), users());
    let (task, other_task) = (host.task(0), other_host.task(0));
    let own = users.attach_task(&host, &task).unwrap();
    let stranger = other_users.attach_task(&other_host, &other_task).unwrap();
    assert_eq!(task.data.handle(), other_task.data.handle());

    let error = users.detach_task(&host, &task, stranger).unwrap_err();
    assert_eq!((error.reason, task.data.users()), (DetachReason::OtherUsers, 1));
    other_users.detach_task(&other_host, &other_task, error.attachment).unwrap();
    users.detach_task(&host, &task, own).unwrap();

    // Of all tasks: while those users are on and while they are off.
    let stranger = other_users.attach_all(&other_host).unwrap();
    let error = users.detach_all(&host, stranger).unwrap_err();
    assert_eq!((error.reason, users.system_wide()), (DetachReason::OtherUsers, 0));
    let own = users.attach_all(&host).unwrap();
    let error = users.detach_all(&host, error.attachment).unwrap_err();
    assert_eq!((error.reason, users.system_wide()), (DetachReason::OtherUsers, 1));
    assert!(task.data.is_marked());
    users.detach_all(&host, own).unwrap();
    other_users.detach_all(&other_host, error.attachment).unwrap();
    assert_nothing_left(&host, &users);
    assert_nothing_left(&other_host, &other_users);
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
        users.detach_all(&host, attachment).unwrap();
    }
    assert_eq!(task.data.users(), 2);
    for attachment in own {
        users.detach_task(&host, &task, attachment).unwrap();
    }
    assert_nothing_left(&host, &users);
}
