//! System-wide events about some of the tasks, while tasks move and filters change.

use loom::sync::Arc;
use unwind_perf::task_data::*;

use crate::host::Host;
use crate::{spawn, users};

/// Nothing is left after the last system-wide event.
fn end(host: &Host, users: &TaskDataUsers, all: AllAttachment) {
    users.detach_all(host, all).unwrap();
    assert_eq!((host.users(), host.live()), ([0, 0], 0));
}

#[test]
fn g15_a_task_that_moves_against_the_walk_of_the_first_event() {
    for there in [false, true] {
        loom::model(move || {
            let (host, users) = (Host::with_filter([!there, true]), users());
            let (h, u) = (Arc::clone(&host), Arc::clone(&users));
            let moving = spawn(move || {
                h.want(0, there);
                u.moved(&*h, &0).unwrap();
            });
            let all = users.attach_all(&*host).unwrap();
            moving.join().unwrap();
            assert_eq!(host.users(), [u32::from(there), 1]);
            end(&host, &users, all);
        });
    }
}

#[test]
fn g15_a_task_that_moves_against_a_change_of_the_filter() {
    for there in [false, true] {
        loom::model(move || {
            let (host, users) = (Host::with_filter([!there, true]), users());
            let all = users.attach_all(&*host).unwrap();
            let (h, u) = (Arc::clone(&host), Arc::clone(&users));
            let moving = spawn(move || {
                h.want(0, there);
                u.moved(&*h, &0).unwrap();
            });
            host.want(1, false);
            users.refilter(&*host).unwrap();
            moving.join().unwrap();
            assert_eq!(host.users(), [u32::from(there), 0]);
            end(&host, &users, all);
        });
    }
}

#[test]
fn g15_a_change_of_the_filter_against_the_first_event() {
    loom::model(|| {
        let (host, users) = (Host::with_filter([false, false]), users());
        let (h, u) = (Arc::clone(&host), Arc::clone(&users));
        let changing = spawn(move || {
            h.want(0, true);
            u.refilter(&*h).unwrap();
        });
        let all = users.attach_all(&*host).unwrap();
        changing.join().unwrap();
        assert_eq!((host.users(), users.system_wide()), ([1, 0], 1));
        host.access(0);
        end(&host, &users, all);
    });
}

#[test]
fn g15_a_change_of_the_filter_against_the_end_of_an_event() {
    loom::model(|| {
        let (host, users) = (Host::with_filter([true, false]), users());
        let all = users.attach_all(&*host).unwrap();
        let (h, u) = (Arc::clone(&host), Arc::clone(&users));
        let changing = spawn(move || {
            h.want(0, false);
            h.want(1, true);
            u.refilter(&*h).unwrap();
        });
        end(&host, &users, all);
        changing.join().unwrap();
        assert_eq!((host.users(), host.live(), users.system_wide()), ([0, 0], 0, 0));
    });
}

#[test]
fn g15_memory_is_whole_for_an_event_after_a_change_of_the_filter() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (host, users) = (Host::new(), users());
        let changing = {
            let (h, u) = (Arc::clone(&host), Arc::clone(&users));
            spawn(move || {
                if u.system_wide() == 1 {
                    u.refilter(&*h).unwrap()
                }
            })
        };
        let other = {
            let (h, u) = (Arc::clone(&host), Arc::clone(&users));
            spawn(move || {
                // It does not wait for the walk, and does not make one.
                let all = (u.system_wide() == 1).then(|| u.attach_all(&*h).unwrap());
                all.inspect(|_| h.access(0))
            })
        };
        let all = users.attach_all(&*host).unwrap();
        changing.join().unwrap();
        if let Some(other) = other.join().unwrap() {
            users.detach_all(&*host, other).unwrap();
        }
        end(&host, &users, all);
    });
}
