//! Events that come to nothing.

use std::sync::Arc;

use unwind_perf::Errno;
use unwind_perf::task_data::*;

use crate::{
    arena::{Host, Task},
    assert_nothing_left, users,
};

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
