//! How much text there may be for what was read.

use std::io::{self, Write};

/// Keeps the text of a recording to a multiple of its length.
///
/// Names are written once in a recording, or in a file that it names, and printed with each
/// sample. As long as the text is short they are printed whole.
#[derive(Debug)]
pub(crate) struct Allowance<W> {
    out: W,
    /// How many bytes of text may have been written by now.
    allowed: u64,
    written: u64,
}

impl<W> Allowance<W> {
    /// Bytes of text for each byte of a record.
    pub(crate) const PER_BYTE: u64 = 64;
    /// Bytes of text that any recording may have.
    pub(crate) const START: u64 = 1 << 20;
    /// How much of a name is shown once there is too much text.
    pub(crate) const SHORT: usize = 24;
    /// How much of a name is shown at most: more than any file system or compiler has.
    pub(crate) const LONG: usize = 1 << 14;

    pub(crate) const fn new(out: W) -> Self {
        Self { out, allowed: Self::START, written: 0 }
    }

    /// Takes note of a record of `len` bytes.
    pub(crate) fn read(&mut self, len: usize) {
        let len = u64::try_from(len).unwrap_or(u64::MAX);
        self.allowed = self.allowed.saturating_add(len.saturating_mul(Self::PER_BYTE));
    }

    /// How many characters of a name may be written.
    pub(crate) const fn name_limit(&self) -> usize {
        if self.written < self.allowed { Self::LONG } else { Self::SHORT }
    }
}

impl<W: Write> Write for Allowance<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let len = self.out.write(buf)?;
        self.written = self.written.saturating_add(u64::try_from(len).unwrap_or(u64::MAX));
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
