//! What the operating system said, in a form that can be copied, compared and kept.

use std::fmt;
use std::io;

use nix::errno::Errno;

/// Why the operating system could not do something.
///
/// An [`io::Error`] can be neither copied nor compared, and an [`io::ErrorKind`] alone has no
/// words for many of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SystemError {
    /// By its number.
    Number(i32),
    /// The standard library found it out by itself.
    Kind(io::ErrorKind),
}

impl SystemError {
    /// The kind that exit codes are made of.
    #[must_use]
    pub fn kind(self) -> io::ErrorKind {
        io::Error::from(self).kind()
    }
}

impl From<io::Error> for SystemError {
    fn from(error: io::Error) -> Self {
        error.raw_os_error().map_or(Self::Kind(error.kind()), Self::Number)
    }
}

impl From<Errno> for SystemError {
    fn from(errno: Errno) -> Self {
        io::Error::from(errno).into()
    }
}

impl From<SystemError> for io::Error {
    fn from(error: SystemError) -> Self {
        match error {
            SystemError::Number(number) => Self::from_raw_os_error(number),
            SystemError::Kind(kind) => kind.into(),
        }
    }
}

impl fmt::Display for SystemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from(*self).fmt(f)
    }
}
