//! What call frame information says that a table cannot, and what is wrong
//! with it.

use core::fmt;

use unwind_cfi::CfiError;

use crate::write::lost::{Omission, OmissionReason};

/// A range of code that call frame information is about and the table is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CfiOmission {
    /// Where in the section the entry is, in bytes.
    pub entry: u64,
    /// Address of the first byte of code; 0 if the entry could not be read so
    /// far.
    pub start: u64,
    /// Length in bytes; 0 if the entry could not be read so far.
    pub size: u64,
    /// Why it is not in the table.
    pub reason: CfiOmissionReason,
}

impl CfiOmission {
    pub(crate) const fn from_table(entry: u64, lost: &Omission) -> Self {
        let reason = CfiOmissionReason::Table(lost.reason);
        Self { entry, start: lost.start, size: lost.size, reason }
    }
}

impl fmt::Display for CfiOmission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entry, start, size, reason } = *self;
        write!(f, "{size} bytes at {start:#x} (entry at {entry:#x}): {reason}")
    }
}

impl core::error::Error for CfiOmission {}

/// Why code is not in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CfiOmissionReason {
    /// The information is malformed, or says what no row can.
    Cfi(CfiError),
    /// The format of the table cannot say it.
    Table(OmissionReason),
}

const _: () = assert!(size_of::<CfiOmissionReason>() <= 40);

impl From<CfiError> for CfiOmissionReason {
    fn from(error: CfiError) -> Self {
        Self::Cfi(error)
    }
}

impl CfiOmissionReason {
    /// A short name, to count reasons by.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cfi(error) => error.name(),
            Self::Table(reason) => reason.name(),
        }
    }

    /// Whether the entry is malformed, or about nothing. All other reasons are
    /// rules that are fine and that rows, or the format, cannot say.
    #[must_use]
    pub const fn is_fault(self) -> bool {
        match self {
            Self::Cfi(error) => error.is_fault(),
            Self::Table(reason) => matches!(reason, OmissionReason::Overlap { .. }),
        }
    }
}

impl fmt::Display for CfiOmissionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cfi(error) => error.fmt(f),
            Self::Table(reason) => reason.fmt(f),
        }
    }
}
