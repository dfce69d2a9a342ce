//! Places in the source code.

use serde::{Deserialize, Serialize};

/// A place in the source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The function, as the file has its name.
    pub function: Option<String>,
    /// The path of the file, as the compiler had it.
    pub file: Option<String>,
    /// From 1.
    pub line: Option<u32>,
    /// From 1.
    pub(crate) column: Option<u32>,
}

/// What there is at one address: the innermost inlined function first, then the one that each
/// is inlined in, last the one that has code of its own. Nothing if nothing is known.
pub type Places = Vec<Place>;
