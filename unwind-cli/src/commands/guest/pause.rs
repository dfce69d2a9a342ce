//! Holds a guest still while it is looked at.

use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow};

use crate::commands::guest::error::GuestError;
use crate::commands::guest::monitor::Monitor;

/// How long a guest may stand, whatever its monitor has to answer meanwhile.
const HOLD_LIMIT: Duration = Duration::from_secs(30);

/// A guest that does not run as long as this lives, or one that was to keep running.
///
/// Signals wait meanwhile, so that an interrupt from the keyboard does not
/// leave the guest standing.
#[derive(Debug)]
pub(crate) struct Pause<'q> {
    monitor: &'q mut Monitor,
    /// When it began.
    begun: Instant,
    /// Whether it was this that stopped the guest.
    stopped: bool,
    /// The signals that waited before.
    signals: Option<SigSet>,
}

impl<'q> Pause<'q> {
    /// Stops the guest if it runs, unless it is to be looked at `live`.
    ///
    /// # Errors
    ///
    /// [`GuestError`] if the monitor does not do so.
    pub(crate) fn new(monitor: &'q mut Monitor, live: bool) -> Result<Self, GuestError> {
        let mut hold = Self { monitor, begun: Instant::now(), stopped: false, signals: None };
        if !live && hold.monitor.is_running()? {
            hold.signals = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).ok();
            // Should the answer get lost, the guest may stand.
            hold.stopped = true;
            hold.begun = Instant::now();
            hold.monitor.set_deadline(hold.begun.checked_add(HOLD_LIMIT));
            hold.monitor.stop()?;
        }
        Ok(hold)
    }

    /// The connection.
    pub(crate) fn monitor(&mut self) -> &mut Monitor {
        self.monitor
    }

    /// Lets the guest continue if it ran before. Returns how long it stood.
    ///
    /// # Errors
    ///
    /// [`GuestError`] if the monitor does not do so.
    pub(crate) fn release(mut self) -> Result<Duration, GuestError> {
        self.resume()?;
        Ok(self.begun.elapsed())
    }

    fn resume(&mut self) -> Result<(), GuestError> {
        self.monitor.set_deadline(None);
        let resumed =
            if core::mem::take(&mut self.stopped) { self.monitor.resume() } else { Ok(()) };
        if let Some(signals) = self.signals.take() {
            // It was this thread's mask a moment ago.
            let _ = signals.thread_set_mask();
        }
        resumed
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        // On the way out of another error, which is the one to be told.
        let _ = self.resume();
    }
}
