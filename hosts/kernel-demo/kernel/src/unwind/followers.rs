//! Events that are bound to tasks.
//!
//! A profiler that follows a task has an event about it on each CPU, since the task may
//! return on any, and each child of a fork gets a copy of them. An event without a CPU is
//! the task's own: it has work of its own there, and no client.

use core::sync::atomic::Ordering;

use demo_format::{FOLLOWER, OWN};
use unwind_core::Trace;
use unwind_core::deferred::{Cookie, Refusal, ScheduleError, UnwindCache};
use unwind_perf::per_cpu::{
    EventKey, EventSpec, GroupLeader, RequestError, TaskKey, TaskRun, TaskWork,
};

use super::event::{Event, FIRST_LIVE};
use super::host::UNWIND;
use super::stream;
use crate::each_cpu::online;
use crate::task::schedule;
use crate::task::state::Task;
use crate::{apic, cpu};

/// The profiler that follows tasks.
pub(super) const FOLLOWING: GroupLeader = GroupLeader(2);

fn key(task: &Task) -> TaskKey {
    TaskKey(task.id().into())
}

/// Follows a task that has not run yet.
pub(crate) fn follow(task: &Task) {
    for cpu in 0..online() {
        let spec = EventSpec {
            leader: FOLLOWING,
            cpu: cpu as i32,
            task: Some(key(task)),
            key: EventKey(FOLLOWER),
            defer_output: false,
        };
        match FIRST_LIVE.add(&UNWIND, spec) {
            Ok(event) => task.bound().of_cpus.with(|events| events.push(event)),
            Err(error) => panic!("{error}"),
        }
    }
    task.bound().is_followed.store(true, Ordering::Relaxed);
}

/// Gives a task that has not run yet an event of its own.
pub(crate) fn give_own(task: &Task) {
    task.bound().has_own.store(true, Ordering::Relaxed);
}

/// A task has forked: the child, which has not run yet, is followed as its parent is.
pub(crate) fn forked(parent: &Task, child: &Task) {
    let of_parent = parent.bound().of_cpus.with(|events| events.clone());
    for event in of_parent {
        match FIRST_LIVE.inherit(&UNWIND, event, key(child), EventKey(FOLLOWER)) {
            Ok(event) => child.bound().of_cpus.with(|events| events.push(event)),
            Err(error) => panic!("{error}"),
        }
        child.bound().is_followed.store(true, Ordering::Relaxed);
    }
}

/// A task ends: its events go. Whether work of its own waited, of which nothing comes.
pub(crate) fn exited(task: &Task) -> bool {
    let bound = task.bound();
    let events = bound.of_cpus.with(core::mem::take);
    for event in events {
        if let Err(error) = FIRST_LIVE.remove(&UNWIND, Some(task), event) {
            panic!("{error}");
        }
    }
    let waited = bound.own.is_pending();
    if bound.has_own()
        && let Err(error) = bound.own.remove(&OwnWork(task), &bound.hold)
    {
        panic!("{error}");
    }
    waited
}

/// Asks for a task's stack by an event that is bound to it. In NMIs.
pub(super) fn ask(task: &Task, event: Event) -> Option<Result<Cookie, RequestError>> {
    let bound = task.bound();
    if event == Event::Own {
        return Some(bound.own.request(&OwnWork(task), &bound.hold));
    }
    let own = bound.of_cpus.try_with(|events| events.get(cpu::number()).copied()).flatten()?;
    Some(FIRST_LIVE.request(&UNWIND, task, key(task), &own))
}

/// Does the work of a task's own event, if there is some: `walk`, which a delivery in the same
/// entry uses too, and a record, of which it returns whether there is one. Task context, by the
/// task itself; may sleep.
#[inline(never)]
pub(super) fn run_own(task: &Task, walk: impl FnOnce(&mut Trace)) -> bool {
    let bound = task.bound();
    if !bound.work_is_due.swap(false, Ordering::Acquire) {
        return false;
    }
    let ran = task.trace.try_with(|cache| {
        let cache: &mut UnwindCache = cache;
        bound.own.run(
            &bound.hold,
            move |cookie| Ok::<_, RequestError>(UNWIND.stack(cookie, cache, walk)),
            |cookie, trace: &Trace| stream::write_stack(task, OWN, cookie, trace),
        )
    });
    match ran {
        Some(TaskRun::Written) => true,
        Some(TaskRun::NotPending) => false,
        _ => panic!("the work of an event has failed: {ran:?}"),
    }
}

/// The work of a task's own event.
struct OwnWork<'t>(&'t Task);

impl TaskWork for OwnWork<'_> {
    fn cookie(&self) -> Result<Cookie, Refusal> {
        UNWIND.cookie(self.0)
    }

    /// As a delivery is scheduled: see `host.rs`.
    fn queue(&self) -> Result<(), ScheduleError> {
        self.0.bound().work_is_due.store(true, Ordering::Release);
        apic::send_return_work();
        Ok(())
    }

    fn unqueue(&self) {
        self.0.bound().work_is_due.store(false, Ordering::Relaxed);
    }

    fn is_current(&self) -> bool {
        core::ptr::eq(self.0, schedule::current())
    }

    fn relax(&self) {
        schedule::sleep(1);
    }
}
