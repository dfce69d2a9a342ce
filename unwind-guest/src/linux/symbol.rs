//! A symbol of a guest's kernel.

use core::fmt;

use unwind_core::VirtAddr;

/// The longest name of a symbol that Linux has.
const NAME_LEN: usize = 512;

/// A function or a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Where it begins.
    pub start: VirtAddr,
    /// Where it ends, or the next one begins.
    pub end: VirtAddr,
    /// Its kind, a letter as of `nm`; zero if it is not known.
    pub kind: u8,
    /// Its name.
    pub name: SymbolName,
}

/// The name of a symbol. A longer one is cut.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SymbolName {
    bytes: [u8; NAME_LEN],
    len: usize,
}

impl SymbolName {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; NAME_LEN], len: 0 }
    }

    /// Adds bytes, as far as there is room.
    pub(crate) fn push(&mut self, more: &[u8]) {
        let room = self.bytes.get_mut(self.len..).unwrap_or_default();
        let len = room.len().min(more.len());
        if let (Some(to), Some(from)) = (room.get_mut(..len), more.get(..len)) {
            to.copy_from_slice(from);
            self.len = self.len.saturating_add(len);
        }
    }

    /// Takes the first byte, which is no part of the name.
    pub(crate) fn take_first(&mut self) -> Option<u8> {
        let first = *self.as_bytes().first()?;
        self.bytes.rotate_left(1);
        self.len = self.len.saturating_sub(1);
        Some(first)
    }

    /// The bytes: the guest's, which may be any.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl fmt::Debug for SymbolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}
