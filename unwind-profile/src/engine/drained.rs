//! What came out of the rings.

use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::requested::MOST;
use crate::engine::{CpuTime, Engine, KernelWalks};

/// What came out of the rings so far. What is read from the stream is in it.
#[derive(Clone, Debug, Default)]
pub struct SoFar(Arc<Mutex<Drained>>);

impl SoFar {
    pub fn get(&self) -> Drained {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, drained: Drained) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = drained;
    }
}

/// What came out of the rings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Drained {
    /// Samples.
    pub written: u64,
    /// Those of them that were dropped since too many waited.
    pub(crate) dropped: u64,
    /// Bytes that were no records.
    pub(crate) skipped_bytes: u64,
    /// How many records the kernel counts as lost, if it counts.
    pub(crate) lost: Option<u64>,
    /// CPU time, if the kernel counts it.
    pub(crate) cpu_time: Option<CpuTime>,
    /// How stacks were walked, if in the kernel.
    pub(crate) walks: Option<KernelWalks>,
    /// The same of each event, where there are several.
    pub(crate) events: [OfEvent; MOST],
}

/// What came out of the rings of one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OfEvent {
    pub(crate) written: u64,
    pub(crate) dropped: u64,
}

impl Drained {
    /// Takes over what an engine counts itself.
    pub(crate) fn count(&mut self, engine: &dyn Engine) {
        self.lost = engine.lost();
        self.cpu_time = engine.cpu_time();
        self.walks = engine.walks();
    }

    /// What came out after `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let lost = self.lost.map(|lost| lost.saturating_sub(before.lost.unwrap_or(0)));
        let cpu_time = self.cpu_time.map(|time| time.since(before.cpu_time.unwrap_or_default()));
        let walks = self.walks.map(|walks| walks.since(before.walks.unwrap_or_default()));
        let mut events = self.events;
        for (now, before) in events.iter_mut().zip(before.events) {
            now.written = now.written.saturating_sub(before.written);
            now.dropped = now.dropped.saturating_sub(before.dropped);
        }
        Self {
            events,
            written: self.written.saturating_sub(before.written),
            dropped: self.dropped.saturating_sub(before.dropped),
            skipped_bytes: self.skipped_bytes.saturating_sub(before.skipped_bytes),
            lost,
            cpu_time,
            walks,
        }
    }
}
