//! How much time and how many bytes there are for an answer of a guest's monitor.

use std::io;
use std::time::{Duration, Instant};

use crate::commands::guest::error::GuestError;

/// What is left of both.
pub(super) struct Allowance {
    deadline: Option<Instant>,
    bytes: usize,
}

impl Allowance {
    /// From now on: `patience`, but not past the time up to which a guest is held, and this many bytes.
    pub(super) fn new(patience: Duration, held: Option<Instant>, bytes: usize) -> Self {
        let own = Instant::now().checked_add(patience);
        let deadline = match (own, held) {
            (Some(own), Some(held)) => Some(own.min(held)),
            (own, held) => own.or(held),
        };
        Self { deadline, bytes }
    }

    /// How long there is to wait, if any time is left.
    pub(super) fn time_left(&self) -> Option<Duration> {
        let left = self.deadline?.saturating_duration_since(Instant::now());
        // No time at all would mean for ever.
        (!left.is_zero()).then_some(left)
    }

    /// Counts bytes that came.
    ///
    /// # Errors
    ///
    /// [`GuestError::TooLong`] if there are more than were allowed.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), GuestError> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or(GuestError::TooLong)?;
        Ok(())
    }
}

/// Why nothing comes or goes any more; `silent` if it is only late.
pub(super) fn broken(error: io::Error, silent: GuestError) -> GuestError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => silent,
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => GuestError::Closed,
        _ => GuestError::Broken(error),
    }
}
