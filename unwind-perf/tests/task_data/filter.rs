//! System-wide events about some of the tasks: those of a group.

use unwind_perf::task_data::*;

use crate::{arena::Host, assert_nothing_left, users};

/// The tasks that have data.
fn with_data(host: &Host) -> Vec<u64> {
    let tasks = host.tasks().into_iter().filter(|task| task.data.handle().is_some());
    tasks.map(|task| task.number).collect()
}

#[test]
fn g15_only_tasks_that_a_system_wide_event_is_about_have_data() {
    let (host, users) = (Host::with_tasks(10), users());
    host.want([2, 3, 5]);
    users.refilter(&host).unwrap();
    assert_eq!((host.walks(), with_data(&host)), (0, vec![]), "no event, no walk");
    let own = users.attach_task(&host, &host.task(7)).unwrap();
    let first = users.attach_all(&host).unwrap();
    assert_eq!((host.walks(), with_data(&host)), (1, vec![2, 3, 5, 7]));
    assert!(!host.task(7).data.is_marked(), "it has its own event only");
    // Another event, about others.
    host.want([3, 5, 7, 8]);
    users.refilter(&host).unwrap();
    let second = users.attach_all(&host).unwrap();
    assert_eq!((host.walks(), users.system_wide()), (2, 2));
    assert_eq!(with_data(&host), [3, 5, 7, 8]);
    assert_eq!((host.task(7).data.users(), host.task(7).data.is_marked()), (2, true));
    users.refilter(&host).unwrap();
    assert_eq!(users.system_wide(), 2, "events stay whatever their filter is");
    // Children are in their parent's group, or not.
    host.want([3, 5, 7, 8, 100]);
    for (child, wanted) in [(100, true), (101, false)] {
        let child = host.spawn(child);
        users.fork(&host, &child).unwrap();
        assert_eq!(child.data.is_marked(), wanted);
    }
    // The second event goes, and then the first.
    users.detach_all(&host, second).unwrap();
    host.want([3]);
    users.refilter(&host).unwrap();
    assert_eq!((with_data(&host), users.system_wide()), (vec![3, 7], 1));
    users.detach_all(&host, first).unwrap();
    assert_eq!(with_data(&host), [7]);
    users.detach_task(&host, &host.task(7), own).unwrap();
    assert_nothing_left(&host, &users);
}

#[test]
fn g15_a_task_that_moves_has_data_where_it_is_wanted_and_loses_it_elsewhere() {
    let (host, users) = (Host::with_tasks(3), users());
    host.want([]);
    users.moved(&host, &host.task(1)).unwrap();
    let all = users.attach_all(&host).unwrap();
    assert_eq!(with_data(&host), []);
    for _ in 0..3 {
        host.want([1]);
        users.moved(&host, &host.task(1)).unwrap();
        users.moved(&host, &host.task(1)).unwrap();
        assert_eq!((with_data(&host), host.task(1).data.users()), (vec![1], 1));
        host.want([]);
        users.moved(&host, &host.task(1)).unwrap();
        assert_eq!(with_data(&host), []);
    }
    // Without memory it goes without, until it moves again.
    host.want([2]);
    host.fail_after(0);
    assert_eq!(users.moved(&host, &host.task(2)), Err(AttachError::NoMemory));
    assert_eq!((with_data(&host), users.counters().missed_forks), (vec![], 0));
    host.fail_no_more();
    users.moved(&host, &host.task(2)).unwrap();
    assert_eq!(with_data(&host), [2]);
    // An exit ends it as always.
    users.exit(&host, &host.task(2));
    users.moved(&host, &host.task(2)).unwrap();
    assert_eq!(with_data(&host), []);
    users.detach_all(&host, all).unwrap();
    assert_nothing_left(&host, &users);
}

#[test]
fn g15_a_filter_that_there_is_no_memory_for_is_taken_back_without_memory() {
    for succeeding in 0..4 {
        let (host, users) = (Host::with_tasks(10), users());
        host.want([0, 9]);
        let all = users.attach_all(&host).unwrap();
        host.want([0, 3, 4, 5, 6, 9]);
        host.fail_after(succeeding);
        assert_eq!(users.refilter(&host), Err(AttachError::NoMemory));
        host.want([0, 9]);
        users.refilter(&host).unwrap();
        assert_eq!((with_data(&host), users.system_wide(), host.live()), (vec![0, 9], 1, 2));
        users.detach_all(&host, all).unwrap();
        assert_nothing_left(&host, &users);
    }
}

#[test]
fn g15_a_walk_that_a_change_of_the_filter_overtakes_leaves_the_task_as_it_is_wanted_then() {
    let (host, users) = (Host::with_tasks(4), users());
    host.want([2]);
    // The task leaves while its data is allocated, and its move is over by then.
    host.at_next_alloc(|host| host.want([]));
    let all = users.attach_all(&host).unwrap();
    assert_eq!((with_data(&host), host.live()), (vec![], 0));
    host.want([1]);
    host.at_next_alloc(|host| host.want([]));
    users.moved(&host, &host.task(1)).unwrap();
    assert_eq!((with_data(&host), host.live()), (vec![], 0));
    users.detach_all(&host, all).unwrap();
    assert_nothing_left(&host, &users);
}
