//! What Linux calls an error.

use core::fmt;

/// The errors that `perf_event_open` and its relatives can give back, for a
/// host that speaks Linux's interface. Each error type of this crate says
/// which of them it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Errno {
    /// `E2BIG`: the attr has a size or fields that the kernel does not know.
    TooBig,
    /// `EACCES`: the caller lacks a right.
    AccessDenied,
    /// `EOVERFLOW`: the call chain is to be longer than the system's limit.
    Overflow,
    /// `ESRCH`: the task is exiting.
    NoSuchProcess,
    /// `ENOMEM`: no memory, or a fixed capacity is used up.
    NoMemory,
    /// `EBUSY`: all places for clients are taken.
    Busy,
    /// `EINVAL`: what was asked for makes no sense.
    InvalidArgument,
    /// `EDEADLK`: the caller would wait for itself.
    WouldDeadlock,
    /// `EOPNOTSUPP`: the PMU cannot do it.
    NotSupported,
}

impl Errno {
    /// Linux's number of the error on x86, positive.
    #[must_use]
    pub const fn number(self) -> i32 {
        match self {
            Self::NoSuchProcess => 3,
            Self::TooBig => 7,
            Self::AccessDenied => 13,
            Self::Overflow => 75,
            Self::NoMemory => 12,
            Self::Busy => 16,
            Self::InvalidArgument => 22,
            Self::WouldDeadlock => 35,
            Self::NotSupported => 95,
        }
    }

    /// Linux's name of the error.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoSuchProcess => "ESRCH",
            Self::TooBig => "E2BIG",
            Self::AccessDenied => "EACCES",
            Self::Overflow => "EOVERFLOW",
            Self::NoMemory => "ENOMEM",
            Self::Busy => "EBUSY",
            Self::InvalidArgument => "EINVAL",
            Self::WouldDeadlock => "EDEADLK",
            Self::NotSupported => "EOPNOTSUPP",
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
