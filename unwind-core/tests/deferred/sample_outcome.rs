//! Every sample ends in one way, and what is lost is counted.

use core::sync::atomic::Ordering;

use unwind_core::deferred::*;
use unwind_core::*;

use crate::{
    STACK,
    sim::{Call, Kernel, Task},
};

#[test]
fn x2_without_memory_for_a_trace_clients_are_called_without_one() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    let cookie = kernel.ask(&task, client);
    let none = None;
    let walk = |trace: &mut Trace| task.walk(trace);
    let mut delivery = kernel.unwind.deliver(&task, Recipients::Requesters, none, walk);
    let call = Call::of(&delivery.next().unwrap());
    assert_eq!(call, Call { client, cookie, end: SampleOutcome::StackLost, stack: None });
    assert_eq!((task.walks(), kernel.drops().no_cache), (0, 1));
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
    assert_eq!(end_of(&task), SampleOutcome::Matched);
    task.set_stack(&[7; 17]);
    assert_eq!(end_of(&task), SampleOutcome::Truncated, "17 frames into 16 places");
    task.set_stack(&[]);
    assert_eq!(end_of(&task), SampleOutcome::StackLost);
    for (lost, end) in
        [(LossReason::Exec, SampleOutcome::Exec), (LossReason::TaskGone, SampleOutcome::TaskGone)]
    {
        kernel.ask(&task, client);
        let mut abandonment = kernel.unwind.abandon(&task, lost);
        assert_eq!(abandonment.next().unwrap().outcome(), end);
        assert!(abandonment.next().is_none());
        drop(abandonment);
        assert!(kernel.return_to_user(&task).is_empty(), "told already");
    }
    task.set_kind(TaskKind::KernelThread);
    let refused = kernel.request(&task, client);
    assert_eq!(refused.sample_outcome(), Some(SampleOutcome::Inline));
    assert_eq!(
        RequestOutcome::Queued(Cookie::new(1).unwrap()).sample_outcome(),
        None,
        "not known yet"
    );
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
    for lost in [LossReason::TaskGone, LossReason::Exec] {
        kernel.ask(&task, client);
        assert!(kernel.unwind.abandon(&task, lost).next().is_some());
        assert!(kernel.return_to_user(&task).is_empty());
    }
    expected.task_gone = 1;
    expected.exec = 1;
    assert_eq!(kernel.drops(), expected);
}

#[test]
fn the_number_of_each_outcome_is_the_documented_one() {
    let outcomes = [
        SampleOutcome::Matched,
        SampleOutcome::Truncated,
        SampleOutcome::StackLost,
        SampleOutcome::TaskGone,
        SampleOutcome::Exec,
        SampleOutcome::Inline,
    ];
    assert_eq!(outcomes.map(SampleOutcome::code), [1, 2, 3, 4, 5, 6]);
    let refusals = [
        Refusal::KernelThread,
        Refusal::UserWorker,
        Refusal::Exiting,
        Refusal::NoUserRegisters,
        Refusal::NmiUnsafe,
        Refusal::UnknownClient,
        Refusal::ScheduleFailed,
        Refusal::NoCookie,
    ];
    assert_eq!(refusals.map(Refusal::code), [1, 2, 3, 4, 5, 6, 7, 8]);
    let refused = refusals.map(|refusal| RequestOutcome::Refused(refusal).code());
    assert_eq!(refused, [17, 18, 19, 20, 21, 22, 23, 24]);
    let cookie = Cookie::new(1).unwrap();
    let granted = [
        RequestOutcome::Queued(cookie),
        RequestOutcome::AlreadyPending(cookie),
        RequestOutcome::AlreadyExecuted(cookie),
    ];
    assert_eq!(granted.map(RequestOutcome::code), [1, 2, 3]);
}
