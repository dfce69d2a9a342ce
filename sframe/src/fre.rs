//! Frame row entries: how to unwind from one range of a function's code.

use core::{fmt, iter::FusedIterator};

use crate::{Endian, Error, Fde, FreType, SectionOffset, bytes::Cursor};

/// The info byte of a row.
///
/// | bits | meaning                                                     |
/// |------|-------------------------------------------------------------|
/// | 0    | CFA base: 0 FP, 1 SP; without meaning in flexible functions |
/// | 1-4  | how many words follow                                       |
/// | 5-6  | their size: 0 one byte, 1 two, 2 four                       |
/// | 7    | the return address is signed (AArch64)                      |
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FreInfo(pub u8);

impl FreInfo {
    /// Whether the CFA is an offset from SP, else from FP.
    #[must_use]
    pub const fn cfa_base_is_sp(self) -> bool {
        self.0 & 1 != 0
    }

    /// How many words follow.
    #[must_use]
    pub const fn word_count(self) -> u8 {
        self.0 >> 1 & 0xf
    }

    /// The size of a word in bytes, unless it is the reserved one.
    #[must_use]
    pub const fn word_size(self) -> Option<u8> {
        match self.0 >> 5 & 3 {
            0 => Some(1),
            1 => Some(2),
            2 => Some(4),
            _ => None,
        }
    }

    /// Whether the return address is signed.
    #[must_use]
    pub const fn mangled_ra(self) -> bool {
        self.0 & 0x80 != 0
    }
}

impl fmt::Debug for FreInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FreInfo({:#04x})", self.0)
    }
}

/// One row.
///
/// The words are sign-extended. Rows may have up to 15 of them; none has a
/// meaning behind the first six, so no more are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fre {
    /// Where the row is in the section.
    pub at: SectionOffset,
    /// Where it begins to hold, in bytes from the start of the function or
    /// block.
    pub start: u32,
    /// Its info byte.
    pub info: FreInfo,
    words: [i32; Self::MAX_WORDS],
}

impl Fre {
    /// The most words of a row that have a meaning.
    pub const MAX_WORDS: usize = 6;

    /// The words that have a meaning, at most [`MAX_WORDS`](Self::MAX_WORDS).
    #[must_use]
    pub fn words(&self) -> &[i32] {
        let count = usize::from(self.info.word_count()).min(Self::MAX_WORDS);
        self.words.get(..count).unwrap_or_default()
    }

    /// The word at `index`, if the row has it.
    #[must_use]
    #[inline]
    pub fn word(&self, index: usize) -> Option<i32> {
        self.words().get(index).copied()
    }

    /// Decodes the row at the start of `bytes`, which holds the whole of it if
    /// the section does.
    pub(crate) fn decode(
        bytes: &[u8],
        at: SectionOffset,
        kind: FreType,
        endian: Endian,
    ) -> Result<Self, Error> {
        let mut r = Cursor::new(bytes, at, endian);
        let start = match kind {
            FreType::Addr1 => r.read::<u8>()?.into(),
            FreType::Addr2 => r.read::<u16>()?.into(),
            FreType::Addr4 => r.read::<u32>()?,
        };
        let info = FreInfo(r.read()?);
        let Some(size) = info.word_size() else {
            return Err(Error::BadWordSize { at, info: info.0 });
        };
        let mut words = [0; Self::MAX_WORDS];
        for word in words.iter_mut().take(info.word_count().into()) {
            *word = match size {
                1 => r.read::<i8>()?.into(),
                2 => r.read::<i16>()?.into(),
                _ => r.read::<i32>()?,
            };
        }
        Ok(Self { at, start, info, words })
    }
}

impl fmt::Debug for Fre {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fre")
            .field("at", &self.at)
            .field("start", &self.start)
            .field("info", &self.info)
            .field("words", &self.words())
            .finish()
    }
}

/// By the info byte without its highest bit: the size in bytes of the info byte
/// and the words, or 0 where the word size is reserved.
static LEN: [u8; 128] = {
    let mut table = [0; 128];
    let mut info: u8 = 0;
    while info < 128 {
        if let Some(size) = FreInfo(info).word_size() {
            // At most 1 + 15 * 4, at an index below 128.
            #[expect(
                clippy::indexing_slicing,
                clippy::as_conversions,
                reason = "evaluated at compile time"
            )]
            {
                table[info as usize] = 1 + FreInfo(info).word_count() * size;
            }
        }
        info = info.wrapping_add(1);
    }
    table
};

/// A reason to stop a [`Scan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The row is found, or there is none.
    Done,
    /// The window ends inside the next row.
    Short,
    /// The next row has the reserved word size.
    BadWordSize(u8),
    /// The next row does not start behind the one before it.
    Unsorted,
}

/// A search for the last row that starts at or before an offset, through one
/// window of bytes after another. It looks at starts and lengths only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan {
    target: u32,
    endian: Endian,
    /// Rows not looked at.
    left: u32,
    /// Where in the window the next row starts.
    pub(crate) next: usize,
    /// Where in the window the last row starts that is not behind the target.
    pub(crate) found: Option<usize>,
    /// The least that the next row may start at.
    least: u64,
}

impl Scan {
    pub(crate) const fn new(target: u32, endian: Endian, rows: u32, next: usize) -> Self {
        Self { target, endian, left: rows, next, found: None, least: 0 }
    }

    #[inline]
    pub(crate) fn advance(&mut self, window: &[u8], kind: FreType) -> Stop {
        match kind {
            FreType::Addr1 => self.advance_by::<2>(window),
            FreType::Addr2 => self.advance_by::<3>(window),
            FreType::Addr4 => self.advance_by::<5>(window),
        }
    }

    /// `HEAD` is the size in bytes of a row's start and info byte.
    #[inline]
    fn advance_by<const HEAD: usize>(&mut self, window: &[u8]) -> Stop {
        while self.left > 0 {
            let Some(head) = window.get(self.next..).and_then(<[u8]>::first_chunk::<HEAD>) else {
                return Stop::Short;
            };
            let (start, info) = split_head(head, self.endian);
            if start > self.target {
                return Stop::Done;
            }
            if u64::from(start) < self.least {
                return Stop::Unsorted;
            }
            let len = LEN.get(usize::from(info & 0x7f)).copied().unwrap_or_default();
            if len == 0 {
                return Stop::BadWordSize(info);
            }
            self.least = u64::from(start).wrapping_add(1);
            self.found = Some(self.next);
            // The window is shorter than `isize::MAX`, a row than 66 bytes.
            self.next = self.next.wrapping_add(HEAD).wrapping_add(usize::from(len)).wrapping_sub(1);
            self.left = self.left.wrapping_sub(1);
        }
        Stop::Done
    }

    /// The window lost its first `bytes` bytes.
    pub(crate) fn slide(&mut self, bytes: usize) {
        self.next = self.next.saturating_sub(bytes);
        self.found = self.found.map(|found| found.saturating_sub(bytes));
    }
}

/// The start and the info byte of a row.
#[inline]
fn split_head<const HEAD: usize>(head: &[u8; HEAD], endian: Endian) -> (u32, u8) {
    // The length is a constant, so only one arm is left.
    match (head.as_slice(), endian) {
        (&[a, info], _) => (a.into(), info),
        (&[a, b, info], Endian::Little) => (u16::from_le_bytes([a, b]).into(), info),
        (&[a, b, info], Endian::Big) => (u16::from_be_bytes([a, b]).into(), info),
        (&[a, b, c, d, info], Endian::Little) => (u32::from_le_bytes([a, b, c, d]), info),
        (&[a, b, c, d, info], Endian::Big) => (u32::from_be_bytes([a, b, c, d]), info),
        _ => (0, 0),
    }
}

/// The rows of one function, in order of start.
///
/// After an error the iterator is at its end.
#[derive(Clone, Debug)]
pub struct Fres<'a> {
    bytes: &'a [u8],
    /// Section offset of the first of `bytes`.
    at: SectionOffset,
    kind: FreType,
    endian: Endian,
    left: u32,
    least: u64,
}

impl<'a> Fres<'a> {
    /// `bytes` starts with the function's first row, at `at`.
    pub(crate) fn new(fde: &Fde, bytes: &'a [u8], at: SectionOffset) -> Result<Self, Error> {
        Ok(Self {
            bytes,
            at,
            kind: fde.fre_type()?,
            endian: fde.dialect.endian,
            left: fde.num_fres,
            least: 0,
        })
    }

    /// Returns the next row.
    ///
    /// # Errors
    ///
    /// [`Error`] if the row is truncated, has a reserved word size or does not
    /// start behind the row before it.
    pub fn next(&mut self) -> Result<Option<Fre>, Error> {
        // Fused: `left` stays 0 unless the row is good.
        let Some(left) = core::mem::take(&mut self.left).checked_sub(1) else {
            return Ok(None);
        };
        let fre = Fre::decode(self.bytes, self.at, self.kind, self.endian)?;
        if u64::from(fre.start) < self.least {
            return Err(Error::UnsortedFres(self.at));
        }
        let len = usize::from(self.kind.width())
            .saturating_add(LEN.get(usize::from(fre.info.0 & 0x7f)).copied().unwrap_or(0).into());
        // Words behind the sixth may be cut off without `decode` noticing.
        self.bytes = self.bytes.get(len..).ok_or(Error::Truncated(self.at))?;
        self.at = self.at.plus(len);
        self.least = u64::from(fre.start).saturating_add(1);
        self.left = left;
        Ok(Some(fre))
    }
}

impl Iterator for Fres<'_> {
    type Item = Result<Fre, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        Self::next(self).transpose()
    }
}

impl FusedIterator for Fres<'_> {}
