//! Models of cookies that several CPUs make at the same time.
#![cfg(loom)]
#![cfg(test)]

#[path = "support/loom_host.rs"]
mod loom_host;

use loom::sync::Arc;
use loom::thread;
use loom_host::{Shared, Task};
use unwind_core::deferred::{
    ClockCookies, Cookie, CookieSource, CounterCookies, PerCpuCookies, SerialCookies,
};

/// Two CPUs ask for the cookie of one entry, and one of them for another
/// task's.
fn model<C: CookieSource + Send + Sync + 'static>(source: fn() -> C) {
    loom_host::model(move || {
        let shared = Shared::with_cookies(source());
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.unwind.cookie(&other.task).unwrap());
        let of_other_task = shared.unwind.cookie(&Task::default()).unwrap();
        let here: Cookie = shared.unwind.cookie(&shared.task).unwrap();
        let there = thread.join().unwrap();
        assert_eq!(here, there, "one entry, one cookie");
        assert_ne!(here, of_other_task, "another task, another cookie");
    });
}

#[test]
fn serial_cookies_agree_within_an_entry_and_differ_between_tasks() {
    model(SerialCookies::new);
}

#[test]
fn per_cpu_cookies_agree_within_an_entry_and_differ_between_tasks() {
    model(PerCpuCookies::<1>::new);
}

#[test]
fn counter_cookies_agree_within_an_entry_and_differ_between_tasks() {
    model(CounterCookies::new);
}

#[test]
fn clock_cookies_differ_between_tasks_also_at_the_same_time() {
    model(ClockCookies::new);
}

#[test]
fn clock_cookies_of_a_time_that_was_given_out_differ_between_two_cpus() {
    loom_host::model(|| {
        let shared = Shared::with_cookies(ClockCookies::new());
        let first = shared.unwind.cookie(&Task::default()).unwrap();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.unwind.cookie(&other.task).unwrap());
        let here = shared.unwind.cookie(&Task::default()).unwrap();
        let there = thread.join().unwrap();
        assert!(first < here && first < there && here != there, "{first:?} {here:?} {there:?}");
    });
}
