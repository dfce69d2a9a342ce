//! Cookies: one an entry, and never one twice.

use core::sync::atomic::Ordering;
use std::collections::HashSet;

use unwind_core::deferred::*;

use crate::{
    STACK,
    sim::{Kernel, Task},
};

fn cookies_are_unique<C: CookieSource>(source: C) {
    let kernel = Kernel::with_cookies(source);
    let [client] = kernel.register();
    let tasks: Vec<Task> = (0..50).map(|_| Task::new(STACK)).collect();
    let mut seen = HashSet::new();
    for round in 0..50 {
        for (task, number) in tasks.iter().zip(0_u32..) {
            // The clock stands still for a while, and CPUs change.
            kernel.unwind.host().clock.store(round / 10, Ordering::SeqCst);
            kernel.unwind.host().cpu.store(number % 4, Ordering::SeqCst);
            let cookie = kernel.unwind.cookie(task).unwrap();
            kernel.unwind.host().cpu.store((number + 1) % 4, Ordering::SeqCst);
            assert_eq!(kernel.ask(task, client), cookie, "one entry");
            let nmi = kernel.unwind.host().nmi(|| kernel.ask(task, client));
            assert_eq!(nmi, cookie, "one entry, in an nmi");
            assert!(seen.insert(cookie), "{cookie:?} was given twice");
            assert_eq!(kernel.return_to_user(task)[0].cookie, cookie);
        }
    }
}

#[test]
fn r1_2_cookies_are_unique_over_tasks_and_entries_whatever_their_source() {
    cookies_are_unique(SerialCookies::new());
    cookies_are_unique(CounterCookies::new());
    cookies_are_unique(PerCpuCookies::<4>::new());
    cookies_are_unique(ClockCookies::new());
}

#[test]
fn r1_2_cookies_stay_unique_when_a_tasks_entry_counter_wraps() {
    let kernel = Kernel::new();
    let tasks = [Task::new(STACK), Task::new(STACK)];
    let mut seen = HashSet::new();
    for _ in 0..200_000 {
        for task in &tasks {
            assert!(seen.insert(kernel.unwind.cookie(task).unwrap()));
            assert_eq!(kernel.unwind.user_return(task), UserReturn::Ready);
        }
    }
}

#[test]
fn r1_4_a_counter_gives_one_two_three_and_never_zero() {
    let kernel = Kernel::with_cookies(CounterCookies::new());
    let tasks = [Task::new(STACK), Task::new(STACK)];
    let mut cookies = Vec::new();
    for task in tasks.iter().chain(&tasks) {
        cookies.push(kernel.unwind.cookie(task).unwrap().get());
        assert_eq!(kernel.unwind.user_return(task), UserReturn::Ready);
    }
    assert_eq!(cookies, [1, 2, 3, 4]);
}

#[test]
fn r1_5_a_cookie_ends_with_its_entry_also_if_nobody_asked_for_a_stack() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    let without = kernel.unwind.cookie(&task).unwrap();
    assert!(kernel.return_to_user(&task).is_empty());
    let with = kernel.ask(&task, client);
    assert_eq!(kernel.return_to_user(&task).len(), 1);
    let after = kernel.unwind.cookie(&task).unwrap();
    assert_eq!(HashSet::from([without, with, after]).len(), 3);
}

#[test]
fn r3_3_the_cookie_is_the_time_of_the_first_request() {
    let kernel = Kernel::with_cookies(ClockCookies::new());
    let [client] = kernel.register();
    let (task, other) = (Task::new(STACK), Task::new(STACK));
    let at = |time| kernel.unwind.host().clock.store(time, Ordering::SeqCst);
    at(1_000);
    assert_eq!(kernel.ask(&task, client).get(), 1_000);
    at(2_000);
    assert_eq!(kernel.ask(&task, client).get(), 1_000, "the first request counts");
    assert_eq!(kernel.ask(&other, client).get(), 2_000);
    kernel.return_to_user(&task);
    assert_eq!(kernel.ask(&task, client).get(), 2_001, "moved on: 2,000 is taken");
}

#[test]
fn r3_3_g8_cookies_of_a_clock_rise_in_the_order_of_the_entries_though_the_clock_stands() {
    let kernel = Kernel::with_cookies(ClockCookies::new());
    let tasks: Vec<Task> = (0..10).map(|_| Task::new(STACK)).collect();
    kernel.unwind.host().clock.store(5_000, Ordering::SeqCst);
    let mut latest = 0;
    for entry in 0..100 {
        for task in &tasks {
            let cookie = kernel.unwind.cookie(task).unwrap().get();
            assert!(cookie > latest, "entry {entry}");
            latest = cookie;
            assert_eq!(kernel.unwind.user_return(task), UserReturn::Ready);
        }
    }
    assert_eq!(latest, 5_999, "ahead of the clock by one less than there were entries");
    kernel.unwind.host().clock.store(6_000, Ordering::SeqCst);
    assert_eq!(kernel.unwind.cookie(&tasks[0]).unwrap().get(), 6_000);
}

#[test]
fn a_task_that_migrates_keeps_its_cookie_and_the_cpu_it_left_continues() {
    let kernel = Kernel::with_cookies(PerCpuCookies::<8>::new());
    let [client] = kernel.register();
    let (task, other) = (Task::new(STACK), Task::new(STACK));
    let on = |cpu| kernel.unwind.host().cpu.store(cpu, Ordering::SeqCst);
    on(5);
    let cookie = kernel.ask(&task, client);
    assert_eq!(cookie.get(), 3 << 32 | 6, "the counter above, the cpu plus one below");
    on(2);
    assert_eq!(kernel.ask(&task, client), cookie);
    assert_eq!(kernel.return_to_user(&task)[0].cookie, cookie);
    on(5);
    assert_eq!(kernel.ask(&other, client).get(), 5 << 32 | 6);
    on(2);
    assert_eq!(kernel.ask(&task, client).get(), 3 << 32 | 3);
}

#[test]
fn r1_2_a_cookie_has_its_task_come_by_the_way_out_once_an_entry() {
    let kernel = Kernel::new();
    let task = Task::new(STACK);
    // Else the entry would not be reset, and the next one had the same cookie.
    let cookie = kernel.unwind.cookie(&task).unwrap();
    assert_eq!(*task.scheduled.lock().unwrap(), [RequestContext::Normal]);
    kernel.unwind.host().schedule_fails.store(true, Ordering::SeqCst);
    assert_eq!(kernel.unwind.cookie(&task), Ok(cookie), "it is on its way already");
    assert_eq!(task.scheduled.lock().unwrap().len(), 1);
    kernel.return_to_user(&task);
    assert_eq!(kernel.unwind.cookie(&task), Err(Refusal::ScheduleFailed));
}

#[test]
fn b3_a_request_that_stalls_over_any_number_of_entries_has_the_cookie_of_its_stack() {
    for entries in [1, 2, 0x7fff, 0x8000, 0xffff, 0x1_0000, 0x1_0001, 0x2_0000, 0x10_0000] {
        let kernel: &Kernel = Box::leak(Box::new(Kernel::new()));
        let [client] = kernel.register();
        let task: &Task = Box::leak(Box::new(Task::new(STACK)));
        // Else the request has to fetch a number, and looks again afterwards.
        kernel.unwind.cookie(task).unwrap();
        assert_eq!(kernel.unwind.user_return(task), UserReturn::Ready);
        let outcome = kernel.stalled_request(task, client, move || {
            for _ in 0..entries {
                kernel.unwind.cookie(task).unwrap();
                assert_eq!(kernel.unwind.user_return(task), UserReturn::Ready);
            }
        });
        let calls = kernel.return_to_user(task);
        assert_eq!(calls.len(), 1);
        assert_eq!(outcome.cookie(), Some(calls[0].cookie), "after {entries} entries");
    }
}

#[test]
fn b12_a_request_that_could_not_be_scheduled_leaves_no_time_for_a_later_entry() {
    type Ask = fn(&Kernel<ClockCookies>, &Task, ClientId) -> Option<Refusal>;
    let ways: [Ask; 2] = [
        |kernel, task, client| match kernel.request(task, client) {
            RequestOutcome::Refused(refusal) => Some(refusal),
            _ => None,
        },
        |kernel, task, _| kernel.unwind.cookie(task).err(),
    ];
    for way in ways {
        let kernel = Kernel::with_cookies(ClockCookies::new());
        let [client] = kernel.register();
        let task = Task::new(STACK);
        let at = |time| kernel.unwind.host().clock.store(time, Ordering::SeqCst);
        at(1_000);
        kernel.unwind.host().schedule_fails.store(true, Ordering::SeqCst);
        assert_eq!(way(&kernel, &task, client), Some(Refusal::ScheduleFailed));
        kernel.unwind.host().schedule_fails.store(false, Ordering::SeqCst);
        // In this entry and in a later one.
        at(2_000);
        assert_eq!(kernel.ask(&task, client).get(), 2_000);
        kernel.return_to_user(&task);
        at(3_000);
        assert_eq!(kernel.ask(&task, client).get(), 3_000);
    }
}
