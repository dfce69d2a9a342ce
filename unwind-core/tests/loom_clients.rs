//! Models of clients that come and go while others ask and deliver.
#![cfg(loom)]
#![cfg(test)]

#[path = "support/loom_host.rs"]
mod loom_host;

use unwind_core::Trace;

use loom::sync::Arc;
use loom::thread;
use loom_host::{Guarded, Shared};
use unwind_core::deferred::{Recipients, RequestOutcome, UnwindCache};

#[test]
fn a_cancellation_ends_after_the_deliveries_that_run_and_before_any_other() {
    loom_host::model(|| {
        let shared = Shared::new();
        let data = Arc::new(Guarded::default());
        let client = shared.unwind.register().unwrap();
        assert!(shared.unwind.request(&shared.task, client).is_pending());
        let (other, freed) = (Arc::clone(&shared), Arc::clone(&data));
        let thread = thread::spawn(move || {
            other.unwind.cancel(None, client).unwrap();
            freed.access();
        });
        let none = None;
        let mut delivery =
            shared.unwind.deliver(&shared.task, Recipients::Requesters, none, |_| ());
        while let Some(guard) = delivery.next() {
            data.access();
            drop(guard);
        }
        drop(delivery);
        thread.join().unwrap();
    });
}

#[test]
fn r1_3_a_delivery_to_everyone_is_seen_by_a_client_that_comes_and_goes_or_sees_it() {
    loom_host::model(|| {
        let shared = Shared::new();
        let data = Arc::new(Guarded::default());
        let asker = shared.unwind.register().unwrap();
        assert!(shared.unwind.request(&shared.task, asker).is_pending());
        let (other, its) = (Arc::clone(&shared), Arc::clone(&data));
        let thread = thread::spawn(move || {
            let none = None;
            let mut delivery =
                other.unwind.deliver(&other.task, Recipients::AllClients, none, |_| ());
            let mut calls = [0; 2];
            while let Some(guard) = delivery.next() {
                let is_newcomer = guard.client() != asker;
                if is_newcomer {
                    its.access();
                }
                calls[usize::from(is_newcomer)] += 1;
            }
            calls
        });
        // No one is handed the id: a delivery finds it in the table.
        data.access();
        let newcomer = shared.unwind.register().unwrap();
        shared.unwind.cancel(None, newcomer).unwrap();
        data.access();
        let calls = thread.join().unwrap();
        assert!(calls[0] == 1 && calls[1] <= 1, "{calls:?}");
    });
}

#[test]
fn r1_3_everyone_is_called_once_whoever_asks_meanwhile() {
    loom_host::model(|| {
        let shared = Shared::new();
        let asker = shared.unwind.register().unwrap();
        assert!(shared.unwind.request(&shared.task, asker).is_pending());
        // Newer than what the task's marks account for.
        let newcomer = shared.unwind.register().unwrap();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.unwind.request(&other.task, newcomer));
        let none = None;
        let mut delivery =
            shared.unwind.deliver(&shared.task, Recipients::AllClients, none, |_| ());
        let mut called = Vec::new();
        while let Some(guard) = delivery.next() {
            called.push((guard.client(), guard.cookie()));
        }
        drop(delivery);
        assert_eq!(called.len(), 2, "{called:?}");
        let outcome = thread.join().unwrap();
        let again = shared.unwind.request(&shared.task, newcomer);
        assert!(matches!(again, RequestOutcome::AlreadyExecuted(_)), "{outcome:?}, {again:?}");
        called.extend(shared.return_to_user());
        // It asked before it was called, or was told that it had been.
        assert_eq!(called.len(), 2, "{outcome:?} and {called:?}");
        assert!(called.contains(&(newcomer, outcome.cookie().unwrap())), "{called:?}");
    });
}

#[test]
fn h2_marks_that_another_request_accounts_for_are_seen_without_those_of_former_owners() {
    loom_host::model(|| {
        let shared = Shared::new();
        let old = shared.unwind.register().unwrap();
        assert!(shared.unwind.request(&shared.task, old).is_pending());
        shared.unwind.cancel(None, old).unwrap();
        let [new, newest] = [(); 2].map(|()| shared.unwind.register().unwrap());
        assert_eq!(new.to_bits() & 31, old.to_bits() & 31, "the slot is reused");
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.unwind.request(&other.task, new));
        let here = shared.unwind.request(&shared.task, newest);
        let there = thread.join().unwrap();
        assert!(matches!(here, RequestOutcome::Queued(_)), "{here:?}");
        assert!(matches!(there, RequestOutcome::Queued(_)), "{there:?}");
        let mut called = shared.return_to_user();
        called.sort();
        assert_eq!(called.iter().map(|call| call.0).collect::<Vec<_>>(), [new, newest]);
    });
}

#[test]
fn h1_a_delivery_under_way_does_not_reach_the_slots_new_owner() {
    loom_host::model(|| {
        let shared = Shared::new();
        let old = shared.unwind.register().unwrap();
        assert!(shared.unwind.request(&shared.task, old).is_pending());
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            other.unwind.cancel(None, old).unwrap();
            other.unwind.register().unwrap()
        });
        let called = shared.return_to_user();
        let new = thread.join().unwrap();
        assert!(called.iter().all(|call| call.0 != new), "{called:?}");
        // And the new owner is served in the next entry as any other.
        assert!(matches!(shared.unwind.request(&shared.task, new), RequestOutcome::Queued(_)));
        assert_eq!(shared.return_to_user().len(), 1);
    });
}

#[test]
fn h4_the_slots_new_owner_is_served_whatever_the_former_one_left() {
    loom_host::model(|| {
        let shared = Shared::new();
        let old = shared.unwind.register().unwrap();
        assert!(shared.unwind.request(&shared.task, old).is_pending());
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            other.unwind.cancel(None, old).unwrap();
            let new = other.unwind.register().unwrap();
            (new, other.unwind.request(&other.task, new))
        });
        let mut called = shared.deliver();
        let (new, outcome) = thread.join().unwrap();
        called.extend(shared.return_to_user());
        assert!(matches!(outcome, RequestOutcome::Queued(_)), "{outcome:?}");
        assert_eq!(called.iter().filter(|call| call.0 == new).count(), 1, "{called:?}");
        assert!(called.iter().filter(|call| call.0 == old).count() <= 1, "{called:?}");
    });
}

#[test]
fn h1_a_request_of_a_cancelled_client_is_none_of_the_slots_new_owner() {
    loom_host::model(|| {
        let shared = Shared::new();
        let old = shared.unwind.register().unwrap();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            other.unwind.cancel(None, old).unwrap();
            // The next but one makes the task's marks account for both.
            let [new, next] = [(); 2].map(|()| other.unwind.register().unwrap());
            assert_eq!(new.to_bits() & 31, old.to_bits() & 31, "the slot is reused");
            (new, next, other.unwind.request(&other.task, next))
        });
        let _ = shared.unwind.request(&shared.task, old);
        let (new, next, outcome) = thread.join().unwrap();
        let called = shared.return_to_user();
        assert!(matches!(outcome, RequestOutcome::Queued(_)));
        assert!(called.iter().all(|call| call.0 != new), "{called:?}");
        assert_eq!(called.iter().filter(|call| call.0 == next).count(), 1, "{called:?}");
    });
}

#[test]
fn h2_a_registration_under_way_does_not_inherit_marks() {
    loom_host::model(|| {
        let shared = Shared::new();
        let old = shared.unwind.register().unwrap();
        assert!(shared.unwind.request(&shared.task, old).is_pending());
        shared.unwind.cancel(None, old).unwrap();
        // One CPU takes the slot while the other one makes the task's marks
        // account for a newer registration.
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.unwind.register().unwrap());
        let here = shared.unwind.register().unwrap();
        assert!(matches!(shared.unwind.request(&shared.task, here), RequestOutcome::Queued(_)));
        let there = thread.join().unwrap();
        assert_ne!(here, there);
        let called = shared.return_to_user();
        assert_eq!(called.len(), 1, "{called:?}");
        assert_eq!(called[0].0, here);
    });
}

#[test]
fn h2_a_registration_against_a_purge_does_not_inherit_marks() {
    loom_host::model(|| {
        let shared = Shared::new();
        let old = shared.unwind.register().unwrap();
        assert!(shared.unwind.request(&shared.task, old).is_pending());
        // Newer than what the task's marks account for, in the other slot.
        let other_slot = shared.unwind.register().unwrap();
        shared.unwind.cancel(None, old).unwrap();
        let other = Arc::clone(&shared);
        // The thread that runs first registers: `checks/mutations/README.md` says what loom
        // does not see otherwise.
        let thread = thread::spawn(move || other.unwind.request(&other.task, other_slot));
        let new = shared.unwind.register().unwrap();
        assert!(thread.join().unwrap().is_pending());
        assert_eq!(new.to_bits() & 31, old.to_bits() & 31, "the slot is reused");
        let called = shared.return_to_user();
        assert_eq!(called.len(), 1, "{called:?}");
        assert_eq!(called[0].0, other_slot);
    });
}

#[test]
fn two_registrations_get_two_slots() {
    loom_host::model(|| {
        let shared = Shared::new();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.unwind.register().unwrap());
        let here = shared.unwind.register().unwrap();
        let there = thread.join().unwrap();
        assert_ne!(here.to_bits() & 31, there.to_bits() & 31);
        assert_ne!(here.registration(), there.registration());
        assert!(shared.unwind.register().is_err(), "models have two slots");
    });
}

#[test]
fn two_registrations_after_another_one_get_two_numbers_above_it() {
    loom_host::model(|| {
        let shared = Shared::new();
        let before = shared.unwind.register().unwrap();
        shared.unwind.cancel(None, before).unwrap();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.unwind.register().unwrap());
        let here = shared.unwind.register().unwrap();
        let there = thread.join().unwrap();
        assert_ne!(here.registration(), there.registration());
        assert!([here, there].iter().all(|it| it.registration() > before.registration()));
    });
}

#[test]
fn b2_the_stack_of_an_entry_stays_while_two_first_clients_register() {
    loom_host::model(|| {
        let shared = Shared::new();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.unwind.register().unwrap());
        let mut cache = UnwindCache::<[_; 1]>::new();
        let mut walks = 0;
        let mut deliver_to = |client| {
            assert!(shared.unwind.request(&shared.task, client).is_pending());
            let walk = |_: &mut Trace| walks += 1;
            let cache: Option<&mut UnwindCache> = Some(&mut cache);
            let mut delivery =
                shared.unwind.deliver(&shared.task, Recipients::Requesters, cache, walk);
            assert_eq!(delivery.next().map(|guard| guard.client()), Some(client));
        };
        deliver_to(shared.unwind.register().unwrap());
        deliver_to(thread.join().unwrap());
        assert_eq!(walks, 1);
    });
}

#[test]
fn h2_marks_account_for_the_newest_of_two_clients_that_ask_at_the_same_time() {
    loom_host::model(|| {
        let shared = Shared::new();
        let old = shared.unwind.register().unwrap();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.unwind.request(&other.task, old));
        let new = shared.unwind.register().unwrap();
        let here = shared.unwind.request(&shared.task, new);
        let there = thread.join().unwrap();
        assert!(here.is_pending() && there.is_pending(), "{here:?}, {there:?}");
        let mut called = shared.return_to_user();
        called.sort();
        assert_eq!(called.iter().map(|call| call.0).collect::<Vec<_>>(), [old, new]);
    });
}

#[test]
fn h4_a_former_owners_served_mark_does_not_return_while_another_client_is_called() {
    loom_host::model(|| {
        let shared = Shared::new();
        let [asker, old] = [(); 2].map(|()| shared.unwind.register().unwrap());
        assert!(shared.unwind.request(&shared.task, old).is_pending());
        assert_eq!(shared.deliver().len(), 1);
        shared.unwind.cancel(None, old).unwrap();
        let new = shared.unwind.register().unwrap();
        assert_eq!(new.to_bits() & 31, old.to_bits() & 31, "the slot is reused");
        assert!(shared.unwind.request(&shared.task, asker).is_pending());
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.unwind.request(&other.task, new));
        let mut called = shared.deliver();
        let outcome = thread.join().unwrap();
        called.extend(shared.return_to_user());
        called.sort();
        assert!(matches!(outcome, RequestOutcome::Queued(_)), "{outcome:?}");
        assert_eq!(called.iter().map(|call| call.0).collect::<Vec<_>>(), [asker, new]);
    });
}

#[test]
fn of_two_cancellations_one_succeeds() {
    loom_host::model(|| {
        let shared = Shared::new();
        let client = shared.unwind.register().unwrap();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.unwind.cancel(None, client).is_ok());
        let here = shared.unwind.cancel(None, client).is_ok();
        assert!(here ^ thread.join().unwrap());
    });
}
