//! What comes of a comparison of a table with call frame information.

use std::fmt;
use std::ops::Range;

/// What came of a comparison.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// Entries of the call frame information.
    pub(super) fdes: u64,
    /// Rows of it.
    pub(super) rows: u64,
    /// Bytes of code that the rows are about.
    pub(super) code_bytes: u64,
    /// Bytes of code that the table has a row for, too.
    pub(super) covered_bytes: u64,
    /// Places where both were evaluated: wherever either begins to say
    /// something else.
    pub(super) places: u64,
    pub(super) differences: u64,
    /// The first of them.
    pub(super) first_differences: Vec<Difference>,
    /// Code without a row in the table, ascending where the entries ascend.
    pub(super) missing: Vec<Uncovered>,
    /// Bytes of code that the table leaves to the signal context.
    pub(super) context_bytes: u64,
    /// What of the call frame information could not be read, first of all.
    pub(super) unreadable: Vec<Unreadable>,
    /// How much there is of that, in entries.
    pub(super) unreadable_count: u64,
}

/// Code without a row in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Uncovered {
    pub(super) range: Range<u64>,
    /// gimli's rows of it are such that every format has words for them.
    pub(super) is_plain: bool,
}

/// A place where a table and call frame information do not say the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) addr: u64,
    /// Which of CFA, RA, FP, SP and the mark of a signed RA.
    pub(super) what: Vec<&'static str>,
    pub(super) table: String,
    pub(super) frames: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, table, frames, .. } = self;
        write!(f, "{} differ: table {table}; cfi {frames}", what.join(", "))
    }
}

/// Call frame information that could not be read, or not be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unreadable {
    /// Where in the section the entry is.
    pub(super) entry: u64,
    pub(super) error: String,
}
