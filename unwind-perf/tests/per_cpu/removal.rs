//! Removals: who waits for whom, and who gets nothing any more.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};

use unwind_core::deferred::CancelError;
use unwind_perf::Errno;
use unwind_perf::per_cpu::*;

use crate::{
    Registry, assert_empty,
    kernel::{Core, Task, core, receivers, return_to_user},
    recorder::Recorder,
    registry, spec,
};

#[test]
fn r0_14_a_removal_unlinks_then_cancels_then_waits_then_frees() {
    let (core, registry) = (Recorder::default(), registry());
    let registry: &'static Registry = Box::leak(Box::new(registry));
    let event = registry.add(&core, spec(100, 0, 1)).unwrap();
    thread_local! {
        static REGISTRY: Cell<Option<(&'static Registry, CpuEvent)>> = const { Cell::new(None) };
    }
    REGISTRY.set(Some((registry, event)));
    core.at_cancel.set(Some(|core| {
        let (registry, event) = REGISTRY.get().unwrap();
        // Unlinked: neither a delivery nor a request picks it.
        let delivered = registry.deliver(event.client(), 0, TaskKey(1), |_| Ok::<(), ()>(()));
        assert_eq!(delivered, Delivered::default());
        assert!(registry.request(core, &(), TaskKey(1), &event).is_err());
        // The counts are adjusted: the profiler is not found any more, but its
        // client is still its own.
        assert_eq!(registry.client_of(GroupLeader(100)), None);
        assert!(registry.owns(event.client()));
        // No thread holds a lock while this may wait.
        let again = registry.add(core, spec(100, 0, 2)).unwrap();
        assert_ne!(again.client(), event.client());
        core.at_cancel.set(None);
        registry.remove(core, None, again).unwrap();
    }));
    registry.remove(&core, None, event).unwrap();
    assert_eq!((core.registered.get(), core.cancelled.get()), (2, 2));
    assert!(!registry.owns(event.client()));
}

#[test]
fn s3_r0_14_a_descriptor_is_kept_while_its_removal_waits_for_a_delivery() {
    thread_local! {
        static FOUND: Cell<Option<(&'static Registry, CpuEvent, u32)>> = const { Cell::new(None) };
    }
    let core = Recorder::default();
    let registry: &'static Registry = Box::leak(Box::new(registry()));
    let event = registry.add(&core, spec(100, 0, 1)).unwrap();
    FOUND.set(Some((registry, event, 0)));
    core.at_relax.set(Some(|| {
        let (registry, event, waits) = FOUND.get().unwrap();
        assert!(registry.owns(event.client()), "freed under the delivery that uses it");
        FOUND.set(Some((registry, event, waits + 1)));
    }));
    let mut removed = None;
    let delivered = registry.deliver(event.client(), 0, TaskKey(1), |_| {
        // Without its task: the removal cannot know that this is the delivery it waits for.
        removed = Some(registry.remove(&core, None, event));
        Ok::<_, ()>(())
    });
    assert_eq!((delivered.written, core.cancelled.get()), (1, 1));
    assert_eq!(removed, Some(Err(RemoveError::StillRunning { client: None })));
    let (_, _, waits) = FOUND.get().unwrap();
    assert_eq!(u64::from(waits), Recorder::MAX_RELAXES);
    assert!(!registry.owns(event.client()));
}

/// Runs `remove` in another thread while a delivery to `event` runs, and
/// returns what the delivery saw of it in the meantime: whether it returned.
fn remove_within_delivery(
    registry: &'static Registry,
    core: &'static Core,
    task: &'static Task,
    event: CpuEvent,
) -> bool {
    let (done, removed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let remover = {
        let (done, removed) = (Arc::clone(&done), Arc::clone(&removed));
        let (start, started) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            started.recv().unwrap();
            registry.remove(core, None, event).unwrap();
            assert!(done.load(Ordering::SeqCst), "it did not wait for the delivery");
            removed.store(true, Ordering::SeqCst);
        });
        (thread, start)
    };
    registry.request(core, task, TaskKey(task.number), &event).unwrap();
    let mut early = false;
    return_to_user(core, registry, task, 0, |_| {
        remover.1.send(()).unwrap();
        // The remover unlinks and waits, which it shows by relaxing.
        while core.host().relaxes.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        early = removed.load(Ordering::SeqCst);
        done.store(true, Ordering::SeqCst);
        Ok(())
    });
    remover.0.join().unwrap();
    early
}

#[test]
fn r0_15_a_removal_waits_for_the_delivery_and_is_seen_by_no_later_one() {
    // The last event of its profiler, whose client is cancelled, and one after
    // which another remains.
    for with_other in [false, true] {
        let core: &Core = Box::leak(Box::new(core()));
        let registry: &Registry = Box::leak(Box::new(registry()));
        let task: &Task = Box::leak(Box::new(Task::new(1)));
        let event = registry.add(core, spec(100, 0, 1)).unwrap();
        let other = with_other.then(|| registry.add(core, spec(100, 0, 2)).unwrap());
        assert!(!remove_within_delivery(registry, core, task, event));
        if let Some(other) = other {
            registry.request(core, task, TaskKey(task.number), &other).unwrap();
            assert_eq!(receivers(core, registry, task, 0), [2]);
            registry.remove(core, None, other).unwrap();
        }
        assert_empty(core, registry, &[100]);
    }
}

#[test]
fn r0_15b_an_event_is_refused_as_soon_as_its_removal_waits() {
    let core: &Core = Box::leak(Box::new(core()));
    let registry: &Registry = Box::leak(Box::new(registry()));
    let (task, other_task) = (Task::new(1), Task::new(2));
    let event = registry.add(core, spec(100, 0, 1)).unwrap();
    let second = registry.add(core, spec(100, 0, 2)).unwrap();
    registry.request(core, &task, TaskKey(task.number), &event).unwrap();
    let mut remover = None;
    return_to_user(core, registry, &task, 0, |got| {
        assert_eq!(got.event.0, 1);
        remover = Some(std::thread::spawn(move || registry.remove(core, None, event).unwrap()));
        while core.host().relaxes.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        // While the remover waits, neither a request nor another delivery
        // picks the dying event.
        let error =
            registry.request(core, &other_task, TaskKey(other_task.number), &event).unwrap_err();
        assert_eq!(error, RequestError::Removed);
        registry.request(core, &other_task, TaskKey(other_task.number), &second).unwrap();
        assert_eq!(receivers(core, registry, &other_task, 0), [2]);
        Ok(())
    });
    remover.unwrap().join().unwrap();
    registry.remove(core, None, second).unwrap();
}

#[test]
fn r0_16_a_removal_waits_for_every_delivery_that_runs_at_once() {
    let core: &Core = Box::leak(Box::new(core()));
    let registry: &Registry = Box::leak(Box::new(registry()));
    let event = registry.add(core, spec(100, 0, 1)).unwrap();
    let keep = registry.add(core, spec(100, 1, 2)).unwrap();
    // Two tasks return on one CPU and are preempted within their deliveries.
    let inside = Arc::new(AtomicU32::new(0));
    let leave: Vec<_> = (1..=2)
        .map(|number| {
            let (go, wait) = mpsc::channel();
            let inside = Arc::clone(&inside);
            let thread = std::thread::spawn(move || {
                let task = Task::new(number);
                registry.request(core, &task, TaskKey(task.number), &event).unwrap();
                return_to_user(core, registry, &task, 0, |_| {
                    inside.fetch_add(1, Ordering::SeqCst);
                    wait.recv().unwrap();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                });
            });
            (go, thread)
        })
        .collect();
    while inside.load(Ordering::SeqCst) != 2 {
        std::thread::yield_now();
    }
    let seen = Arc::clone(&inside);
    let remover = std::thread::spawn(move || {
        registry.remove(core, None, event).unwrap();
        seen.load(Ordering::SeqCst)
    });
    for (left, (go, thread)) in [1, 0].into_iter().zip(leave) {
        assert!(!remover.is_finished(), "with {} inside", left + 1);
        go.send(()).unwrap();
        thread.join().unwrap();
        assert_eq!(inside.load(Ordering::SeqCst), left);
        if left == 1 {
            let relaxes = core.host().relaxes.load(Ordering::SeqCst);
            while core.host().relaxes.load(Ordering::SeqCst) < relaxes + 10 {
                std::thread::yield_now();
            }
        }
    }
    assert_eq!(remover.join().unwrap(), 0);
    registry.remove(core, None, keep).unwrap();
}

#[test]
fn b_a_removal_that_waits_for_what_does_not_end_gives_up_and_says_what_is_left() {
    for (with_other, client_ends) in [(false, false), (false, true), (true, true)] {
        let (core, registry) = (Recorder::default(), registry());
        let event = registry.add(&core, spec(100, 0, 1)).unwrap();
        let other = with_other.then(|| registry.add(&core, spec(100, 0, 2)).unwrap());
        core.cannot_cancel.set((!client_ends).then_some(CancelError::StillRunning));
        registry.deliver(event.client(), 0, TaskKey(1), |_| {
            // It does not say that it is the task that delivers, and so waits
            // for itself.
            let error = registry.remove(&core, None, event).unwrap_err();
            let left = (!client_ends).then_some(event.client());
            assert_eq!(
                (error, error.errno()),
                (RemoveError::StillRunning { client: left }, Errno::Busy)
            );
            assert!(registry.is_running(&event));
            assert_eq!(
                registry.request(&core, &(), TaskKey(1), &event),
                Err(RequestError::Removed)
            );
            Ok::<(), ()>(())
        });
        assert!(!registry.is_running(&event));
        assert_eq!(registry.remove(&core, None, event), Err(RemoveError::Removed));
        let left = u32::from(with_other);
        assert_eq!(
            (registry.occupied_cpus(GroupLeader(100)), registry.owns(event.client())),
            (left, with_other)
        );
        if let Some(other) = other {
            registry.remove(&core, None, other).unwrap();
        }
    }
}

#[test]
fn b_a_client_that_does_not_come_to_its_end_is_left_to_be_cancelled() {
    let (core, registry) = (Recorder::default(), registry());
    let event = registry.add(&core, spec(100, 0, 1)).unwrap();
    core.cannot_cancel.set(Some(CancelError::StillRunning));
    let error = registry.remove(&core, None, event).unwrap_err();
    assert_eq!(error, RemoveError::NotCancelled(CancelError::StillRunning));
    assert!(!registry.is_running(&event) && !registry.owns(event.client()));
    assert_eq!(registry.remove(&core, None, event), Err(RemoveError::Removed));
}

#[test]
fn x3_a_delivery_that_removes_its_own_event_is_told_so() {
    let (core, registry, task) = (core(), registry(), Task::new(1));
    let event = registry.add(&core, spec(100, 0, 1)).unwrap();
    let sibling = registry.add(&core, spec(100, 1, 2)).unwrap();
    let gone = registry.add(&core, spec(100, 0, 3)).unwrap();
    registry.remove(&core, None, gone).unwrap();
    registry.request(&core, &task, TaskKey(task.number), &event).unwrap();
    return_to_user(&core, &registry, &task, 0, |_| {
        for event in [event, sibling] {
            let error = registry.remove(&core, Some(&task), event).unwrap_err();
            assert_eq!((error, error.errno()), (RemoveError::OwnDelivery, Errno::WouldDeadlock));
        }
        // What is not there is not waited for.
        assert_eq!(registry.remove(&core, Some(&task), gone), Err(RemoveError::Removed));
        Ok(())
    });
    assert_eq!(registry.occupied_cpus(GroupLeader(100)), 2, "nothing has changed");
    for event in [event, sibling] {
        registry.remove(&core, Some(&task), event).unwrap();
        let error = registry.remove(&core, Some(&task), event).unwrap_err();
        assert_eq!((error, error.errno()), (RemoveError::Removed, Errno::InvalidArgument));
    }
    assert_empty(&core, &registry, &[100]);
}
