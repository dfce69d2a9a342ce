//! Scalars in either byte order: the one place that touches raw bytes. It is not by `scroll`, since an error
//! says at which offset of a record bytes are missing, and an attr that ends early has zeros.

use super::Error;

/// The byte order of a stream: that of the machine that recorded it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endian {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl Endian {
    /// The byte order of the machine that runs this code.
    pub const NATIVE: Self = if cfg!(target_endian = "big") { Self::Big } else { Self::Little };

    /// Returns the `u16` that these bytes hold.
    #[must_use]
    pub const fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    /// Returns the `u32` that these bytes hold.
    #[must_use]
    pub const fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    /// Returns the `u64` that these bytes hold.
    #[must_use]
    pub const fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }

    /// Returns the bytes of a `u16`.
    #[must_use]
    pub const fn bytes_of_u16(self, value: u16) -> [u8; 2] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    /// Returns the bytes of a `u32`.
    #[must_use]
    pub const fn bytes_of_u32(self, value: u32) -> [u8; 4] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    /// Returns the bytes of a `u64`.
    #[must_use]
    pub const fn bytes_of_u64(self, value: u64) -> [u8; 8] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }
}

/// A length or offset inside one record: a record's size is 16 bits wide, an
/// attr's 32.
pub(super) fn offset(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// A position in the bytes of one record or attr.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    left: &'a [u8],
    /// Where `left` starts.
    at: u32,
    endian: Endian,
}

impl<'a> Cursor<'a> {
    /// A cursor on `bytes`, which start at offset `at`.
    pub(super) const fn new(bytes: &'a [u8], at: u32, endian: Endian) -> Self {
        Self { left: bytes, at, endian }
    }

    pub(super) const fn at(&self) -> u32 {
        self.at
    }

    pub(super) const fn endian(&self) -> Endian {
        self.endian
    }

    pub(super) const fn left(&self) -> &'a [u8] {
        self.left
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let Some((head, rest)) = self.left.split_first_chunk::<N>() else {
            return Err(Error::Truncated { at: self.at, needed: offset(N) });
        };
        self.left = rest;
        self.at = self.at.saturating_add(offset(N));
        Ok(*head)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Error> {
        Ok(self.endian.u16(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Error> {
        Ok(self.endian.u32(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Error> {
        Ok(self.endian.u64(self.array()?))
    }

    /// The next word, if it is there to be read.
    pub(super) fn u64_if(&mut self, asked: bool) -> Result<Option<u64>, Error> {
        asked.then(|| self.u64()).transpose()
    }

    /// The next two half words, if they are there to be read.
    pub(super) fn u32_pair_if(&mut self, asked: bool) -> Result<Option<(u32, u32)>, Error> {
        asked.then(|| Ok((self.u32()?, self.u32()?))).transpose()
    }

    /// Takes the next `len` bytes.
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let Some((head, rest)) = self.left.split_at_checked(len) else {
            return Err(Error::Truncated { at: self.at, needed: offset(len) });
        };
        self.left = rest;
        self.at = self.at.saturating_add(offset(len));
        Ok(head)
    }

    /// Takes a count and that many words.
    pub(super) fn counted_words(&mut self) -> Result<Words<'a>, Error> {
        let at = self.at;
        let count = self.u64()?;
        let room = self.left.len().checked_div(WORD).unwrap_or(0);
        let len = usize::try_from(count).ok().filter(|&count| count <= room);
        let Some(len) = len.and_then(|count| count.checked_mul(WORD)) else {
            return Err(Error::BadCount { at, room: offset(room), count });
        };
        Ok(Words { bytes: self.take(len)?, endian: self.endian })
    }

    /// Checks that every byte was taken.
    pub(super) fn finish(self) -> Result<(), Error> {
        match self.left.len() {
            0 => Ok(()),
            len => Err(Error::Trailing { at: self.at, len: offset(len) }),
        }
    }
}

/// Bytes in a word.
const WORD: usize = size_of::<u64>();

/// The words of a stack or call chain, in place.
///
/// An iterator over them, innermost frame first. Copying it starts a second
/// walk at the same place.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a> {
    /// A whole number of words.
    bytes: &'a [u8],
    endian: Endian,
}

impl<'a> Words<'a> {
    /// The words in `bytes`; an odd rest is left out.
    #[must_use]
    pub fn new(bytes: &'a [u8], endian: Endian) -> Self {
        let whole = bytes.len() & !(WORD - 1);
        Self { bytes: bytes.get(..whole).unwrap_or_default(), endian }
    }

    /// Returns the word at `index`, counted from the innermost.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<u64> {
        let at = index.checked_mul(WORD)?;
        self.bytes.get(at..)?.first_chunk().map(|&word| self.endian.u64(word))
    }

    /// Returns whether no word is left.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes as they were recorded.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The byte order of [`as_bytes`](Self::as_bytes).
    #[must_use]
    pub const fn endian(&self) -> Endian {
        self.endian
    }

    /// The words without the last one.
    pub(super) fn without_last(self) -> Self {
        let len = self.bytes.len().saturating_sub(WORD);
        Self { bytes: self.bytes.get(..len).unwrap_or_default(), endian: self.endian }
    }
}

impl Iterator for Words<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let (word, rest) = self.bytes.split_first_chunk::<WORD>()?;
        self.bytes = rest;
        Some(self.endian.u64(*word))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = self.bytes.len().checked_div(WORD).unwrap_or(0);
        (len, Some(len))
    }

    fn count(self) -> usize {
        self.len()
    }
}

impl DoubleEndedIterator for Words<'_> {
    fn next_back(&mut self) -> Option<u64> {
        let (rest, word) = self.bytes.split_last_chunk::<WORD>()?;
        self.bytes = rest;
        Some(self.endian.u64(*word))
    }
}

impl ExactSizeIterator for Words<'_> {}

impl core::iter::FusedIterator for Words<'_> {}
