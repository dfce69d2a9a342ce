//! One entry has one cookie, whichever request is first and where an NMI comes.

use super::*;

/// The same model for every source: all agree on the cookie of an entry, and
/// the next entry has another one.
fn one_cookie_an_entry<C: CookieSource + 'static>(source: fn() -> C) -> u64 {
    let nmi: fn(&Machine<C>) = |machine| {
        machine.nmi(|machine| {
            machine.unwind.host().clock.set(70);
            machine.cookie();
        });
    };
    interrupt_everywhere(
        || Machine::with_cookies(source(), 1),
        &[nmi, nmi],
        |machine| {
            machine.cookie();
            machine.request(0);
            machine.return_to_user();
            machine.run_user_code();
            machine.cookie();
            machine.request(0);
        },
        |machine| {
            let cookies = cookies_by_stack(machine);
            // An NMI after a reset belongs to the next entry: its cookie is
            // new, though the stack is not. There are two NMIs.
            for stack in [1, 2] {
                let mut of_stack: Vec<_> =
                    cookies.iter().filter(|pair| pair.1 == stack).map(|pair| pair.0).collect();
                of_stack.dedup();
                assert!((1..=3).contains(&of_stack.len()), "{:#?}", machine.events());
            }
            machine.check();
        },
    )
}

fn cookies_by_stack<C: CookieSource>(machine: &Machine<C>) -> Vec<(Cookie, u64)> {
    let pair = |event| match event {
        Event::Cookie { cookie, stack } => Some((cookie, stack)),
        Event::Asked { outcome, stack, .. } => outcome.cookie().map(|cookie| (cookie, stack)),
        _ => None,
    };
    machine.events().into_iter().filter_map(pair).collect()
}

#[test]
fn r1_2_serial_cookies_are_one_an_entry_under_an_nmi_in_any_gap() {
    assert!(one_cookie_an_entry(SerialCookies::new) > 1_000);
}

#[test]
fn r1_2_per_cpu_cookies_are_one_an_entry_under_an_nmi_in_any_gap() {
    assert!(one_cookie_an_entry(PerCpuCookies::<8>::new) > 1_000);
}

#[test]
fn r1_4_counter_cookies_are_one_an_entry_under_an_nmi_in_any_gap() {
    assert!(one_cookie_an_entry(CounterCookies::new) > 1_000);
}

#[test]
fn r3_3_clock_cookies_are_one_an_entry_under_an_nmi_in_any_gap() {
    assert!(one_cookie_an_entry(ClockCookies::new) > 1_000);
}

#[test]
fn r1_4_the_loser_of_the_race_adopts_the_winners_cookie() {
    let nmi: fn(&Machine<CounterCookies>) = |machine| machine.nmi(Machine::cookie);
    let seen = RefCell::new(Vec::new());
    interrupt_everywhere(
        || Machine::with_cookies(CounterCookies::new(), 0),
        &[nmi],
        Machine::cookie,
        |machine| {
            let mut cookies: Vec<u64> =
                cookies_by_stack(machine).into_iter().map(|pair| pair.0.get()).collect();
            cookies.dedup();
            assert_eq!(cookies.len(), 1, "{:#?}", machine.events());
            seen.borrow_mut().extend(cookies);
        },
    );
    // In one of the runs the task had taken 1 when the NMI took and stored 2.
    assert!(seen.borrow().contains(&1) && seen.borrow().contains(&2));
}

#[test]
fn the_number_of_a_block_is_renewed_under_an_nmi_in_any_gap() {
    let nmi: fn(&Machine) = |machine| machine.nmi(|machine| machine.request(0));
    interrupt_everywhere(
        || {
            // In the last entry of the first block.
            let machine = Machine::new(1);
            let state = &machine.task.state;
            let number = machine.unwind.cookies().fresh(machine.unwind.host()).unwrap();
            let last = state.cookie.store(state.word().version(), number | 0xffff);
            assert_eq!(last.map(Cookie::get), Some(0x1_ffff));
            machine
        },
        &[nmi],
        |machine| {
            for _ in 0..2 {
                machine.request(0);
                machine.return_to_user();
                machine.run_user_code();
            }
        },
        |machine| {
            machine.check();
            let cookies = cookies_by_stack(machine);
            let serials: Vec<_> = cookies.iter().map(|pair| pair.0.get() >> 16).collect();
            assert!(serials.first() < serials.last(), "{:#?}", machine.events());
        },
    );
}

#[test]
fn r1_2_who_gets_a_cookie_finds_its_task_scheduled_under_an_nmi_in_any_gap() {
    let nmi: fn(&Machine) = |machine| {
        machine.nmi(|machine| {
            assert!(machine.unwind.cookie(&machine.task).is_ok());
            assert!(machine.unwind.host().scheduled.get(), "it might run user code");
        });
    };
    interrupt_everywhere(|| Machine::new(0), &[nmi, nmi], Machine::cookie, Machine::check);
}
