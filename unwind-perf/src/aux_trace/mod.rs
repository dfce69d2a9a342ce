//! Tracing hardware that other events switch on and off.
//!
//! An AUX event records all output of its tracing hardware (Intel PT,
//! `CoreSight`) into its own buffer: far more than a reader can use. Other
//! events of its group pause and resume it when they overflow, so that only the
//! interesting part is traced.
//!
//! | type | whose |
//! |---|---|
//! | [`AuxAttr`], [`AuxRole`] | of an event that is opened: what it asked for and, checked, what it does |
//! | [`AuxGate`] | of an AUX event: whether its hardware traces |
//! | [`AuxBuffer`] | of an AUX buffer: keeps actions from nesting |
//! | [`Trigger`] | of an event that pauses or resumes |
//!
//! # Example
//!
//! A breakpoint in an error path pauses the trace, which then ends with the
//! code that led there:
//!
//! ```
//! use std::{cell::Cell, sync::Arc};
//! use unwind_perf::aux_trace::*;
//!
//! struct Tracer { gate: AuxGate<OneCpu>, buffer: Arc<AuxBuffer<OneCpu>>, traces: Cell<bool> }
//!
//! impl AuxEvent for Tracer {
//!     type Reach = OneCpu;
//!     type Buffer = Arc<AuxBuffer<OneCpu>>;
//!     type InterruptsOff = ();
//!     fn gate(&self) -> &AuxGate<OneCpu> { &self.gate }
//!     fn buffer(&self) -> Option<Self::Buffer> { Some(Arc::clone(&self.buffer)) }
//!     fn interrupts_off(&self) {}
//!     fn trace(&self, on: bool) { self.traces.set(on) }
//! }
//!
//! let pt = PmuCapabilities::AUX_PAUSE;
//! let attr = AuxAttr { action: AuxAction::PAUSE, ..AuxAttr::default() };
//! let role = attr.check(PmuCapabilities::NONE, Creator::User, Some(pt))?;
//! let breakpoint = Trigger::new(role.trigger.unwrap());
//!
//! let (buffer, traces) = (Arc::default(), Cell::new(false));
//! let tracer = Tracer { gate: AuxGate::new(false), buffer, traces };
//! tracer.gate.start(|on| tracer.trace(on));
//! let at_the_sample = breakpoint.overflow(Some(&tracer), || tracer.traces.get());
//! assert!(!at_the_sample);
//! // The scheduler continues as it likes: the trace stays paused.
//! tracer.gate.stop(|on| tracer.trace(on));
//! tracer.gate.start(|on| tracer.trace(on));
//! assert!(!tracer.traces.get() && tracer.gate.is_paused());
//! # Ok::<(), AuxError>(())
//! ```
//!
//! # Contexts
//!
//! [`Trigger::overflow`] and [`AuxGate::start`] and [`stop`](AuxGate::stop)
//! may be called in an NMI: they do not allocate or lock. They repeat a step
//! only for each change that came between.

mod attr;
mod gate;
#[cfg(all(test, not(loom)))]
mod nmi_model;
mod trigger;

pub use attr::{AuxAction, AuxAttr, AuxError, AuxRole, Creator, PmuCapabilities, TriggerAction};
pub use gate::{AuxBuffer, AuxGate, OneCpu, Reach, SeveralCpus};
pub use trigger::{AuxEvent, Trigger, TriggerCounters};
