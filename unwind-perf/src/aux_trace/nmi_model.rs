//! Pause, resume, start and stop with an NMI at every point, and another one
//! in it or after it.
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use test_support::interrupt::{interrupt_everywhere, point};

use super::{AuxBuffer, AuxEvent, AuxGate, OneCpu, Reach, SeveralCpus, Trigger, TriggerAction};

/// An AUX event on simulated hardware, which an NMI may interrupt before
/// and after each access.
struct Tracer<R> {
    gate: AuxGate<R>,
    buffer: Rc<AuxBuffer<R>>,
    pause: Trigger,
    resume: Trigger,
    traces: Cell<bool>,
    told: RefCell<Vec<bool>>,
}

impl<R: Reach> Tracer<R> {
    fn new(started: bool, paused: bool) -> Self {
        let tracer = Self {
            gate: AuxGate::new(paused),
            buffer: Rc::new(AuxBuffer::new()),
            pause: Trigger::new(TriggerAction::Pause),
            resume: Trigger::new(TriggerAction::Resume),
            traces: Cell::new(false),
            told: RefCell::default(),
        };
        if started {
            tracer.gate.start(|on| tracer.trace(on));
        }
        tracer.told.borrow_mut().clear();
        tracer
    }

    fn run(&self, step: Step) {
        match step {
            Step::Start => self.gate.start(|on| self.trace(on)),
            Step::Stop => self.gate.stop(|on| self.trace(on)),
            Step::Pause => self.pause.overflow(Some(self), || ()),
            Step::Resume => self.resume.overflow(Some(self), || ()),
        }
    }

    fn missed(&self) -> u64 {
        self.pause.counters().missed + self.resume.counters().missed
    }
}

impl<R: Reach> AuxEvent for Tracer<R> {
    type Reach = R;
    type Buffer = Rc<AuxBuffer<R>>;
    type InterruptsOff = ();

    fn gate(&self) -> &AuxGate<R> {
        &self.gate
    }

    fn buffer(&self) -> Option<Self::Buffer> {
        Some(Rc::clone(&self.buffer))
    }

    fn interrupts_off(&self) {}

    fn trace(&self, on: bool) {
        point();
        self.traces.set(on);
        self.told.borrow_mut().push(on);
        point();
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Start,
    Stop,
    Pause,
    Resume,
}

impl Step {
    const ALL: [Self; 4] = [Self::Start, Self::Stop, Self::Pause, Self::Resume];

    fn is_action(self) -> bool {
        matches!(self, Self::Pause | Self::Resume)
    }
}

/// A tracer, what the NMIs run, and how many arrived.
struct Interrupted<R> {
    tracer: Tracer<R>,
    nested: Step,
    second: Step,
    arrived: Cell<u64>,
}

impl<R: Reach> Interrupted<R> {
    fn nmi(&self, step: Step) {
        self.arrived.set(self.arrived.get() + 1);
        self.tracer.run(step);
    }
}

/// Runs `outer` from each state, with an NMI at each point that runs
/// `nested`, and a second NMI at each later point, inside the first or
/// after it, that runs `second`. Calls `check` with the tracer and the number of
/// NMIs that arrived.
fn each_interruption<R: Reach + 'static>(
    outer: Step,
    nested: Step,
    second: Option<Step>,
    check: impl Fn(&Tracer<R>, u64),
) {
    let handlers: [fn(&Interrupted<R>); 2] = [|it| it.nmi(it.nested), |it| it.nmi(it.second)];
    let handlers = if second.is_some() { &handlers[..] } else { &handlers[..1] };
    for (started, paused) in [(false, false), (false, true), (true, false), (true, true)] {
        let world = || {
            let tracer = Tracer::new(started, paused);
            let second = second.unwrap_or(nested);
            Interrupted { tracer, nested, second, arrived: Cell::new(0) }
        };
        let body = |it: &Interrupted<R>| it.tracer.run(outer);
        let runs = interrupt_everywhere(world, handlers, body, |it| {
            check(&it.tracer, it.arrived.get());
        });
        assert!(runs > 1);
    }
}

fn hardware_is_right<R: Reach>(tracer: &Tracer<R>) {
    assert_eq!(tracer.traces.get(), tracer.gate.is_tracing(), "{:?}", tracer.gate);
    // The mark was given back: the next action is not missed.
    let missed = tracer.missed();
    tracer.run(Step::Pause);
    tracer.run(Step::Resume);
    assert_eq!(tracer.missed(), missed);
    assert_eq!(tracer.traces.get(), tracer.gate.is_started());
}

fn r4_7_under_nmis<R: Reach + 'static>() {
    for outer in Step::ALL {
        for nested in Step::ALL {
            // Starts and stops do not overlap each other.
            if !outer.is_action() && !nested.is_action() {
                continue;
            }
            each_interruption::<R>(outer, nested, None, |tracer, _| hardware_is_right(tracer));
            for second in Step::ALL {
                if second.is_action() || (outer.is_action() && nested.is_action()) {
                    let check = |tracer: &Tracer<R>, _| hardware_is_right(tracer);
                    each_interruption::<R>(outer, nested, Some(second), check);
                }
            }
        }
    }
}

#[test]
fn r4_7_the_hardware_is_right_whatever_an_nmi_does_in_between() {
    r4_7_under_nmis::<OneCpu>();
    r4_7_under_nmis::<SeveralCpus>();
}

fn r4_8_an_action_in_an_action<R: Reach + 'static>() {
    for (outer, nested) in [(Step::Pause, Step::Resume), (Step::Resume, Step::Pause)] {
        let outcomes: Rc<RefCell<[u64; 2]>> = Rc::default();
        each_interruption::<R>(outer, nested, None, |tracer, nmis| {
            let ends_paused = tracer.gate.is_paused();
            let outer_pauses = outer == Step::Pause;
            if nmis == 0 || tracer.missed() == 1 {
                assert_eq!(ends_paused, outer_pauses, "only the outer action was done");
            }
            assert!(tracer.missed() <= nmis);
            let [done, missed] = &mut *outcomes.borrow_mut();
            *done += nmis - tracer.missed();
            *missed += tracer.missed();
            hardware_is_right(tracer);
        });
        let [done, missed] = *outcomes.borrow();
        assert!(done > 0, "an NMI before or after the action is not missed");
        assert!(missed > 0, "an NMI within the action is missed and counted");
    }
}

#[test]
fn r4_8_an_action_that_interrupts_an_action_is_missed_and_counted() {
    r4_8_an_action_in_an_action::<OneCpu>();
    r4_8_an_action_in_an_action::<SeveralCpus>();
}

#[test]
fn r4_6_the_hardware_is_told_once_per_edge() {
    let tracer = Tracer::<OneCpu>::new(true, false);
    for step in [Step::Pause, Step::Pause, Step::Resume, Step::Resume, Step::Pause] {
        tracer.run(step);
    }
    assert_eq!(*tracer.told.borrow(), [false, true, false]);
    // Resumed while it is stopped: the hardware is not told to trace.
    tracer.run(Step::Stop);
    tracer.run(Step::Resume);
    assert_eq!(*tracer.told.borrow(), [false, true, false, false]);
    tracer.run(Step::Start);
    assert_eq!(*tracer.told.borrow(), [false, true, false, false, true]);
}
