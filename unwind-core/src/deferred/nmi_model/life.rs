//! Exit, exec and fork under an NMI in any gap.

use super::*;

fn nmi(machine: &Machine) {
    machine.nmi(|machine| machine.request(0));
}

#[test]
fn f2_a_request_before_the_exit_has_its_stack_and_one_after_is_refused() {
    interrupt_everywhere(
        || Machine::new(1),
        &[nmi, nmi],
        |machine| {
            machine.request(0);
            machine.unwind.close(&machine.task);
            machine.deliver();
            // The memory goes.
            machine.task.stack.set(0);
        },
        |machine| {
            for event in machine.events() {
                match event {
                    Event::Called { end, stack, .. } => {
                        assert_eq!((end, stack), (SampleOutcome::Matched, Some(1)));
                    }
                    Event::Asked { outcome, stack: 0, .. } => {
                        assert_eq!(outcome, RequestOutcome::Refused(Refusal::Exiting));
                    }
                    _ => {}
                }
            }
            machine.check();
        },
    );
}

#[test]
fn h10_the_new_programs_stack_never_goes_out_under_a_cookie_from_before_the_exec() {
    interrupt_everywhere(
        || Machine::new(1),
        &[nmi, nmi],
        |machine| {
            machine.request(0);
            machine.unwind.close(&machine.task);
            machine.deliver();
            machine.run_user_code();
            assert_eq!(machine.unwind.reopen(&machine.task), UserReturn::Ready);
            machine.request(0);
        },
        |machine| {
            let last = machine.events().into_iter().rfind(|event| {
                matches!(event, Event::Asked { outcome: RequestOutcome::Queued(_), .. })
            });
            assert!(matches!(last, Some(Event::Asked { stack: 2, .. })), "{:#?}", machine.events());
            machine.check();
        },
    );
}

#[test]
fn h10_what_is_abandoned_at_an_exec_is_told_so() {
    interrupt_everywhere(
        || Machine::new(2),
        &[nmi, |machine| machine.nmi(|machine| machine.request(1))],
        |machine| {
            machine.request(0);
            machine.unwind.close(&machine.task);
            let mut delivery = machine.unwind.abandon(&machine.task, LossReason::Exec);
            while let Some(guard) = delivery.next() {
                assert_eq!(guard.outcome(), SampleOutcome::Exec);
                assert!(guard.trace().is_none());
                machine.called(&guard);
            }
            drop(delivery);
            machine.run_user_code();
            assert_eq!(machine.unwind.reopen(&machine.task), UserReturn::Ready);
        },
        Machine::check,
    );
}

#[test]
fn a_child_inherits_nothing_and_the_parent_keeps_its_own_under_an_nmi_in_any_gap() {
    interrupt_everywhere(
        || Machine::new(1),
        &[nmi],
        |machine| {
            machine.request(0);
            let child = ModelTask::new(9);
            let inherited = machine.unwind.deliver(&child, Recipients::Requesters, None, |_| ());
            drop(inherited);
            assert_eq!(machine.unwind.user_return(&child), UserReturn::Ready);
            let of_child = machine.unwind.cookie(&child).unwrap();
            let of_parent = machine.unwind.cookie(&machine.task).unwrap();
            assert_ne!(of_child, of_parent);
        },
        Machine::check,
    );
}
