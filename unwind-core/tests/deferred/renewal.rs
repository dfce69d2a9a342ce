//! A second stack in one kernel entry.

use core::sync::atomic::Ordering;

use unwind_core::deferred::*;

use crate::STACK;
use crate::sim::{Kernel, Task};

/// What a handler of a signal leaves on the stack.
const WITH_SIGNAL_FRAME: &[u64] = &[0x9000, 0x9100, 0x1000, 0x2000, 0x3000];

/// A task that was asked for and has delivered, and what the cookie was.
fn delivered(kernel: &Kernel, task: &Task, client: ClientId) -> Cookie {
    let cookie = kernel.ask(task, client);
    assert_eq!(kernel.deliver(task).len(), 1);
    cookie
}

#[test]
fn g16_a_second_stack_in_one_entry_is_another_walk_with_another_cookie() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    let mut cookies = Vec::new();
    for _ in 0..3 {
        task.set_stack(STACK);
        let first = delivered(&kernel, &task, client);
        task.set_stack(WITH_SIGNAL_FRAME);
        // A request has the stack that is known.
        assert_eq!(kernel.request(&task, client), RequestOutcome::AlreadyExecuted(first));
        let outcome = kernel.unwind.request_anew(&task, client);
        let second = outcome.cookie().unwrap();
        assert_eq!(outcome, RequestOutcome::Queued(second));
        assert_eq!(kernel.request(&task, client), RequestOutcome::AlreadyPending(second));
        let calls = kernel.deliver(&task);
        assert_eq!(calls.len(), 1);
        assert_eq!(calls[0].cookie, second);
        assert_eq!(calls[0].stack.as_deref(), Some(WITH_SIGNAL_FRAME));
        // There is no third one, in this entry.
        let third = kernel.unwind.request_anew(&task, client);
        assert_eq!(third, RequestOutcome::AlreadyExecuted(second));
        assert!(kernel.return_to_user(&task).is_empty());
        cookies.extend([first, second]);
    }
    cookies.sort();
    cookies.dedup();
    assert_eq!((cookies.len(), task.walks()), (6, 6));
}

#[test]
fn g16_a_client_that_has_not_been_served_asks_as_ever() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    let cookie = kernel.unwind.cookie(&task).unwrap();
    let anew = || kernel.unwind.request_anew(&task, client);
    assert_eq!(anew(), RequestOutcome::Queued(cookie));
    assert_eq!(anew(), RequestOutcome::AlreadyPending(cookie));
    assert_eq!(kernel.return_to_user(&task).len(), 1);
    let unknown = kernel.unwind.request_anew(&task, ClientId::NONE);
    assert_eq!(unknown, RequestOutcome::Refused(Refusal::UnknownClient));
    delivered(&kernel, &task, client);
    kernel.unwind.close(&task);
    assert_eq!(anew(), RequestOutcome::Refused(Refusal::Exiting));
}

#[test]
fn g16_a_second_stack_waits_for_what_others_have_asked_for_under_the_first_cookie() {
    let kernel = Kernel::new();
    let [client, other] = kernel.register();
    let task = Task::new(STACK);
    let first = delivered(&kernel, &task, client);
    assert_eq!(kernel.request(&task, other), RequestOutcome::Queued(first));
    let anew = || kernel.unwind.request_anew(&task, client);
    assert_eq!(anew(), RequestOutcome::AlreadyExecuted(first));
    let calls = kernel.deliver(&task);
    assert_eq!((calls.len(), calls[0].client, calls[0].cookie), (1, other, first));
    assert_eq!(task.walks(), 1);
    // Then it is the others' as well.
    let second = anew().cookie().unwrap();
    assert_ne!(second, first);
    assert_eq!(kernel.request(&task, other), RequestOutcome::Queued(second));
    assert_eq!(kernel.return_to_user(&task).len(), 2);
    assert_eq!(task.walks(), 2);
}

#[test]
fn g16_a_client_that_asks_anew_whenever_it_is_called_does_not_keep_the_task_from_user_code() {
    let kernel = Kernel::new();
    let [client, other] = kernel.register();
    let task = Task::new(STACK);
    let first = kernel.ask(&task, client);
    assert_eq!(kernel.ask(&task, other), first);
    let mut cache = UnwindCache::<[_; 8]>::new();
    let mut deliveries = 0;
    while kernel.unwind.user_return(&task) == UserReturn::Pending {
        deliveries += 1;
        assert!(deliveries <= 2, "it asks on every way out");
        let mut delivery =
            kernel
                .unwind
                .deliver(&task, Recipients::Requesters, Some(&mut cache), |trace| task.walk(trace));
        while let Some(guard) = delivery.next() {
            let cookie = guard.cookie();
            let again = kernel.unwind.request_anew(&task, guard.client());
            assert_eq!(again, RequestOutcome::AlreadyExecuted(cookie));
        }
        drop(delivery);
        // And after each delivery, as a tracer of the way out would.
        let _ = kernel.unwind.request_anew(&task, client);
    }
    assert_eq!((deliveries, task.walks()), (2, 2));
}

#[test]
fn g16_a_second_stack_that_cannot_be_scheduled_is_refused_and_costs_the_next_entry_nothing() {
    for asks_for_the_cookie in [false, true] {
        let kernel = Kernel::new();
        let [client] = kernel.register();
        let task = Task::new(STACK);
        let first = delivered(&kernel, &task, client);
        let fails = &kernel.unwind.host().schedule_fails;
        fails.store(true, Ordering::SeqCst);
        let outcome = kernel.unwind.request_anew(&task, client);
        assert_eq!(outcome, RequestOutcome::Refused(Refusal::ScheduleFailed));
        fails.store(false, Ordering::SeqCst);
        if asks_for_the_cookie {
            // The first stack's is over.
            assert_ne!(kernel.unwind.cookie(&task), Ok(first));
        }
        assert!(kernel.return_to_user(&task).is_empty());
        let next = delivered(&kernel, &task, client);
        assert_ne!(next, first);
        let second = kernel.unwind.request_anew(&task, client);
        assert!(second.is_pending() && second.cookie() != Some(next), "{second:?}");
        assert_eq!(kernel.return_to_user(&task).len(), 1);
    }
}
