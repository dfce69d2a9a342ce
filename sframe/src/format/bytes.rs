//! Scalars in either byte order, by `scroll`, which no other file knows. The fast reader takes an entry as an
//! array, whose parts need no check.

use scroll::{Pread, ctx::TryFromCtx};

/// Byte order of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endian {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl Endian {
    const fn scroll(self) -> scroll::Endian {
        match self {
            Self::Little => scroll::LE,
            Self::Big => scroll::BE,
        }
    }

    #[inline]
    pub(crate) const fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    #[inline]
    pub(crate) const fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    /// A signed number of one byte, two or four.
    #[inline]
    pub(crate) const fn signed(self, bytes: &[u8]) -> i32 {
        // As the highest bytes of a word, so that a shift extends the sign.
        match *bytes {
            [a] => self.i32([a; 4]) >> 24,
            [a, b] => self.i32([a, b, a, b]) >> 16,
            [a, b, c, d] => self.i32([a, b, c, d]),
            _ => 0,
        }
    }

    #[inline]
    const fn i32(self, bytes: [u8; 4]) -> i32 {
        match self {
            Self::Little => i32::from_le_bytes(bytes),
            Self::Big => i32::from_be_bytes(bytes),
        }
    }
}

/// The fields of an item that was fetched whole, in order. After its end there
/// are zeros, which no caller reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    bytes: &'a [u8],
    pos: usize,
    endian: Endian,
}

impl<'a> Fields<'a> {
    #[inline(always)]
    pub(crate) const fn new(bytes: &'a [u8], endian: Endian) -> Self {
        Self { bytes, pos: 0, endian }
    }

    #[inline(always)]
    fn next<T>(&mut self) -> T
    where
        T: TryFromCtx<'a, scroll::Endian, Error = scroll::Error> + Default,
    {
        self.bytes.gread_with(&mut self.pos, self.endian.scroll()).unwrap_or_default()
    }

    #[inline(always)]
    pub(crate) fn u8(&mut self) -> u8 {
        self.next()
    }

    #[inline(always)]
    pub(crate) fn u16(&mut self) -> u16 {
        self.next()
    }

    #[inline(always)]
    pub(crate) fn u32(&mut self) -> u32 {
        self.next()
    }
}
