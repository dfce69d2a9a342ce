//! A second stack in one kernel entry, with NMIs in every gap.

use super::*;

#[test]
fn g16_an_nmi_that_asks_while_a_second_stack_is_asked_for_gets_the_stack_of_its_cookie() {
    // The user stack is changed before the client asks anew: an NMI before that has the first
    // cookie, one after it the second, and each the stack that goes with it.
    let nmi: fn(&Machine) = |machine| machine.nmi(|machine| machine.request(1));
    let second = Cell::new(0);
    interrupt_everywhere(
        || {
            let machine = Machine::new(2);
            machine.request(0);
            machine.deliver();
            machine.run_user_code();
            machine
        },
        &[nmi, nmi],
        |machine| machine.request_anew(0),
        |machine| {
            machine.return_to_user();
            let events = machine.events();
            let calls: Vec<_> = machine.called_events();
            for event in &events {
                let Event::Asked { client, outcome, .. } = event else { continue };
                let cookie = outcome.cookie().unwrap();
                let mine = |call: &&(ClientId, Cookie)| **call == (*client, cookie);
                assert_eq!(calls.iter().filter(mine).count(), 1, "{events:#?}");
            }
            let walks = events.iter().filter(|event| matches!(event, Event::Walked { .. })).count();
            let mut cookies: Vec<_> = calls.iter().map(|call| call.1).collect();
            cookies.sort();
            cookies.dedup();
            // A stack for each cookie, unless the first one still holds for the NMI's.
            assert_eq!(walks, cookies.len(), "{events:#?}");
            second.set(second.get() + u32::from(cookies.len() == 2));
            let state = alloc::format!("{:?}", machine.task.state);
            assert!(state.contains("pending: false, used: false"), "{state}");
        },
    );
    assert!(second.get() > 10, "{}", second.get());
}
