//! Forms of tables, by the names that the user gives them.

use std::fmt;

use clap::ValueEnum;
use serde::Serialize;
use sframe::Format;

/// A form that tables are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FormatArg {
    /// Version 2, function starts relative to the section (GNU ld 2.41 to 2.44).
    V2,
    /// Version 2 with errata 1, starts relative to their field (GNU ld 2.45).
    V2Pcrel,
    /// Version 3 (GNU ld 2.46 on).
    V3,
}

impl FormatArg {
    pub(crate) const fn format(self) -> Format {
        match self {
            Self::V2 => Format::V2,
            Self::V2Pcrel => Format::V2Pcrel,
            Self::V3 => Format::V3,
        }
    }
}

impl fmt::Display for FormatArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V2 => "v2",
            Self::V2Pcrel => "v2-pcrel",
            Self::V3 => "v3",
        })
    }
}
