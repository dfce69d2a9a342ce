//! Ids and stored stacks that are of no client, or of another instance.

use std::collections::HashSet;

use unwind_core::deferred::*;
use unwind_core::*;

use crate::{
    STACK,
    sim::{self, Cache, Kernel, Task},
};

/// Bits that were never an id: small ones, as C leaves them in a field, and
/// those that differ from an id in one bit.
fn forged(ids: &[ClientId]) -> Vec<u64> {
    let near = ids.iter().flat_map(|id| (0..64).map(move |bit| id.to_bits() ^ 1 << bit));
    let next = ids.iter().flat_map(|id| {
        let bits = id.to_bits();
        [bits - 64, bits - 32, bits - 1, bits + 1, bits + 32, bits + 64]
    });
    let granted: HashSet<u64> = ids.iter().map(|id| id.to_bits()).collect();
    let all = (0..4096).chain(u64::MAX - 4096..=u64::MAX).chain(near).chain(next);
    all.filter(|bits| !granted.contains(bits)).collect()
}

/// Tries bits that are no client's in all ways.
fn try_all(kernel: &Kernel, task: &Task, tried: &[u64]) {
    let refused = RequestOutcome::Refused(Refusal::UnknownClient);
    for &bits in tried {
        let id = ClientId::from_bits(bits);
        assert_eq!(kernel.request(task, id), refused, "{bits:#x}");
        assert!(!kernel.unwind.is_delivering(task, id), "{bits:#x}");
        for current in [None, Some(task)] {
            let cancelled = kernel.unwind.cancel(current, id);
            assert_eq!(cancelled, Err(CancelError::UnknownClient), "{bits:#x}");
        }
    }
}

#[test]
fn b1_ids_that_were_never_granted_are_refused_whatever_the_slots_hold() {
    let kernel = Kernel::new();
    let task = Task::new(STACK);
    // Free slots; taken ones; some of each; ones that were taken once.
    try_all(&kernel, &task, &forged(&[]));
    let clients: [ClientId; MAX_CLIENTS] = kernel.register();
    let tried = forged(&clients);
    try_all(&kernel, &task, &tried);
    for &client in clients.iter().step_by(2) {
        kernel.unwind.cancel(None, client).unwrap();
    }
    try_all(&kernel, &task, &tried);
    for &client in clients.iter().skip(1).step_by(2) {
        kernel.unwind.cancel(None, client).unwrap();
    }
    try_all(&kernel, &task, &tried);
    assert!(kernel.return_to_user(&task).is_empty());
    assert!(task.scheduled.lock().unwrap().is_empty(), "nothing was asked for");
}

#[test]
fn b1_ids_that_were_never_granted_are_refused_while_each_slot_is_being_cancelled() {
    for index in 0..MAX_CLIENTS {
        let kernel = Kernel::new();
        let clients: [ClientId; MAX_CLIENTS] = kernel.register();
        let (task, other) = (Task::new(STACK), Task::new(STACK));
        kernel.ask(&task, clients[index]);
        std::thread::scope(|scope| {
            kernel.deliver_and(&task, |_| {
                scope.spawn(|| kernel.unwind.cancel(None, clients[index]).unwrap());
                while kernel.unwind.host().relaxed.load(core::sync::atomic::Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                let mut tried = forged(&[clients[index]]);
                tried.truncate(200);
                tried.push(clients[index].to_bits());
                try_all(&kernel, &other, &tried);
            });
        });
        assert!(kernel.return_to_user(&other).is_empty());
    }
}

#[test]
fn b10_the_id_of_another_instance_is_refused() {
    let kernels = [Kernel::new(), Kernel::new()];
    let task = Task::new(STACK);
    let clients: [[ClientId; 3]; 2] = kernels.each_ref().map(|kernel| kernel.register());
    for (kernel, strangers) in kernels.iter().zip(clients.iter().rev()) {
        try_all(kernel, &task, &strangers.map(ClientId::to_bits));
    }
    for (kernel, own) in kernels.iter().zip(clients) {
        for client in own {
            kernel.unwind.cancel(None, client).unwrap();
        }
    }
}

#[test]
fn b2_a_pooled_trace_of_one_instance_is_not_the_stack_of_another() {
    let mut pooled = Cache::new();
    for stack in [STACK, &[0x9000, 0xa000], &[0xb000]] {
        // A VM and its vCPU: cookies begin anew.
        let kernel = Kernel::with_cookies(CounterCookies::new());
        let [client] = kernel.register();
        let task = Task::new(stack);
        let cookie = kernel.ask(&task, client);
        assert_eq!(cookie.get(), 1);
        for _ in 0..2 {
            let walk = |trace: &mut Trace| task.walk(trace);
            let recipients = Recipients::Requesters;
            let mut delivery = kernel.unwind.deliver(&task, recipients, Some(&mut pooled), walk);
            while let Some(guard) = delivery.next() {
                assert_eq!(sim::pcs_of(guard.trace().unwrap()), stack);
            }
            drop(delivery);
            let [late] = kernel.register();
            kernel.ask(&task, late);
        }
        assert_eq!(task.walks(), 1, "the stack of this entry was there");
    }
}

#[test]
fn b2_the_stack_of_an_entry_stays_while_thousands_of_clients_register() {
    let kernel = Kernel::new();
    let clients: [ClientId; 2] = kernel.register();
    let task = Task::new(STACK);
    let mut cache = Cache::new();
    for client in clients {
        kernel.ask(&task, client);
    }
    for _ in 0..2 {
        let walk = |trace: &mut Trace| task.walk(trace);
        let mut delivery =
            kernel.unwind.deliver(&task, Recipients::Requesters, Some(&mut cache), walk);
        while let Some(guard) = delivery.next() {
            assert_eq!(guard.outcome(), SampleOutcome::Matched);
            assert_eq!(sim::pcs_of(guard.trace().unwrap()), STACK);
            drop(guard);
            for _ in 0..3_000 {
                let [short_lived] = kernel.register();
                kernel.unwind.cancel(None, short_lived).unwrap();
            }
        }
        drop(delivery);
        let [late] = kernel.register();
        kernel.ask(&task, late);
    }
    assert_eq!(task.walks(), 1, "the stack of this entry was there");
}
