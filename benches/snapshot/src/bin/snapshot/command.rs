//! The program that is captured.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command};

use unwind_target::TargetError;

use crate::error::Error;

/// A process that was there before, or that was started.
#[derive(Debug)]
pub(crate) enum Subject {
    /// It was there before, and continues afterwards.
    Running(i32),
    /// It was started.
    Started(OsString, Child),
}

impl Subject {
    /// The process with this id, else one that is started.
    ///
    /// # Errors
    ///
    /// [`Error::Start`] and [`Error::Hold`].
    pub(crate) fn new(pid: Option<i32>, command: &[OsString]) -> Result<Self, Error> {
        match (pid, command) {
            (Some(pid), _) => {
                let subject = Self::Running(pid);
                if subject.is_there() {
                    Ok(subject)
                } else {
                    Err(TargetError::not_in_proc(pid).into())
                }
            }
            (None, [program, arguments @ ..]) => {
                let child = Command::new(program).args(arguments).stdout(io::stderr()).spawn();
                let child =
                    child.map_err(|error| Error::Start { command: program.clone(), error })?;
                Ok(Self::Started(program.clone(), child))
            }
            // The command line asks for one of them.
            (None, []) => Err(Error::Nothing),
        }
    }

    /// The id of the process.
    pub(crate) fn id(&self) -> i32 {
        match self {
            Self::Running(pid) => *pid,
            // Linux has no process ids above 2^22.
            Self::Started(_, child) => i32::try_from(child.id()).unwrap_or(i32::MAX),
        }
    }

    fn is_there(&self) -> bool {
        PathBuf::from(format!("/proc/{}", self.id())).exists()
    }

    /// Whether it still runs.
    ///
    /// # Errors
    ///
    /// [`Error::Start`] if that cannot be found out.
    pub(crate) fn runs(&mut self) -> Result<bool, Error> {
        match self {
            Self::Running(_) => Ok(self.is_there()),
            Self::Started(command, child) => match child.try_wait() {
                Ok(status) => Ok(status.is_none()),
                // It ended while it was traced, and its end was seen there.
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(false),
                Err(error) => Err(Error::Start { command: command.clone(), error }),
            },
        }
    }

    /// Waits until a started command ends, or ends it.
    pub(crate) fn finish(self, kill: bool) {
        if let Self::Started(_, mut child) = self {
            if kill {
                // It may have ended by itself.
                let _ = child.kill();
            }
            let _ = child.wait();
        }
    }
}
