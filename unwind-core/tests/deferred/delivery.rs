//! Deliveries: one walk an entry, rounds, and what a callback may do.

use core::sync::atomic::Ordering;

use unwind_core::deferred::*;
use unwind_core::*;

use crate::{
    STACK,
    sim::{Cache, Kernel, Task},
};

#[test]
fn r1_6_a_request_during_a_delivery_is_served_in_a_further_round() {
    let kernel = Kernel::new();
    let [first, second] = kernel.register();
    let task = Task::new(STACK);
    let cookie = kernel.ask(&task, second);
    // The other client asks while the last one of the round is being called.
    let mut late = None;
    let calls = kernel.deliver_and(&task, |_| {
        late.get_or_insert_with(|| kernel.unwind.host().nmi(|| kernel.request(&task, first)));
    });
    assert_eq!(late, Some(RequestOutcome::Queued(cookie)));
    let clients: Vec<ClientId> = calls.iter().map(|call| call.client).collect();
    assert_eq!(clients, [second, first]);
    assert_eq!(task.walks(), 1);
}

#[test]
fn r1_6_a_request_after_the_reset_is_delivered_with_its_own_cookie() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    let before = kernel.ask(&task, client);
    kernel.deliver(&task);
    assert_eq!(kernel.unwind.user_return(&task), UserReturn::Ready);
    let after = kernel.unwind.host().nmi(|| kernel.ask(&task, client));
    assert_ne!(before, after);
    let calls = kernel.return_to_user(&task);
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].cookie, after);
}

#[test]
fn r1_7_a_client_may_do_anything_while_it_is_called() {
    let kernel = Kernel::new();
    let [client, other] = kernel.register();
    let (task, other_task) = (Task::new(STACK), Task::new(STACK));
    kernel.ask(&task, client);
    let calls = kernel.deliver_and(&task, |_| {
        let kept = vec![0_u8; 4096];
        let newcomer = kernel.unwind.register().unwrap();
        kernel.ask(&other_task, newcomer);
        kernel.ask(&other_task, other);
        kernel.unwind.cancel(Some(&task), newcomer).unwrap();
        kernel.unwind.cancel(Some(&task), other).unwrap();
        drop(kept);
    });
    assert_eq!(calls.len(), 1);
    assert!(kernel.return_to_user(&other_task).is_empty());
    assert_eq!(kernel.drops().client_cancelled, 2);
}

#[test]
fn clients_are_called_on_a_cpu_of_any_number() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    for cpu in (0..70).chain([u32::MAX - 1, u32::MAX]) {
        kernel.ask(&task, client);
        kernel.unwind.host().cpu.store(cpu, Ordering::SeqCst);
        assert_eq!(kernel.return_to_user(&task).len(), 1, "{cpu}");
        kernel.unwind.host().cpu.store(0, Ordering::SeqCst);
    }
}

#[test]
fn r3_2_a_stack_is_walked_once_an_entry_however_many_ask_and_when() {
    let kernel = Kernel::new();
    let clients: [ClientId; MAX_CLIENTS] = kernel.register();
    let task = Task::new(STACK);
    let mut served = 0;
    for half in clients.chunks(MAX_CLIENTS / 2) {
        for &client in half {
            kernel.ask(&task, client);
            kernel.ask(&task, client);
        }
        // Two deliveries in the same entry.
        served += kernel.deliver(&task).len();
    }
    assert_eq!((served, task.walks()), (MAX_CLIENTS, 1));
    kernel.return_to_user(&task);
    kernel.ask(&task, clients[0]);
    kernel.return_to_user(&task);
    assert_eq!(task.walks(), 2, "the next entry has another stack");
}

#[test]
fn r3_5_a_client_whose_delivery_asks_again_is_called_once_an_entry() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    for _ in 0..3 {
        let cookie = kernel.ask(&task, client);
        let calls = kernel.deliver_and(&task, |_| {
            let again = kernel.request(&task, client);
            assert_eq!(again, RequestOutcome::AlreadyExecuted(cookie));
        });
        assert_eq!(calls.len(), 1);
        assert!(kernel.return_to_user(&task).is_empty());
    }
}

#[test]
fn r3_6_the_stack_of_a_later_entry_has_another_cookie() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    let dropped = kernel.ask(&task, client);
    // The record of this delivery is lost.
    kernel.return_to_user(&task);
    task.set_stack(&[0x9000]);
    let kept = kernel.ask(&task, client);
    let calls = kernel.return_to_user(&task);
    assert_eq!((calls[0].cookie, calls[0].stack.as_deref()), (kept, Some(&[0x9000][..])));
    assert_ne!(calls[0].cookie, dropped);
}

#[test]
fn f1_a_later_request_of_another_client_does_not_call_the_first_again() {
    let kernel = Kernel::new();
    let [first, second] = kernel.register();
    let task = Task::new(STACK);
    kernel.ask(&task, first);
    assert_eq!(kernel.deliver(&task).len(), 1);
    kernel.ask(&task, second);
    let calls = kernel.return_to_user(&task);
    assert_eq!(calls.iter().map(|call| call.client).collect::<Vec<_>>(), [second]);
    kernel.ask(&task, first);
    assert_eq!(kernel.return_to_user(&task).len(), 1, "in the next entry it is");
}

#[test]
fn h8_without_a_cache_nobody_is_served_twice() {
    let kernel = Kernel::new();
    let [first, second] = kernel.register();
    let task = Task::new(STACK);
    let deliver = || {
        let none = None;
        let mut delivery = kernel.unwind.deliver(&task, Recipients::Requesters, none, |_| ());
        let mut clients = Vec::new();
        while let Some(guard) = delivery.next() {
            clients.push(guard.client());
        }
        clients
    };
    kernel.ask(&task, first);
    assert_eq!(deliver(), [first]);
    kernel.ask(&task, second);
    kernel.ask(&task, first);
    assert_eq!(deliver(), [second]);
}

#[test]
fn h9_an_empty_stack_is_walked_once_an_entry_too() {
    let kernel = Kernel::new();
    let [first, second] = kernel.register();
    let task = Task::new(&[]);
    kernel.ask(&task, first);
    assert_eq!(kernel.deliver(&task)[0].end, SampleOutcome::StackLost);
    kernel.ask(&task, second);
    let calls = kernel.return_to_user(&task);
    assert_eq!(
        (calls[0].end, calls[0].stack.as_deref()),
        (SampleOutcome::StackLost, Some(&[][..]))
    );
    assert_eq!((task.walks(), kernel.drops().no_frames), (1, 2));
}

#[test]
fn a_delivery_inside_a_delivery_leaves_its_work_to_the_outer_one() {
    let kernel = Kernel::new();
    let [first, second] = kernel.register();
    let task = Task::new(STACK);
    kernel.ask(&task, first);
    let calls = kernel.deliver_and(&task, |call| {
        if call.client == first {
            kernel.ask(&task, second);
            let none = None;
            let mut inner = kernel.unwind.deliver(&task, Recipients::Requesters, none, |_| ());
            assert!(inner.next().is_none());
            drop(inner);
            let own = kernel.unwind.cancel(Some(&task), first);
            assert_eq!(own, Err(CancelError::OwnDelivery), "the outer one is still at it");
        }
    });
    assert_eq!(calls.len(), 2);
}

#[test]
fn what_is_printed_of_a_delivery_is_whose_it_is_and_not_the_stack() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    let cookie = kernel.ask(&task, client);
    let mut cache = Cache::new();
    let walk = |trace: &mut Trace| task.walk(trace);
    let mut delivery = kernel.unwind.deliver(&task, Recipients::Requesters, Some(&mut cache), walk);
    let text = format!("{delivery:?}");
    assert!(text.starts_with("Delivery") && text.len() < 300, "{text}");
    assert!(text.contains(&format!("{cookie:?}")), "{text}");
    let guard = delivery.next().unwrap();
    let text = format!("{guard:?}");
    assert!(text.starts_with("DeliveryGuard") && text.len() < 300, "{text}");
    assert!(text.contains(&format!("{cookie:?}")), "{text}");
    assert!(text.contains(&format!("{client:?}")), "{text}");
    assert!(text.contains("Matched") && !text.contains("2000"), "{text}");
}
