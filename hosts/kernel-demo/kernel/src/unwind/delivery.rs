//! Deliveries: on the way out of the kernel, at exec and at exit.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use unwind_core::Trace;
use unwind_core::deferred::{ClientId, Cookie, LossReason, Recipients, SampleOutcome, UserReturn};

use super::client::Client;
use super::counter::count;
use super::event::Event;
use super::host::UNWIND;
use super::{branches, events, followers, stream, user_stack};
use crate::cpu::CPUS;
use crate::each_cpu::EachCpu;
use crate::frame::Frame;
use crate::memory::UserMemory;
use crate::serial::println;
use crate::task::state::Task;
use crate::{measure, options, shadow_unit};

/// How the deliveries ended.
pub(crate) struct Counts {
    /// User stacks walked.
    pub(crate) walks: AtomicU64,
    /// Clients served, by what they got.
    pub(crate) matched: AtomicU64,
    pub(crate) truncated: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) task_gone: AtomicU64,
    pub(crate) exec: AtomicU64,
}

pub(crate) static COUNTS: Counts = Counts {
    walks: AtomicU64::new(0),
    matched: AtomicU64::new(0),
    truncated: AtomicU64::new(0),
    lost: AtomicU64::new(0),
    task_gone: AtomicU64::new(0),
    exec: AtomicU64::new(0),
};

static IN_UNWINDER: EachCpu<AtomicBool> = EachCpu([const { AtomicBool::new(false) }; CPUS]);

/// Whether the bookkeeping of the unwinder was interrupted.
pub(crate) fn in_unwinder() -> bool {
    IN_UNWINDER.own().load(Ordering::Relaxed)
}

/// Marks `f` as the unwinder's bookkeeping, for the sampler to count. `f` does
/// not sleep.
pub(crate) fn within_unwinder<R>(f: impl FnOnce() -> R) -> R {
    IN_UNWINDER.own().store(true, Ordering::Relaxed);
    let result = f();
    IN_UNWINDER.own().store(false, Ordering::Relaxed);
    result
}

/// Ends the kernel entry of a task that goes back to user mode; `false` if
/// there is something to deliver first. Interrupts are off.
#[inline(never)]
pub(crate) fn entry_ends(task: &Task) -> bool {
    // An NMI in between cannot know which entry the unwinder is in.
    task.returning.store(true, Ordering::Relaxed);
    let works = task.bound().work_is_due();
    let ended = !works && within_unwinder(|| UNWIND.user_return(task)) == UserReturn::Ready;
    if ended {
        task.returns.fetch_add(1, Ordering::Relaxed);
    }
    task.returning.store(false, Ordering::Relaxed);
    ended
}

/// Counts a stack that was promised and of which nothing comes: its task has ended.
pub(crate) fn count_gone() {
    count(&COUNTS.task_gone);
}

/// Hands out the task's user stack to the clients that asked. `frame` has the
/// registers with which the task continues, or would have continued. May sleep:
/// absent pages of the stack and of the tables are brought in.
#[inline(never)]
pub(crate) fn deliver(task: &Task, frame: &Frame) {
    if followers::run_own(task, |trace| walk(task, frame, trace)) {
        events::count_stack(Event::Own);
    }
    let delivered = task.trace.try_with(|trace| {
        let walk = |trace: &mut Trace| walk(task, frame, trace);
        let recipients = match options::get().everyone {
            0 => Recipients::Requesters,
            _ => Recipients::AllClients,
        };
        let mut delivery = UNWIND.deliver(task, recipients, Some(trace), walk);
        while let Some(guard) = delivery.next() {
            count_end(guard.outcome());
            if let Some(trace) = guard.trace() {
                hand_out(task, guard.client(), guard.cookie(), trace);
            }
        }
    });
    // Only this task's way out, its exec and its exit come here.
    assert!(delivered.is_some(), "a delivery in a delivery");
}

/// Walks the task's user stack: once in an entry, whoever asked. Task context; may sleep.
fn walk(task: &Task, frame: &Frame, trace: &mut Trace) {
    count(&COUNTS.walks);
    user_stack::walk(task, frame, &mut UserMemory, trace);
    shadow_unit::check(task, trace);
    measure::walk(task, frame);
}

/// Before a task's program is exchanged: the clients that asked get the stack
/// of the old one, and requests are refused until [`resume`].
pub(crate) fn suspend(task: &Task, frame: &Frame) {
    UNWIND.close(task);
    deliver(task, frame);
}

/// After a task's program was exchanged: requests are granted again, with new
/// cookies.
pub(crate) fn resume(task: &Task) {
    task.returning.store(true, Ordering::Relaxed);
    // Nothing is pending after `suspend`; if something were, it would belong
    // to a program that is gone.
    while UNWIND.reopen(task) == UserReturn::Pending {
        abandon(task, LossReason::Exec);
    }
    task.returns.fetch_add(1, Ordering::Relaxed);
    task.returning.store(false, Ordering::Relaxed);
}

/// A task ends and its memory is gone already: the clients that asked are told
/// so.
pub(crate) fn abandon(task: &Task, reason: LossReason) {
    UNWIND.close(task);
    let mut abandonment = UNWIND.abandon(task, reason);
    while let Some(guard) = abandonment.next() {
        count_end(guard.outcome());
    }
}

fn count_end(end: SampleOutcome) {
    count(match end {
        SampleOutcome::Matched => &COUNTS.matched,
        SampleOutcome::Truncated => &COUNTS.truncated,
        SampleOutcome::TaskGone => &COUNTS.task_gone,
        SampleOutcome::Exec => &COUNTS.exec,
        _ => &COUNTS.lost,
    });
}

/// Prints what was counted.
pub(crate) fn account() {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "deliveries: {} walks, {} matched, {} truncated, {} lost, {} task gone, {} exec",
        get(&COUNTS.walks),
        get(&COUNTS.matched),
        get(&COUNTS.truncated),
        get(&COUNTS.lost),
        get(&COUNTS.task_gone),
        get(&COUNTS.exec),
    );
}

/// Hands a stack to a client. Task context.
fn hand_out(task: &Task, client: ClientId, cookie: Cookie, trace: &Trace) {
    let Some(known) = Client::from_id(client) else {
        return events::deliver(task, client, cookie, trace);
    };
    // What is lost is counted by the ring.
    let _ = stream::write_stack(task, known.event(), cookie, trace);
    if known == Client::Profiler {
        branches::compare(task, cookie, trace);
    }
}
