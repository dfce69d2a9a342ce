//! The rules of deferred unwinding, one by one.
#![cfg(not(loom))]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that goes wrong fails"
)]

#[path = "support/sim.rs"]
mod sim;

use core::convert::Infallible;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::collections::HashSet;
use std::thread;

use sim::{Cache, Call, FramePointers, Kernel, Regs, SimHost, Task, Toy};
use unwind_core::*;

const STACK: &[u64] = &[0x1000, 0x2000, 0x3000];

#[test]
fn r1_1_a_registered_client_that_asks_is_called_with_the_stack_and_the_cookie() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    let cookie = kernel.ask(&task, client);
    let calls = kernel.return_to_user(&task);
    let stack = Some(STACK.to_vec());
    assert_eq!(calls, [Call { client, cookie, end: SampleEnd::Matched, stack }]);
}

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
fn r1_3_everyone_is_called_and_tells_strangers_by_the_cookie() {
    let kernel = Kernel::new();
    let [asker, other] = kernel.register();
    let task = Task::new(STACK);
    let cookie = kernel.ask(&task, asker);
    let [late] = kernel.register();
    let mut cache = kernel.cache.lock().unwrap();
    let walk = |trace: &mut Cache| task.walk(trace);
    let mut delivery = kernel.unwind.deliver(&task, Audience::Everyone, Some(&mut cache), walk);
    let mut called = Vec::new();
    while let Some(serving) = delivery.next() {
        assert_eq!(serving.cookie(), cookie);
        called.push(serving.client());
        // Someone who asks when they have been called has the stack already.
        let again = kernel.request(&task, serving.client());
        assert_eq!(again, RequestOutcome::AlreadyExecuted(cookie));
    }
    assert_eq!(called, [asker, other, late]);
}

#[test]
fn r1_3_nobody_is_called_if_nobody_asked() {
    let kernel = Kernel::new();
    let [_] = kernel.register();
    let task = Task::new(STACK);
    kernel.unwind.cookie(&task).unwrap();
    let mut cache = kernel.cache.lock().unwrap();
    let walk = |trace: &mut Cache| task.walk(trace);
    let mut delivery = kernel.unwind.deliver(&task, Audience::Everyone, Some(&mut cache), walk);
    assert!(delivery.next().is_none());
    assert_eq!(task.walks(), 0);
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
fn r1_6_a_request_during_a_delivery_is_served_in_a_further_round() {
    let kernel = Kernel::new();
    let [first, second] = kernel.register();
    let task = Task::new(STACK);
    let cookie = kernel.ask(&task, second);
    // The other client asks while the last one of the round is being called.
    let mut late = None;
    let calls = kernel.deliver_and(&task, |_| {
        late.get_or_insert_with(|| kernel.unwind.host().nmi(|| kernel.request(&task, first)));
    });
    assert_eq!(late, Some(RequestOutcome::Queued(cookie)));
    let clients: Vec<ClientId> = calls.iter().map(|call| call.client).collect();
    assert_eq!(clients, [second, first]);
    assert_eq!(task.walks(), 1);
}

#[test]
fn r1_6_a_request_behind_the_reset_is_delivered_with_its_own_cookie() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    let before = kernel.ask(&task, client);
    kernel.deliver(&task);
    assert_eq!(kernel.unwind.user_return(&task), UserReturn::Ready);
    let behind = kernel.unwind.host().nmi(|| kernel.ask(&task, client));
    assert_ne!(before, behind);
    let calls = kernel.return_to_user(&task);
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].cookie, behind);
}

#[test]
fn r1_7_a_client_may_do_anything_while_it_is_called() {
    let kernel = Kernel::new();
    let [client, other] = kernel.register();
    let (task, other_task) = (Task::new(STACK), Task::new(STACK));
    kernel.ask(&task, client);
    let calls = kernel.deliver_and(&task, |_| {
        let kept = vec![0_u8; 4096];
        let newcomer = kernel.unwind.register().unwrap();
        kernel.ask(&other_task, newcomer);
        kernel.ask(&other_task, other);
        kernel.unwind.cancel(Some(&task), newcomer).unwrap();
        kernel.unwind.cancel(Some(&task), other).unwrap();
        drop(kept);
    });
    assert_eq!(calls.len(), 1);
    assert!(kernel.return_to_user(&other_task).is_empty());
    assert_eq!(kernel.drops().client_cancelled, 2);
}

/// A CPU with words of four bytes.
struct Small;

impl Arch for Small {
    type Regs = Regs;
    const WORD: WordSize = WordSize::Four;
}

#[test]
fn r3_1_stacks_of_either_word_size_are_delivered() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    kernel.ask(&task, client);
    // The caller's frame pointer, the return address; then the end.
    let words = [0x108_u32, 0x2000, 0, 0];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut cache = Cache::new();
    let walk = |trace: &mut Cache| {
        let mut memory = SliceMemory::new(VirtAddr::new(0x100), &bytes);
        let regs = Regs { pc: 0x1000, sp: 0x100, fp: 0x100 };
        Walker::new(Small, FramePointers).trace(regs, &mut memory, trace);
    };
    let mut delivery = kernel.unwind.deliver(&task, Audience::Asked, Some(&mut cache), walk);
    let call = Call::of(&delivery.next().unwrap());
    assert_eq!((call.end, call.stack), (SampleEnd::Matched, Some(vec![0x1000, 0x2000])));
}

/// A source of rows that knows no address.
struct NoSource;

impl RowSource<Toy> for NoSource {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(None)
    }
}

#[test]
fn r1_8_any_walk_will_do_and_a_partial_one_is_told_from_a_whole_one() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    let regs = Regs { pc: 0x1000, sp: 0x100, fp: 0x100 };
    kernel.ask(&task, client);
    let mut cache = Cache::new();
    let walk = |trace: &mut Cache| {
        let mut memory = SliceMemory::new(VirtAddr::new(0), &[]);
        Walker::new(Toy, NoSource).trace(regs, &mut memory, trace);
    };
    let mut delivery = kernel.unwind.deliver(&task, Audience::Asked, Some(&mut cache), walk);
    let serving = delivery.next().unwrap();
    assert_eq!(serving.end(), SampleEnd::Truncated);
    assert_eq!(serving.trace().unwrap().end(), Some(End::NoRow));
    assert_eq!(sim::pcs_of(serving.trace().unwrap()), [0x1000]);
}

#[test]
fn r3_2_a_stack_is_walked_once_an_entry_however_many_ask_and_when() {
    let kernel = Kernel::new();
    let clients: [ClientId; MAX_CLIENTS] = kernel.register();
    let task = Task::new(STACK);
    let mut served = 0;
    for half in clients.chunks(MAX_CLIENTS / 2) {
        for &client in half {
            kernel.ask(&task, client);
            kernel.ask(&task, client);
        }
        // Two deliveries in the same entry.
        served += kernel.deliver(&task).len();
    }
    assert_eq!((served, task.walks()), (MAX_CLIENTS, 1));
    kernel.return_to_user(&task);
    kernel.ask(&task, clients[0]);
    kernel.return_to_user(&task);
    assert_eq!(task.walks(), 2, "the next entry has another stack");
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
fn r3_4_the_four_outcomes_say_who_will_be_called() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    let first = kernel.request(&task, client);
    let cookie = first.cookie().unwrap();
    assert_eq!(first, RequestOutcome::Queued(cookie));
    let second = kernel.request(&task, client);
    assert_eq!(second, RequestOutcome::AlreadyPending(cookie));
    kernel.deliver(&task);
    let third = kernel.request(&task, client);
    assert_eq!(third, RequestOutcome::AlreadyExecuted(cookie));
    task.set_kind(TaskKind::KernelThread);
    kernel.return_to_user(&task);
    let fourth = kernel.request(&task, client);
    assert_eq!(fourth, RequestOutcome::Refused(Refusal::KernelThread));
    let outcomes = [first, second, third, fourth];
    assert_eq!(outcomes.map(RequestOutcome::will_be_called), [true, true, false, false]);
    assert_eq!(fourth.cookie(), None);
}

#[test]
fn r3_5_a_client_whose_delivery_asks_again_is_called_once_an_entry() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    for _ in 0..3 {
        let cookie = kernel.ask(&task, client);
        let calls = kernel.deliver_and(&task, |_| {
            let again = kernel.request(&task, client);
            assert_eq!(again, RequestOutcome::AlreadyExecuted(cookie));
        });
        assert_eq!(calls.len(), 1);
        assert!(kernel.return_to_user(&task).is_empty());
    }
}

#[test]
fn r3_6_the_stack_of_a_later_entry_has_another_cookie() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    let dropped = kernel.ask(&task, client);
    // The record of this delivery is lost.
    kernel.return_to_user(&task);
    task.set_stack(&[0x9000]);
    let kept = kernel.ask(&task, client);
    let calls = kernel.return_to_user(&task);
    assert_eq!((calls[0].cookie, calls[0].stack.as_deref()), (kept, Some(&[0x9000][..])));
    assert_ne!(calls[0].cookie, dropped);
}

/// Cancels a client on another thread while its callback sleeps.
fn cancel_during_callback(kernel: &Kernel, cancelled: &AtomicBool, after: impl FnOnce() + Send) {
    let [client, other] = kernel.register();
    let task = Task::new(STACK);
    let other_task = Task::new(STACK);
    kernel.ask(&task, client);
    thread::scope(|scope| {
        let calls = kernel.deliver_and(&task, |_| {
            scope.spawn(|| {
                kernel.unwind.cancel(None, client).unwrap();
                cancelled.store(true, Ordering::SeqCst);
            });
            // The callback sleeps until the cancellation has begun to wait.
            while kernel.unwind.host().relaxed.load(Ordering::SeqCst) < 10 {
                thread::yield_now();
            }
            assert!(!cancelled.load(Ordering::SeqCst), "the callback still runs");
            let refused = RequestOutcome::Refused(Refusal::UnknownClient);
            assert_eq!(kernel.request(&other_task, client), refused);
            // Others are not held up.
            kernel.ask(&other_task, other);
        });
        assert_eq!(calls.len(), 1);
        after();
    });
    assert!(cancelled.load(Ordering::SeqCst));
    assert_eq!(kernel.return_to_user(&other_task).len(), 1);
}

#[test]
fn f10_r3_7_a_callback_may_sleep_and_a_cancellation_waits_for_it_alone() {
    cancel_during_callback(&Kernel::new(), &AtomicBool::new(false), || ());
}

#[test]
fn x3_a_cancellation_ends_when_the_callback_does() {
    let cancelled = AtomicBool::new(false);
    cancel_during_callback(&Kernel::new(), &cancelled, || {
        while !cancelled.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    });
}

#[test]
fn x3_a_delivery_that_cancels_its_own_client_is_told_so_and_goes_on() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let (task, other) = (Task::new(STACK), Task::new(STACK));
    kernel.ask(&task, client);
    let calls = kernel.deliver_and(&task, |_| {
        assert!(kernel.unwind.is_delivering(&task, client));
        assert!(!kernel.unwind.is_delivering(&other, client));
        assert_eq!(kernel.unwind.cancel(Some(&task), client), Err(CancelError::OwnDelivery));
        // It is still registered.
        kernel.ask(&other, client);
    });
    assert_eq!(calls.len(), 1);
    assert!(!kernel.unwind.is_delivering(&task, client));
    assert_eq!(kernel.unwind.cancel(Some(&task), client), Ok(()));
    assert_eq!(kernel.unwind.cancel(Some(&task), client), Err(CancelError::UnknownClient));
}

#[test]
fn r3_9_tasks_that_do_not_return_to_user_code_are_refused() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    for (kind, refusal) in [
        (TaskKind::KernelThread, Refusal::KernelThread),
        (TaskKind::UserWorker, Refusal::UserWorker),
        (TaskKind::Exiting, Refusal::Exiting),
        (TaskKind::NoUserRegisters, Refusal::NoUserRegisters),
    ] {
        let task = Task::new(STACK);
        task.set_kind(kind);
        assert_eq!(kernel.request(&task, client), RequestOutcome::Refused(refusal));
        assert_eq!(kernel.unwind.cookie(&task), Err(refusal));
        assert!(task.scheduled.lock().unwrap().is_empty());
        assert!(kernel.return_to_user(&task).is_empty());
    }
}

/// A CPU in a mode whose stacks cannot be walked.
struct Vm86;

impl Arch for Vm86 {
    type Regs = Regs;
    const WORD: WordSize = WordSize::Four;

    fn is_walkable(&self) -> bool {
        false
    }
}

#[test]
fn r3_10_a_task_in_a_mode_that_cannot_be_walked_is_called_back_without_frames() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    kernel.ask(&task, client);
    let mut cache = Cache::new();
    let walk = |trace: &mut Cache| {
        let mut memory = SliceMemory::new(VirtAddr::new(0), &[]);
        let regs = Regs { pc: 0x1000, sp: 0x100, fp: 0x100 };
        Walker::new(Vm86, FramePointers).trace(regs, &mut memory, trace);
    };
    let mut delivery = kernel.unwind.deliver(&task, Audience::Asked, Some(&mut cache), walk);
    let serving = delivery.next().unwrap();
    assert_eq!(serving.end(), SampleEnd::StackLost);
    assert_eq!(serving.trace().unwrap().end(), Some(End::NotWalkable));
    assert!(serving.trace().unwrap().is_empty());
}

#[test]
fn x2_without_memory_for_a_trace_clients_are_called_without_one() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    let cookie = kernel.ask(&task, client);
    let none = None::<&mut Cache>;
    let walk = |trace: &mut Cache| task.walk(trace);
    let mut delivery = kernel.unwind.deliver(&task, Audience::Asked, none, walk);
    let call = Call::of(&delivery.next().unwrap());
    assert_eq!(call, Call { client, cookie, end: SampleEnd::StackLost, stack: None });
    assert_eq!((task.walks(), kernel.drops().no_cache), (0, 1));
}

#[test]
fn x2_a_full_table_refuses_and_a_cancellation_makes_room() {
    let kernel = Kernel::new();
    let clients: [ClientId; MAX_CLIENTS] = kernel.register();
    assert_eq!(kernel.unwind.register(), Err(TableFull));
    assert_eq!(MAX_CLIENTS, 32);
    kernel.unwind.cancel(None, clients[17]).unwrap();
    let newcomer = kernel.unwind.register().unwrap();
    assert!(!clients.contains(&newcomer));
    assert_eq!(kernel.unwind.register(), Err(TableFull));
}

#[test]
fn x4_after_all_cancellations_nothing_is_left() {
    let kernel = Kernel::new();
    let clients: [ClientId; MAX_CLIENTS] = kernel.register();
    let tasks: Vec<Task> = (0..10).map(|_| Task::new(STACK)).collect();
    for (task, &client) in tasks.iter().flat_map(|task| clients.iter().map(move |it| (task, it))) {
        kernel.ask(task, client);
    }
    for client in clients {
        kernel.unwind.cancel(None, client).unwrap();
    }
    assert!(format!("{:?}", kernel.unwind).contains("clients: {}"));
    for task in &tasks {
        assert!(kernel.return_to_user(task).is_empty());
        assert_eq!(task.walks(), 0, "for nobody");
        let state = format!("{:?}", task.state);
        let nothing = "asked: 0b00000000000000000000000000000000";
        assert!(state.contains(nothing) && state.contains("used: false"), "{state}");
    }
    assert_eq!(kernel.drops().client_cancelled, 320);
    let _: [ClientId; MAX_CLIENTS] = kernel.register();
}

#[test]
fn x5_every_sample_ends_in_one_way() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    let end_of = |task: &Task| {
        kernel.ask(task, client);
        let calls = kernel.return_to_user(task);
        assert_eq!(calls.len(), 1);
        calls[0].end
    };
    assert_eq!(end_of(&task), SampleEnd::Matched);
    task.set_stack(&[7; 17]);
    assert_eq!(end_of(&task), SampleEnd::Truncated, "17 frames into 16 places");
    task.set_stack(&[]);
    assert_eq!(end_of(&task), SampleEnd::StackLost);
    for (lost, end) in [(Lost::Exec, SampleEnd::Exec), (Lost::TaskGone, SampleEnd::TaskGone)] {
        kernel.ask(&task, client);
        let mut abandonment = kernel.unwind.abandon(&task, lost);
        assert_eq!(abandonment.next().unwrap().end(), end);
        assert!(abandonment.next().is_none());
        drop(abandonment);
        assert!(kernel.return_to_user(&task).is_empty(), "told already");
    }
    task.set_kind(TaskKind::KernelThread);
    let refused = kernel.request(&task, client);
    assert_eq!(refused.end(), Some(SampleEnd::Inline));
    assert_eq!(RequestOutcome::Queued(Cookie::new(1).unwrap()).end(), None, "not known yet");
}

#[test]
fn x6_every_drop_is_counted_under_its_reason() {
    let kernel = Kernel::with_cookies(PerCpuCookies::<1>::new());
    let [client, cancelled] = kernel.register();
    let task = Task::new(STACK);
    let host = kernel.unwind.host();
    for kind in
        [TaskKind::KernelThread, TaskKind::UserWorker, TaskKind::Exiting, TaskKind::NoUserRegisters]
    {
        task.set_kind(kind);
        assert_eq!(kernel.request(&task, client).cookie(), None);
    }
    task.set_kind(TaskKind::User);
    host.cpu.store(1, Ordering::SeqCst);
    assert_eq!(kernel.request(&task, client), RequestOutcome::Refused(Refusal::NoCookie));
    host.cpu.store(0, Ordering::SeqCst);
    host.schedule_fails.store(true, Ordering::SeqCst);
    let failed = RequestOutcome::Refused(Refusal::ScheduleFailed);
    assert_eq!(kernel.request(&task, client), failed);
    host.schedule_fails.store(false, Ordering::SeqCst);
    kernel.ask(&task, cancelled);
    kernel.unwind.cancel(None, cancelled).unwrap();
    assert_eq!(kernel.request(&task, cancelled).cookie(), None);
    assert!(kernel.return_to_user(&task).is_empty());
    let mut expected = DropCounts::default();
    expected.kernel_thread = 1;
    expected.user_worker = 1;
    expected.exiting = 1;
    expected.no_user_registers = 1;
    expected.no_cookie = 1;
    expected.schedule_failed = 1;
    expected.client_cancelled = 1;
    expected.unknown_client = 1;
    assert_eq!(kernel.drops(), expected);

    for stack in [&[][..], &[7; 17]] {
        task.set_stack(stack);
        kernel.ask(&task, client);
        kernel.return_to_user(&task);
    }
    expected.no_frames = 1;
    expected.truncated = 1;
    for lost in [Lost::TaskGone, Lost::Exec] {
        kernel.ask(&task, client);
        assert!(kernel.unwind.abandon(&task, lost).next().is_some());
        assert!(kernel.return_to_user(&task).is_empty());
    }
    expected.task_gone = 1;
    expected.exec = 1;
    assert_eq!(kernel.drops(), expected);
}

#[test]
fn f1_a_later_request_of_another_client_does_not_call_the_first_again() {
    let kernel = Kernel::new();
    let [first, second] = kernel.register();
    let task = Task::new(STACK);
    kernel.ask(&task, first);
    assert_eq!(kernel.deliver(&task).len(), 1);
    kernel.ask(&task, second);
    let calls = kernel.return_to_user(&task);
    assert_eq!(calls.iter().map(|call| call.client).collect::<Vec<_>>(), [second]);
    kernel.ask(&task, first);
    assert_eq!(kernel.return_to_user(&task).len(), 1, "in the next entry it is");
}

#[test]
fn f2_an_exit_delivers_while_the_memory_is_there_and_refuses_from_then_on() {
    let kernel = Kernel::new();
    let [client, other] = kernel.register();
    let task = Task::new(STACK);
    kernel.ask(&task, client);
    kernel.unwind.close(&task);
    let refused = RequestOutcome::Refused(Refusal::Exiting);
    assert_eq!(kernel.request(&task, other), refused);
    assert_eq!(kernel.request(&task, client), refused, "also if it has asked before");
    assert_eq!(kernel.unwind.cookie(&task), Err(Refusal::Exiting));
    let calls = kernel.deliver(&task);
    assert_eq!(calls.len(), 1);
    assert_eq!((calls[0].end, calls[0].stack.as_deref()), (SampleEnd::Matched, Some(STACK)));
    // The memory goes.
    task.set_stack(&[]);
    assert_eq!(kernel.request(&task, client), refused);
    assert!(kernel.deliver(&task).is_empty());
}

#[test]
fn f3_a_request_in_an_nmi_is_scheduled_as_such() {
    let kernel = Kernel::new();
    let [client, other] = kernel.register();
    let task = Task::new(STACK);
    kernel.unwind.host().nmi(|| kernel.ask(&task, client));
    kernel.ask(&task, other);
    assert_eq!(*task.scheduled.lock().unwrap(), [Context::Nmi], "once, by the first");
    kernel.return_to_user(&task);
    kernel.ask(&task, client);
    assert_eq!(*task.scheduled.lock().unwrap(), [Context::Normal]);
}

#[test]
fn f4_the_delivery_is_scheduled_on_the_asked_task_before_the_request_returns() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let (task, next) = (Task::new(STACK), Task::new(&[0x9000]));
    // The NMI comes while the scheduler switches from one to the other.
    kernel.unwind.host().nmi(|| kernel.ask(&task, client));
    assert_eq!(task.scheduled.lock().unwrap().len(), 1);
    assert!(next.scheduled.lock().unwrap().is_empty());
    assert!(kernel.return_to_user(&next).is_empty());
    assert_eq!(kernel.return_to_user(&task)[0].stack.as_deref(), Some(STACK));
}

#[test]
fn f6_the_end_of_an_entry_calls_no_hook() {
    let kernel = Kernel::new();
    let task = Task::new(STACK);
    kernel.unwind.cookie(&task).unwrap();
    kernel.unwind.host().silent.store(true, Ordering::SeqCst);
    assert_eq!(kernel.unwind.user_return(&task), UserReturn::Ready, "with something to reset");
    assert_eq!(kernel.unwind.user_return(&task), UserReturn::Ready, "with nothing");
}

#[test]
fn f7_requests_of_a_cancelled_client_are_refused_whoever_has_its_slot() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    kernel.ask(&task, client);
    kernel.unwind.cancel(None, client).unwrap();
    let refused = RequestOutcome::Refused(Refusal::UnknownClient);
    assert_eq!(kernel.request(&task, client), refused, "though its mark is still there");
    let [newcomer] = kernel.register();
    assert_eq!(kernel.request(&task, client), refused);
    assert_eq!(kernel.unwind.cancel(None, client), Err(CancelError::UnknownClient));
    assert!(matches!(kernel.request(&task, newcomer), RequestOutcome::Queued(_)));
    for bits in [0, 1, 2, 31, 32, u64::MAX, newcomer.to_bits() + 32] {
        let forged = ClientId::from_bits(bits);
        assert_eq!(kernel.request(&task, forged), refused, "{forged:?}");
        assert_eq!(kernel.unwind.cancel(Some(&task), forged), Err(CancelError::UnknownClient));
    }
}

#[test]
fn h5_the_last_client_of_the_table_gets_the_same_answers_as_the_first() {
    let kernel = Kernel::new();
    let clients: [ClientId; MAX_CLIENTS] = kernel.register();
    let task = Task::new(STACK);
    for client in [clients[0], clients[31]] {
        let cookie = kernel.ask(&task, client);
        assert_eq!(kernel.request(&task, client), RequestOutcome::AlreadyPending(cookie));
        assert_eq!(kernel.deliver(&task).len(), 1);
        assert_eq!(kernel.request(&task, client), RequestOutcome::AlreadyExecuted(cookie));
    }
}

#[test]
fn h6_after_a_failed_schedule_no_old_cookie_or_stack_survives() {
    let kernel = Kernel::new();
    let [client, other] = kernel.register();
    let task = Task::new(STACK);
    let cookie = kernel.ask(&task, other);
    assert_eq!(kernel.deliver(&task).len(), 1);
    kernel.unwind.host().schedule_fails.store(true, Ordering::SeqCst);
    let failed = RequestOutcome::Refused(Refusal::ScheduleFailed);
    assert_eq!(kernel.request(&task, client), failed);
    // The other client's marks are still there.
    assert_eq!(kernel.request(&task, other), RequestOutcome::AlreadyExecuted(cookie));
    kernel.unwind.host().schedule_fails.store(false, Ordering::SeqCst);
    assert!(kernel.return_to_user(&task).is_empty());
    task.set_stack(&[0x9000]);
    let next = kernel.ask(&task, client);
    assert_ne!(next, cookie);
    let calls = kernel.return_to_user(&task);
    assert_eq!((calls[0].cookie, calls[0].stack.as_deref()), (next, Some(&[0x9000][..])));
}

#[test]
fn h8_without_a_cache_nobody_is_served_twice() {
    let kernel = Kernel::new();
    let [first, second] = kernel.register();
    let task = Task::new(STACK);
    let deliver = || {
        let none = None::<&mut Cache>;
        let mut delivery = kernel.unwind.deliver(&task, Audience::Asked, none, |_| ());
        let mut clients = Vec::new();
        while let Some(serving) = delivery.next() {
            clients.push(serving.client());
        }
        clients
    };
    kernel.ask(&task, first);
    assert_eq!(deliver(), [first]);
    kernel.ask(&task, second);
    kernel.ask(&task, first);
    assert_eq!(deliver(), [second]);
}

#[test]
fn h9_an_empty_stack_is_walked_once_an_entry_too() {
    let kernel = Kernel::new();
    let [first, second] = kernel.register();
    let task = Task::new(&[]);
    kernel.ask(&task, first);
    assert_eq!(kernel.deliver(&task)[0].end, SampleEnd::StackLost);
    kernel.ask(&task, second);
    let calls = kernel.return_to_user(&task);
    assert_eq!((calls[0].end, calls[0].stack.as_deref()), (SampleEnd::StackLost, Some(&[][..])));
    assert_eq!((task.walks(), kernel.drops().no_frames), (1, 2));
}

#[test]
fn h10_an_exec_delivers_the_old_stack_at_its_point_of_no_return() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    let old = kernel.ask(&task, client);
    // An exec that fails before that point changes nothing.
    assert_eq!(kernel.ask(&task, client), old);
    kernel.unwind.close(&task);
    let calls = kernel.deliver(&task);
    assert_eq!((calls[0].cookie, calls[0].stack.as_deref()), (old, Some(STACK)));
    task.set_stack(&[0x40_0000]);
    assert_eq!(kernel.request(&task, client), RequestOutcome::Refused(Refusal::Exiting));
    assert_eq!(kernel.unwind.reopen(&task), UserReturn::Ready);
    let new = kernel.ask(&task, client);
    assert_ne!(new, old);
    let calls = kernel.return_to_user(&task);
    assert_eq!((calls[0].cookie, calls[0].stack.as_deref()), (new, Some(&[0x40_0000][..])));
}

#[test]
fn h10_a_task_with_something_pending_is_not_reopened() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    kernel.ask(&task, client);
    kernel.unwind.close(&task);
    assert_eq!(kernel.unwind.reopen(&task), UserReturn::Pending);
    let mut abandonment = kernel.unwind.abandon(&task, Lost::Exec);
    assert_eq!(abandonment.next().unwrap().end(), SampleEnd::Exec);
    assert!(abandonment.next().is_none());
    drop(abandonment);
    assert_eq!(kernel.unwind.reopen(&task), UserReturn::Ready);
}

#[test]
fn a_child_inherits_nothing() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let parent = Task::new(STACK);
    let of_parent = kernel.ask(&parent, client);
    let child = Task::new(STACK);
    assert!(kernel.return_to_user(&child).is_empty());
    assert!(
        matches!(kernel.request(&child, client), RequestOutcome::Queued(it) if it != of_parent)
    );
    assert_eq!(kernel.return_to_user(&parent)[0].cookie, of_parent);
}

#[test]
fn a_task_that_migrates_keeps_its_cookie_and_the_cpu_it_left_goes_on() {
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
fn a_delivery_inside_a_delivery_leaves_its_work_to_the_outer_one() {
    let kernel = Kernel::new();
    let [first, second] = kernel.register();
    let task = Task::new(STACK);
    kernel.ask(&task, first);
    let calls = kernel.deliver_and(&task, |call| {
        if call.client == first {
            kernel.ask(&task, second);
            let none = None::<&mut Cache>;
            let mut inner = kernel.unwind.deliver(&task, Audience::Asked, none, |_| ());
            assert!(inner.next().is_none());
            drop(inner);
            let own = kernel.unwind.cancel(Some(&task), first);
            assert_eq!(own, Err(CancelError::OwnDelivery), "the outer one is still at it");
        }
    });
    assert_eq!(calls.len(), 2);
}

#[test]
fn two_instances_share_nothing() {
    let kernels = [Kernel::new(), Kernel::new()];
    let clients = kernels.each_ref().map(|kernel| kernel.register::<1>()[0]);
    let tasks = [Task::new(STACK), Task::new(&[0x9000])];
    kernels[0].ask(&tasks[0], clients[0]);
    assert!(kernels[1].return_to_user(&tasks[1]).is_empty());
    kernels[1].unwind.cancel(None, clients[1]).unwrap();
    assert_eq!(kernels[0].return_to_user(&tasks[0]).len(), 1);
    assert_eq!(kernels[1].drops(), DropCounts::default());
}

/// A hypervisor: its tasks are vCPUs, user code is the guest, and the way out
/// is the entry into the VM.
#[derive(Default)]
struct Hypervisor {
    kicks: AtomicU32,
}

struct Vcpu {
    state: TaskState,
    guest_stack: Vec<u64>,
}

impl Host for Hypervisor {
    type Task = Vcpu;

    fn state<'t>(&self, vcpu: &'t Vcpu) -> &'t TaskState {
        &vcpu.state
    }

    fn task_kind(&self, vcpu: &Vcpu) -> TaskKind {
        if vcpu.guest_stack.is_empty() { TaskKind::NoUserRegisters } else { TaskKind::User }
    }

    fn in_nmi(&self) -> bool {
        false
    }

    fn cpu(&self) -> u32 {
        0
    }

    fn schedule(&self, _: &Vcpu, _: Context) -> Result<(), ScheduleError> {
        self.kicks.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn clock(&self) -> u64 {
        0
    }

    fn relax(&self) {}
}

#[test]
fn a_hypervisor_is_a_host_whose_tasks_are_vcpus() {
    let vm: DeferredUnwind<Hypervisor> =
        DeferredUnwind::new(Hypervisor::default(), SerialCookies::new());
    let profiler = vm.register().unwrap();
    let vcpu = Vcpu { state: TaskState::new(), guest_stack: STACK.to_vec() };
    let unborn = Vcpu { state: TaskState::new(), guest_stack: Vec::new() };
    let outcome = vm.request(&vcpu, profiler);
    assert_eq!(vm.request(&unborn, profiler), RequestOutcome::Refused(Refusal::NoUserRegisters));
    assert_eq!(vm.host().kicks.load(Ordering::SeqCst), 1);
    // Before the VM is entered.
    let mut cache = Cache::new();
    let walk = |trace: &mut Cache| sim::walk_frames(&vcpu.guest_stack, trace);
    let mut delivery = vm.deliver(&vcpu, Audience::Asked, Some(&mut cache), walk);
    let serving = delivery.next().unwrap();
    assert_eq!(Some(serving.cookie()), outcome.cookie());
    assert_eq!(sim::pcs_of(serving.trace().unwrap()), STACK);
    drop(serving);
    drop(delivery);
    assert_eq!(vm.user_return(&vcpu), UserReturn::Ready);
}

/// A host whose compare-exchange an NMI must not interrupt.
#[derive(Default)]
struct OldCpu(SimHost);

impl Host for OldCpu {
    type Task = Task;
    const NMI_SAFE_COMPARE_EXCHANGE: bool = false;

    fn state<'t>(&self, task: &'t Task) -> &'t TaskState {
        self.0.state(task)
    }

    fn task_kind(&self, task: &Task) -> TaskKind {
        self.0.task_kind(task)
    }

    fn in_nmi(&self) -> bool {
        self.0.in_nmi()
    }

    fn cpu(&self) -> u32 {
        self.0.cpu()
    }

    fn schedule(&self, task: &Task, context: Context) -> Result<(), ScheduleError> {
        self.0.schedule(task, context)
    }

    fn clock(&self) -> u64 {
        self.0.clock()
    }

    fn relax(&self) {
        self.0.relax();
    }
}

#[test]
fn r3_8_where_a_compare_exchange_is_not_safe_in_an_nmi_such_requests_are_refused() {
    let unwind = DeferredUnwind::new(OldCpu::default(), SerialCookies::new());
    let client = unwind.register().unwrap();
    let task = Task::new(STACK);
    let in_nmi = unwind.host().0.nmi(|| unwind.request(&task, client));
    assert_eq!(in_nmi, RequestOutcome::Refused(Refusal::NmiUnsafe));
    assert_eq!(unwind.host().0.nmi(|| unwind.cookie(&task)), Err(Refusal::NmiUnsafe));
    assert!(matches!(unwind.request(&task, client), RequestOutcome::Queued(_)));
    assert_eq!(unwind.drops().nmi_unsafe, 2);
}

#[test]
fn the_blocks_have_the_documented_sizes() {
    assert_eq!(size_of::<TaskState>(), 48);
    assert!(size_of::<TaskState>() <= 128);
    assert_eq!(size_of::<RequestOutcome>(), 16);
    assert_eq!(size_of::<Option<Cookie>>(), 8);
    assert_eq!(size_of::<ClientId>(), 8);
    assert!(size_of::<DeferredUnwind<Hypervisor>>() <= 3072);
    // A static needs no code to set it up.
    static STATE: TaskState = TaskState::new();
    static CLIENTS: DeferredUnwind<Hypervisor, CounterCookies> =
        DeferredUnwind::new(Hypervisor { kicks: AtomicU32::new(0) }, CounterCookies::new());
    assert!(format!("{STATE:?} {CLIENTS:?}").contains("entry: 0"));
}
