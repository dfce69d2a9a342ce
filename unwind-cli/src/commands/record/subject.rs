//! Who is recorded.

use std::ffi::OsString;
use std::io;
use std::process::{Child, Command};

use crate::commands::record::existing::threads_of;
use crate::failure::{Failure, exit_code_of};
use crate::target::status::Status;
use crate::untrusted::escaped;

/// Processes that were there before, one that was started, or all.
#[derive(Debug)]
pub(crate) enum Subject {
    Running(Vec<i32>),
    Started(Child),
    All,
}

/// The command cannot be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {}: {error}", escaped(command))]
pub(crate) struct StartError {
    command: OsString,
    #[source]
    error: io::Error,
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        let exit_code = exit_code_of(&error.error);
        Self::new(error, exit_code)
    }
}

impl Subject {
    /// Starts a command.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub(crate) fn start(program: &OsString, arguments: &[OsString]) -> Result<Self, StartError> {
        let started = Command::new(program).args(arguments).spawn();
        let started = started.map_err(|error| StartError { command: program.clone(), error });
        started.map(Self::Started)
    }

    /// Whether any of it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        match self {
            Self::Running(processes) => processes.iter().any(|&process| exists(process)),
            Self::Started(child) => matches!(child.try_wait(), Ok(None)),
            Self::All => true,
        }
    }
}

/// Whether any thread of a process runs. One that has ended stays in the list until its
/// parent has asked for it.
pub(crate) fn exists(process: i32) -> bool {
    let is_alive = |thread| Status::read(thread).is_ok_and(|status| !status.is_dead());
    threads_of(process).into_iter().any(is_alive)
}
