//! Whether the hardware of an AUX event traces.

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::compiler_fence;

use crate::sync::{AtomicU32, Ordering, const_unless_loom, fence};

/// From where the events of a group can reach their AUX event: [`OneCpu`] or
/// [`SeveralCpus`].
pub trait Reach: sealed::Sealed + fmt::Debug + 'static {}

/// The events of a group run on one CPU at a time, and its NMIs are all that
/// can come between: what a scheduler of events such as Linux's promises.
///
/// Loads and stores suffice. Actions run with interrupts off.
#[derive(Clone, Copy, Debug)]
pub struct OneCpu;

/// The events of a group may run on several CPUs at once.
#[derive(Clone, Copy, Debug)]
pub struct SeveralCpus;

impl Reach for OneCpu {}
impl Reach for SeveralCpus {}

mod sealed {
    pub trait Sealed {
        const SEVERAL_CPUS: bool;
    }

    impl Sealed for super::OneCpu {
        const SEVERAL_CPUS: bool = false;
    }

    impl Sealed for super::SeveralCpus {
        const SEVERAL_CPUS: bool = true;
    }
}

/// Orders what was stored before it against what is loaded after it, for
/// everyone who can reach the event.
fn order<R: Reach>() {
    if R::SEVERAL_CPUS {
        fence(Ordering::SeqCst);
    } else {
        compiler_fence(Ordering::SeqCst);
    }
}

/// Takes the mark that an action is in progress; `false` if someone has it.
fn take<R: Reach>(mark: &AtomicU32) -> bool {
    if R::SEVERAL_CPUS {
        return mark.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
    }
    // An NMI between the two takes the mark and gives it back.
    let free = mark.load(Ordering::Relaxed) == 0;
    if free {
        mark.store(1, Ordering::Relaxed);
        order::<R>();
    }
    free
}

/// The block of an AUX event: whether it is started, and whether it is paused.
///
/// The two are independent. A scheduler starts and stops the event, triggers
/// pause and resume it, and the hardware traces while it is started and not
/// paused. So a resume never starts what the scheduler has stopped.
///
/// Starts and stops do not overlap each other: that is the scheduler's duty.
/// Neither do pauses and resumes: that is [`AuxBuffer`]'s. The two kinds may
/// interrupt each other at any point, and whoever touched the hardware last
/// looks again whether it is right.
pub struct AuxGate<R> {
    started: Flag,
    paused: Flag,
    reach: PhantomData<fn(R)>,
}

impl<R: Reach> AuxGate<R> {
    const_unless_loom! {
        /// The gate of an event that is not started yet, and that is paused if
        /// its [role](super::AuxRole::start_paused) says so.
        #[must_use]
        pub fn new(start_paused: bool) -> Self {
            Self { started: Flag::new(false), paused: Flag::new(start_paused), reach: PhantomData }
        }
    }

    /// Lets the hardware trace, as far as it is not paused. For the scheduler,
    /// when the hardware is configured and not before.
    ///
    /// `trace` switches the hardware's tracing on or off. It is told so once
    /// for each change, and may be told again what it was told before.
    pub fn start(&self, trace: impl FnMut(bool)) {
        self.open(&self.started, true, trace);
    }

    /// Lets the hardware trace no more. For the scheduler.
    pub fn stop(&self, trace: impl FnMut(bool)) {
        self.close(&self.started, false, trace);
    }

    /// For whoever holds the buffer's mark.
    pub(super) fn pause(&self, trace: impl FnMut(bool)) {
        self.close(&self.paused, true, trace);
    }

    /// For whoever holds the buffer's mark.
    pub(super) fn resume(&self, trace: impl FnMut(bool)) {
        self.open(&self.paused, false, trace);
    }

    /// Whether the scheduler has started the event.
    #[must_use]
    pub fn is_started(&self) -> bool {
        self.started.get()
    }

    /// Whether the event is paused, started or not.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused.get()
    }

    /// Whether the hardware is to trace.
    #[must_use]
    pub fn is_tracing(&self) -> bool {
        self.started.get() && !self.paused.get()
    }

    /// Gives `flag` the value that lets the hardware trace, and tells it if
    /// the other flag lets it too.
    fn open(&self, flag: &Flag, value: bool, mut trace: impl FnMut(bool)) {
        if flag.get() == value {
            return;
        }
        flag.set(value);
        order::<R>();
        // A second round comes only after a change between the look at the
        // flags and the word to the hardware, which was then out of date.
        let mut told = false;
        while self.is_tracing() != told {
            told = !told;
            trace(told);
            order::<R>();
        }
    }

    /// Gives `flag` the value that keeps the hardware from tracing.
    ///
    /// The hardware is told whatever the other flag says: if both are closed
    /// at the same time, each sees the other closed.
    fn close(&self, flag: &Flag, value: bool, mut trace: impl FnMut(bool)) {
        if flag.get() == value {
            return;
        }
        flag.set(value);
        order::<R>();
        trace(false);
    }
}

impl<R: Reach> fmt::Debug for AuxGate<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuxGate")
            .field("started", &self.is_started())
            .field("paused", &self.is_paused())
            .finish()
    }
}

/// Ordered against the other flag and the hardware by [`Reach`].
#[derive(Debug)]
struct Flag(AtomicU32);

impl Flag {
    const_unless_loom! {
        fn new(value: bool) -> Self {
            Self(AtomicU32::new(if value { 1 } else { 0 }))
        }
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    fn set(&self, value: bool) {
        self.0.store(u32::from(value), Ordering::Relaxed);
    }
}

/// The block of an AUX buffer: whether a pause or resume is in progress.
///
/// It belongs to the buffer and not to the event because events may share
/// one, and with it the hardware's registers.
pub struct AuxBuffer<R> {
    busy: AtomicU32,
    reach: PhantomData<fn(R)>,
}

impl<R: Reach> AuxBuffer<R> {
    const_unless_loom! {
        /// The block of a buffer at which nothing happens.
        #[must_use]
        pub fn new() -> Self {
            Self { busy: AtomicU32::new(0), reach: PhantomData }
        }
    }

    /// Runs `action` unless one is in progress; `false` if so.
    pub(super) fn exclusively(&self, action: impl FnOnce()) -> bool {
        let taken = take::<R>(&self.busy);
        if taken {
            let _busy = Busy(&self.busy);
            action();
        }
        taken
    }
}

impl<R: Reach> Default for AuxBuffer<R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R: Reach> fmt::Debug for AuxBuffer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let busy = self.busy.load(Ordering::Relaxed) != 0;
        f.debug_struct("AuxBuffer").field("busy", &busy).finish()
    }
}

struct Busy<'a>(&'a AtomicU32);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::arithmetic_side_effects, reason = "tests")]
mod tests {
    extern crate std;

    use alloc::rc::Rc;
    use alloc::vec::Vec;
    use core::cell::{Cell, RefCell};

    use super::*;
    use crate::aux_trace::{AuxEvent, Trigger, TriggerAction};
    use crate::sync::interrupt::{at_each_point, point};

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
        fn new(started: bool, paused: bool) -> Rc<Self> {
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
            Rc::new(tracer)
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

    /// Runs `outer` from each state, with an NMI at each point that runs
    /// `nested`, and a second NMI at each later point, inside the first or
    /// after it, that runs `second`. Calls `check` with the tracer and which of
    /// the NMIs arrived.
    fn each_interruption<R: Reach>(
        outer: Step,
        nested: Step,
        second: Option<Step>,
        check: impl Fn(&Tracer<R>, u64),
    ) {
        for (started, paused) in [(false, false), (false, true), (true, false), (true, true)] {
            for first_at in 0.. {
                let mut any = 0;
                for second_at in first_at + 1.. {
                    let tracer = Tracer::<R>::new(started, paused);
                    let arrived = Rc::new(Cell::new(0));
                    let (t, a) = (Rc::clone(&tracer), Rc::clone(&arrived));
                    let handler = move |at| {
                        let step = match at {
                            _ if at == first_at => Some(nested),
                            _ if at == second_at => second,
                            _ => None,
                        };
                        if let Some(step) = step {
                            a.set(a.get() + 1);
                            t.run(step);
                        }
                    };
                    let points = at_each_point(handler, || tracer.run(outer));
                    any += arrived.get();
                    check(&tracer, arrived.get());
                    if second.is_none() || second_at >= points {
                        break;
                    }
                }
                if any == 0 {
                    break;
                }
            }
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

    fn r4_7_under_nmis<R: Reach>() {
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

    fn r4_8_an_action_in_an_action<R: Reach>() {
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
}
