//! Who is recorded.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Child, Command};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::User;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use unwind_target::target::status::Status;
use unwind_target::untrusted::{escaped, plain};

use crate::engine::caller_signals::CallerSignals;
use crate::engine::existing::{all_processes, threads_of};
use crate::engine::held_child::HeldChild;

/// Processes, or all.
#[derive(Clone, Debug)]
pub enum Subject {
    Processes(Vec<i32>),
    All,
}

impl Subject {
    /// Watches its processes from now on.
    pub(crate) fn watch(&self) -> Watched {
        match self {
            Self::Processes(processes) => Watched::Processes(
                processes.iter().map(|&process| Process::watch(process)).collect(),
            ),
            Self::All => Watched::All,
        }
    }
}

/// What is watched for its end.
#[derive(Debug)]
pub(crate) enum Watched {
    Processes(Vec<Process>),
    All,
}

impl Watched {
    /// Whether any of it still runs.
    pub(crate) fn runs(&self) -> bool {
        match self {
            Self::Processes(processes) => processes.iter().any(Process::runs),
            Self::All => true,
        }
    }
}

/// A process that is watched.
#[derive(Debug)]
pub(crate) struct Process {
    number: i32,
    /// Tells when all its threads have ended: in a fiftieth of the time that its files take.
    /// Kernels before 5.3 have none.
    fd: Option<OwnedFd>,
}

impl Process {
    fn watch(number: i32) -> Self {
        let pid = Pid::from_raw(number);
        let fd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Self { number, fd }
    }

    fn runs(&self) -> bool {
        let Some(fd) = &self.fd else { return exists(self.number) };
        let mut polled = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::ZERO) == Ok(0)
    }
}

/// Whether any thread of a process runs. One that has ended stays in the list until its
/// parent has asked for it.
pub(crate) fn exists(process: i32) -> bool {
    let is_alive = |thread| Status::read(thread).is_ok_and(|status| !status.is_dead());
    threads_of(process).into_iter().any(is_alive)
}

/// The process of a thread.
#[must_use]
pub fn process_of(thread: i32) -> Option<i32> {
    let status = fs::read(format!("/proc/{thread}/status")).ok()?;
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Tgid:"))?;
    plain(line.trim_ascii())?.parse().ok()
}

/// There is no such user, or it has no process.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// There is no such user.
    #[error("there is no user {}", escaped(_0))]
    None(OsString),
    /// It has no process.
    #[error("the user {} has no process", escaped(_0))]
    Idle(OsString),
}

/// The processes of a user, by name or number, but for this one.
///
/// # Errors
///
/// [`UserError`] if there is none.
pub fn processes_of_user(user: &OsString) -> Result<Vec<i32>, UserError> {
    let text = plain(user.as_bytes());
    let number = text.and_then(|text| text.parse::<u32>().ok());
    let named = || User::from_name(text?).ok().flatten().map(|user| user.uid.as_raw());
    let number = number.or_else(named);
    let number = number.ok_or_else(|| UserError::None(user.clone()))?;
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let is_of_user = |process: &i32| {
        let folder = fs::metadata(format!("/proc/{process}"));
        *process != own && folder.is_ok_and(|folder| folder.uid() == number)
    };
    let mut processes = all_processes();
    processes.retain(is_of_user);
    match processes.is_empty() {
        true => Err(UserError::Idle(user.clone())),
        false => Ok(processes),
    }
}

/// A command that waits until its events are there.
#[derive(Debug)]
pub struct HeldCommand {
    program: OsString,
    child: HeldChild,
}

/// The command cannot be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {}: {error}", escaped(program))]
pub struct StartError {
    /// The program.
    pub program: OsString,
    /// Why not.
    #[source]
    pub error: io::Error,
}

impl HeldCommand {
    /// A command that will have `signals`.
    ///
    /// # Errors
    ///
    /// [`StartError`] if there can be no process.
    pub fn new(
        program: &OsString,
        arguments: &[OsString],
        signals: CallerSignals,
    ) -> Result<Self, StartError> {
        let mut command = Command::new(program);
        command.args(arguments);
        Self::of(command, signals)
    }

    /// This command, which will have `signals`.
    pub(crate) fn of(command: Command, signals: CallerSignals) -> Result<Self, StartError> {
        let program = command.get_program().to_owned();
        match HeldChild::start(command, signals) {
            Ok(child) => Ok(Self { program, child }),
            Err(error) => Err(StartError { program, error }),
        }
    }

    /// The process.
    #[must_use]
    pub const fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Lets it start.
    ///
    /// # Errors
    ///
    /// [`StartError`] if there is no such program, or it cannot be executed.
    pub fn go(self) -> Result<Child, StartError> {
        let Self { program, child } = self;
        child.go().map_err(|error| StartError { program, error })
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;
    use std::thread;

    use super::*;

    #[test]
    fn d14_a_process_runs_until_it_has_ended_also_if_its_parent_does_not_ask() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let number = i32::try_from(child.id()).unwrap();
        let watched = Subject::Processes(vec![number]).watch();
        let without_fd = Process { number, fd: None };
        assert!(watched.runs() && without_fd.runs());
        drop(child.stdin.take());
        while watched.runs() || without_fd.runs() {
            thread::yield_now();
        }
        assert!(child.wait().unwrap().success());
        assert!(!watched.runs() && !without_fd.runs());
        assert!(!Subject::Processes(vec![number]).watch().runs(), "it is gone");
        assert!(Subject::All.watch().runs());
    }
}
