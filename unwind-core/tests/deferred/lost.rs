//! Deliveries that do not come to their end.

use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use unwind_core::deferred::*;
use unwind_core::*;

use crate::{
    STACK,
    sim::{Cache, Kernel, Task},
};

/// A task about which all of `COUNT` clients asked.
fn asked<const COUNT: usize>() -> (Kernel, Task, [ClientId; COUNT]) {
    let kernel = Kernel::new();
    let task = Task::new(STACK);
    let clients = kernel.register();
    for client in clients {
        kernel.ask(&task, client);
    }
    (kernel, task, clients)
}

/// The way out, for a few rounds: who was called, or `None` if the task never
/// gets there.
fn way_out(kernel: &Kernel, task: &Task) -> Option<Vec<ClientId>> {
    let mut called = Vec::new();
    for _ in 0..8 {
        called.extend(kernel.deliver(task).iter().map(|call| call.client));
        if kernel.unwind.user_return(task) == UserReturn::Ready {
            return Some(called);
        }
    }
    None
}

fn begin<'a>(kernel: &'a Kernel, task: &'a Task) -> Abandonment<'a> {
    kernel.unwind.abandon(task, LossReason::TaskGone)
}

#[test]
fn b4_a_task_that_continues_before_its_delivery_is_at_its_end_leaves_nobody_uncalled() {
    for calls in 0..3 {
        let (kernel, task, clients) = asked::<3>();
        let mut delivery = begin(&kernel, &task);
        for client in clients.iter().take(calls) {
            assert_eq!(delivery.next().unwrap().client(), *client);
        }
        assert_eq!(kernel.unwind.user_return(&task), UserReturn::Pending);
        assert_eq!((kernel.drops().unfinished, kernel.drops().leaked_calls), (1, 0));
        assert!(delivery.next().is_none(), "it is over");
        assert_eq!(way_out(&kernel, &task).unwrap(), clients[calls..]);
        drop(delivery);
        assert!(kernel.deliver(&task).is_empty());
    }
}

#[test]
fn b4_a_delivery_that_was_overtaken_does_nothing_to_the_next_one() {
    let (kernel, task, [first, second]) = asked();
    let mut old = begin(&kernel, &task);
    assert_eq!(kernel.unwind.user_return(&task), UserReturn::Pending);
    let mut new = begin(&kernel, &task);
    let guard = new.next().unwrap();
    assert!(old.next().is_none());
    drop(old);
    assert!(kernel.unwind.is_delivering(&task, first), "the new one is at it");
    drop(guard);
    assert_eq!(new.next().unwrap().client(), second);
    assert!(new.next().is_none());
    assert_eq!(kernel.unwind.user_return(&task), UserReturn::Ready);
}

#[test]
fn b5_a_delivery_that_has_yielded_none_is_over_also_while_it_is_in_scope() {
    let (kernel, task, [client, other]) = asked();
    let mut delivery = begin(&kernel, &task);
    while delivery.next().is_some() {}
    let [late, later] = kernel.register();
    kernel.unwind.host().nmi(|| kernel.ask(&task, late));
    let calls = kernel.deliver(&task);
    assert_eq!(calls.iter().map(|call| call.client).collect::<Vec<_>>(), [late]);
    kernel.unwind.host().nmi(|| kernel.ask(&task, later));
    assert_eq!(kernel.unwind.user_return(&task), UserReturn::Pending);
    assert_eq!(way_out(&kernel, &task).unwrap(), [later]);
    assert_eq!(kernel.drops().unfinished, 0, "it was at its end");
    assert!(delivery.next().is_none());
    // The next entry is not the old delivery's affair either.
    kernel.ask(&task, client);
    assert!(delivery.next().is_none());
    let mut next = begin(&kernel, &task);
    let guard = next.next().unwrap();
    drop(delivery);
    assert!(kernel.unwind.is_delivering(&task, client));
    assert_eq!(kernel.unwind.cancel(Some(&task), other), Ok(()));
    drop(guard);
}

#[test]
fn b6_a_delivery_that_is_forgotten_keeps_no_task_from_user_code() {
    for calls in 0..3 {
        let (kernel, task, clients) = asked::<3>();
        let mut delivery = begin(&kernel, &task);
        for _ in 0..calls {
            drop(delivery.next());
        }
        core::mem::forget(delivery);
        // An NMI may ask before the task is on its way out.
        let [late] = kernel.register();
        kernel.ask(&task, late);
        let mut called = way_out(&kernel, &task).unwrap();
        called.sort();
        assert_eq!(called, [&clients[calls..], &[late]].concat());
        kernel.ask(&task, clients[0]);
        assert_eq!(kernel.return_to_user(&task).len(), 1, "the next entry is as any other");
        assert_eq!((kernel.drops().unfinished, kernel.drops().leaked_calls), (1, 0));
    }
}

#[test]
fn b6_a_serving_that_is_forgotten_ends_with_its_delivery() {
    for further in [false, true] {
        let (kernel, task, [first, second]) = asked();
        let mut delivery = begin(&kernel, &task);
        core::mem::forget(delivery.next());
        assert!(kernel.unwind.is_delivering(&task, first));
        if further {
            assert_eq!(delivery.next().unwrap().client(), second);
            assert!(!kernel.unwind.is_delivering(&task, first));
            assert!(delivery.next().is_none());
        } else {
            drop(delivery);
        }
        assert_eq!((kernel.drops().unfinished, kernel.drops().leaked_calls), (0, 1));
        assert_eq!(kernel.unwind.cancel(Some(&task), first), Ok(()));
    }
}

#[test]
fn b6_what_is_forgotten_with_its_delivery_ends_where_the_task_continues() {
    type GoOn = fn(&Kernel, &Task);
    let ways: [GoOn; 3] = [
        |kernel, task| assert_eq!(kernel.unwind.user_return(task), UserReturn::Pending),
        |kernel, task| kernel.unwind.close(task),
        |kernel, task| assert_eq!(kernel.unwind.reopen(task), UserReturn::Pending),
    ];
    for way in ways {
        let (kernel, task, [first, second]) = asked();
        let mut delivery = begin(&kernel, &task);
        core::mem::forget(delivery.next());
        core::mem::forget(delivery);
        way(&kernel, &task);
        assert_eq!((kernel.drops().unfinished, kernel.drops().leaked_calls), (1, 1));
        assert!(!kernel.unwind.is_delivering(&task, first));
        assert_eq!(kernel.unwind.cancel(Some(&task), first), Ok(()));
        let called: Vec<_> = kernel.deliver(&task).iter().map(|call| call.client).collect();
        assert_eq!(called, [second]);
        assert_eq!(kernel.drops().client_cancelled, 0, "the first was called");
    }
}

#[test]
fn b7_the_client_for_whom_a_walk_panicked_stays_pending() {
    fn rule<const CLIENTS: usize>() {
        let (kernel, task, clients) = asked::<CLIENTS>();
        let mut cache = Cache::new();
        let result = catch_unwind(AssertUnwindSafe(|| {
            let walk = |_: &mut Trace| panic!("in the walk");
            let lent: Option<&mut UnwindCache> = Some(&mut cache);
            let mut delivery = kernel.unwind.deliver(&task, Recipients::Requesters, lent, walk);
            drop(delivery.next());
        }));
        assert!(result.is_err());
        assert!(!kernel.unwind.is_delivering(&task, clients[0]));
        assert_eq!(kernel.unwind.user_return(&task), UserReturn::Pending);
        let calls = kernel.return_to_user(&task);
        assert_eq!(calls.iter().map(|call| call.client).collect::<Vec<_>>(), clients);
        assert!(calls.iter().all(|call| call.stack.as_deref() == Some(STACK)), "{calls:?}");
        for client in clients {
            kernel.unwind.cancel(None, client).unwrap();
        }
    }
    rule::<1>();
    rule::<2>();
}

#[test]
fn b4_a_task_that_continues_when_all_were_called_may_go_on() {
    let (kernel, task, clients) = asked::<2>();
    let mut delivery = begin(&kernel, &task);
    for client in clients {
        assert_eq!(delivery.next().unwrap().client(), client);
    }
    // It has not yielded `None`.
    assert_eq!(kernel.unwind.user_return(&task), UserReturn::Ready);
    assert_eq!(kernel.drops().unfinished, 1);
    drop(delivery);
    kernel.ask(&task, clients[0]);
    assert_eq!(kernel.return_to_user(&task).len(), 1);
}

/// Has no `is_send` to choose if the type is `Send`, and one if it is not.
trait NotSend<Marker> {
    fn is_send() {}
}
impl<T: ?Sized> NotSend<()> for T {}
impl<T: ?Sized + Send> NotSend<u8> for T {}

#[test]
fn a_delivery_and_the_client_it_is_at_stay_with_the_task_that_makes_it() {
    // This compiles because neither is `Send`.
    <Abandonment<'static> as NotSend<_>>::is_send();
    <Delivery<'static, fn(&mut Trace)> as NotSend<_>>::is_send();
    <DeliveryGuard<'static> as NotSend<_>>::is_send();
}

#[test]
fn a_delivery_between_two_clients_of_another_one_yields_nothing() {
    let (kernel, task, [first, second]) = asked();
    let mut outer = begin(&kernel, &task);
    assert_eq!(outer.next().unwrap().client(), first);
    let [late] = kernel.register();
    kernel.ask(&task, late);
    assert!(begin(&kernel, &task).next().is_none());
    assert_eq!(outer.next().unwrap().client(), second);
    assert_eq!(outer.next().unwrap().client(), late);
}
