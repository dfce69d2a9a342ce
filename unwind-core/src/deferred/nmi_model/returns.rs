//! The end of an entry under an NMI in any gap.

use test_support::interrupt::count_accesses;

use super::*;

fn nmi(machine: &Machine) {
    machine.nmi(|machine| machine.request(0));
}

#[test]
fn h7_a_late_request_has_the_cookie_that_its_stack_is_delivered_with() {
    // In the gap after the reset the old cookie must not be seen again.
    let two_cookies = Cell::new(0);
    interrupt_everywhere(
        || Machine::new(1),
        &[nmi, nmi],
        |machine| {
            machine.cookie();
            machine.return_to_user();
            machine.run_user_code();
        },
        |machine| {
            machine.check();
            let mut cookies: Vec<_> = machine.called_events().iter().map(|call| call.1).collect();
            cookies.dedup();
            two_cookies.set(two_cookies.get() + u32::from(cookies.len() == 2));
        },
    );
    assert!(two_cookies.get() > 0, "the gap after the reset was never hit");
}

#[test]
fn r1_6_a_request_during_the_deliveries_leads_to_a_further_round() {
    let served_in_one_exit = Cell::new(0);
    interrupt_everywhere(
        || Machine::new(2),
        &[|machine: &Machine| machine.nmi(|machine| machine.request(1))],
        |machine| {
            machine.request(0);
            machine.deliver();
        },
        |machine| {
            served_in_one_exit
                .set(served_in_one_exit.get() + u32::from(machine.called_events().len() == 2));
            machine.check();
        },
    );
    assert!(served_in_one_exit.get() > 5, "{}", served_in_one_exit.get());
}

#[test]
fn f8_a_return_with_nothing_asked_is_one_load() {
    let machine = Machine::new(1);
    let ready = || assert_eq!(machine.unwind.user_return(&machine.task), UserReturn::Ready);
    assert_eq!(count_accesses(ready), 1);
    machine.cookie();
    assert!(count_accesses(ready) > 1);
    assert_eq!(count_accesses(ready), 1);
}

#[test]
fn a_repeated_request_makes_loads_only_and_a_first_one_a_single_exchange() {
    let machine = Machine::new(2);
    machine.request(0);
    // The word, the client, what is accounted for, the cookie, and the word
    // again.
    assert_eq!(count_accesses(|| machine.request(0)), 5);
    // The same and the served marks, with an exchange of the word in the end.
    assert_eq!(count_accesses(|| machine.request(1)), 6);
    // Nor is anything left of an entry in which it was served.
    machine.return_to_user();
    machine.run_user_code();
    machine.request(0);
    assert_eq!(count_accesses(|| machine.request(1)), 6);
}

#[test]
fn a_served_mark_of_the_entry_before_that_cannot_be_taken_out_at_once_answers_nobody() {
    // Between the reset and the end of the served marks an interrupt asks twice.
    // An NMI into the first request takes another mark out, but does not come so
    // far as to fetch the cookie of the entry; one into the second request has
    // it look at the served marks.
    let interrupt: fn(&Machine<CounterCookies>) = |machine| {
        machine.request(0);
        machine.request(0);
    };
    let failing_nmi: fn(&Machine<CounterCookies>) = |machine| {
        machine.nmi(|machine| {
            let fails = &machine.unwind.host().schedule_fails;
            fails.set(1);
            machine.request(1);
            fails.set(0);
        });
    };
    let nmi: fn(&Machine<CounterCookies>) = |machine| machine.nmi(|machine| machine.request(1));
    let pending = Cell::new(0);
    interrupt_everywhere(
        || {
            let machine = Machine::with_cookies(CounterCookies::new(), 2);
            machine.request(0);
            machine.request(1);
            machine.deliver();
            machine
        },
        &[interrupt, failing_nmi, nmi],
        |machine| {
            let _ = machine.unwind.user_return(&machine.task);
        },
        |machine| {
            let second = RequestOutcome::AlreadyPending(Cookie::new(2).unwrap());
            let is_second =
                |event: &Event| matches!(event, Event::Asked { outcome, .. } if *outcome == second);
            pending.set(pending.get() + machine.events().iter().filter(|it| is_second(it)).count());
            machine.check();
        },
    );
    assert!(pending.get() > 0, "no request came after the reset");
}
