//! What can be wrong with an image.

use core::fmt;

/// Bytes are no compact table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompactError {
    /// They do not begin with `UNWTABL1`.
    Magic,
    /// There are more or fewer than the header says.
    Length,
    /// The header has more pages or rules than an image can have, no rule, or pages after the last
    /// address; or what is reserved or pads a word is not zero.
    Header,
    /// The page index does not go from 0 to the number of rows, with a row or more for each page.
    Page {
        /// The number of the page, from the first of the image.
        page: u32,
    },
    /// The rows do not ascend within their page, the first of a page does not start at 0, or the
    /// rule of one is not there.
    Row {
        /// Its index.
        row: u32,
    },
    /// A rule that says nothing, or something other than "no row" in the first place.
    Rule {
        /// Its number.
        rule: u32,
    },
}

impl fmt::Display for CompactError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic => f.write_str("no compact table: its first bytes are others"),
            Self::Length => f.write_str("the compact table is shorter or longer than it says"),
            Self::Header => f.write_str("the header of the compact table says what none can have"),
            Self::Page { page } => write!(f, "page {page} of the compact table has no rows"),
            Self::Row { row } => write!(f, "row {row} of the compact table is malformed"),
            Self::Rule { rule } => write!(f, "rule {rule} of the compact table is malformed"),
        }
    }
}

impl core::error::Error for CompactError {}
