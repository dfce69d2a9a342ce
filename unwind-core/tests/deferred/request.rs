//! What a request says, and who is called for it.

use core::sync::atomic::Ordering;

use unwind_core::deferred::*;
use unwind_core::*;

use crate::{
    STACK,
    sim::{Call, Kernel, Task},
};

#[test]
fn r1_1_a_registered_client_that_asks_is_called_with_the_stack_and_the_cookie() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    let cookie = kernel.ask(&task, client);
    let calls = kernel.return_to_user(&task);
    let stack = Some(STACK.to_vec());
    assert_eq!(calls, [Call { client, cookie, end: SampleOutcome::Matched, stack }]);
}

#[test]
fn r1_3_everyone_is_called_and_tells_strangers_by_the_cookie() {
    let kernel = Kernel::new();
    let [asker, other] = kernel.register();
    let task = Task::new(STACK);
    let cookie = kernel.ask(&task, asker);
    let [late] = kernel.register();
    let mut cache = kernel.cache.lock().unwrap();
    let walk = |trace: &mut Trace| task.walk(trace);
    let mut delivery =
        kernel.unwind.deliver(&task, Recipients::AllClients, Some(&mut *cache), walk);
    let mut called = Vec::new();
    while let Some(guard) = delivery.next() {
        assert_eq!(guard.cookie(), cookie);
        called.push(guard.client());
        // Someone who asks when they have been called has the stack already.
        let again = kernel.request(&task, guard.client());
        assert_eq!(again, RequestOutcome::AlreadyExecuted(cookie));
    }
    assert_eq!(called, [asker, other, late]);
}

#[test]
fn r1_3_everyone_includes_the_new_owner_of_a_slot_that_was_served_in_this_entry() {
    let kernel = Kernel::new();
    let [asker, old] = kernel.register();
    let task = Task::new(STACK);
    kernel.ask(&task, asker);
    let deliver = || {
        let mut delivery = kernel.unwind.deliver(&task, Recipients::AllClients, None, |_| ());
        let mut called = Vec::new();
        while let Some(guard) = delivery.next() {
            called.push(guard.client());
        }
        called
    };
    assert_eq!(deliver(), [asker, old]);
    assert_eq!(kernel.unwind.user_return(&task), UserReturn::Ready);
    kernel.ask(&task, old);
    assert_eq!(kernel.deliver(&task).len(), 1);
    kernel.unwind.cancel(None, old).unwrap();
    let [new] = kernel.register();
    assert_eq!(new.to_bits() & 31, old.to_bits() & 31, "the slot is reused");
    kernel.ask(&task, asker);
    assert_eq!(deliver(), [asker, new]);
}

#[test]
fn r1_3_nobody_is_called_if_nobody_asked() {
    let kernel = Kernel::new();
    let [_] = kernel.register();
    let task = Task::new(STACK);
    kernel.unwind.cookie(&task).unwrap();
    let mut cache = kernel.cache.lock().unwrap();
    let walk = |trace: &mut Trace| task.walk(trace);
    let mut delivery =
        kernel.unwind.deliver(&task, Recipients::AllClients, Some(&mut *cache), walk);
    assert!(delivery.next().is_none());
    assert_eq!(task.walks(), 0);
}

#[test]
fn r3_4_the_four_outcomes_say_who_will_be_called() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    let first = kernel.request(&task, client);
    let cookie = first.cookie().unwrap();
    assert_eq!(first, RequestOutcome::Queued(cookie));
    let second = kernel.request(&task, client);
    assert_eq!(second, RequestOutcome::AlreadyPending(cookie));
    kernel.deliver(&task);
    let third = kernel.request(&task, client);
    assert_eq!(third, RequestOutcome::AlreadyExecuted(cookie));
    task.set_kind(TaskKind::KernelThread);
    kernel.return_to_user(&task);
    let fourth = kernel.request(&task, client);
    assert_eq!(fourth, RequestOutcome::Refused(Refusal::KernelThread));
    let outcomes = [first, second, third, fourth];
    assert_eq!(outcomes.map(RequestOutcome::is_pending), [true, true, false, false]);
    assert_eq!(fourth.cookie(), None);
}

#[test]
fn x2_a_full_table_refuses_and_a_cancellation_makes_room() {
    let kernel = Kernel::new();
    let clients: [ClientId; MAX_CLIENTS] = kernel.register();
    assert_eq!(kernel.unwind.register(), Err(TooManyClients));
    assert_eq!(MAX_CLIENTS, 32);
    kernel.unwind.cancel(None, clients[17]).unwrap();
    let newcomer = kernel.unwind.register().unwrap();
    assert!(!clients.contains(&newcomer));
    assert_eq!(kernel.unwind.register(), Err(TooManyClients));
}

#[test]
fn h5_the_last_client_of_the_table_gets_the_same_answers_as_the_first() {
    let kernel = Kernel::new();
    let clients: [ClientId; MAX_CLIENTS] = kernel.register();
    let task = Task::new(STACK);
    for client in [clients[0], clients[31]] {
        let cookie = kernel.ask(&task, client);
        assert_eq!(kernel.request(&task, client), RequestOutcome::AlreadyPending(cookie));
        assert_eq!(kernel.deliver(&task).len(), 1);
        assert_eq!(kernel.request(&task, client), RequestOutcome::AlreadyExecuted(cookie));
    }
}

#[test]
fn h6_after_a_failed_schedule_no_old_cookie_or_stack_survives() {
    let kernel = Kernel::new();
    let [client, other] = kernel.register();
    let task = Task::new(STACK);
    let cookie = kernel.ask(&task, other);
    assert_eq!(kernel.deliver(&task).len(), 1);
    kernel.unwind.host().schedule_fails.store(true, Ordering::SeqCst);
    let failed = RequestOutcome::Refused(Refusal::ScheduleFailed);
    assert_eq!(kernel.request(&task, client), failed);
    // The other client's marks are still there.
    assert_eq!(kernel.request(&task, other), RequestOutcome::AlreadyExecuted(cookie));
    kernel.unwind.host().schedule_fails.store(false, Ordering::SeqCst);
    assert!(kernel.return_to_user(&task).is_empty());
    task.set_stack(&[0x9000]);
    let next = kernel.ask(&task, client);
    assert_ne!(next, cookie);
    let calls = kernel.return_to_user(&task);
    assert_eq!((calls[0].cookie, calls[0].stack.as_deref()), (next, Some(&[0x9000][..])));
}
