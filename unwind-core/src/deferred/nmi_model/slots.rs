//! Slots that change hands while a task has marks of them.

use super::*;

/// Another CPU cancels the first client and registers one that gets its slot.
fn replace_first(machine: &Machine) {
    if machine.cancel(0) {
        machine.register();
        let clients = machine.clients.borrow();
        assert_eq!(clients[0].slot(), clients[clients.len() - 1].slot(), "the slot is reused");
    }
}

#[test]
fn h1_a_new_owner_never_gets_the_stack_that_the_former_one_asked_for() {
    interrupt_everywhere(
        || Machine::new(1),
        &[replace_first],
        |machine| {
            machine.request(0);
            machine.return_to_user();
        },
        |machine| {
            machine.check();
            assert!(!machine.called_events().iter().any(|call| call.0 != machine.client(0)));
        },
    );
}

#[test]
fn h1_a_request_under_way_does_not_become_one_of_the_slots_new_owner() {
    // The new client asks in an NMI, so that the marks account for it, while
    // a request of the former owner is between its check and its mark. Another
    // new client does so while the new owner of the slot asks for nothing.
    let register: fn(&Machine) = |machine| {
        replace_first(machine);
        machine.register();
    };
    let nmi_of_slots_owner: fn(&Machine) = |machine| machine.nmi(|machine| machine.request(1));
    let nmi_of_other: fn(&Machine) = |machine| machine.nmi(|machine| machine.request(2));
    for nmi in [nmi_of_slots_owner, nmi_of_other] {
        let runs = interrupt_everywhere(
            || Machine::new(1),
            &[register, nmi],
            |machine| {
                machine.request(0);
                machine.return_to_user();
            },
            Machine::check,
        );
        assert!(runs > 1_000, "{runs}");
    }
}

#[test]
fn h1_marks_that_were_taken_out_and_made_again_do_not_hide_the_change() {
    // The NMI takes out a stale mark and makes the same one again: the word
    // would look as it did before.
    interrupt_everywhere(
        || {
            let machine = Machine::new(3);
            machine.request(1);
            machine.request(2);
            machine.cancel(1);
            machine.register();
            machine
        },
        &[replace_first, |machine| machine.nmi(|machine| machine.request(3))],
        |machine| {
            machine.request(0);
            machine.return_to_user();
        },
        Machine::check,
    );
}

#[test]
fn h1_an_nmi_inside_the_purge_of_marks_keeps_none_of_them() {
    interrupt_everywhere(
        || {
            let machine = Machine::new(2);
            machine.request(0);
            replace_first(&machine);
            machine.register();
            machine
        },
        &[|machine: &Machine| machine.nmi(|machine| machine.request(1))],
        |machine| {
            // The last client is newer than what the marks account for.
            machine.request(3);
            machine.return_to_user();
        },
        Machine::check,
    );
}

#[test]
fn h4_the_former_owners_served_mark_does_not_silence_the_new_one() {
    let served = Cell::new(0);
    interrupt_everywhere(
        || Machine::new(1),
        &[replace_first, |machine| machine.nmi(|machine| machine.request(1))],
        |machine| {
            machine.request(0);
            machine.deliver();
            machine.request(1);
            machine.return_to_user();
        },
        |machine| {
            machine.check();
            let new_owner = |call: &(ClientId, Cookie)| call.0 != machine.client(0);
            served.set(served.get() + u32::from(machine.called_events().iter().any(new_owner)));
        },
    );
    assert!(served.get() > 20, "{}", served.get());
}

#[test]
fn h3_a_cancellation_in_any_gap_of_a_request_or_delivery_is_seen_or_harmless() {
    interrupt_everywhere(
        || Machine::new(2),
        &[
            |machine: &Machine| {
                machine.cancel(0);
            },
            |machine| machine.nmi(|machine| machine.request(1)),
        ],
        |machine| {
            machine.request(0);
            machine.return_to_user();
            machine.run_user_code();
            machine.request(0);
        },
        Machine::check,
    );
}
