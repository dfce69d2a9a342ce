//! Frame row entries: how to unwind from one range of a function's code.

use crate::sign::Signed;
use core::{fmt, iter::FusedIterator};

use crate::{
    error::{Error, TableOffset},
    format::{
        bytes::Endian,
        fde::{Fde, FreType},
    },
};

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
            3 => None,
            log => Some(1 << log),
        }
    }

    /// The size of the words in bytes, 0 if theirs is the reserved one.
    pub(crate) fn words_len(self) -> usize {
        usize::from(self.word_size().unwrap_or(0).wrapping_mul(self.word_count()))
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
/// meaning after the first six, so no more are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fre {
    /// Where the row is in the section.
    pub at: TableOffset,
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

    /// The size in bytes of the row, the start of which is of this width.
    pub(crate) fn len(&self, kind: FreType) -> usize {
        self.info.words_len().saturating_add(kind.width().into()).saturating_add(1)
    }

    /// Decodes the row at the start of `bytes`, which holds the whole of it if
    /// the section does.
    #[inline(never)]
    pub(crate) fn decode(
        bytes: &[u8],
        at: TableOffset,
        kind: FreType,
        endian: Endian,
    ) -> Result<Self, Error> {
        let truncated = Error::Truncated(at);
        let (start, rest) = bytes.split_at_checked(kind.width().into()).ok_or(truncated)?;
        let (&info, mut rest) = rest.split_first().ok_or(truncated)?;
        let info = FreInfo(info);
        let Some(size) = info.word_size() else {
            return Err(Error::BadWordSize { at, info: info.0 });
        };
        let mut words = [0; Self::MAX_WORDS];
        for index in 0..info.word_count() {
            let (first, after) = rest.split_at_checked(size.into()).ok_or(truncated)?;
            if let Some(word) = words.get_mut(usize::from(index)) {
                *word = endian.signed(first);
            }
            rest = after;
        }
        let start = endian.signed(start).unsigned() & kind.mask();
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

/// The start and the info byte of a row.
#[inline]
pub(crate) fn split_head<const HEAD: usize>(head: &[u8; HEAD], endian: Endian) -> (u32, u8) {
    // The length is a constant, so only one arm is left.
    match *head.as_slice() {
        [a, info] => (a.into(), info),
        [a, b, info] => (endian.u16([a, b]).into(), info),
        [a, b, c, d, info] => (endian.u32([a, b, c, d]), info),
        _ => (0, 0),
    }
}

/// The rows of one function, in order of start.
///
/// After an error the iterator is at its end.
#[derive(Clone, Debug)]
pub struct Fres<'a> {
    bytes: &'a [u8],
    /// Table offset of the first of `bytes`.
    at: TableOffset,
    kind: FreType,
    endian: Endian,
    left: u32,
    least: u64,
}

impl<'a> Fres<'a> {
    /// `bytes` starts with the function's first row, at `at`.
    pub(crate) fn new(fde: &Fde, bytes: &'a [u8], at: TableOffset) -> Result<Self, Error> {
        Ok(Self {
            bytes,
            at,
            kind: fde.fre_type()?,
            endian: fde.dialect.endian,
            left: fde.num_fres,
            least: 0,
        })
    }

    /// The bytes from the next row to the section's end.
    pub(crate) const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the next row.
    ///
    /// # Errors
    ///
    /// [`Error`] if the row is truncated, has a reserved word size or does not
    /// start after the row before it.
    pub fn next(&mut self) -> Result<Option<Fre>, Error> {
        // Fused: `left` stays 0 unless the row is good.
        let Some(left) = core::mem::take(&mut self.left).checked_sub(1) else {
            return Ok(None);
        };
        let fre = Fre::decode(self.bytes, self.at, self.kind, self.endian)?;
        if u64::from(fre.start) < self.least {
            return Err(Error::UnsortedFres(self.at));
        }
        let len = fre.len(self.kind);
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

/// The rows of a function, for tests: `push %rbp; mov %rsp,%rbp; ...; pop %rbp; ret`.
#[cfg(test)]
pub(crate) const PROLOGUE: [u8; 15] = [
    0x00, 0x03, 8, // +0: CFA = SP+8
    0x01, 0x05, 16, 0xf0, // +1: CFA = SP+16, FP at CFA-16
    0x04, 0x04, 16, 0xf0, // +4: CFA = FP+16, FP at CFA-16
    0x20, 0x05, 8, 0xf0, // +32: CFA = SP+8, FP at CFA-16
];

/// One row of each width, in some byte order.
#[cfg(test)]
type RowsOfEachWidth = (Endian, [(FreType, &'static [u8]); 3]);

/// One row in each order and width of start and words, for tests: start 1, words -2 and 3,
/// of the width that the row type and the info say.
#[cfg(test)]
pub(crate) const ROWS_OF_EACH_WIDTH: [RowsOfEachWidth; 2] = [
    (
        Endian::Little,
        [
            (FreType::Addr1, &[1, 0x05, 0xfe, 3]),
            (FreType::Addr2, &[1, 0, 0x25, 0xfe, 0xff, 3, 0]),
            (FreType::Addr4, &[1, 0, 0, 0, 0x45, 0xfe, 0xff, 0xff, 0xff, 3, 0, 0, 0]),
        ],
    ),
    (
        Endian::Big,
        [
            (FreType::Addr1, &[1, 0x05, 0xfe, 3]),
            (FreType::Addr2, &[0, 1, 0x25, 0xff, 0xfe, 0, 3]),
            (FreType::Addr4, &[0, 0, 0, 1, 0x45, 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 3]),
        ],
    ),
];

#[cfg(test)]
mod tests {
    extern crate alloc;
    use alloc::{vec, vec::Vec};

    use super::*;

    fn fres(bytes: &[u8], kind: FreType, endian: Endian, rows: u32) -> Fres<'_> {
        Fres { bytes, at: TableOffset(0x40), kind, endian, left: rows, least: 0 }
    }

    fn collect(bytes: &[u8], rows: u32) -> Result<Vec<(u32, Vec<i32>)>, Error> {
        fres(bytes, FreType::Addr1, Endian::Little, rows)
            .map(|fre| fre.map(|fre| (fre.start, fre.words().to_vec())))
            .collect()
    }

    #[test]
    fn a_start_is_as_wide_as_the_head_less_one_byte_and_in_the_tables_order() {
        for (endian, two, four) in
            [(Endian::Little, 0xf201, 0xf403_f201), (Endian::Big, 0x01f2, 0x01f2_03f4)]
        {
            assert_eq!(split_head(&[0xf1, 7], endian), (0xf1, 7));
            assert_eq!(split_head(&[0x01, 0xf2, 7], endian), (two, 7));
            assert_eq!(split_head(&[0x01, 0xf2, 0x03, 0xf4, 7], endian), (four, 7));
        }
    }

    #[test]
    fn rows_follow_each_other_by_their_sizes() {
        let expected =
            vec![(0, vec![8]), (1, vec![16, -16]), (4, vec![16, -16]), (32, vec![8, -16])];
        assert_eq!(collect(&PROLOGUE, 4), Ok(expected));
    }

    #[test]
    fn starts_and_words_have_three_widths_and_two_orders() {
        for (endian, rows) in ROWS_OF_EACH_WIDTH {
            for (kind, bytes) in rows {
                let mut one = fres(bytes, kind, endian, 1);
                let fre = one.next().unwrap().unwrap();
                assert_eq!((fre.start, fre.words()), (1, &[-2, 3][..]), "{kind:?} {endian:?}");
                assert!(one.bytes.is_empty());
            }
        }
    }

    #[test]
    fn every_prefix_is_truncated_at_the_row_it_cuts() {
        for len in 0..PROLOGUE.len() {
            let cut = [0, 3, 7, 11].into_iter().rfind(|&at| at <= len).unwrap();
            let Err(Error::Truncated(at)) = collect(&PROLOGUE[..len], 4) else {
                panic!("{len} bytes were accepted");
            };
            let inside = TableOffset(0x40).plus(cut)..=TableOffset(0x40).plus(len);
            assert!(inside.contains(&at), "{len} bytes: {at}");
        }
    }

    #[test]
    fn the_reserved_word_size_is_refused_with_any_number_of_words() {
        for count in 0..16 {
            let info = 0x60 | count << 1;
            let mut bytes = vec![0, info];
            bytes.resize(80, 0);
            let error = Error::BadWordSize { at: TableOffset(0x40), info };
            assert_eq!(collect(&bytes, 1), Err(error));
        }
    }

    #[test]
    fn rows_have_to_ascend_strictly() {
        for (second, good) in [(4, false), (5, false), (6, true)] {
            let bytes = [5, 0x03, 8, second, 0x03, 16];
            let error = Error::UnsortedFres(TableOffset(0x43));
            assert_eq!(collect(&bytes, 2).err(), (!good).then_some(error));
        }
        // 2^32-1 is a start like any other.
        let top = [0xff, 0xff, 0xff, 0xff, 0x03, 8];
        let twice = [top, top].concat();
        let mut rows = fres(&twice, FreType::Addr4, Endian::Little, 2);
        assert_eq!(rows.next().unwrap().unwrap().start, u32::MAX);
        assert_eq!(rows.next(), Err(Error::UnsortedFres(TableOffset(0x46))));
    }

    #[test]
    fn the_iterator_is_at_its_end_after_an_error() {
        let bytes = [5, 0x03, 8, 5, 0x03, 16, 6, 0x03, 24];
        let mut rows = fres(&bytes, FreType::Addr1, Endian::Little, 3);
        assert!(rows.next().unwrap().is_some());
        assert!(rows.next().is_err());
        assert_eq!(rows.next(), Ok(None));
    }

    #[test]
    fn words_after_the_sixth_are_passed_over() {
        let mut bytes = vec![0, 0x1e];
        bytes.extend(1..=15);
        bytes.extend([1, 0x03, 99]);
        let rows = collect(&bytes, 2).unwrap();
        assert_eq!(rows, [(0, vec![1, 2, 3, 4, 5, 6]), (1, vec![99])]);
        // Cut off, they are missed.
        assert_eq!(collect(&bytes[..16], 1), Err(Error::Truncated(TableOffset(0x40))));
    }
}
