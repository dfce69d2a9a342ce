//! The profiler: an NMI takes a sample.
//!
//! Nothing here may fault, sleep, lock or allocate. The kernel's frames are
//! walked at once, since kernel stacks are always there. The user's are asked
//! for, and the cookie goes into the record in their place. Only where that is
//! refused they are walked at once, as far as they are present.

use core::sync::atomic::{AtomicU64, Ordering};

use unwind_core::End;
use unwind_core::deferred::{Cookie, RequestOutcome};
use unwind_perf::record::{ChainBuilder, ChainLimits, Context, Misc};

use super::client::Client;
use super::counter::count;
use super::host::UNWIND;
use super::{
    branches, delivery, events, kernel_modules, kernel_stack, shared_trace, stream, user_stack,
};
use crate::cpu::CPUS;
use crate::each_cpu::{EachCpu, are_several};
use crate::exclusive::Exclusive;
use crate::frame::Frame;
use crate::serial::println;
use crate::task::schedule;
use crate::task::state::{Kind, Task};
use crate::{counter_unit, measure};

/// How the samples came out.
pub(crate) struct Counts {
    /// NMIs.
    pub(crate) taken: AtomicU64,
    /// Of user code.
    pub(crate) in_user: AtomicU64,
    /// Of the kernel, on behalf of a user task.
    pub(crate) in_kernel: AtomicU64,
    /// Of kernel threads.
    pub(crate) in_thread: AtomicU64,
    /// That interrupted a request, a delivery's bookkeeping or a way out.
    pub(crate) in_unwinder: AtomicU64,
    pub(crate) queued: AtomicU64,
    pub(crate) already_pending: AtomicU64,
    pub(crate) already_executed: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Whose user stack was walked in the NMI too.
    pub(crate) compared: AtomicU64,
    /// Of these, which were cut short: some page was absent.
    pub(crate) would_be_cut: AtomicU64,
    /// Kernel stacks whose walk did not get to an entry or a thread's start.
    pub(crate) kernel_incomplete: AtomicU64,
}

pub(crate) static COUNTS: Counts = Counts {
    taken: AtomicU64::new(0),
    in_user: AtomicU64::new(0),
    in_kernel: AtomicU64::new(0),
    in_thread: AtomicU64::new(0),
    in_unwinder: AtomicU64::new(0),
    queued: AtomicU64::new(0),
    already_pending: AtomicU64::new(0),
    already_executed: AtomicU64::new(0),
    refused: AtomicU64::new(0),
    compared: AtomicU64::new(0),
    would_be_cut: AtomicU64::new(0),
    kernel_incomplete: AtomicU64::new(0),
};

/// Room for a chain of Linux's default length and all its marks.
const WORDS: usize = 127 + 8;

/// Where a sample's chain is put together. NMIs do not nest: one for each CPU.
static CHAIN: EachCpu<Exclusive<[u64; WORDS]>> =
    EachCpu([const { Exclusive::new([0; WORDS]) }; CPUS]);

/// Once in this many samples, the user stack is walked in the NMI too, to see
/// what such a walk would have got.
const COMPARE_EVERY: u64 = 8;

/// On several CPUs a task loses its turn once in this many samples, before it goes back to
/// user mode.
const END_TURN_EVERY: u64 = 3;

/// Takes a sample of what the NMI interrupted.
#[inline(never)]
pub(crate) fn nmi(frame: &Frame) {
    let sampled = CHAIN.own().try_with(|words| sample(frame, words));
    assert!(sampled.is_some(), "an nmi in an nmi");
}

fn sample(frame: &Frame, words: &mut [u64]) {
    let task = schedule::interrupted(frame);
    count_place(frame, task);
    let mut chain = ChainBuilder::new(words, ChainLimits::default());

    let user = if frame.is_user() { Some(*frame) } else { kernel_part(frame, &mut chain) };

    let asked = ask(task);
    match (asked.cookie, user) {
        // The chain has room for both words: it has one mark so far.
        (Some(cookie), _) => _ = chain.defer(cookie.get()),
        (None, Some(user)) => inline_part(task, &user, &mut chain),
        (None, None) => {}
    }
    if let (true, Some(cookie), Some(user)) = (asked.has_branches, asked.cookie, user) {
        branches::sample(task, &user, cookie);
    }
    let number = COUNTS.taken.load(Ordering::Relaxed);
    if let Some(user) = user.filter(|_| number.is_multiple_of(COMPARE_EVERY)) {
        compare_with_inline(task, &user);
    }

    let misc = if frame.is_user() { Misc::USER } else { Misc::KERNEL };
    stream::write_sample(task, asked.event, misc, frame.rip, chain.words());
}

/// What was asked for, and by which event.
struct Asked {
    event: u64,
    cookie: Option<Cookie>,
    has_branches: bool,
}

fn ask(task: &Task) -> Asked {
    if are_several() {
        let event = events::due(task, counter_unit::take_overflow());
        if COUNTS.taken.load(Ordering::Relaxed).is_multiple_of(END_TURN_EVERY) {
            // The stack comes when another CPU has taken the task, as a rule.
            schedule::end_turn();
        }
        let number = COUNTS.taken.load(Ordering::Relaxed);
        kernel_modules::look_up(number);
        shared_trace::nmi(number);
        let cookie = events::ask(task, event);
        return Asked { event: event.number(), cookie, has_branches: event.has_branches() };
    }
    let outcome = measure::request(|| UNWIND.request(task, Client::Profiler.id()));
    count_outcome(outcome);
    Asked { event: Client::Profiler.event(), cookie: outcome.cookie(), has_branches: true }
}

/// Walks the kernel's frames, and returns the user registers that lie after the
/// last frame, if any do.
fn kernel_part(frame: &Frame, chain: &mut ChainBuilder<'_>) -> Option<Frame> {
    // A chain that is full counts what it leaves out.
    let _ = chain.context(Context::Kernel);
    let walk = kernel_stack::walk(frame, |pc| _ = chain.ip(pc));
    if !walk.is_complete {
        count(&COUNTS.kernel_incomplete);
    }
    walk.user
}

/// Walks the user's frames as far as they are present.
fn inline_part(task: &Task, user: &Frame, chain: &mut ChainBuilder<'_>) {
    if task.has_memory() && chain.context(Context::User).is_ok() {
        user_stack::walk_present(task, user, &mut |pc| _ = chain.ip(pc));
    }
}

/// Finds out what a walk in the NMI would have got.
fn compare_with_inline(task: &Task, user: &Frame) {
    count(&COUNTS.compared);
    let end = user_stack::walk_present(task, user, &mut |_| {});
    if end.is_some_and(|end: End<_>| end.is_retryable()) {
        count(&COUNTS.would_be_cut);
    }
}

fn count_place(frame: &Frame, task: &Task) {
    count(&COUNTS.taken);
    let thread = task.kind() == Kind::KernelThread;
    count(match frame.is_user() {
        true => &COUNTS.in_user,
        false if thread => &COUNTS.in_thread,
        false => &COUNTS.in_kernel,
    });
    if delivery::in_unwinder() {
        count(&COUNTS.in_unwinder);
    }
}

fn count_outcome(outcome: RequestOutcome) {
    count(match outcome {
        RequestOutcome::Queued(_) => &COUNTS.queued,
        RequestOutcome::AlreadyPending(_) => &COUNTS.already_pending,
        RequestOutcome::AlreadyExecuted(_) => &COUNTS.already_executed,
        RequestOutcome::Refused(_) => &COUNTS.refused,
    });
}

/// Prints what was counted.
pub(crate) fn account() {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "samples: {} taken, {} in user code, {} in the kernel, {} in threads",
        get(&COUNTS.taken),
        get(&COUNTS.in_user),
        get(&COUNTS.in_kernel),
        get(&COUNTS.in_thread),
    );
}
