//! What a validation finds, and where.

use core::fmt;

use crate::error::{Error, TableOffset};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// Legal, seen in the output of tools, and without harm to lookups.
    Note,
    /// Against the format: something cannot be found, or is found wrong.
    Error,
}

/// What is unusual about a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// A function or row is malformed.
    Malformed(Error),
    /// The table says that it is sorted, but the function starts before the one
    /// before it.
    UnsortedFde(TableOffset),
    /// The function covers code that another one covers, too.
    Overlap {
        /// Where the function's entry is.
        at: TableOffset,
        /// The index of the other function.
        other: u32,
    },
    /// The functions' rows are not as many as the header says.
    FreCount {
        /// By the header.
        header: u32,
        /// By the functions.
        found: u64,
    },
    /// Functions share rows so often that they were not all looked at.
    TooManyRows(TableOffset),
    /// The rows are for an ABI that is not known: no one can use them.
    UnknownAbi(u8),
    /// The row has the RA where no call leaves one: computed from SP or the CFA,
    /// or nowhere on a CPU without a link register. A walk ends there.
    ImpossibleRa(TableOffset),

    /// The functions' rows do not fill the bytes that the header says.
    FreBytes {
        /// By the header.
        header: u32,
        /// By the functions.
        found: u64,
    },
    /// A function of size zero starts where another one starts, or inside it.
    EmptyNeighbour {
        /// Where the entry of the function of size zero is.
        at: TableOffset,
        /// The index of the other function.
        other: u32,
    },
    /// The row starts at or after the end of its function or block: no address
    /// has it.
    RowPastEnd {
        /// Where the row is.
        at: TableOffset,
        /// Where it starts to hold.
        start: u32,
    },
    /// The first row does not start where its function does.
    LateFirstRow {
        /// Where the row is.
        at: TableOffset,
        /// Where it starts to hold.
        start: u32,
    },
    /// The function has no rows, which means nothing before V3.
    NoRows(TableOffset),
    /// The row has more words than its ABI gives a meaning.
    SurplusWords {
        /// Where the row is.
        at: TableOffset,
        /// How many words it has.
        count: u8,
    },
    /// The row says that the RA is signed, on a CPU that does not sign.
    SignedRa(TableOffset),
    /// The row has the RA in FP, where a walk looks for it only in the first
    /// frame and in one that a signal interrupted.
    RaInFp(TableOffset),
    /// Bits without a meaning are set in an info byte of the function.
    ReservedBits(TableOffset),
}

impl Violation {
    /// How bad it is.
    #[must_use]
    pub const fn severity(self) -> Severity {
        match self {
            Self::Malformed(_)
            | Self::UnsortedFde(_)
            | Self::Overlap { .. }
            | Self::FreCount { .. }
            | Self::TooManyRows(_)
            | Self::UnknownAbi(_)
            | Self::ImpossibleRa(_) => Severity::Error,
            Self::FreBytes { .. }
            | Self::EmptyNeighbour { .. }
            | Self::RowPastEnd { .. }
            | Self::LateFirstRow { .. }
            | Self::NoRows(_)
            | Self::SurplusWords { .. }
            | Self::SignedRa(_)
            | Self::RaInFp(_)
            | Self::ReservedBits(_) => Severity::Note,
        }
    }

    /// Where in the section it is.
    #[must_use]
    pub const fn at(self) -> TableOffset {
        match self {
            Self::Malformed(error) => error.at(),
            Self::UnknownAbi(_) => TableOffset(0x04),
            Self::FreCount { .. } => TableOffset(0x0c),
            Self::FreBytes { .. } => TableOffset(0x10),
            Self::UnsortedFde(at)
            | Self::TooManyRows(at)
            | Self::NoRows(at)
            | Self::ImpossibleRa(at)
            | Self::SignedRa(at)
            | Self::RaInFp(at)
            | Self::ReservedBits(at)
            | Self::Overlap { at, .. }
            | Self::EmptyNeighbour { at, .. }
            | Self::RowPastEnd { at, .. }
            | Self::LateFirstRow { at, .. }
            | Self::SurplusWords { at, .. } => at,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Malformed(error) = self {
            return error.fmt(f);
        }
        write!(f, "{}: ", self.at())?;
        match *self {
            Self::Malformed(_) => Ok(()),
            Self::UnsortedFde(_) => f.write_str("the function starts before the one before it"),
            Self::Overlap { other, .. } => write!(f, "the function overlaps function {other}"),
            Self::FreCount { header, found } => {
                write!(f, "the functions have {found} rows, not {header}")
            }
            Self::TooManyRows(_) => f.write_str("too many functions share rows to look at them"),
            Self::UnknownAbi(abi) => write!(f, "no unwinder knows the rows of abi {abi}"),
            Self::ImpossibleRa(_) => f.write_str("no call leaves its return address there"),
            Self::FreBytes { header, found } => {
                write!(f, "the functions' rows take {found:#x} bytes, not {header:#x}")
            }
            Self::EmptyNeighbour { other, .. } => {
                write!(f, "the function of size zero starts in function {other}")
            }
            Self::RowPastEnd { start, .. } => {
                write!(f, "the row starts at +{start:#x}, past all code")
            }
            Self::LateFirstRow { start, .. } => write!(f, "the first row starts at +{start:#x}"),
            Self::NoRows(_) => f.write_str("the function has no rows"),
            Self::SurplusWords { count, .. } => write!(f, "not all {count} words have a meaning"),
            Self::SignedRa(_) => f.write_str("the cpu does not sign return addresses"),
            Self::RaInFp(_) => f.write_str("the return address is in the frame pointer"),
            Self::ReservedBits(_) => f.write_str("reserved bits in the function's info are set"),
        }
    }
}

/// One finding of a validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnostic {
    /// What it is.
    pub fault: Violation,
    /// The index of the function that it is about; `None` for the whole table.
    pub function: Option<u32>,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.function {
            Some(index) => write!(f, "function {index}: {}", self.fault),
            None => self.fault.fmt(f),
        }
    }
}

impl core::error::Error for Diagnostic {}

/// What a validation looked at and found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Functions.
    pub functions: u32,
    /// Rows, of all functions together.
    pub rows: u64,
    /// Findings that are against the format.
    pub errors: u64,
    /// Findings that are not.
    pub notes: u64,
    /// Whether overlaps of functions were looked for: they are not in a table
    /// that is not sorted unless the buffer has room for all functions.
    pub overlaps_checked: bool,
}
