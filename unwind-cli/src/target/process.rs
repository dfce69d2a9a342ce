//! A live process: all its threads held still by ptrace, and let go unharmed.
//!
//! Threads are seized, not attached to: no signal is sent, so none is left
//! behind, and if this program dies the kernel lets every thread go on by
//! itself. A process that was stopped before stays stopped; a system call that
//! the stop interrupts goes on; a signal that arrives meanwhile is delivered
//! when the process is let go.

use std::collections::BTreeSet;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

use crate::error::Error;
use crate::target::registers::UserRegisters;
use crate::target::status::Status;
use crate::target::tracee::{self, Report};

/// How long all threads together may take to stop. One that sleeps where
/// signals cannot wake it, such as the parent in `vfork`, does not stop at all.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// A process whose threads are stopped for as long as this value lives.
#[derive(Debug)]
pub(crate) struct StoppedProcess {
    process: Pid,
    threads: Vec<StoppedThread>,
    /// Threads that did not stop, in order of id.
    unstoppable: Vec<i32>,
}

/// One thread of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoppedThread {
    id: Pid,
    /// The signal to pass on when it is let go, or 0.
    signal: i32,
}

impl StoppedProcess {
    /// Stops all threads of the process that has `task` as its id or as that of
    /// one of its threads.
    ///
    /// # Errors
    ///
    /// [`Error`] if there is no such process, if it may not be traced, or if
    /// none of its threads could be stopped.
    pub(crate) fn stop(task: i32) -> Result<Self, Error> {
        let status = Status::read(task).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::NoSuchProcess(task),
            _ => Error::Read { path: format!("/proc/{task}/status").into(), error },
        })?;
        if status.is_kernel_thread {
            return Err(Error::KernelThread(task));
        }
        let mut stopped = Self {
            process: Pid::from_raw(status.process),
            threads: Vec::new(),
            unstoppable: Vec::new(),
        };
        stopped.stop_all_threads()?;
        stopped.threads.sort_unstable_by_key(|thread| thread.id);
        if !stopped.threads.is_empty() {
            return Ok(stopped);
        }
        Err(match stopped.unstoppable.first() {
            Some(_) => Error::Unstoppable(status.process),
            None => Error::Ended(status.process),
        })
    }

    /// The id of the process.
    pub(crate) const fn id(&self) -> i32 {
        self.process.as_raw()
    }

    /// The ids of the stopped threads, ascending.
    pub(crate) fn threads(&self) -> impl Iterator<Item = Pid> {
        self.threads.iter().map(|thread| thread.id)
    }

    /// The ids of the threads that run on because they could not be stopped.
    pub(crate) fn unstoppable(&self) -> &[i32] {
        &self.unstoppable
    }

    /// The registers of a stopped thread; `None` if it was killed meanwhile.
    pub(crate) fn registers(thread: Pid) -> Option<UserRegisters> {
        ptrace::getregs(thread).ok().map(|regs| UserRegisters::from_ptrace(&regs))
    }

    /// Stops threads until a look at the list finds no other. All that were
    /// found before are stopped then, so no further one can come.
    fn stop_all_threads(&mut self) -> Result<(), Error> {
        let deadline = Instant::now().checked_add(STOP_TIMEOUT);
        let mut seen = BTreeSet::new();
        loop {
            let found = self.list_threads()?;
            let fresh: Vec<_> = found.into_iter().filter(|&thread| seen.insert(thread)).collect();
            if fresh.is_empty() {
                return Ok(());
            }
            let mut seized = Vec::new();
            for thread in fresh {
                if self.seize(thread)? {
                    seized.push(thread);
                }
            }
            self.wait_for_stops(seized, deadline);
        }
    }

    fn list_threads(&self) -> Result<Vec<Pid>, Error> {
        let path = format!("/proc/{}/task", self.process);
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::Read { path: path.into(), error }),
        };
        // An entry that cannot be read is a thread that has ended.
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter_map(|name| name.parse().ok().map(Pid::from_raw)).collect())
    }

    /// Begins to trace a thread and asks it to stop; `false` if it has ended.
    fn seize(&self, thread: Pid) -> Result<bool, Error> {
        match ptrace::seize(thread, ptrace::Options::empty()) {
            Ok(()) => Ok(ptrace::interrupt(thread).is_ok()),
            Err(Errno::ESRCH) => Ok(false),
            Err(errno) => match Status::read(thread.as_raw()) {
                Err(_) => Ok(false),
                // The first thread may end before the others.
                Ok(status) if status.is_dead() => Ok(false),
                Ok(status) => Err(self.refusal(status, errno)),
            },
        }
    }

    /// Why the kernel does not let us trace a thread.
    fn refusal(&self, status: Status, errno: Errno) -> Error {
        let process = self.id();
        let own = i32::try_from(std::process::id()).ok();
        if own == Some(process) {
            Error::OwnProcess
        } else if status.tracer != 0 {
            // It is a thread that traces.
            let tracer = Status::read(status.tracer).map_or(status.tracer, |tracer| tracer.process);
            Error::AlreadyTraced { process, tracer }
        } else if errno == Errno::EPERM {
            Error::NotPermitted { process, owner: status.user, ptrace_scope: ptrace_scope() }
        } else {
            Error::Trace { process, errno }
        }
    }

    /// Waits until each thread has stopped or ended, or until the deadline.
    fn wait_for_stops(&mut self, mut waiting: Vec<Pid>, deadline: Option<Instant>) {
        let mut pause = Duration::from_micros(20);
        loop {
            waiting.retain(|&thread| match tracee::poll(thread) {
                Ok(None) => true,
                Ok(Some(Report::Stopped { signal })) => {
                    self.threads.push(StoppedThread { id: thread, signal });
                    false
                }
                Ok(Some(Report::Ended(_))) | Err(_) => false,
            });
            if waiting.is_empty() {
                return;
            }
            if deadline.is_none_or(|deadline| Instant::now() >= deadline) {
                self.unstoppable.extend(waiting.iter().map(|thread| thread.as_raw()));
                self.unstoppable.sort_unstable();
                return;
            }
            sleep(pause);
            pause = pause.saturating_mul(2).min(Duration::from_millis(2));
        }
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        for thread in &self.threads {
            // A thread that is gone needs no more. One that could not be
            // stopped is let go by the kernel when this program ends.
            let _ = tracee::detach(thread.id, thread.signal);
        }
    }
}

/// The value of `kernel.yama.ptrace_scope`, where the kernel has it.
fn ptrace_scope() -> Option<u8> {
    let text = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?;
    text.trim().parse().ok()
}
