//! The rules of AUX pause and resume.
#![cfg(not(loom))]
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use unwind_perf::Errno;
use unwind_perf::aux_trace::*;

const PT: PmuCapabilities = PmuCapabilities::AUX_PAUSE;
const PEBS: PmuCapabilities = PmuCapabilities::AUX_OUTPUT;
const PLAIN: PmuCapabilities = PmuCapabilities::NONE;

fn asks(action: AuxAction) -> AuxAttr {
    AuxAttr { action, ..AuxAttr::default() }
}

/// Opens an event whose leader is on Intel PT.
fn open(attr: AuxAttr, pmu: PmuCapabilities) -> Result<AuxRole, AuxError> {
    attr.check(pmu, Creator::User, Some(PT))
}

fn refused(attr: AuxAttr, pmu: PmuCapabilities) -> (AuxError, Errno) {
    let error = open(attr, pmu).unwrap_err();
    (error, error.errno())
}

#[test]
fn r4_1_the_three_bits_of_aux_action_and_29_reserved_ones() {
    let named = [AuxAction::START_PAUSED, AuxAction::PAUSE, AuxAction::RESUME];
    for (bit, action) in (0..).zip(named) {
        assert_eq!(AuxAction::from_field(1 << bit), Ok(action));
        assert_eq!(action.bits(), 1 << bit);
    }
    assert_eq!(AuxAction::from_field(0), Ok(AuxAction::NONE));
    for bit in 3..32 {
        let error = AuxAction::from_field(1 << bit | 1).unwrap_err();
        assert_eq!(
            (error, error.errno()),
            (AuxError::ReservedBits(1 << bit), Errno::InvalidArgument)
        );
    }
}

#[test]
fn r4_2_combinations_that_make_no_sense_or_that_the_pmu_cannot_do() {
    let (start, pause, resume) = (AuxAction::START_PAUSED, AuxAction::PAUSE, AuxAction::RESUME);
    let output = |action| AuxAttr { output: true, action, ..AuxAttr::default() };
    for (attr, pmu, error, errno) in [
        (asks(pause | resume), PLAIN, AuxError::PauseAndResume, Errno::InvalidArgument),
        (output(pause), PEBS, AuxError::OutputWithTrigger, Errno::NotSupported),
        (output(resume), PEBS, AuxError::OutputWithTrigger, Errno::NotSupported),
        (output(AuxAction::NONE), PLAIN, AuxError::OutputNotSupported, Errno::NotSupported),
        (asks(start), PLAIN, AuxError::StartPausedNotSupported, Errno::NotSupported),
        (asks(start), PEBS, AuxError::StartPausedNotSupported, Errno::NotSupported),
        // Where two apply, output comes first.
        (output(pause | resume), PEBS, AuxError::OutputWithTrigger, Errno::NotSupported),
    ] {
        assert_eq!(refused(attr, pmu), (error, errno), "{attr:?}");
    }
    assert!(open(output(AuxAction::NONE), PEBS).is_ok());
    assert!(open(asks(start), PT).unwrap().start_paused);
}

#[test]
fn r4_2_a_kernels_own_counter_asks_for_nothing() {
    let output = AuxAttr { output: true, ..AuxAttr::default() };
    for attr in
        [output, asks(AuxAction::START_PAUSED), asks(AuxAction::PAUSE), asks(AuxAction::RESUME)]
    {
        let error = attr.check(PT | PEBS, Creator::Kernel, Some(PT)).unwrap_err();
        assert_eq!((error, error.errno()), (AuxError::KernelCounter, Errno::InvalidArgument));
    }
    assert_eq!(AuxAttr::default().check(PLAIN, Creator::Kernel, None), Ok(AuxRole::default()));
}

#[test]
fn r4_3_a_trigger_is_in_a_group_whose_leader_can_be_paused() {
    for (action, trigger) in
        [(AuxAction::PAUSE, TriggerAction::Pause), (AuxAction::RESUME, TriggerAction::Resume)]
    {
        let attr = asks(action);
        assert_eq!(attr.check(PLAIN, Creator::User, Some(PT)).unwrap().trigger, Some(trigger));
        for leader in [None, Some(PLAIN), Some(PEBS)] {
            // What the trigger's own PMU can do is of no importance.
            let error = attr.check(PT, Creator::User, leader).unwrap_err();
            assert_eq!((error, error.errno()), (AuxError::NoAuxLeader, Errno::InvalidArgument));
        }
    }
    assert_eq!(AuxAttr::default().check(PLAIN, Creator::User, None), Ok(AuxRole::default()));
}

/// An AUX event on simulated tracing hardware.
struct Tracer<R> {
    gate: AuxGate<R>,
    buffer: RefCell<Option<Rc<AuxBuffer<R>>>>,
    traces: Cell<bool>,
    /// How often the hardware was told so.
    told: RefCell<Vec<bool>>,
    interrupts_off: Rc<Cell<u32>>,
    /// Whether each word to the hardware came with interrupts off and the
    /// buffer held.
    careful: Cell<bool>,
}

struct InterruptsOff(Rc<Cell<u32>>);

impl Drop for InterruptsOff {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<R: Reach> Tracer<R> {
    fn new(role: AuxRole) -> Self {
        Self {
            gate: AuxGate::new(role.start_paused),
            buffer: RefCell::new(Some(Rc::default())),
            traces: Cell::new(false),
            told: RefCell::default(),
            interrupts_off: Rc::default(),
            careful: Cell::new(true),
        }
    }

    fn start(&self) {
        self.gate.start(|on| self.switch(on));
    }

    fn stop(&self) {
        self.gate.stop(|on| self.switch(on));
    }

    fn switch(&self, on: bool) {
        self.traces.set(on);
        self.told.borrow_mut().push(on);
    }
}

impl<R: Reach> AuxEvent for Tracer<R> {
    type Reach = R;
    type Buffer = Rc<AuxBuffer<R>>;
    type InterruptsOff = InterruptsOff;

    fn gate(&self) -> &AuxGate<R> {
        &self.gate
    }

    fn buffer(&self) -> Option<Self::Buffer> {
        self.buffer.borrow().clone()
    }

    fn interrupts_off(&self) -> InterruptsOff {
        self.interrupts_off.set(self.interrupts_off.get() + 1);
        InterruptsOff(Rc::clone(&self.interrupts_off))
    }

    fn trace(&self, on: bool) {
        let held = self.buffer.borrow().as_ref().map_or(0, Rc::strong_count);
        let careful = held == 2 && self.interrupts_off.get() == 1;
        self.careful.set(self.careful.get() && careful);
        self.switch(on);
    }
}

fn role(action: AuxAction) -> AuxRole {
    asks(action).check(PT, Creator::User, Some(PT)).unwrap()
}

fn tracer(action: AuxAction) -> Tracer<OneCpu> {
    Tracer::new(role(action))
}

fn trigger(action: AuxAction) -> Trigger {
    Trigger::new(role(action).trigger.unwrap())
}

#[test]
fn r4_4_an_event_starts_paused_only_if_it_asks_and_its_pmu_can() {
    let paused = tracer(AuxAction::START_PAUSED);
    paused.start();
    assert!(paused.gate.is_paused() && paused.gate.is_started() && !paused.traces.get());
    assert!(paused.told.borrow().is_empty(), "the hardware is not switched on for a moment");
    let running = tracer(AuxAction::NONE);
    running.start();
    assert!(!running.gate.is_paused() && running.traces.get());
    // An event whose PMU cannot pause has no role that says paused.
    let elsewhere = AuxAttr::default().check(PLAIN, Creator::User, Some(PT)).unwrap();
    assert!(!elsewhere.start_paused);
}

#[test]
fn r4_5_a_pause_comes_before_the_sample_and_a_resume_after_it() {
    let (pause, resume) = (trigger(AuxAction::PAUSE), trigger(AuxAction::RESUME));
    let tracer = tracer(AuxAction::NONE);
    tracer.start();
    let traced_within = |trigger: &Trigger| trigger.overflow(Some(&tracer), || tracer.traces.get());
    assert!(!traced_within(&pause), "the sample of a pause is not traced");
    assert!(!tracer.traces.get());
    assert!(!traced_within(&resume), "nor is that of a resume");
    assert!(tracer.traces.get());
}

#[test]
fn r4_6_actions_that_change_nothing_are_not_told_to_the_hardware() {
    let (pause, resume) = (trigger(AuxAction::PAUSE), trigger(AuxAction::RESUME));
    let tracer = tracer(AuxAction::NONE);
    tracer.start();
    for trigger in [&resume, &pause, &pause, &pause, &resume, &resume, &pause] {
        trigger.overflow(Some(&tracer), || ());
    }
    assert_eq!(*tracer.told.borrow(), [true, false, true, false]);
    // The paused state is the event's own, whatever the scheduler does.
    tracer.stop();
    tracer.start();
    assert!(tracer.gate.is_paused() && tracer.gate.is_started() && !tracer.traces.get());
}

#[test]
fn r4_7_a_resume_does_not_start_what_is_stopped() {
    let (pause, resume) = (trigger(AuxAction::PAUSE), trigger(AuxAction::RESUME));
    let tracer = tracer(AuxAction::START_PAUSED);
    resume.overflow(Some(&tracer), || ());
    assert!(!tracer.traces.get() && tracer.told.borrow().is_empty(), "it is not started yet");
    tracer.start();
    assert!(tracer.traces.get());
    pause.overflow(Some(&tracer), || ());
    tracer.stop();
    tracer.told.borrow_mut().clear();
    resume.overflow(Some(&tracer), || ());
    assert!(!tracer.traces.get() && tracer.told.borrow().is_empty(), "it is stopped");
    tracer.start();
    assert!(tracer.traces.get());
}

/// A tracer whose hardware takes an NMI, in which another trigger overflows.
struct Interrupted {
    tracer: Tracer<OneCpu>,
    nmi: Trigger,
    armed: Cell<bool>,
}

impl AuxEvent for Interrupted {
    type Reach = OneCpu;
    type Buffer = Rc<AuxBuffer<OneCpu>>;
    type InterruptsOff = InterruptsOff;

    fn gate(&self) -> &AuxGate<OneCpu> {
        &self.tracer.gate
    }

    fn buffer(&self) -> Option<Self::Buffer> {
        self.tracer.buffer()
    }

    fn interrupts_off(&self) -> InterruptsOff {
        self.tracer.interrupts_off()
    }

    fn trace(&self, on: bool) {
        if self.armed.take() {
            self.nmi.overflow(Some(self), || ());
        }
        self.tracer.switch(on);
    }
}

#[test]
fn r4_8_an_action_within_an_action_gives_up_and_is_counted() {
    for (outer, nested) in
        [(AuxAction::PAUSE, AuxAction::RESUME), (AuxAction::RESUME, AuxAction::PAUSE)]
    {
        let start =
            if outer == AuxAction::PAUSE { AuxAction::NONE } else { AuxAction::START_PAUSED };
        let event =
            Interrupted { tracer: tracer(start), nmi: trigger(nested), armed: Cell::default() };
        event.tracer.start();
        event.armed.set(true);
        let outer_trigger = trigger(outer);
        outer_trigger.overflow(Some(&event), || ());
        assert!(!event.armed.get(), "the NMI came");
        assert_eq!(event.nmi.counters().missed, 1);
        assert_eq!(outer_trigger.counters(), TriggerCounters::default());
        assert_eq!(event.tracer.gate.is_paused(), outer == AuxAction::PAUSE);
        assert_eq!(event.tracer.traces.get(), event.tracer.gate.is_tracing());
        // The next one is not missed.
        event.nmi.overflow(Some(&event), || ());
        assert_eq!(event.nmi.counters().missed, 1);
        assert_eq!(event.tracer.traces.get(), nested == AuxAction::RESUME);
    }
}

#[test]
fn r4_8_events_that_share_a_buffer_share_its_guard() {
    let (pause, resume) = (trigger(AuxAction::PAUSE), trigger(AuxAction::RESUME));
    let (outer, other) = (tracer(AuxAction::NONE), tracer(AuxAction::START_PAUSED));
    *other.buffer.borrow_mut() = outer.buffer();
    outer.start();
    other.start();
    // An NMI in the action on one of them, for the other one.
    struct Sharing<'a>(&'a Tracer<OneCpu>, &'a Tracer<OneCpu>, &'a Trigger);
    impl AuxEvent for Sharing<'_> {
        type Reach = OneCpu;
        type Buffer = Rc<AuxBuffer<OneCpu>>;
        type InterruptsOff = ();
        fn gate(&self) -> &AuxGate<OneCpu> {
            &self.0.gate
        }
        fn buffer(&self) -> Option<Self::Buffer> {
            self.0.buffer()
        }
        fn interrupts_off(&self) {}
        fn trace(&self, on: bool) {
            self.2.overflow(Some(self.1), || ());
            self.0.switch(on);
        }
    }
    pause.overflow(Some(&Sharing(&outer, &other, &resume)), || ());
    assert_eq!((resume.counters().missed, other.traces.get()), (1, false));
    assert!(!outer.traces.get());
}

#[test]
fn r4_9_both_reaches_do_the_same() {
    fn run<R: Reach>() -> Vec<bool> {
        let (pause, resume) = (trigger(AuxAction::PAUSE), trigger(AuxAction::RESUME));
        let tracer = Tracer::<R>::new(role(AuxAction::START_PAUSED));
        tracer.start();
        for trigger in [&resume, &pause, &pause, &resume] {
            trigger.overflow(Some(&tracer), || ());
        }
        tracer.stop();
        assert!(tracer.careful.get());
        tracer.told.take()
    }
    assert_eq!(run::<OneCpu>(), [true, false, true, false]);
    assert_eq!(run::<OneCpu>(), run::<SeveralCpus>());
}

#[test]
fn r4_10_without_a_buffer_or_an_aux_event_nothing_happens_and_it_is_counted() {
    let pause = trigger(AuxAction::PAUSE);
    let tracer = tracer(AuxAction::NONE);
    tracer.start();
    let buffer = tracer.buffer.take();
    assert_eq!(pause.overflow(Some(&tracer), || 7), 7);
    assert!(tracer.traces.get() && !tracer.gate.is_paused());
    assert_eq!(pause.overflow(None::<&Tracer<OneCpu>>, || 8), 8);
    let counters = pause.counters();
    assert_eq!((counters.without_buffer, counters.unbound, counters.missed), (1, 1, 0));

    // The buffer is held, with interrupts off, while the hardware is touched,
    // and no longer.
    *tracer.buffer.borrow_mut() = buffer;
    pause.overflow(Some(&tracer), || {
        assert_eq!(Rc::strong_count(tracer.buffer.borrow().as_ref().unwrap()), 1);
        assert_eq!(tracer.interrupts_off.get(), 0);
    });
    assert!(tracer.careful.get() && tracer.gate.is_paused());
}

#[test]
fn r4_11_an_action_does_not_depend_on_a_sample_being_written() {
    let (pause, resume) = (trigger(AuxAction::PAUSE), trigger(AuxAction::RESUME));
    let tracer = tracer(AuxAction::NONE);
    tracer.start();
    // A filter drops every sample; it runs after the pause.
    let written = Cell::new(0);
    let filtered = |trigger: &Trigger| {
        trigger.overflow(Some(&tracer), || {
            let dropped = !tracer.traces.get();
            if !dropped {
                written.set(written.get() + 1);
            }
        });
    };
    filtered(&pause);
    assert!(!tracer.traces.get());
    filtered(&resume);
    assert!(tracer.traces.get());
    assert_eq!(written.get(), 0);
}

#[test]
fn r4_12_samples_are_not_batched_where_an_action_or_an_aux_sample_would_come_late() {
    for (attr, batched) in [
        (asks(AuxAction::NONE), true),
        (asks(AuxAction::START_PAUSED), true),
        (asks(AuxAction::PAUSE), false),
        (asks(AuxAction::RESUME), false),
        (AuxAttr { sample_size: 4096, ..AuxAttr::default() }, false),
        (AuxAttr { output: true, ..AuxAttr::default() }, true),
    ] {
        assert_eq!(attr.allows_sample_batching(), batched, "{attr:?}");
    }
}

/// What a simulated program does, one letter a step, and which of the steps
/// were traced.
fn traced(program: &str, start: AuxAction, resume_at: char, pause_at: char) -> String {
    let (pause, resume) = (trigger(AuxAction::PAUSE), trigger(AuxAction::RESUME));
    let tracer = tracer(start);
    tracer.start();
    let mut traced = String::new();
    for step in program.chars() {
        if step == pause_at {
            pause.overflow(Some(&tracer), || ());
        }
        if tracer.traces.get() {
            traced.push(step);
        }
        if step == resume_at {
            resume.overflow(Some(&tracer), || ());
        }
    }
    traced
}

#[test]
fn r4_13_a_pair_on_system_call_entry_and_exit_traces_the_kernel_only() {
    // User code u, system call entry ( and exit ), kernel code k.
    let program = "uu(kkk)uuu(k)u((kk))u";
    assert_eq!(traced(program, AuxAction::START_PAUSED, '(', ')'), "kkkk(kk");
}

#[test]
fn r4_13_a_pause_in_the_error_path_keeps_what_led_to_it() {
    // The program fails at the first e; whatever it does then is not traced.
    let program = "abcabcabEeeeabcabc";
    assert_eq!(traced(program, AuxAction::NONE, '-', 'E'), "abcabcab");
}
