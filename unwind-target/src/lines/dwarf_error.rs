//! What the reader of DWARF says of damage.

use serde::{Deserialize, Serialize};

/// What is wrong with DWARF, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DwarfError {
    /// A section.
    Section,
    /// What is in it.
    Contents,
}

impl std::fmt::Display for DwarfError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Section => "a section of it is damaged, or larger than any known",
            Self::Contents => "it is damaged",
        })
    }
}
