//! Requests and deliveries under an NMI in any gap.

use super::*;

fn nmi_of_same(machine: &Machine) {
    machine.nmi(|machine| machine.request(0));
}

fn nmi_of_other(machine: &Machine) {
    machine.nmi(|machine| machine.request(1));
}

fn request_and_return(machine: &Machine) {
    machine.request(0);
    machine.return_to_user();
    machine.run_user_code();
    machine.request(0);
}

#[test]
fn f5_no_request_is_lost_and_none_served_twice_under_an_nmi_of_another_client() {
    let runs = interrupt_everywhere(
        || Machine::new(2),
        &[nmi_of_other, nmi_of_other],
        request_and_return,
        Machine::check,
    );
    assert!(runs > 1_000, "{runs}");
}

#[test]
fn f3_no_request_is_lost_and_none_served_twice_under_an_nmi_of_the_same_client() {
    let runs = interrupt_everywhere(
        || Machine::new(1),
        &[nmi_of_same, nmi_of_same],
        request_and_return,
        Machine::check,
    );
    assert!(runs > 1_000, "{runs}");
}

#[test]
fn an_interrupt_and_an_nmi_into_it_agree_with_the_task() {
    let interrupt: fn(&Machine) = |machine| machine.request(1);
    interrupt_everywhere(
        || Machine::new(3),
        &[interrupt, |machine| machine.nmi(|machine| machine.request(2))],
        request_and_return,
        Machine::check,
    );
}

#[test]
fn r3_5_the_answer_executed_is_given_only_when_the_delivery_is_on_its_way() {
    interrupt_everywhere(
        || Machine::new(1),
        &[nmi_of_same],
        |machine| {
            machine.request(0);
            machine.deliver();
        },
        |machine| {
            let log = machine.events();
            let executed = |event: &Event| {
                matches!(event, Event::Asked { outcome: RequestOutcome::AlreadyExecuted(_), .. })
            };
            let walked = log.iter().position(|event| matches!(event, Event::Walked { .. }));
            if let Some(at) = log.iter().position(executed) {
                assert!(walked.is_some_and(|walked| walked < at), "{log:#?}");
            }
            machine.check();
        },
    );
}

#[test]
fn h6_a_failed_schedule_leaves_nothing_and_breaks_no_promise_to_an_nmi() {
    // With a number to be fetched and with one of an entry before.
    let first: fn() -> Machine = || Machine::new(2);
    let second: fn() -> Machine = || {
        let machine = Machine::new(2);
        request_and_return(&machine);
        machine.return_to_user();
        machine.run_user_code();
        machine
    };
    let nmis: [fn(&Machine); 2] = [nmi_of_same, nmi_of_other];
    for (world, nmi) in [first, second].into_iter().flat_map(|it| nmis.map(|nmi| (it, nmi))) {
        interrupt_everywhere(
            || {
                let machine = world();
                machine.unwind.host().schedule_fails.set(1);
                machine
            },
            &[nmi, nmi_of_same],
            request_and_return,
            Machine::check,
        );
    }
}

#[test]
fn a_delivery_that_is_dropped_early_leaves_the_rest_pending() {
    interrupt_everywhere(
        || Machine::new(3),
        &[nmi_of_other],
        |machine| {
            machine.request(0);
            machine.request(2);
            let mut cache = machine.cache.borrow_mut();
            let walk = |trace: &mut Trace| machine.walk(trace);
            let mut delivery = machine.unwind.deliver(
                &machine.task,
                Recipients::Requesters,
                Some(&mut *cache),
                walk,
            );
            let guard = delivery.next().unwrap();
            machine.called(&guard);
        },
        Machine::check,
    );
}

#[test]
fn r1_3_everyone_is_called_once_under_an_nmi_in_any_gap() {
    interrupt_everywhere(
        || Machine::new(3),
        &[nmi_of_other, nmi_of_same],
        |machine| {
            machine.request(0);
            machine.deliver_to(Recipients::AllClients);
        },
        |machine| {
            let mut called = machine.called_events();
            let calls = called.len();
            called.sort_unstable_by_key(|&(client, cookie)| (client.to_bits(), cookie));
            called.dedup();
            assert_eq!((calls, called.len()), (3, 3), "{:#?}", machine.events());
            for event in machine.events() {
                let Event::Asked { client, outcome, .. } = event else { continue };
                let cookie = outcome.cookie().unwrap();
                assert!(called.contains(&(client, cookie)), "{:#?}", machine.events());
            }
        },
    );
}

#[test]
fn r1_3_everyone_includes_a_newcomer_under_an_nmi_in_any_gap() {
    interrupt_everywhere(
        || {
            let machine = Machine::new(2);
            machine.request(0);
            // Newer than what the task's marks account for.
            machine.register();
            machine
        },
        &[nmi_of_other],
        |machine| machine.deliver_to(Recipients::AllClients),
        |machine| {
            let mut called = machine.called_events();
            called.sort_unstable_by_key(|&(client, cookie)| (client.to_bits(), cookie));
            called.dedup();
            assert_eq!(called.len(), 3, "{:#?}", machine.events());
        },
    );
}
