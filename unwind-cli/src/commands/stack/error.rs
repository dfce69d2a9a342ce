//! Why the stacks of a target could not be shown, besides what is wrong with the target.

use std::ffi::OsString;
use std::io;
use std::process::ExitStatus;

use unwind_target::StackEnd;
use unwind_target::counted::counted;
use unwind_target::untrusted::escaped;

use crate::failure::{Failure, exit_code_of};

/// Why a command could not be started and stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum StartError {
    /// Nothing is named whose stack could be shown.
    #[error("name a process, a core file or a command")]
    NoTarget,
    /// The command cannot be started.
    #[error("cannot start {}: {error}", escaped(command))]
    Start {
        /// Which command.
        command: OsString,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// The command has ended before its stack was to be taken.
    #[error(
        "{} ended ({status}) before {after_ms} ms were over; give a shorter --after",
        escaped(command)
    )]
    EndedEarly {
        /// Which command.
        command: OsString,
        /// How it ended.
        status: ExitStatus,
        /// When its stack was to be taken, in milliseconds.
        after_ms: u64,
    },
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        let exit_code = match &error {
            StartError::NoTarget => 2,
            StartError::Start { error, .. } => exit_code_of(error),
            StartError::EndedEarly { .. } => 6,
        };
        Self::new(error, exit_code)
    }
}

/// Stacks are incomplete, which the user wants to be a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{incomplete} of {} {} incomplete",
    counted(*stacks, "stack", "stacks"),
    if *incomplete == 1 { "is" } else { "are" }
)]
pub(crate) struct Incomplete {
    /// How many are.
    incomplete: u64,
    /// How many were taken.
    stacks: u64,
}

impl Incomplete {
    /// Whether stacks with these ends are all complete.
    ///
    /// # Errors
    ///
    /// Itself if one is not.
    pub(crate) fn check<'e>(ends: impl IntoIterator<Item = &'e StackEnd>) -> Result<(), Self> {
        let (mut stacks, mut incomplete) = (0_u64, 0_u64);
        for end in ends {
            stacks = stacks.saturating_add(1);
            incomplete = incomplete.saturating_add(u64::from(!end.complete));
        }
        if incomplete == 0 { Ok(()) } else { Err(Self { incomplete, stacks }) }
    }
}

impl From<Incomplete> for Failure {
    fn from(error: Incomplete) -> Self {
        Self::new(error, 9)
    }
}
