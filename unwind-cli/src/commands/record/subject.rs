//! Who is recorded.

use std::ffi::OsString;
use std::io;
use std::process::{Child, Command};

use crate::commands::record::existing::threads_of;
use crate::failure::{Failure, exit_code_of};
use crate::held_child::HeldChild;
use crate::target::status::Status;
use crate::untrusted::escaped;

/// Processes, or all.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    Processes(Vec<i32>),
    All,
}

impl Subject {
    /// Whether any of it still runs.
    pub(crate) fn runs(&self) -> bool {
        match self {
            Self::Processes(processes) => processes.iter().any(|&process| exists(process)),
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

/// A command that waits until its events are there.
#[derive(Debug)]
pub(crate) struct HeldCommand {
    program: OsString,
    child: HeldChild,
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

impl HeldCommand {
    /// # Errors
    ///
    /// [`StartError`] if there can be no process.
    pub(crate) fn new(program: &OsString, arguments: &[OsString]) -> Result<Self, StartError> {
        let mut command = Command::new(program);
        command.args(arguments);
        match HeldChild::start(command) {
            Ok(child) => Ok(Self { program: program.clone(), child }),
            Err(error) => Err(StartError { command: program.clone(), error }),
        }
    }

    /// The process.
    pub(crate) const fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Lets it start.
    ///
    /// # Errors
    ///
    /// [`StartError`] if there is no such program, or it cannot be executed.
    pub(crate) fn go(self) -> Result<Child, StartError> {
        let Self { program, child } = self;
        child.go().map_err(|error| StartError { command: program, error })
    }
}
