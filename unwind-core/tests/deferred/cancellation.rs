//! Cancellations wait for what runs, and leave nothing behind.

use core::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use unwind_core::*;

use crate::{
    STACK,
    sim::{Cache, Kernel, Task},
};

/// Cancels a client on another thread while its callback sleeps.
fn cancel_during_callback(kernel: &Kernel, cancelled: &AtomicBool, after: impl FnOnce() + Send) {
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
        });
        assert_eq!(calls.len(), 1);
        after();
    });
    assert!(cancelled.load(Ordering::SeqCst));
    assert_eq!(kernel.return_to_user(&other_task).len(), 1);
}

#[test]
fn f10_r3_7_a_callback_may_sleep_and_a_cancellation_waits_for_it_alone() {
    cancel_during_callback(&Kernel::new(), &AtomicBool::new(false), || ());
}

#[test]
fn x3_a_cancellation_ends_when_the_callback_does() {
    let cancelled = AtomicBool::new(false);
    cancel_during_callback(&Kernel::new(), &cancelled, || {
        while !cancelled.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    });
}

#[test]
fn x3_a_delivery_that_cancels_its_own_client_is_told_so_and_goes_on() {
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
    let walk = |trace: &mut Cache| task.walk(trace);
    let mut delivery = kernel.unwind.deliver(&task, Audience::Asked, Some(&mut cache), walk);
    let serving = delivery.next().unwrap();
    let first = serving.client();
    assert_eq!(kernel.unwind.cancel(Some(&task), first), Err(CancelError::OwnDelivery));
    drop(serving);
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
        assert_eq!(task.walks(), 0, "for nobody");
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
