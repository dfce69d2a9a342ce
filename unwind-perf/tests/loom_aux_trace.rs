//! Models of AUX pause and resume on several CPUs.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p unwind-perf --release --test loom_aux_trace`
//!
//! NMIs on one CPU are modelled in the unit tests of the gate.
#![cfg(loom)]
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

#[path = "guarded/mod.rs"]
mod guarded;

use guarded::Guarded;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use unwind_perf::aux_trace::*;

#[derive(Debug)]
struct Tracer {
    gate: AuxGate<SeveralCpus>,
    buffer: Arc<AuxBuffer<SeveralCpus>>,
    /// The register that switches the hardware on and off.
    traces: AtomicBool,
    /// What only actions touch, one at a time.
    registers: Guarded,
    pause: Trigger,
    resume: Trigger,
}

impl Tracer {
    fn new(started: bool, paused: bool) -> Arc<Self> {
        let tracer = Self {
            gate: AuxGate::new(paused),
            buffer: Arc::new(AuxBuffer::new()),
            traces: AtomicBool::new(false),
            registers: Guarded::new(),
            pause: Trigger::new(TriggerAction::Pause),
            resume: Trigger::new(TriggerAction::Resume),
        };
        if started {
            tracer.run(Step::Start);
        }
        Arc::new(tracer)
    }

    fn run(&self, step: Step) {
        match step {
            Step::Start => self.gate.start(|on| self.traces.store(on, Ordering::Relaxed)),
            Step::Stop => self.gate.stop(|on| self.traces.store(on, Ordering::Relaxed)),
            Step::Pause => self.pause.overflow(Some(self), || ()),
            Step::Resume => self.resume.overflow(Some(self), || ()),
        }
    }

    fn missed(&self) -> u64 {
        self.pause.counters().missed + self.resume.counters().missed
    }
}

impl AuxEvent for Tracer {
    type Reach = SeveralCpus;
    type Buffer = Arc<AuxBuffer<SeveralCpus>>;
    type InterruptsOff = ();

    /// What an action begins with, when it has the buffer's mark.
    fn gate(&self) -> &AuxGate<SeveralCpus> {
        self.registers.write();
        &self.gate
    }

    fn buffer(&self) -> Option<Self::Buffer> {
        Some(Arc::clone(&self.buffer))
    }

    fn interrupts_off(&self) {}

    fn trace(&self, on: bool) {
        self.registers.write();
        self.traces.store(on, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Start,
    Stop,
    Pause,
    Resume,
}

/// One CPU does `one`, another does `other`: in the end the hardware does what
/// the flags say.
fn model(started: bool, paused: bool, one: Step, other: Step) {
    loom::model(move || {
        let tracer = Tracer::new(started, paused);
        let there = Arc::clone(&tracer);
        let elsewhere = thread::spawn(move || there.run(other));
        tracer.run(one);
        elsewhere.join().unwrap();
        assert_eq!(tracer.traces.load(Ordering::Relaxed), tracer.gate.is_tracing());
        assert!(tracer.missed() <= 1);
        // The guard is free again.
        let missed = tracer.missed();
        tracer.run(Step::Pause);
        assert_eq!((tracer.missed(), tracer.traces.load(Ordering::Relaxed)), (missed, false));
    });
}

fn from_each_state(one: Step, other: Step) {
    for (started, paused) in [(false, false), (false, true), (true, false), (true, true)] {
        model(started, paused, one, other);
    }
}

#[test]
fn r4_7_a_start_against_a_pause() {
    from_each_state(Step::Start, Step::Pause);
}

#[test]
fn r4_7_a_start_against_a_resume() {
    from_each_state(Step::Start, Step::Resume);
}

#[test]
fn r4_7_a_stop_against_a_pause() {
    from_each_state(Step::Stop, Step::Pause);
}

#[test]
fn r4_7_a_stop_against_a_resume() {
    from_each_state(Step::Stop, Step::Resume);
}

#[test]
fn r4_8_a_pause_against_a_resume() {
    from_each_state(Step::Pause, Step::Resume);
}

#[test]
fn r4_8_a_pause_against_a_resume_against_a_stop() {
    loom::model(|| {
        let tracer = Tracer::new(true, false);
        let (second, third) = (Arc::clone(&tracer), Arc::clone(&tracer));
        let second = thread::spawn(move || second.run(Step::Resume));
        let third = thread::spawn(move || third.run(Step::Stop));
        tracer.run(Step::Pause);
        second.join().unwrap();
        third.join().unwrap();
        assert!(!tracer.traces.load(Ordering::Relaxed));
        assert!(!tracer.gate.is_started());
    });
}
