//! Models of task data: every interleaving of the threads in each.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p unwind-perf --release --test loom_task_data`
//!
//! Two of the models also run what they prove on a twin that has the fault
//! which Linux had, and see it there.
#![cfg(loom)]
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod apart;
mod filter;
#[path = "../guarded/mod.rs"]
mod guarded;
mod host;

use std::sync::atomic::{AtomicBool as Seen, Ordering as Plain};

use host::Host;
use loom::sync::Arc;
use loom::thread;
use unwind_perf::task_data::*;

fn users() -> Arc<TaskDataUsers> {
    Arc::new(TaskDataUsers::new(Some(DataLayout::of::<u64>())))
}

/// Runs `body` in a thread of the model.
fn spawn<T: 'static>(body: impl FnOnce() -> T + 'static) -> thread::JoinHandle<T> {
    thread::spawn(body)
}

#[test]
fn r2_16_attach_against_exit() {
    loom::model(|| {
        let (host, users) = (Host::new(), users());
        let (h, u) = (Arc::clone(&host), Arc::clone(&users));
        let exiting = spawn(move || u.exit(&*h, &0));
        let attached = users.attach_task(&*host, &0);
        exiting.join().unwrap();
        assert_eq!((host.live(), host.tasks[0].handle()), (0, None));
        match attached {
            Ok(attachment) => users.detach_task(&*host, &0, attachment).unwrap(),
            Err(error) => assert_eq!(error, AttachError::Exiting),
        }
        assert_eq!(host.live(), 0);
    });
}

#[test]
fn r2_16_attach_all_and_detach_all_against_exit() {
    loom::model(|| {
        let (host, users) = (Host::new(), users());
        host.publish_second();
        let (h, u) = (Arc::clone(&host), Arc::clone(&users));
        let exiting = spawn(move || u.exit(&*h, &0));
        let all = users.attach_all(&*host).unwrap();
        assert!(host.tasks[1].is_marked());
        users.detach_all(&*host, all).unwrap();
        exiting.join().unwrap();
        assert!(host.tasks[0].is_exited());
        assert_eq!((host.live(), host.users()), (0, [0, 0]));
    });
}

#[test]
fn r2_16_detach_against_exit() {
    loom::model(|| {
        let (host, users) = (Host::new(), users());
        let attachment = users.attach_task(&*host, &0).unwrap();
        let (h, u) = (Arc::clone(&host), Arc::clone(&users));
        let exiting = spawn(move || u.exit(&*h, &0));
        users.detach_task(&*host, &0, attachment).unwrap();
        exiting.join().unwrap();
        assert_eq!(host.live(), 0);
    });
}

#[test]
fn r2_17_attach_against_attach_all() {
    loom::model(|| {
        let (host, users) = (Host::new(), users());
        let (h, u) = (Arc::clone(&host), Arc::clone(&users));
        let system_wide = spawn(move || u.attach_all(&*h).unwrap());
        let own = users.attach_task(&*host, &0).unwrap();
        let all = system_wide.join().unwrap();
        assert_eq!((host.users(), host.tasks[0].is_marked(), host.live()), ([2, 0], true, 1));
        users.detach_all(&*host, all).unwrap();
        assert_eq!((host.users(), host.live()), ([1, 0], 1));
        users.detach_task(&*host, &0, own).unwrap();
        assert_eq!(host.live(), 0);
    });
}

#[test]
fn r2_17_attach_and_detach_against_attach_all() {
    loom::model(|| {
        let (host, users) = (Host::new(), users());
        let (h, u) = (Arc::clone(&host), Arc::clone(&users));
        let system_wide = spawn(move || {
            let all = u.attach_all(&*h).unwrap();
            u.detach_all(&*h, all).unwrap();
        });
        let own = users.attach_task(&*host, &0).unwrap();
        users.detach_task(&*host, &0, own).unwrap();
        system_wide.join().unwrap();
        assert_eq!((host.users(), host.live()), ([0, 0], 0));
    });
}

#[test]
fn r2_7_attach_against_the_last_detach() {
    loom::model(|| {
        let (host, users) = (Host::new(), users());
        let first = users.attach_task(&*host, &0).unwrap();
        let (h, u) = (Arc::clone(&host), Arc::clone(&users));
        let leaving = spawn(move || u.detach_task(&*h, &0, first).unwrap());
        let second = users.attach_task(&*host, &0).unwrap();
        leaving.join().unwrap();
        assert_eq!((host.users(), host.live()), ([1, 0], 1));
        users.detach_task(&*host, &0, second).unwrap();
        assert_eq!(host.live(), 0);
    });
}

#[test]
fn r2_4_a_switch_reads_memory_that_is_whole() {
    loom::model(|| {
        let (host, users) = (Host::new(), users());
        let h = Arc::clone(&host);
        let switching = spawn(move || {
            if let Some(switch) = SwitchHook::new().switch(Some(&h.tasks[0]), None) {
                h.memory(switch.from.unwrap()).read();
            }
        });
        let attachment = users.attach_task(&*host, &0).unwrap();
        switching.join().unwrap();
        users.detach_task(&*host, &0, attachment).unwrap();
        assert_eq!(host.live(), 0);
    });
}

#[test]
fn r2_7_memory_is_whole_when_it_is_attached_and_freed_after_its_last_use() {
    loom::model(|| {
        let (host, users) = (Host::new(), users());
        let (h, u) = (Arc::clone(&host), Arc::clone(&users));
        let other = spawn(move || {
            let attachment = u.attach_task(&*h, &0).unwrap();
            h.access(0);
            u.detach_task(&*h, &0, attachment).unwrap();
        });
        let attachment = users.attach_task(&*host, &0).unwrap();
        host.access(0);
        users.detach_task(&*host, &0, attachment).unwrap();
        other.join().unwrap();
        assert_eq!((host.users(), host.live()), ([0, 0], 0));
    });
}

#[test]
fn r2_7_memory_is_whole_and_freed_once_among_three_events() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let (host, users) = (Host::new(), users());
        let event = |host: &Host, users: &TaskDataUsers| {
            let attachment = users.attach_task(host, &0).unwrap();
            host.access(0);
            users.detach_task(host, &0, attachment).unwrap();
        };
        let others = [(); 2].map(|()| {
            let (h, u) = (Arc::clone(&host), Arc::clone(&users));
            spawn(move || event(&h, &u))
        });
        event(&host, &users);
        for other in others {
            other.join().unwrap();
        }
        assert_eq!((host.users(), host.live()), ([0, 0], 0));
        assert_eq!(users.counters().allocated, users.counters().freed);
    });
}

#[test]
fn r2_8_memory_is_freed_after_the_last_use_by_any_system_wide_event() {
    loom::model(|| {
        let (host, users) = (Host::new(), users());
        let first = users.attach_all(&*host).unwrap();
        let second = users.attach_all(&*host).unwrap();
        let (h, u) = (Arc::clone(&host), Arc::clone(&users));
        let other = spawn(move || {
            h.access(0);
            u.detach_all(&*h, first).unwrap();
        });
        host.access(0);
        users.detach_all(&*host, second).unwrap();
        other.join().unwrap();
        assert_eq!((host.users(), host.live()), ([0, 0], 0));
    });
}

#[test]
fn r2_8_memory_is_whole_for_a_system_wide_event_that_did_not_walk() {
    loom::model(|| {
        let (host, users) = (Host::new(), users());
        let (h, u) = (Arc::clone(&host), Arc::clone(&users));
        let other = spawn(move || {
            let all = u.attach_all(&*h).unwrap();
            h.access(0);
            u.detach_all(&*h, all).unwrap();
        });
        let all = users.attach_all(&*host).unwrap();
        host.access(0);
        users.detach_all(&*host, all).unwrap();
        other.join().unwrap();
        assert_eq!((host.users(), host.live()), ([0, 0], 0));
    });
}

#[test]
fn b10_two_users_that_attach_at_once_have_numbers_of_their_own() {
    loom::model(|| {
        let (host, one, other) = (Host::new(), users(), users());
        let (h, o) = (Arc::clone(&host), Arc::clone(&other));
        let attaching = spawn(move || o.attach_task(&*h, &1).unwrap());
        let own = one.attach_task(&*host, &0).unwrap();
        let stranger = attaching.join().unwrap();
        let error = one.detach_task(&*host, &1, stranger).unwrap_err();
        assert_eq!(error.reason, DetachReason::OtherUsers);
        other.detach_task(&*host, &1, error.attachment).unwrap();
        one.detach_task(&*host, &0, own).unwrap();
    });
}

#[test]
fn p5_of_users_that_come_at_once_one_is_the_first_and_of_those_that_go_one_the_last() {
    loom::model(|| {
        let hook = Arc::new(SwitchHook::new());
        let there = Arc::clone(&hook);
        let other = spawn(move || there.add_user().unwrap());
        let first = hook.add_user().unwrap();
        assert!(first ^ other.join().unwrap());
        assert_eq!(hook.users(), 2);
        let there = Arc::clone(&hook);
        let other = spawn(move || there.remove_user().unwrap());
        let last = hook.remove_user().unwrap();
        assert!(last ^ other.join().unwrap());
        assert_eq!(hook.remove_user(), Err(UserCount::None));
    });
}

#[test]
fn r2_8_two_system_wide_events() {
    loom::model(|| {
        let (host, users) = (Host::new(), users());
        let (h, u) = (Arc::clone(&host), Arc::clone(&users));
        let other = spawn(move || {
            let all = u.attach_all(&*h).unwrap();
            assert!(h.tasks[0].is_marked());
            u.detach_all(&*h, all).unwrap();
        });
        let all = users.attach_all(&*host).unwrap();
        assert!(host.tasks[0].is_marked());
        other.join().unwrap();
        assert_eq!(host.users(), [1, 0]);
        users.detach_all(&*host, all).unwrap();
        assert_eq!((host.users(), host.live()), ([0, 0], 0));
    });
}

#[test]
fn r2_8_a_walk_that_fails_against_attach() {
    loom::model(|| {
        // Memory for one task of the two.
        let (host, users) = (Host::with_room(1), users());
        host.publish_second();
        let (h, u) = (Arc::clone(&host), Arc::clone(&users));
        let attaching = spawn(move || u.attach_task(&*h, &1));
        assert_eq!(users.attach_all(&*host).unwrap_err(), AttachError::NoMemory);
        let attached = attaching.join().unwrap();
        let own = u32::from(attached.is_ok());
        assert_eq!((host.users(), users.system_wide()), ([0, own], 0));
        assert!(!host.tasks[1].is_marked());
        if let Ok(attachment) = attached {
            users.detach_task(&*host, &1, attachment).unwrap();
        }
        assert_eq!(host.live(), 0);
    });
}

#[test]
fn r2_8_a_walk_that_fails_against_fork() {
    loom::model(|| {
        let (host, users) = (Host::with_room(1), users());
        let (h, u) = (Arc::clone(&host), Arc::clone(&users));
        let forking = spawn(move || {
            h.publish_second();
            u.fork(&*h, &1).is_ok()
        });
        let attached = users.attach_all(&*host);
        let forked = forking.join().unwrap();
        match attached {
            // The child came after the walk, and without memory.
            Ok(all) => {
                assert!(!forked && users.counters().missed_forks == 1);
                assert_eq!(host.users(), [1, 0]);
                users.detach_all(&*host, all).unwrap();
            }
            Err(error) => assert_eq!(error, AttachError::NoMemory),
        }
        assert_eq!((host.users(), host.live()), ([0, 0], 0));
    });
}

#[test]
fn r2_9_fork_against_attach_all() {
    loom::model(|| {
        let (host, users) = (Host::new(), users());
        let (h, u) = (Arc::clone(&host), Arc::clone(&users));
        let forking = spawn(move || {
            h.publish_second();
            u.fork(&*h, &1).unwrap();
        });
        let all = users.attach_all(&*host).unwrap();
        forking.join().unwrap();
        assert_eq!((host.users(), host.live()), ([1, 1], 2));
        users.detach_all(&*host, all).unwrap();
        assert_eq!((host.users(), host.live()), ([0, 0], 0));
    });
}

#[test]
fn r2_9_fork_against_detach_all() {
    loom::model(|| {
        let (host, users) = (Host::new(), users());
        let all = users.attach_all(&*host).unwrap();
        let (h, u) = (Arc::clone(&host), Arc::clone(&users));
        let forking = spawn(move || {
            h.publish_second();
            u.fork(&*h, &1).unwrap();
        });
        users.detach_all(&*host, all).unwrap();
        forking.join().unwrap();
        assert_eq!((host.users(), host.live()), ([0, 0], 0));
    });
}

#[test]
fn r2_9_fork_against_detach_all_and_attach_all() {
    let mut model = loom::model::Builder::new();
    // Each of the two has few steps, but the walks touch both tasks.
    model.preemption_bound = Some(4);
    model.check(|| {
        let (host, users) = (Host::new(), users());
        let all = users.attach_all(&*host).unwrap();
        let (h, u) = (Arc::clone(&host), Arc::clone(&users));
        let forking = spawn(move || {
            h.publish_second();
            u.fork(&*h, &1).unwrap();
        });
        users.detach_all(&*host, all).unwrap();
        let all = users.attach_all(&*host).unwrap();
        forking.join().unwrap();
        assert_eq!((host.users(), host.live()), ([1, 1], 2));
        users.detach_all(&*host, all).unwrap();
        assert_eq!((host.users(), host.live()), ([0, 0], 0));
    });
}

/// Runs `model`, which returns whether it saw the fault, and returns whether
/// any interleaving showed it.
fn is_seen(model: impl Fn() -> bool + Send + Sync + 'static) -> bool {
    let seen = std::sync::Arc::new(Seen::new(false));
    let in_model = std::sync::Arc::clone(&seen);
    loom::model(move || {
        if model() {
            in_model.store(true, Plain::Relaxed);
        }
    });
    seen.load(Plain::Relaxed)
}

/// An event attaches while the first system-wide event does; both leave.
fn leaks_in_walk(marks_found: bool) -> bool {
    is_seen(move || {
        let task = apart::Task::new(true, marks_found);
        let walked = Arc::clone(&task);
        let walking = spawn(move || walked.attach_all());
        task.attach(false);
        walking.join().unwrap();
        let expected = task.count() == 2;
        task.detach_all();
        task.detach();
        assert_eq!(task.leaks(), !expected);
        task.leaks()
    })
}

#[test]
fn r2_17_a_mark_that_is_not_one_with_its_reference_leaks() {
    assert!(leaks_in_walk(false), "the twin that forgets the mark leaks");
    assert!(!leaks_in_walk(true), "the twin that sets it does not");
}

/// A task exits while another thread attaches to it.
fn leaks_at_exit(looks_again: bool) -> bool {
    is_seen(move || {
        let task = apart::Task::new(looks_again, true);
        let exiting = Arc::clone(&task);
        let exiting = spawn(move || exiting.exit());
        task.attach(true);
        exiting.join().unwrap();
        task.leaks()
    })
}

#[test]
fn r2_16_an_attach_that_does_not_look_again_leaks() {
    assert!(leaks_at_exit(false), "the twin that looks once leaks");
    assert!(!leaks_at_exit(true), "the twin that looks again does not");
}
