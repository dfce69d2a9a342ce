//! Scalars in either byte order, by `scroll`, which no other file knows.

use scroll::{Pread, ctx::TryFromCtx};

use crate::{Endian, Error, SectionOffset};

impl Endian {
    const fn scroll(self) -> scroll::Endian {
        match self {
            Self::Little => scroll::LE,
            Self::Big => scroll::BE,
        }
    }
}

/// A position in bytes that were fetched once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
    /// The section offset of the first of `bytes`.
    base: SectionOffset,
    endian: Endian,
}

impl<'a> Cursor<'a> {
    #[inline]
    pub(crate) const fn new(bytes: &'a [u8], base: SectionOffset, endian: Endian) -> Self {
        Self { bytes, pos: 0, base, endian }
    }

    /// Reads one scalar and moves past it.
    #[inline]
    pub(crate) fn read<T>(&mut self) -> Result<T, Error>
    where
        T: TryFromCtx<'a, scroll::Endian, Error = scroll::Error>,
    {
        let at = self.base.plus(self.pos);
        self.bytes.gread_with(&mut self.pos, self.endian.scroll()).map_err(|_| Error::Truncated(at))
    }
}

impl SectionOffset {
    /// The offset `bytes` further on.
    #[inline]
    pub(crate) fn plus(self, bytes: usize) -> Self {
        Self(self.0.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX)))
    }
}
