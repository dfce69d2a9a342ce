//! What is wrong with a table, for a walk that meets it.

use core::convert::Infallible;
use core::fmt;

use crate::addr::VirtAddr;

/// What is wrong with a table.
///
/// An error comes from [`Infallible`] so that a source that can fail joins
/// with those that cannot.
pub trait TableError: Copy + From<Infallible> {
    /// Whether nothing is wrong but that a part of the table is absent from
    /// the target's memory and may be there at another time.
    #[inline]
    fn is_not_resident(&self) -> bool {
        false
    }

    /// A number that tells the errors of this type apart, for records and other
    /// languages; it stays the same in later versions. 0, the default, where the type
    /// has no numbers.
    ///
    /// A [`Trace`](crate::Trace) keeps it of the error that ended a walk.
    #[inline]
    fn code(&self) -> u16 {
        0
    }
}

impl TableError for Infallible {}

/// What a [`Trace`](crate::Trace) keeps of the error of a table. The same lookup, of
/// `addr` in the same table, has the error itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TableFault {
    /// The address that the table was asked for: the pc of the last frame, or the last
    /// byte of the call before it.
    pub addr: VirtAddr,
    /// The error's [code](TableError::code).
    pub code: u16,
    /// Whether a part of the table is absent and may be there at another time.
    pub is_not_resident: bool,
}

impl TableFault {
    /// What is kept of an error that the lookup of `addr` had.
    #[must_use]
    pub fn new<E: TableError>(error: E, addr: VirtAddr) -> Self {
        Self { addr, code: error.code(), is_not_resident: error.is_not_resident() }
    }
}

impl From<Infallible> for TableFault {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl TableError for TableFault {
    fn is_not_resident(&self) -> bool {
        self.is_not_resident
    }

    fn code(&self) -> u16 {
        self.code
    }
}

impl fmt::Display for TableFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { addr, code, is_not_resident } = self;
        let absent = if *is_not_resident { ", a part is not resident" } else { "" };
        write!(f, "error {code} at the lookup of {addr}{absent}")
    }
}

impl core::error::Error for TableFault {}
