//! A group of three events of one task: the trace of its branches, which starts paused; a system
//! call that resumes it; another one that pauses it.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

use unwind_perf::aux_trace::{
    AuxAction, AuxAttr, AuxBuffer, AuxEvent, AuxGate, AuxRole, Creator, OneCpu, PmuCapabilities,
    Trigger,
};

use crate::events;
use crate::ledger::{count, get};
use crate::task::Task;

/// The group.
struct Group {
    tracer: Tracer,
    resume: Trigger,
    pause: Trigger,
}

static GROUP: OnceLock<Group> = OnceLock::new();

static PARTS: AtomicU64 = AtomicU64::new(0);
static WHOLE: AtomicU64 = AtomicU64::new(0);
/// Branches that the trace has of this part.
static TRACED: AtomicU64 = AtomicU64::new(0);
static STARTS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The switch of this CPU's tracing hardware.
    static IS_TRACING: Cell<bool> = const { Cell::new(false) };
}

/// The event that traces.
struct Tracer {
    gate: AuxGate<OneCpu>,
    buffer: AuxBuffer<OneCpu>,
}

impl AuxEvent for Tracer {
    type Reach = OneCpu;
    type Buffer = &'static AuxBuffer<OneCpu>;
    // This machine has no interrupts but NMIs.
    type InterruptsOff = ();

    fn gate(&self) -> &AuxGate<OneCpu> {
        &self.gate
    }

    fn buffer(&self) -> Option<&'static AuxBuffer<OneCpu>> {
        GROUP.get().map(|group| &group.tracer.buffer)
    }

    fn interrupts_off(&self) {}

    fn trace(&self, on: bool) {
        IS_TRACING.set(on);
    }
}

/// `perf_event_open` for the three, by what they ask for.
pub(crate) fn open() {
    let pmu = PmuCapabilities::AUX_PAUSE;
    let check = |action, own, leader| -> AuxRole {
        let attr = AuxAttr { action, ..AuxAttr::default() };
        attr.check(own, Creator::User, leader).expect("it may")
    };
    let leader = check(AuxAction::START_PAUSED, pmu, None);
    let [resume, pause] = [AuxAction::RESUME, AuxAction::PAUSE].map(|action| {
        let role = check(action, PmuCapabilities::NONE, Some(pmu));
        Trigger::new(role.trigger.expect("it is one"))
    });
    let tracer = Tracer { gate: AuxGate::new(leader.start_paused), buffer: AuxBuffer::new() };
    assert!(GROUP.set(Group { tracer, resume, pause }).is_ok(), "it is set once");
}

fn group() -> &'static Group {
    GROUP.get().expect("it was opened")
}

/// The scheduler of events: the group's task comes or goes.
pub(crate) fn switch(task: Option<&Task>, comes: bool) {
    if !task.is_some_and(|task| task.is_traced) {
        return;
    }
    let tracer = &group().tracer;
    if comes {
        count(&STARTS);
        tracer.gate.start(|on| tracer.trace(on));
    } else {
        tracer.gate.stop(|on| tracer.trace(on));
    }
}

/// The system call with which a part begins. It is a sample, too: first that, then the trace.
pub(crate) fn begin(task: &Task) {
    let Group { tracer, resume, .. } = group();
    resume.overflow(Some(tracer), || {
        TRACED.store(0, Ordering::Relaxed);
        events::sample(task);
    });
}

/// The system call with which it ends, after as many branches.
pub(crate) fn end(branches: u64) {
    let Group { tracer, pause, .. } = group();
    pause.overflow(Some(tracer), || {
        count(&PARTS);
        WHOLE.fetch_add(u64::from(get(&TRACED) == branches), Ordering::Relaxed);
    });
}

/// The hardware sees a branch of user code.
pub(crate) fn branch() {
    if IS_TRACING.get() {
        count(&TRACED);
    }
}

pub(crate) fn print_and_check() -> bool {
    let Group { resume, pause, .. } = group();
    let (parts, whole) = (get(&PARTS), get(&WHOLE));
    let counters = [resume, pause].map(Trigger::counters);
    let without: u64 = counters.iter().map(|of| of.missed + of.unbound + of.without_buffer).sum();
    println!(
        "parts traced: {parts}, {whole} whole, in {} turns; {without} actions missed",
        get(&STARTS)
    );
    parts != 0 && parts == whole && without == 0 && get(&STARTS) > 1
}
