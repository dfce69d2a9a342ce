//! The hardware's trace, paused and resumed by other events, so that its buffer
//! holds the interesting part alone.
//!
//! A group of three events: the trace, which starts paused; a system call that
//! resumes it; another one that pauses it.

use core::sync::atomic::{AtomicU64, Ordering};

use unwind_perf::aux_trace::{AuxBuffer, AuxEvent, AuxGate, OneCpu, Trigger, TriggerAction};

use super::counter::count;
use crate::branch_unit::{self, TO_BE_TRACED, TRACED, TRACED_OUTSIDE};
use crate::cpu::{self, Interrupts};
use crate::serial::println;
use crate::task::state::Task;

/// The trace event of the group.
struct TraceEvent {
    gate: AuxGate<OneCpu>,
    buffer: AuxBuffer<OneCpu>,
}

static EVENT: TraceEvent = TraceEvent { gate: AuxGate::new(true), buffer: AuxBuffer::new() };

static RESUME: Trigger = Trigger::new(TriggerAction::Resume);
static PAUSE: Trigger = Trigger::new(TriggerAction::Pause);

/// Turns interrupts on again, if they were.
struct InterruptsOff(Interrupts);

impl Drop for InterruptsOff {
    fn drop(&mut self) {
        cpu::restore_interrupts(self.0);
    }
}

impl AuxEvent for TraceEvent {
    type Reach = OneCpu;
    type Buffer = &'static AuxBuffer<OneCpu>;
    type InterruptsOff = InterruptsOff;

    fn gate(&self) -> &AuxGate<OneCpu> {
        &self.gate
    }

    fn buffer(&self) -> Option<&'static AuxBuffer<OneCpu>> {
        Some(&EVENT.buffer)
    }

    fn interrupts_off(&self) -> InterruptsOff {
        InterruptsOff(cpu::disable_interrupts())
    }

    fn trace(&self, on: bool) {
        branch_unit::set_tracing(on);
    }
}

/// The results for the parts that were to be traced.
pub(crate) struct Counts {
    /// Parts.
    pub(crate) parts: AtomicU64,
    /// Parts with as many branches as their program says.
    pub(crate) whole: AtomicU64,
}

pub(crate) static COUNTS: Counts = Counts { parts: AtomicU64::new(0), whole: AtomicU64::new(0) };

/// The scheduler of events: the group's task comes or goes.
pub(crate) fn schedule(task: &Task, comes: bool) {
    if task.is_traced() {
        if comes {
            EVENT.gate.start(|on| EVENT.trace(on));
        } else {
            EVENT.gate.stop(|on| EVENT.trace(on));
        }
    }
}

/// A system call: the part of the program from `start` to `end` begins.
pub(crate) fn begin(start: u64, end: u64) {
    let [first, last] = &TO_BE_TRACED;
    RESUME.overflow(Some(&EVENT), || {
        first.store(start, Ordering::Relaxed);
        last.store(end, Ordering::Relaxed);
        TRACED.store(0, Ordering::Relaxed);
    });
}

/// A system call: the part has ended, and should have `branches` branches.
pub(crate) fn end(branches: u64) {
    PAUSE.overflow(Some(&EVENT), || {
        count(&COUNTS.parts);
        if TRACED.load(Ordering::Relaxed) == branches {
            count(&COUNTS.whole);
        }
    });
}

/// How many branches outside of a part were traced, and how many actions were
/// missed.
fn faults() -> (u64, u64) {
    let missed = RESUME.counters().missed + PAUSE.counters().missed;
    (TRACED_OUTSIDE.load(Ordering::Relaxed), missed)
}

/// Prints the counters.
pub(crate) fn account() {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (outside, missed) = faults();
    println!(
        "aux: {} parts, {} whole, {outside} outside, {missed} missed",
        get(&COUNTS.parts),
        get(&COUNTS.whole),
    );
}
