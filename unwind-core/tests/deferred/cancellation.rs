//! Cancellations wait for what runs, and leave no state.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use unwind_core::deferred::*;
use unwind_core::*;

use crate::{
    STACK,
    sim::{Cache, Kernel, SimHost, SpecialHost, Task, WaitQueue},
};

/// Cancels a client on another thread while its callback sleeps.
fn cancel_during_callback(
    kernel: &Kernel,
    cancelled: &AtomicBool,
    during: impl Fn(&Task, ClientId),
    after: impl FnOnce() + Send,
) {
    let [client, other] = kernel.register();
    let task = Task::new(STACK);
    let other_task = Task::new(STACK);
    kernel.ask(&task, client);
    thread::scope(|scope| {
        let calls = kernel.deliver_and(&task, |_| {
            scope.spawn(|| {
                kernel.unwind.cancel(None, client).unwrap();
                cancelled.store(true, Ordering::SeqCst);
            });
            // The callback sleeps until the cancellation has begun to wait.
            while kernel.unwind.host().relaxed.load(Ordering::SeqCst) < 10 {
                thread::yield_now();
            }
            assert!(!cancelled.load(Ordering::SeqCst), "the callback still runs");
            let refused = RequestOutcome::Refused(Refusal::UnknownClient);
            assert_eq!(kernel.request(&other_task, client), refused);
            // Others are not held up.
            kernel.ask(&other_task, other);
            during(&task, client);
        });
        assert_eq!(calls.len(), 1);
        after();
    });
    assert!(cancelled.load(Ordering::SeqCst));
    assert_eq!(kernel.return_to_user(&other_task).len(), 1);
}

#[test]
fn f10_r3_7_a_callback_may_sleep_and_a_cancellation_waits_for_it_alone() {
    cancel_during_callback(&Kernel::new(), &AtomicBool::new(false), |_, _| (), || ());
}

#[test]
fn x3_a_cancellation_ends_when_the_callback_does() {
    let cancelled = AtomicBool::new(false);
    let after = || {
        while !cancelled.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    };
    cancel_during_callback(&Kernel::new(), &cancelled, |_, _| (), after);
}

#[test]
fn s4_a_cancellation_sleeps_in_the_hosts_queue_until_the_callback_has_ended() {
    let host = SimHost { queue: Some(WaitQueue::default()), ..SimHost::default() };
    let kernel = Kernel::with_host(host, SerialCookies::new());
    let queue = kernel.unwind.host().queue.as_ref().unwrap();
    let (ended, task) = (AtomicBool::new(false), Task::new(STACK));
    let [client] = kernel.register();
    kernel.ask(&task, client);
    thread::scope(|scope| {
        let calls = kernel.deliver_and(&task, |_| {
            scope.spawn(|| {
                assert_eq!(kernel.unwind.cancel(None, client), Ok(()));
                assert!(ended.load(Ordering::SeqCst), "the callback still ran");
            });
            let begun = Instant::now();
            while queue.sleeps.load(Ordering::SeqCst) == 0 {
                assert!(begun.elapsed().as_secs() < 120, "the cancellation does not sleep");
                thread::yield_now();
            }
            ended.store(true, Ordering::SeqCst);
        });
        assert_eq!(calls.len(), 1);
    });
    assert_eq!(kernel.unwind.host().relaxed.load(Ordering::SeqCst), 0, "it polled");
}

#[test]
fn x3_a_task_is_in_the_delivery_to_a_client_also_while_another_thread_cancels_it() {
    let kernel = Kernel::new();
    let during = |task: &Task, client| {
        assert!(kernel.unwind.is_delivering(task, client));
        // The other cancellation has the client.
        let unknown = Err(CancelError::UnknownClient);
        assert_eq!(kernel.unwind.cancel(Some(task), client), unknown);
    };
    cancel_during_callback(&kernel, &AtomicBool::new(false), during, || ());
}

#[test]
fn x3_a_delivery_that_cancels_its_own_client_is_told_so_and_continues() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let (task, other) = (Task::new(STACK), Task::new(STACK));
    kernel.ask(&task, client);
    let calls = kernel.deliver_and(&task, |_| {
        assert!(kernel.unwind.is_delivering(&task, client));
        assert!(!kernel.unwind.is_delivering(&other, client));
        assert_eq!(kernel.unwind.cancel(Some(&task), client), Err(CancelError::OwnDelivery));
        // It is still registered.
        kernel.ask(&other, client);
    });
    assert_eq!(calls.len(), 1);
    assert!(!kernel.unwind.is_delivering(&task, client));
    assert_eq!(kernel.unwind.cancel(Some(&task), client), Ok(()));
    assert_eq!(kernel.unwind.cancel(Some(&task), client), Err(CancelError::UnknownClient));
}

#[test]
fn x3_a_client_whose_callback_has_returned_can_be_cancelled_in_the_same_delivery() {
    let kernel = Kernel::new();
    let clients: [ClientId; 2] = kernel.register();
    let task = Task::new(STACK);
    for client in clients {
        kernel.ask(&task, client);
    }
    let mut cache = Cache::new();
    let walk = |trace: &mut Trace| task.walk(trace);
    let mut delivery = kernel.unwind.deliver(&task, Recipients::Requesters, Some(&mut cache), walk);
    let guard = delivery.next().unwrap();
    let first = guard.client();
    assert_eq!(kernel.unwind.cancel(Some(&task), first), Err(CancelError::OwnDelivery));
    drop(guard);
    assert!(!kernel.unwind.is_delivering(&task, first));
    assert_eq!(kernel.unwind.cancel(Some(&task), first), Ok(()));
    assert_ne!(delivery.next().unwrap().client(), first);
}

#[test]
fn x4_after_all_cancellations_nothing_is_left() {
    let kernel = Kernel::new();
    let clients: [ClientId; MAX_CLIENTS] = kernel.register();
    let tasks: Vec<Task> = (0..10).map(|_| Task::new(STACK)).collect();
    for (task, &client) in tasks.iter().flat_map(|task| clients.iter().map(move |it| (task, it))) {
        kernel.ask(task, client);
    }
    for client in clients {
        kernel.unwind.cancel(None, client).unwrap();
    }
    assert!(format!("{:?}", kernel.unwind).contains("clients: {}"));
    for task in &tasks {
        assert!(kernel.return_to_user(task).is_empty());
        assert_eq!(task.walks(), 0, "for no client");
        let state = format!("{:?}", task.state);
        let nothing = "asked: 0b00000000000000000000000000000000";
        assert!(state.contains(nothing) && state.contains("used: false"), "{state}");
    }
    assert_eq!(kernel.drops().client_cancelled, 320);
    let _: [ClientId; MAX_CLIENTS] = kernel.register();
}

#[test]
fn f7_requests_of_a_cancelled_client_are_refused_whoever_has_its_slot() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    kernel.ask(&task, client);
    kernel.unwind.cancel(None, client).unwrap();
    let refused = RequestOutcome::Refused(Refusal::UnknownClient);
    assert_eq!(kernel.request(&task, client), refused, "though its mark is still there");
    let [newcomer] = kernel.register();
    assert_eq!(kernel.request(&task, client), refused);
    assert_eq!(kernel.unwind.cancel(None, client), Err(CancelError::UnknownClient));
    assert!(matches!(kernel.request(&task, newcomer), RequestOutcome::Queued(_)));
    for bits in [0, 1, 2, 31, 32, u64::MAX, newcomer.to_bits() + 32] {
        let forged = ClientId::from_bits(bits);
        assert_eq!(kernel.request(&task, forged), refused, "{forged:?}");
        assert_eq!(kernel.unwind.cancel(Some(&task), forged), Err(CancelError::UnknownClient));
    }
}

#[test]
fn b13_a_cancelled_clients_request_that_stalls_over_any_number_of_purges_calls_nobody() {
    for purges in [1, 2, 0xfff, 0x1000, 0x1001, 0x4000] {
        let kernel: &Kernel = Box::leak(Box::new(Kernel::new()));
        let [client] = kernel.register();
        let task: &Task = Box::leak(Box::new(Task::new(STACK)));
        // Else the request has to fetch a number, and looks again afterwards.
        kernel.unwind.cookie(task).unwrap();
        assert_eq!(kernel.unwind.user_return(task), UserReturn::Ready);
        kernel.ask(task, client);
        kernel.return_to_user(task);
        let outcome = kernel.stalled_request(task, client, move || {
            kernel.unwind.cancel(None, client).unwrap();
            let _owner_of_the_slot = kernel.unwind.register().unwrap();
            let fails = &kernel.unwind.host().schedule_fails;
            fails.store(true, Ordering::SeqCst);
            for _ in 0..purges {
                // Its marks account for this one, who leaves none.
                let newcomer = kernel.unwind.register().unwrap();
                let failed = RequestOutcome::Refused(Refusal::ScheduleFailed);
                assert_eq!(kernel.request(task, newcomer), failed);
                kernel.unwind.cancel(None, newcomer).unwrap();
            }
            fails.store(false, Ordering::SeqCst);
        });
        let calls = kernel.return_to_user(task);
        let refused = RequestOutcome::Refused(Refusal::UnknownClient);
        assert_eq!((outcome, calls.len()), (refused, 0), "after {purges} purges");
    }
}

/// A host that does not wait for long.
type Impatient = SpecialHost<true, 100>;

fn asked() -> (DeferredUnwind<Impatient>, Task, ClientId) {
    let unwind = DeferredUnwind::new(Impatient::default(), SerialCookies::new());
    let task = Task::new(STACK);
    let client = unwind.register().unwrap();
    assert!(unwind.request(&task, client).is_pending());
    (unwind, task, client)
}

#[test]
fn b6_a_cancellation_by_an_own_delivery_without_its_task_is_told_so_and_ends() {
    let (unwind, task, client) = asked();
    let mut abandonment = unwind.abandon(&task, LossReason::TaskGone);
    let guard = abandonment.next().unwrap();
    assert_eq!(unwind.cancel(None, client), Err(CancelError::StillRunning));
    assert_eq!(unwind.host().0.relaxed.load(Ordering::SeqCst), 100);
    // As before: it is registered, and waits as long again.
    let other = Task::new(STACK);
    assert!(matches!(unwind.request(&other, client), RequestOutcome::Queued(_)));
    assert_eq!(unwind.cancel(None, client), Err(CancelError::StillRunning));
    assert_eq!(unwind.host().0.relaxed.load(Ordering::SeqCst), 200);
    drop(guard);
    assert_eq!(unwind.cancel(None, client), Ok(()));
    assert_eq!(unwind.cancel(None, client), Err(CancelError::UnknownClient));
}

#[test]
fn b6_two_deliveries_that_cancel_each_others_client_are_told_so_and_end() {
    let (unwind, task, client) = asked();
    let (other_task, other) = (Task::new(STACK), unwind.register().unwrap());
    assert!(unwind.request(&other_task, other).is_pending());
    let both_are_called = Barrier::new(2);
    let cancelled = thread::scope(|scope| {
        [(&task, other), (&other_task, client)]
            .map(|(task, client)| {
                let (unwind, both_are_called) = (&unwind, &both_are_called);
                scope.spawn(move || {
                    let mut abandonment = unwind.abandon(task, LossReason::TaskGone);
                    let guard = abandonment.next().unwrap();
                    both_are_called.wait();
                    let result = unwind.cancel(Some(task), client);
                    drop(guard);
                    result
                })
            })
            .map(|thread| thread.join().unwrap())
    });
    // Where the first gives up, the second need not.
    assert!(cancelled.contains(&Err(CancelError::StillRunning)), "{cancelled:?}");
    assert!(cancelled.iter().all(|it| matches!(it, Ok(()) | Err(CancelError::StillRunning))));
}

#[test]
fn b6_a_cancellation_does_not_wait_for_a_leaked_delivery_of_a_task_that_never_continues() {
    let (unwind, task, client) = asked();
    let mut abandonment = unwind.abandon(&task, LossReason::TaskGone);
    core::mem::forget(abandonment.next());
    core::mem::forget(abandonment);
    let other = Task::new(STACK);
    assert_eq!(unwind.cancel(Some(&other), client), Err(CancelError::StillRunning));
    // Its own task knows at once, and where that ends the client is free.
    assert_eq!(unwind.cancel(Some(&task), client), Err(CancelError::OwnDelivery));
    unwind.close(&task);
    assert_eq!((unwind.drops().unfinished, unwind.drops().leaked_calls), (1, 1));
    assert_eq!(unwind.cancel(Some(&other), client), Ok(()));
}
