//! Tracing hardware that other events switch on and off.
//!
//! An AUX event records into a buffer of its own whatever its tracing hardware
//! (Intel PT, `CoreSight`) emits: far more than anyone reads. Other events of
//! its group pause and resume it when they overflow, so that only the
//! interesting part is traced.
//!
//! | type | whose |
//! |---|---|
//! | [`AuxAttr`], [`AuxRole`] | of an event that is opened: what it asked for and, checked, what it does |
//! | [`AuxGate`] | of an AUX event: whether its hardware traces |
//! | [`AuxBuffer`] | of an AUX buffer: keeps actions from nesting |
//! | [`Trigger`] | of an event that pauses or resumes |
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
