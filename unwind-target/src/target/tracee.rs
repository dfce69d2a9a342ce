//! The three ptrace operations that need raw system calls.
//!
//! `nix` has them too, but knows no real-time signals: it fails on a thread
//! that stopped for one, after the kernel has handed the report out, and it
//! cannot pass one on.

#![expect(unsafe_code, reason = "raw system calls")]

use nix::errno::Errno;
use nix::unistd::Pid;

/// What a wait says about a traced thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// It is stopped on our behalf. A signal that was about to be delivered is
    /// held back by the stop and is to be passed on.
    Stopped {
        /// Its number, or 0.
        signal: i32,
    },
    /// It has ended, with this wait status.
    Ended(i32),
}

/// `PTRACE_EVENT_STOP`, which `PTRACE_INTERRUPT` and a group stop report.
const PTRACE_EVENT_STOP: i32 = 128;

/// Asks, without waiting, what became of a traced thread; `None` while it runs.
///
/// # Errors
///
/// `ECHILD` if this thread does not trace it, or no longer does.
pub(crate) fn poll(thread: Pid) -> Result<Option<Report>, Errno> {
    let mut status = 0;
    // SAFETY: `status` is valid for writes of an int for the whole call.
    let reported =
        unsafe { libc::waitpid(thread.as_raw(), &raw mut status, libc::__WALL | libc::WNOHANG) };
    if Errno::result(reported)? == 0 {
        return Ok(None);
    }
    Ok(Some(decode(status)))
}

fn decode(status: i32) -> Report {
    if !libc::WIFSTOPPED(status) {
        return Report::Ended(status);
    }
    // An event stop names a signal that is none, or the one that a group stop
    // has already taken in.
    let is_event = status >> 16 == PTRACE_EVENT_STOP;
    Report::Stopped { signal: if is_event { 0 } else { libc::WSTOPSIG(status) } }
}

/// Lets a stopped thread go, to continue as if it had not been stopped. `signal`
/// is the one that was held back, or 0.
///
/// # Errors
///
/// `ESRCH` if the thread is not stopped or gone.
pub(crate) fn detach(thread: Pid, signal: i32) -> Result<(), Errno> {
    let signal = usize::try_from(signal).unwrap_or(0);
    // SAFETY: PTRACE_DETACH reads and writes no memory of this process: its
    // address is ignored and its data is a number.
    let result = unsafe { libc::ptrace(libc::PTRACE_DETACH, thread.as_raw(), 0_usize, signal) };
    Errno::result(result).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_was_held_back_is_told_from_a_stop_of_ours() {
        for (status, report) in [
            // Interrupted: SIGTRAP with the event.
            (128 << 16 | 5 << 8 | 0x7f, Report::Stopped { signal: 0 }),
            // Group stop by SIGTSTP.
            (128 << 16 | 20 << 8 | 0x7f, Report::Stopped { signal: 0 }),
            // SIGUSR1 on its way.
            (10 << 8 | 0x7f, Report::Stopped { signal: 10 }),
            // The last real-time signal on its way.
            (64 << 8 | 0x7f, Report::Stopped { signal: 64 }),
            // Exit code 3, and killed by signal 9.
            (3 << 8, Report::Ended(3 << 8)),
            (9, Report::Ended(9)),
        ] {
            assert_eq!(decode(status), report, "{status:#x}");
        }
    }
}
