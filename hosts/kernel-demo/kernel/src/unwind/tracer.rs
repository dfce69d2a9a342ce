//! The system-call tracer: a client that asks in task context, at the begin of
//! a system call. It shows that a task that ends, executes another program or
//! forks has a request pending when it does.

use core::sync::atomic::{AtomicU64, Ordering};

use unwind_core::deferred::{Cookie, RequestOutcome};
use unwind_perf::record::{ChainBuilder, ChainLimits, Misc};

use super::client::Client;
use super::counter::count;
use super::host::UNWIND;
use super::{delivery, stream};
use crate::frame::Frame;
use crate::serial::println;
use crate::task::state::Task;
use crate::task::{schedule, system_call};
use crate::{options, single_step};

/// How the traced system calls came out.
pub(crate) struct Counts {
    pub(crate) traced: AtomicU64,
    pub(crate) queued: AtomicU64,
    pub(crate) already: AtomicU64,
    pub(crate) refused: AtomicU64,
}

pub(crate) static COUNTS: Counts = Counts {
    traced: AtomicU64::new(0),
    queued: AtomicU64::new(0),
    already: AtomicU64::new(0),
    refused: AtomicU64::new(0),
};

/// Once in this many traced calls, an NMI comes at each instruction of the
/// request.
const STEP_EVERY: u64 = 64;

/// Records a fault that ends the task, and asks for the stack that made it: a
/// request is pending when the task is killed.
pub(crate) fn fatal_fault(frame: &Frame) {
    let task = schedule::current();
    if options::get().everyone != 0 {
        return;
    }
    COUNTS.traced.fetch_add(1, Ordering::Relaxed);
    record(task, frame, UNWIND.request(task, Client::Tracer.id()));
}

/// Records a system call, and asks for the stack that made it.
#[inline(never)]
pub(crate) fn system_call(frame: &Frame) {
    let task = schedule::current();
    if options::get().everyone != 0 {
        if system_call::is_traced_without_asking(frame) {
            COUNTS.traced.fetch_add(1, Ordering::Relaxed);
            // The stack comes if another client asks for it.
            write(task, frame, UNWIND.cookie(task).ok());
        }
        return;
    }
    if !system_call::is_traced(frame) {
        return;
    }
    let number = COUNTS.traced.fetch_add(1, Ordering::Relaxed);
    let request = || UNWIND.request(task, Client::Tracer.id());
    let outcome = delivery::within_unwinder(|| {
        if number.is_multiple_of(STEP_EVERY) {
            single_step::with_nmi_at_each_instruction(request)
        } else {
            request()
        }
    });
    record(task, frame, outcome);
}

fn record(task: &Task, frame: &Frame, outcome: RequestOutcome) {
    count(match outcome {
        RequestOutcome::Queued(_) => &COUNTS.queued,
        RequestOutcome::AlreadyPending(_) | RequestOutcome::AlreadyExecuted(_) => &COUNTS.already,
        RequestOutcome::Refused(_) => &COUNTS.refused,
    });
    write(task, frame, outcome.cookie());
}

fn write(task: &Task, frame: &Frame, cookie: Option<Cookie>) {
    let mut words = [0; 8];
    let mut chain = ChainBuilder::new(&mut words, ChainLimits::default());
    if let Some(cookie) = cookie {
        // Two words in a chain of eight.
        let _ = chain.defer(cookie.get());
    }
    stream::write_sample(task, Client::Tracer.event(), Misc::USER, frame.rip, chain.words());
}

/// Prints what was counted.
pub(crate) fn account() {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "traced calls: {} traced, {} queued, {} already, {} refused",
        get(&COUNTS.traced),
        get(&COUNTS.queued),
        get(&COUNTS.already),
        get(&COUNTS.refused),
    );
}
