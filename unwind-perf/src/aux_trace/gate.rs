//! Whether the hardware of an AUX event traces.
//!
//! A pause is not a stop: two flags say whether the hardware traces, one of the scheduler's and one of
//! the triggers'. A call that closes a flag stops the hardware at once; a call that opens one reads both
//! again after it has switched the hardware. So no order of the two, interrupted anywhere, leaves the
//! hardware in the wrong state.

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::compiler_fence;

use crate::sync::{AtomicU32, Ordering, const_unless_loom, fence};

/// The CPUs from which the events of a group can reach their AUX event:
/// [`OneCpu`] or [`SeveralCpus`].
pub trait Reach: sealed::Sealed + fmt::Debug + 'static {}

/// The events of a group run on one CPU at a time, and only that CPU's NMIs can
/// interrupt them. A scheduler of events such as Linux's promises this.
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

/// Takes the mark that an action is in progress; `false` if another action
/// holds it.
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
/// The scheduler must not let starts and stops overlap each other;
/// [`AuxBuffer`] keeps pauses and resumes from overlapping. An action of one
/// kind may interrupt one of the other kind at any point. An action that has
/// switched the hardware on checks both flags again and corrects the hardware.
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
    /// `trace` switches the hardware's tracing on or off. `trace` is called for
    /// each change, and may be called again with the same value.
    pub fn start(&self, trace: impl FnMut(bool)) {
        self.open(&self.started, true, trace);
    }

    /// Lets the hardware trace no more. For the scheduler.
    pub fn stop(&self, trace: impl FnMut(bool)) {
        self.close(&self.started, false, trace);
    }

    /// The caller holds the buffer's mark.
    pub(super) fn pause(&self, trace: impl FnMut(bool)) {
        self.close(&self.paused, true, trace);
    }

    /// The caller holds the buffer's mark.
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
        /// The block of a buffer without an action in progress.
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
