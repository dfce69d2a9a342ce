//! Models of CPUs that each have a task of their own, and share the clients.
#![cfg(loom)]
#![cfg(test)]

#[path = "support/loom_host.rs"]
mod loom_host;

use core::mem;

use loom::sync::Arc;
use loom::thread;
use loom_host::{Guarded, Shared, Task};
use unwind_core::deferred::{ClientId, DropCounts, RequestOutcome, SerialCookies, UserReturn};

/// Two CPUs, each with its own task.
struct Cpus {
    shared: Arc<Shared>,
    tasks: [Task; 2],
}

impl Cpus {
    /// Two tasks that one client has asked for.
    fn asked() -> (Arc<Self>, ClientId) {
        let shared = Shared::new();
        let client = shared.unwind.register().unwrap();
        let cpus = Self { shared, tasks: Default::default() };
        for task in &cpus.tasks {
            assert!(cpus.shared.unwind.request(task, client).is_pending());
        }
        (Arc::new(cpus), client)
    }

    /// What is lost when both CPUs do the same at the same time.
    fn lost_by(this: &Arc<Self>, work: fn(&Shared, &Task)) -> DropCounts {
        let other = Arc::clone(this);
        let thread = thread::spawn(move || work(&other.shared, &other.tasks[0]));
        work(&this.shared, &this.tasks[1]);
        thread.join().unwrap();
        this.shared.unwind.drops()
    }
}

#[test]
fn a_cancellation_waits_for_each_of_several_deliveries_and_for_no_more() {
    loom_host::model(|| {
        let (cpus, client) = Cpus::asked();
        let data = Arc::new(Guarded::default());
        let (other, its) = (Arc::clone(&cpus), Arc::clone(&data));
        let thread = thread::spawn(move || {
            let mut delivery = other.shared.begin(&other.tasks[0]);
            while let Some(guard) = delivery.next() {
                its.access();
                drop(guard);
            }
        });
        let mut delivery = cpus.shared.begin(&cpus.tasks[1]);
        while let Some(guard) = delivery.next() {
            assert_eq!(guard.client(), client);
        }
        drop(delivery);
        cpus.shared.unwind.cancel(None, client).unwrap();
        data.access();
        thread.join().unwrap();
    });
}

#[test]
fn refusals_on_two_cpus_are_both_counted() {
    loom_host::model(|| {
        let (cpus, _) = Cpus::asked();
        let lost = Cpus::lost_by(&cpus, |shared, task| {
            let outcome = shared.unwind.request(task, ClientId::NONE);
            assert!(matches!(outcome, RequestOutcome::Refused(_)), "{outcome:?}");
        });
        assert_eq!(lost.unknown_client, 2, "{lost:?}");
    });
}

#[test]
fn requests_of_a_cancelled_client_on_two_cpus_are_both_counted() {
    loom_host::model(|| {
        let (cpus, client) = Cpus::asked();
        cpus.shared.unwind.cancel(None, client).unwrap();
        let lost = Cpus::lost_by(&cpus, |shared, task| {
            assert!(shared.begin(task).next().is_none());
        });
        assert_eq!(lost.client_cancelled, 2, "{lost:?}");
    });
}

#[test]
fn deliveries_without_a_stack_on_two_cpus_are_both_counted() {
    loom_host::model(|| {
        let (cpus, _) = Cpus::asked();
        let lost = Cpus::lost_by(&cpus, |shared, task| {
            assert!(shared.begin(task).next().is_some());
        });
        assert_eq!(lost.no_cache, 2, "{lost:?}");
    });
}

#[test]
fn deliveries_and_calls_that_are_lost_on_two_cpus_are_all_counted() {
    loom_host::model(|| {
        let (cpus, _) = Cpus::asked();
        let lost = Cpus::lost_by(&cpus, |shared, task| {
            let mut delivery = shared.begin(task);
            mem::forget(delivery.next());
            mem::forget(delivery);
            assert_eq!(shared.unwind.user_return(task), UserReturn::Ready);
        });
        assert_eq!((lost.unfinished, lost.leaked_calls), (2, 2), "{lost:?}");
    });
}

#[test]
fn b10_first_registrations_of_two_instances_have_two_numbers() {
    loom_host::model(|| {
        let [here, there] = [(); 2].map(|()| Shared::with_cookies(SerialCookies::new()));
        let thread = thread::spawn(move || there.unwind.register().unwrap());
        let here = here.unwind.register().unwrap();
        assert_ne!(here.registration(), thread.join().unwrap().registration());
    });
}
