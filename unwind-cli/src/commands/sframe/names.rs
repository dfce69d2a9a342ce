//! The names of functions, by the symbols of their file.

use std::fmt;

use unwind_target::elf::ElfFile;
use unwind_target::symbols::Symbols;
use unwind_target::{ElfError, Untrusted};

use crate::commands::sframe::code::SHOWN_NAME;

/// How many bytes of a name are read. Tables may have a function for each 16 bytes,
/// and names may share theirs.
const READ_NAME: u64 = 1024;

/// The names of a file's functions.
#[derive(Debug)]
pub(crate) struct Names<'a> {
    symbols: Option<(Symbols, &'a ElfFile)>,
    /// Why there are none, if that is a fault.
    pub(crate) error: Option<ElfError>,
}

/// The name of the function at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) text: Untrusted,
    /// How far into that function the address is.
    pub(crate) offset: u64,
}

impl<'a> Names<'a> {
    /// Of no file.
    pub(crate) const NONE: Self = Self { symbols: None, error: None };

    /// Those of a file. Damaged symbols are no names.
    pub(crate) fn read(file: &'a ElfFile) -> Self {
        match Symbols::read(file) {
            Ok(symbols) => Self { symbols: Some((symbols, file)), error: None },
            Err(error) => Self { symbols: None, error: Some(error) },
        }
    }

    /// Whether names were asked for, and can be read.
    pub(crate) fn are_shown(&self) -> bool {
        self.symbols.is_some()
    }

    /// The name at an address.
    pub(crate) fn at(&self, addr: u64) -> Option<Name> {
        let (symbols, file) = self.symbols.as_ref()?;
        let function = symbols.find_within(file, addr, READ_NAME)?;
        Some(Name { text: function.name, offset: addr.wrapping_sub(function.start) })
    }

    /// Where functions of a name start: as the file has the name or, if none is
    /// called so, demangled.
    pub(crate) fn starts_of(&self, name: &[u8]) -> Vec<u64> {
        let Some((symbols, file)) = &self.symbols else { return Vec::new() };
        let found = symbols.named(file, name, READ_NAME);
        found.into_iter().map(|function| function.start).collect()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.text.escaped().at_most(SHOWN_NAME))?;
        match self.offset {
            0 => Ok(()),
            offset => write!(f, "+{offset:#x}"),
        }
    }
}
