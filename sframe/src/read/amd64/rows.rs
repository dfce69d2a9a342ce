//! The search for a row among those of one function, all of them in memory.

use crate::{
    format::{
        bytes::Endian,
        fre::{FreInfo, split_head},
    },
    read::source::Checkpoint,
};

/// The rows of a function, and a search for the last one that starts at or before
/// an offset: as [`Scan`](crate::read::scan::Scan), but through all rows at once.
#[derive(Clone, Copy)]
pub(crate) struct FastRows<'a> {
    /// The rows of all functions.
    bytes: &'a [u8],
    /// Where the first row is.
    first: usize,
    /// How many rows there are from there on.
    left: u32,
    /// Below `u32::MAX`.
    target: u32,
    /// The least that the first row may start at.
    least: u32,
}

/// A row that was found, the whole of which is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundRow<'a> {
    /// Where it is.
    pub(crate) at: usize,
    pub(crate) info: FreInfo,
    /// Its words, and whatever is after them.
    pub(crate) words: &'a [u8],
}

/// What the first bytes of a row say.
#[derive(Clone, Copy)]
struct Head {
    /// Where the row is.
    at: usize,
    /// Its start less the least that is after the target, without a sign: so
    /// the rows that are not after it have the highest numbers.
    start: u32,
    /// Where the row ends.
    end: usize,
}

impl<'a> FastRows<'a> {
    /// This many rows from `first` on, and the offset, below `u32::MAX`.
    #[inline(always)]
    pub(crate) const fn new(bytes: &'a [u8], first: usize, rows: u32, target: u32) -> Self {
        Self { bytes, first, left: rows, target, least: 0 }
    }

    /// The same search from a row on that is at or before the one looked for.
    #[inline(always)]
    pub(crate) fn from(mut self, checkpoint: Option<Checkpoint>) -> Self {
        if let Some(Checkpoint { passed, at, start }) = checkpoint {
            self.left = self.left.saturating_sub(passed);
            self.first = self.first.saturating_add(usize::try_from(at).unwrap_or(usize::MAX));
            self.least = start;
        }
        self
    }

    /// The row, if there is one, and those up to there are good and ascend. What is
    /// wrong otherwise is for others to say.
    ///
    /// `width` is the code of the width of starts; any other finds nothing.
    #[inline(always)]
    pub(crate) fn last(self, width: u16) -> Option<FoundRow<'a>> {
        match width {
            0 => self.last_of::<2>(&LEN_2),
            1 => self.last_of::<3>(&LEN_3),
            2 => self.last_of::<5>(&LEN_5),
            _ => None,
        }
    }

    /// The same for starts and info bytes of `HEAD` bytes together; `len` is the
    /// size of a row by its info byte.
    #[inline(always)]
    fn last_of<const HEAD: usize>(self, len: &[u8; 256]) -> Option<FoundRow<'a>> {
        // After the last place where a head may be.
        let limit = self.bytes.len().checked_sub(HEAD.wrapping_sub(1))?;
        let past = self.target.wrapping_add(1);
        let head_at = |at: usize| {
            if at >= limit {
                return None;
            }
            let bytes = self.bytes.get(at..at.wrapping_add(HEAD))?.first_chunk::<HEAD>()?;
            let (start, info) = split_head(bytes, Endian::Little);
            let len = len.get(usize::from(info)).copied().unwrap_or_default();
            Some(Head { at, start: start.wrapping_sub(past), end: at.wrapping_add(len.into()) })
        };
        // Starts at or before the target are not below this.
        let within = past.wrapping_neg();
        let mut first = head_at(self.first)?;
        if first.start < self.least.wrapping_sub(past) || first.start < within {
            return None;
        }
        // Not by the info byte that was read: of rows that are passed nothing but
        // the ends is kept.
        let found = |Head { at, .. }| {
            let rest = self.bytes.get(at.wrapping_add(HEAD.wrapping_sub(1))..)?;
            let (&info, words) = rest.split_first()?;
            Some(FoundRow { at, info: FreInfo(info), words })
        };
        // One comparison tells both that a row is not after the target and that
        // it is after the one before it. Two rows at a time, so that none has to
        // take the other's place.
        let mut left = self.left.checked_sub(1)?;
        if left & 1 != 0 {
            let second = head_at(first.end)?;
            if second.start <= first.start {
                return if second.start < within { found(first) } else { None };
            }
            first = second;
            left = left.wrapping_sub(1);
        }
        while left != 0 {
            let second = head_at(first.end)?;
            if second.start <= first.start {
                return if second.start < within { found(first) } else { None };
            }
            let third = head_at(second.end)?;
            if third.start <= second.start {
                return if third.start < within { found(second) } else { None };
            }
            first = third;
            left = left.wrapping_sub(2);
        }
        // Nothing was read after it yet.
        if first.end <= self.bytes.len() { found(first) } else { None }
    }
}

/// The size in bytes of a row by its info byte, for heads of `head` bytes; 0 if
/// the size of its words is the reserved one, so that such a row is followed by
/// itself and does not ascend.
const fn row_len(head: u8) -> [u8; 256] {
    let mut table = [0; 256];
    let mut info: u8 = 0;
    loop {
        #[expect(
            clippy::indexing_slicing,
            clippy::as_conversions,
            reason = "any byte is an index, at compile time"
        )]
        if let Some(size) = FreInfo(info).word_size() {
            // At most 15 * 4 + 5.
            table[info as usize] = FreInfo(info).word_count().wrapping_mul(size).wrapping_add(head);
        }
        info = match info.checked_add(1) {
            Some(next) => next,
            None => break table,
        };
    }
}

static LEN_2: [u8; 256] = row_len(2);
static LEN_3: [u8; 256] = row_len(3);
static LEN_5: [u8; 256] = row_len(5);

#[cfg(test)]
mod tests {
    extern crate alloc;

    use super::*;
    use crate::{
        format::{fde::FreType, fre::PROLOGUE},
        read::scan::{Scan, Stop},
    };

    fn last(rows: FastRows<'_>, kind: FreType) -> Option<FoundRow<'_>> {
        rows.last(match kind {
            FreType::Addr1 => 0,
            FreType::Addr2 => 1,
            FreType::Addr4 => 2,
        })
    }

    fn row_at(rows: &[u8], at: usize, kind: FreType) -> FoundRow<'_> {
        let info = at.wrapping_add(kind.width().into());
        FoundRow { at, info: FreInfo(rows[info]), words: rows[info..].split_first().unwrap().1 }
    }

    #[test]
    fn the_length_tables_agree_with_the_fields() {
        for info in 0..=u8::MAX {
            let fields = FreInfo(info);
            let words = fields.word_size().map(|size| size * fields.word_count());
            for (table, head) in [(&LEN_2, 2), (&LEN_3, 3), (&LEN_5, 5)] {
                let len = words.map_or(0, |words| words + head);
                // As made by the compiler, and now.
                let now = row_len(head)[usize::from(info)];
                assert_eq!((table[usize::from(info)], now), (len, len), "{info:#x}");
            }
        }
    }

    #[test]
    fn the_short_search_finds_what_the_long_one_does() {
        let bad_size = [0, 0x03, 8, 2, 0x61, 8, 4, 0x03, 8];
        let unsorted = [0, 0x03, 8, 4, 0x03, 8, 4, 0x03, 8];
        let falling = [2, 0x03, 8, 0, 0x03, 8, 4, 0x03, 8];
        let two = [2, 0, 0x23, 8, 0, 7, 1, 0x25, 16, 0, 0xf0, 0xff];
        let four = [2, 0, 0, 0, 0x43, 8, 0, 0, 0, 7, 1, 0, 0, 0x83, 16];
        let top = [[0xff; 4].as_slice(), &[0x03, 8]].concat();
        let mut found_any = 0;
        for (kind, bytes) in [
            (FreType::Addr1, &PROLOGUE[..]),
            (FreType::Addr1, &bad_size),
            (FreType::Addr1, &unsorted),
            (FreType::Addr1, &falling),
            (FreType::Addr2, &two),
            (FreType::Addr4, &four),
            (FreType::Addr4, &top),
        ] {
            // What comes after is another function, or nothing.
            for after in [&[][..], &[0; 5], &[1, 0, 0, 0, 3], &[0xff; 5], &PROLOGUE] {
                let bytes = [bytes, after].concat();
                // Cut anywhere, with more rows said to be there and with fewer.
                for (len, rows, target) in (0..=bytes.len())
                    .flat_map(|len| {
                        (0..6).flat_map(move |rows| (0..40).map(move |t| (len, rows, t)))
                    })
                    .chain([262, 263, 264, u32::MAX - 1].map(|t| (bytes.len(), 2, t)))
                {
                    let bytes = &bytes[..len];
                    let mut long = Scan::new(target, rows, 0);
                    let stop = long.advance(bytes, kind, Endian::Little);
                    let scan = FastRows::new(bytes, 0, rows, target);
                    let expected = long.found.filter(|_| stop == Stop::Done && long.next <= len);
                    let Some(found) = last(scan, kind) else {
                        assert_eq!(expected, None, "{kind:?} {len} {rows} {target}");
                        continue;
                    };
                    if found.info.word_size().is_none() {
                        // No row comes of it.
                        continue;
                    }
                    found_any += 1;
                    assert_eq!(found, row_at(bytes, expected.unwrap(), kind));
                }
            }
        }
        assert!(found_any > 1000);
    }

    #[test]
    fn the_short_search_starts_at_a_checkpoint_like_the_long_one() {
        let checkpoint = Checkpoint { passed: 2, at: 7, start: 4 };
        let rows = [&PROLOGUE[..], &[0, 3]].concat();
        for target in 4..40 {
            let scan = FastRows::new(&rows, 0, 4, target);
            let short = last(scan.from(Some(checkpoint)), FreType::Addr1);
            let mut long = Scan::new(target, 4, 0).from(Some(checkpoint));
            assert_eq!(long.advance(&rows, FreType::Addr1, Endian::Little), Stop::Done);
            let at = long.found.unwrap();
            assert_eq!(short, Some(row_at(&rows, at, FreType::Addr1)), "{target}");
        }
        // The row there is not the one that was promised.
        let scan = FastRows::new(&rows, 0, 4, 9);
        let wrong = Checkpoint { start: 5, ..checkpoint };
        assert!(last(scan.from(Some(wrong)), FreType::Addr1).is_none());
    }
}
