//! Models of requests on one CPU against deliveries and resets on another.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p unwind-core --test 'loom_*'`
#![cfg(loom)]
#![cfg(test)]

#[path = "support/loom_host.rs"]
mod loom_host;

use core::sync::atomic::Ordering;

use loom::sync::Arc;
use loom::thread;
use loom_host::Shared;
use unwind_core::deferred::{ClientId, Cookie, Refusal, RequestOutcome, TaskState, UserReturn};

/// Checks that a client was called once for what it was promised, and not for
/// anything else.
fn check(client: ClientId, outcomes: &[RequestOutcome], called: &[(ClientId, Cookie)]) {
    for cookie in outcomes.iter().filter_map(|outcome| outcome.cookie()) {
        let calls = called.iter().filter(|&&call| call == (client, cookie)).count();
        assert_eq!(calls, 1, "{outcomes:?} and then {called:?}");
    }
    for &(_, cookie) in called.iter().filter(|call| call.0 == client) {
        let queued = RequestOutcome::Queued(cookie);
        assert_eq!(
            outcomes.iter().filter(|&&it| it == queued).count(),
            1,
            "{outcomes:?}, {called:?}"
        );
    }
}

#[test]
fn no_request_is_lost_and_none_served_twice() {
    loom_host::model(|| {
        let shared = Shared::new();
        let [asker, own] = [(); 2].map(|()| shared.unwind.register().unwrap());
        let outcome = shared.unwind.request(&shared.task, own);
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.unwind.request(&other.task, asker));
        let mut called = shared.return_to_user();
        let late = thread.join().unwrap();
        called.extend(shared.return_to_user());
        check(own, &[outcome], &called);
        check(asker, &[late], &called);
    });
}

#[test]
fn two_requests_of_one_client_are_one_delivery() {
    loom_host::model(|| {
        let shared = Shared::new();
        let client = shared.unwind.register().unwrap();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.unwind.request(&other.task, client));
        let here = shared.unwind.request(&shared.task, client);
        let there = thread.join().unwrap();
        assert_eq!(here.cookie(), there.cookie());
        check(client, &[here, there], &shared.return_to_user());
    });
}

#[test]
fn h7_a_request_against_a_reset_has_the_cookie_that_it_is_delivered_with() {
    loom_host::model(|| {
        let shared = Shared::new();
        let client = shared.unwind.register().unwrap();
        let before = shared.unwind.cookie(&shared.task).unwrap();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.unwind.request(&other.task, client));
        let reset = shared.unwind.user_return(&shared.task);
        let outcome = thread.join().unwrap();
        let called = shared.return_to_user();
        check(client, &[outcome], &called);
        let after_the_reset = outcome.cookie() != Some(before);
        assert_eq!(reset == UserReturn::Ready, after_the_reset);
    });
}

#[test]
fn a_repeated_request_against_a_reset_names_one_entry() {
    loom_host::model(|| {
        let shared = Shared::with_cookies(unwind_core::deferred::CounterCookies::new());
        let client = shared.unwind.register().unwrap();
        let first = shared.unwind.request(&shared.task, client);
        let mut called = shared.deliver();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.unwind.request(&other.task, client));
        called.extend(shared.return_to_user());
        let again = thread.join().unwrap();
        called.extend(shared.return_to_user());
        assert!(!matches!(again, RequestOutcome::AlreadyPending(_)), "{again:?}");
        check(client, &[first, again], &called);
    });
}

#[test]
fn a_repeated_request_against_two_resets_names_no_later_entry() {
    loom_host::model(|| {
        let shared = Shared::new();
        let client = shared.unwind.register().unwrap();
        let first = shared.unwind.request(&shared.task, client);
        let mut called = shared.deliver();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.unwind.request(&other.task, client));
        // The cell of the first entry gets the cookie of the third one.
        called.extend(shared.return_to_user());
        shared.unwind.cookie(&shared.task).unwrap();
        called.extend(shared.return_to_user());
        let again = thread.join().unwrap();
        called.extend(shared.return_to_user());
        check(client, &[first, again], &called);
    });
}

#[test]
fn a_cookie_against_two_resets_is_of_an_entry_that_ends_before_the_next_one() {
    loom_host::model(|| {
        let shared = Shared::new();
        shared.unwind.cookie(&shared.task).unwrap();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.unwind.cookie(&other.task).unwrap());
        // The cell of the first entry gets the cookie of the third one.
        assert_eq!(shared.unwind.user_return(&shared.task), UserReturn::Ready);
        shared.unwind.cookie(&shared.task).unwrap();
        assert_eq!(shared.unwind.user_return(&shared.task), UserReturn::Ready);
        let there = thread.join().unwrap();
        assert_eq!(shared.unwind.user_return(&shared.task), UserReturn::Ready);
        assert_ne!(shared.unwind.cookie(&shared.task), Ok(there), "it is a later entry's");
    });
}

#[test]
fn a_served_mark_outlasts_a_request_that_saw_the_one_before_it() {
    loom_host::model(|| {
        let shared = Shared::new();
        let [client, other] = [(); 2].map(|()| shared.unwind.register().unwrap());
        let before = shared.unwind.request(&shared.task, client);
        let mut called = shared.deliver();
        // In the new entry, before the reset is through with the served marks,
        // two requests find the one that is left from before.
        let threads = [(); 2].map(|()| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.unwind.request(&shared.task, client))
        });
        let ready = shared.unwind.user_return(&shared.task) == UserReturn::Ready;
        called.extend(shared.deliver());
        let [one, two] = threads.map(|thread| thread.join().unwrap());
        if ready {
            // A further round must not serve the client again.
            let _ = shared.unwind.request(&shared.task, other);
        }
        called.extend(shared.return_to_user());
        check(client, &[before, one, two], &called);
    });
}

#[test]
fn h6_a_schedule_that_fails_takes_no_other_request_along() {
    loom_host::model(|| {
        let shared = Shared::new();
        let [failing, own] = [(); 2].map(|()| shared.unwind.register().unwrap());
        shared.task.schedule_fails.store(true, Ordering::Relaxed);
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.unwind.request(&other.task, failing));
        let here = shared.unwind.request(&shared.task, own);
        let there = thread.join().unwrap();
        let failed = RequestOutcome::Refused(Refusal::ScheduleFailed);
        assert!((here == failed) ^ (there == failed), "{here:?}, {there:?}");
        let called = shared.return_to_user();
        check(own, &[here], &called);
        check(failing, &[there], &called);
    });
}

#[test]
fn f2_an_exit_delivers_what_was_granted_and_refuses_the_rest() {
    loom_host::model(|| {
        let shared = Shared::new();
        let client = shared.unwind.register().unwrap();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.unwind.request(&other.task, client));
        shared.unwind.close(&shared.task);
        let called = shared.deliver();
        let outcome = thread.join().unwrap();
        if outcome == RequestOutcome::Refused(Refusal::Exiting) {
            assert!(called.is_empty());
        } else {
            check(client, &[outcome], &called);
        }
    });
}

#[test]
fn a_fork_and_a_request_do_not_see_each_other() {
    loom_host::model(|| {
        let shared = Shared::new();
        let client = shared.unwind.register().unwrap();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.unwind.request(&other.task, client));
        let child = loom_host::Task::default();
        assert_eq!(shared.unwind.user_return(&child), UserReturn::Ready);
        let of_child = shared.unwind.cookie(&child).unwrap();
        let outcome = thread.join().unwrap();
        assert_ne!(outcome.cookie(), Some(of_child));
        check(client, &[outcome], &shared.return_to_user());
        drop(TaskState::new());
    });
}

#[test]
fn g16_a_request_against_a_second_stack_has_the_cookie_that_it_is_delivered_with() {
    loom_host::model(|| {
        let shared = Shared::new();
        let [client, asker] = [(); 2].map(|()| shared.unwind.register().unwrap());
        let first = shared.unwind.request(&shared.task, client);
        let mut called = shared.deliver();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.unwind.request(&other.task, asker));
        let second = shared.unwind.request_anew(&shared.task, client);
        called.extend(shared.return_to_user());
        let beside = thread.join().unwrap();
        called.extend(shared.return_to_user());
        let own = match second {
            // The other one came first, and has the first cookie.
            RequestOutcome::AlreadyExecuted(_) => {
                assert_eq!(beside.cookie(), first.cookie());
                vec![first]
            }
            _ => vec![first, second],
        };
        check(client, &own, &called);
        check(asker, &[beside], &called);
    });
}
