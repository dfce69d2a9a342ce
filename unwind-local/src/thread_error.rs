//! Why a thread has told nothing.

use core::fmt;

/// Why there is no backtrace of another thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ThreadError {
    /// The process has no thread of this number, or no longer.
    NoSuchThread,
    /// The thread has not answered in time: it has the signal blocked, is stopped, waits in the
    /// kernel for what cannot be interrupted, or got no CPU.
    NoAnswer,
    /// [`MOST_AT_A_TIME`](crate::ThreadSignal::MOST_AT_A_TIME) requests wait for answers.
    Busy,
    /// The kernel refuses to send the signal: the thread has too many that wait.
    NotSent,
}

impl fmt::Display for ThreadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchThread => "the process has no such thread",
            Self::NoAnswer => "the thread did not answer in time",
            Self::Busy => "too many requests wait for answers",
            Self::NotSent => "the signal cannot be sent",
        })
    }
}

impl core::error::Error for ThreadError {}
