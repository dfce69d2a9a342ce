//! A trace that is paused and resumed by NMIs of any CPU, while another CPU stops and
//! starts it.
//!
//! The hardware is a flag that takes a while to change, as registers of devices do. When
//! the trace is stopped and all NMIs that ran then are done, it has to be off.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use unwind_perf::aux_trace::{AuxBuffer, AuxEvent, AuxGate, SeveralCpus, Trigger, TriggerAction};

use super::counter::count;
use crate::memory::shootdown;
use crate::options::Protection;
use crate::serial::println;

struct SharedTrace {
    gate: AuxGate<SeveralCpus>,
    buffer: AuxBuffer<SeveralCpus>,
}

static EVENT: SharedTrace = SharedTrace { gate: AuxGate::new(true), buffer: AuxBuffer::new() };
static RESUME: Trigger = Trigger::new(TriggerAction::Resume);
static PAUSE: Trigger = Trigger::new(TriggerAction::Pause);

/// Whether the hardware traces.
static TRACES: AtomicBool = AtomicBool::new(false);

static SWITCHES: AtomicU64 = AtomicU64::new(0);
static STOPS: AtomicU64 = AtomicU64::new(0);
static STILL_ON: AtomicU64 = AtomicU64::new(0);

impl AuxEvent for SharedTrace {
    type Reach = SeveralCpus;
    type Buffer = &'static AuxBuffer<SeveralCpus>;
    type InterruptsOff = ();

    fn gate(&self) -> &AuxGate<SeveralCpus> {
        &self.gate
    }

    fn buffer(&self) -> Option<&'static AuxBuffer<SeveralCpus>> {
        Some(&EVENT.buffer)
    }

    fn interrupts_off(&self) {}

    fn trace(&self, on: bool) {
        for _ in 0..200 {
            core::hint::spin_loop();
        }
        TRACES.store(on, Ordering::SeqCst);
        count(&SWITCHES);
    }
}

/// An NMI pauses the trace, or resumes it.
pub(super) fn nmi(turn: u64) {
    if turn.is_multiple_of(2) {
        PAUSE.overflow(Some(&EVENT), || {});
    } else if Protection::TraceGate.is_on() {
        RESUME.overflow(Some(&EVENT), || {});
    } else if EVENT.gate.is_started() {
        // What the gate does, but that it looks again when the hardware is on.
        EVENT.trace(true);
    }
}

/// Stops the trace and starts it again. One caller at a time; task context.
pub(crate) fn stop_and_start() {
    EVENT.gate.stop(|on| EVENT.trace(on));
    // NMIs that run on other CPUs may not have seen it.
    shootdown::flush_everywhere();
    count(&STOPS);
    if TRACES.load(Ordering::SeqCst) {
        count(&STILL_ON);
    }
    EVENT.gate.start(|on| EVENT.trace(on));
}

/// Prints the counters.
pub(crate) fn account() {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let missed = RESUME.counters().missed + PAUSE.counters().missed;
    println!(
        "shared trace: {} switches, {missed} missed, {} stops, {} still on",
        get(&SWITCHES),
        get(&STOPS),
        get(&STILL_ON),
    );
}
