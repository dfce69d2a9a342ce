//! The end of an entry under an NMI in any gap.

use super::*;
use crate::sync::interrupt::count_accesses;

fn nmi(machine: &Machine) {
    machine.nmi(|machine| machine.request(0));
}

#[test]
fn h7_a_late_request_has_the_cookie_that_its_stack_is_delivered_with() {
    // In the gap behind the reset the old cookie must not be seen again.
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
    assert!(two_cookies.get() > 0, "the gap behind the reset was never hit");
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
    assert_eq!(count_accesses(|| machine.request(1)), 6);
}
