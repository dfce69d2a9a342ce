//! Events that pause and resume.

use core::borrow::Borrow;
use core::fmt;

use super::{AuxBuffer, AuxGate, Reach, TriggerAction};
use crate::sync::Statistic;

/// An AUX event, as its triggers see it.
///
/// All methods are called in NMIs.
pub trait AuxEvent {
    /// The CPUs from which the event's group can reach it.
    type Reach: Reach;

    /// A counted reference to the event's buffer: the buffer stays while this
    /// value lives.
    type Buffer: Borrow<AuxBuffer<Self::Reach>>;

    /// Keeps interrupts off while it lives; `()` if
    /// [`SeveralCpus`](super::SeveralCpus) makes it needless.
    type InterruptsOff;

    /// The event's gate.
    fn gate(&self) -> &AuxGate<Self::Reach>;

    /// Takes a reference to the event's buffer, if it has one at this moment.
    fn buffer(&self) -> Option<Self::Buffer>;

    /// Turns interrupts off, not NMIs.
    fn interrupts_off(&self) -> Self::InterruptsOff;

    /// Switches the hardware's tracing on or off, and nothing else: neither
    /// configures it nor touches the buffer. Setting the state that the
    /// hardware already has does nothing.
    fn trace(&self, on: bool);
}

/// The block of an event that pauses or resumes the AUX event of its group.
pub struct Trigger {
    action: TriggerAction,
    missed: Statistic,
    unbound: Statistic,
    without_buffer: Statistic,
}

impl Trigger {
    /// The block of an event with this action; nothing has happened yet.
    #[must_use]
    pub const fn new(action: TriggerAction) -> Self {
        let (missed, unbound, without_buffer) =
            (Statistic::new(), Statistic::new(), Statistic::new());
        Self { action, missed, unbound, without_buffer }
    }

    /// What the event does.
    #[must_use]
    pub const fn action(&self) -> TriggerAction {
        self.action
    }

    /// Handles an overflow of the event: a pause comes before `sample` and a
    /// resume after it, so that little of the handling itself is traced.
    ///
    /// `sample` does all other work of the overflow, filters included. The
    /// action does not depend on whether a sample is written.
    ///
    /// `aux` is the AUX event that the trigger was bound to. Without one, or
    /// while it has no buffer, there is no action. Neither is there one if
    /// this overflow has interrupted an action on the same buffer. All three
    /// are [counted](Self::counters).
    pub fn overflow<A: AuxEvent, T>(&self, aux: Option<&A>, sample: impl FnOnce() -> T) -> T {
        if self.action == TriggerAction::Pause {
            self.act(aux);
        }
        let result = sample();
        if self.action == TriggerAction::Resume {
            self.act(aux);
        }
        result
    }

    fn act<A: AuxEvent>(&self, aux: Option<&A>) {
        let Some(aux) = aux else {
            self.unbound.count();
            return;
        };
        let Some(buffer) = aux.buffer() else {
            self.without_buffer.count();
            return;
        };
        let _off = aux.interrupts_off();
        let acted = buffer.borrow().exclusively(|| match self.action {
            TriggerAction::Pause => aux.gate().pause(|on| aux.trace(on)),
            TriggerAction::Resume => aux.gate().resume(|on| aux.trace(on)),
        });
        if !acted {
            self.missed.count();
        }
    }

    /// How often there was no action, and why.
    #[must_use]
    pub fn counters(&self) -> TriggerCounters {
        TriggerCounters {
            missed: self.missed.get(),
            unbound: self.unbound.get(),
            without_buffer: self.without_buffer.get(),
        }
    }
}

impl fmt::Debug for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trigger")
            .field("action", &self.action)
            .field("counters", &self.counters())
            .finish()
    }
}

/// Overflows of a [`Trigger`] that caused no action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TriggerCounters {
    /// They interrupted an action on the same buffer.
    pub missed: u64,
    /// The trigger was bound to no AUX event: a fault of the host.
    pub unbound: u64,
    /// The AUX event had no buffer.
    pub without_buffer: u64,
}
