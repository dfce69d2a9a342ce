//! A command that is started but waits before it executes anything, so that events can be
//! opened for it.

#![expect(unsafe_code, reason = "code that runs between fork and exec")]

use std::io::{self, PipeWriter, Read as _, Write as _, pipe};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::thread::{self, JoinHandle};

use crate::engine::caller_signals::CallerSignals;

/// A process that waits to become a command. If this is dropped, it ends.
#[derive(Debug)]
pub(crate) struct HeldChild {
    pid: i32,
    /// What it waits for: a byte says that it shall continue.
    gate: Option<PipeWriter>,
    /// The one that started it, which waits until it executes the command.
    starter: Option<JoinHandle<io::Result<Child>>>,
}

impl HeldChild {
    /// Starts a process that waits. The command will have `signals`.
    ///
    /// # Errors
    ///
    /// What the system refuses the process with.
    pub(crate) fn start(mut command: Command, signals: CallerSignals) -> io::Result<Self> {
        let (mut passed, gate) = pipe()?;
        let (mut told, mut tells) = pipe()?;
        let gate_fd = gate.as_raw_fd();
        let wait = move || {
            // Its own copy would keep the pipe open when this program has ended.
            // SAFETY: nothing else in this process uses the number.
            unsafe { libc::close(gate_fd) };
            tells.write_all(&std::process::id().to_ne_bytes())?;
            if passed.read_exact(&mut [0]).is_err() {
                // It was given up. An error would be told to a parent that may be gone.
                // SAFETY: the process has one thread, and nothing to do at its end.
                unsafe { libc::_exit(NOT_STARTED) }
            }
            signals.restore()
        };
        // SAFETY: the closure makes system calls alone: no lock, no allocation.
        unsafe { command.pre_exec(wait) };
        // The command, which has the other ends of the pipes, goes with the thread.
        let starter = thread::Builder::new().spawn(move || command.spawn())?;
        let mut pid = [0; 4];
        if let Err(error) = told.read_exact(&mut pid) {
            // There is no process.
            let started = starter.join().map_err(|_| io::ErrorKind::Other)?;
            return Err(started.err().unwrap_or(error));
        }
        let pid = i32::from_ne_bytes(pid);
        Ok(Self { pid, gate: Some(gate), starter: Some(starter) })
    }

    pub(crate) const fn pid(&self) -> i32 {
        self.pid
    }

    /// Lets it execute the command.
    ///
    /// # Errors
    ///
    /// Why the command cannot be executed.
    pub(crate) fn go(mut self) -> io::Result<Child> {
        if let Some(mut gate) = self.gate.take() {
            gate.write_all(&[1])?;
        }
        self.started()
    }

    /// What became of it, once it executes the command or has ended.
    fn started(&mut self) -> io::Result<Child> {
        let starter = self.starter.take().ok_or(io::ErrorKind::NotFound)?;
        starter.join().map_err(|_| io::ErrorKind::Other)?
    }
}

impl Drop for HeldChild {
    fn drop(&mut self) {
        // It ends when nobody can let it continue any more.
        self.gate = None;
        if let Ok(mut child) = self.started() {
            let _ = child.wait();
        }
    }
}

/// The exit code of a process that was not let execute its command.
const NOT_STARTED: i32 = 127;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn start(command: Command) -> HeldChild {
        HeldChild::start(command, CallerSignals::of_this_thread(false)).unwrap()
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn d14_a_held_command_executes_nothing_until_it_may() {
        let held = start(shell("exit 7"));
        let (pid, name) = (held.pid(), format!("/proc/{}/comm", held.pid()));
        assert_ne!(std::fs::read_to_string(&name).unwrap(), "sh\n");
        let mut child = held.go().unwrap();
        assert_eq!(i32::try_from(child.id()), Ok(pid));
        assert_eq!(child.wait().unwrap().code(), Some(7));
    }

    #[test]
    fn d14_a_command_that_is_not_there_says_so_when_it_may_start() {
        let held = start(Command::new("/no/such"));
        assert_eq!(held.go().unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn d14_s1_a_held_command_that_is_dropped_has_ended() {
        let held = start(shell("exit 0"));
        let process = format!("/proc/{}", held.pid());
        assert!(Path::new(&process).exists());
        drop(held);
        assert!(!Path::new(&process).exists());
    }
}
