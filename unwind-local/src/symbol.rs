//! The names of frames.

use core::fmt;
use std::format;
use std::path::PathBuf;
use std::string::String;
use std::vec::Vec;

use unwind_core::FramePc;

/// A function that a frame is in, by the symbols and the debug information of its object.
///
/// Shown as its name and, where that is known, the place in the source. What is not
/// printable is escaped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Symbol {
    /// Its name, demangled; `None` if there is no symbol.
    pub name: Option<String>,
    /// The source file, as the debug information names it.
    pub file: Option<PathBuf>,
    /// The line in that file, from 1 on.
    pub line: Option<u32>,
}

impl Symbol {
    /// The functions at an address: the last one is that of the frame, those before it were
    /// inlined into the one after them. Empty if nothing is known of the address.
    ///
    /// Not for signal handlers: it locks, allocates and reads files. Handlers keep addresses.
    #[must_use]
    pub fn find_all(pc: FramePc) -> Vec<Self> {
        let mut found = Vec::new();
        // It takes addresses for return addresses, and looks just before them.
        let return_address = pc.lookup_addr().get().wrapping_add(1);
        let addr = usize::try_from(return_address).unwrap_or(0);
        backtrace::resolve(core::ptr::without_provenance_mut(addr), |symbol| {
            found.push(Self {
                name: symbol.name().map(|name| format!("{name:#}")),
                file: symbol.filename().map(PathBuf::from),
                line: symbol.lineno(),
            });
        });
        found
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().unwrap_or("[no symbol]");
        write!(f, "{}", Escaped(name))?;
        let Some(file) = &self.file else { return Ok(()) };
        write!(f, " at {}", Escaped(&file.to_string_lossy()))?;
        self.line.map_or(Ok(()), |line| write!(f, ":{line}"))
    }
}

/// Text of which all that is not printable is escaped.
struct Escaped<'s>(&'s str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|char| match char {
            '"' | '\'' => write!(f, "{char}"),
            _ => write!(f, "{}", char.escape_debug()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString as _;

    use super::*;

    #[test]
    fn what_is_not_printable_is_escaped() {
        let symbol = Symbol {
            name: Some("core::<f as 'a>::\u{1b}[2J\u{202e}\n".into()),
            file: Some("a b\r.rs".into()),
            line: Some(7),
        };
        assert_eq!(symbol.to_string(), "core::<f as 'a>::\\u{1b}[2J\\u{202e}\\n at a b\\r.rs:7");
        assert_eq!(Symbol::default().to_string(), "[no symbol]");
    }
}
