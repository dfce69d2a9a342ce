//! The search for a row among those of one function, through windows of bytes.

use crate::sign::Signed;
use crate::{
    format::{bytes::Endian, fde::FreType, fre::FreInfo},
    read::source::Checkpoint,
};

/// The size in bytes of the words after an info byte, or [`BAD_SIZE`].
#[inline]
fn words_len(info: FreInfo) -> usize {
    match info.word_size() {
        Some(size) => size.wrapping_mul(info.word_count()).into(),
        None => BAD_SIZE,
    }
}

/// The word size is the reserved one. Longer than all rows of a section, so
/// that no row is found after such a row.
const BAD_SIZE: usize = 1 << 31;

/// A reason to stop a [`Scan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The row is found, or there is none.
    Done,
    /// The window ends inside the next row, or the last one has the reserved
    /// word size.
    Short,
    /// The next row does not start after the one before it.
    Unsorted,
}

/// A search for the last row that starts at or before an offset, through one
/// window of bytes after another. It looks at starts and lengths only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan {
    target: u32,
    /// Rows not looked at.
    left: u32,
    /// Where in the window the next row starts.
    pub(crate) next: usize,
    /// Where in the window the last row starts that is not after the target.
    pub(crate) found: Option<usize>,
    /// The least that the next row may start at.
    least: u32,
}

impl Scan {
    #[inline]
    pub(crate) const fn new(target: u32, rows: u32, next: usize) -> Self {
        Self { target, left: rows, next, found: None, least: 0 }
    }

    /// The same search from a row on that is at or before the one looked for.
    #[inline(always)]
    pub(crate) fn from(mut self, checkpoint: Option<Checkpoint>) -> Self {
        if let Some(Checkpoint { passed, at, start }) = checkpoint {
            self.left = self.left.saturating_sub(passed);
            self.next = self.next.saturating_add(usize::try_from(at).unwrap_or(usize::MAX));
            self.least = start;
        }
        self
    }

    // In its place, so that it takes no stack of its own.
    #[inline(always)]
    pub(crate) fn advance(&mut self, window: &[u8], kind: FreType, endian: Endian) -> Stop {
        let (width, mask) = (usize::from(kind.width()), kind.mask());
        // In locals, so that they stay in registers.
        let Self { target, mut left, mut next, mut found, mut least } = *self;
        let stop = loop {
            if left == 0 {
                break Stop::Done;
            }
            let head = window.get(next..).and_then(|rest| rest.split_at_checked(width));
            let Some((start, &[info, ..])) = head else { break Stop::Short };
            let start = endian.signed(start).unsigned() & mask;
            if start > target {
                break Stop::Done;
            }
            if start < least {
                break Stop::Unsorted;
            }
            // Neither overflows: a target is below `u32::MAX`, a window shorter
            // than `isize::MAX`, and no row is found after a bad one.
            least = start.wrapping_add(1);
            found = Some(next);
            next = next.wrapping_add(width).wrapping_add(1).wrapping_add(words_len(FreInfo(info)));
            left = left.wrapping_sub(1);
        };
        *self = Self { target, left, next, found, least };
        stop
    }

    /// The window lost its first `bytes` bytes.
    pub(crate) fn slide(&mut self, bytes: usize) {
        self.next = self.next.saturating_sub(bytes);
        self.found = self.found.map(|found| found.saturating_sub(bytes));
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use alloc::vec;

    use super::*;
    use crate::format::fre::{PROLOGUE, ROWS_OF_EACH_WIDTH};

    /// What a search over the whole of `bytes` finds: the place of the row, or
    /// why it stops.
    fn scan(bytes: &[u8], rows: u32, target: u32) -> (Stop, Option<usize>) {
        let mut scan = Scan::new(target, rows, 0);
        (scan.advance(bytes, FreType::Addr1, Endian::Little), scan.found)
    }

    #[test]
    fn a_search_finds_the_last_row_at_or_before_the_offset() {
        for (target, at) in [(0, 0), (1, 3), (3, 3), (4, 7), (31, 7), (32, 11), (u32::MAX, 11)] {
            assert_eq!(scan(&PROLOGUE, 4, target), (Stop::Done, Some(at)), "at {target}");
        }
        // A function may begin without a row.
        assert_eq!(scan(&PROLOGUE[3..], 3, 0), (Stop::Done, None));
        assert_eq!(scan(&PROLOGUE, 0, 0), (Stop::Done, None));
    }

    #[test]
    fn starts_and_words_of_any_width_and_order_are_passed() {
        for (endian, rows) in ROWS_OF_EACH_WIDTH {
            for (kind, bytes) in rows {
                let mut scan = Scan::new(1, 1, 0);
                assert_eq!(scan.advance(bytes, kind, endian), Stop::Done);
                assert_eq!((scan.found, scan.next), (Some(0), bytes.len()));
            }
        }
    }

    #[test]
    fn no_row_is_found_after_one_with_the_reserved_word_size() {
        for count in 0..16 {
            let mut bytes = vec![0, 0x60 | count << 1];
            bytes.resize(80, 0);
            assert_eq!(scan(&bytes, 2, 9), (Stop::Short, Some(0)));
        }
    }

    #[test]
    fn a_search_stops_at_a_row_that_does_not_ascend() {
        for (second, stop) in [(4, Stop::Unsorted), (5, Stop::Unsorted), (6, Stop::Done)] {
            assert_eq!(scan(&[5, 0x03, 8, second, 0x03, 16], 2, 9).0, stop);
        }
    }

    #[test]
    fn a_search_passes_words_after_the_sixth() {
        let mut bytes = vec![0, 0x1e];
        bytes.extend(1..=15);
        bytes.extend([1, 0x03, 99]);
        assert_eq!(scan(&bytes, 2, 1), (Stop::Done, Some(17)));
    }

    #[test]
    fn a_search_in_any_windows_finds_what_one_in_all_bytes_does() {
        for target in 0..40 {
            let (_, whole) = scan(&PROLOGUE, 4, target);
            for window in 8..PROLOGUE.len() {
                let mut scan = Scan::new(target, 4, 0);
                let mut from = 0;
                loop {
                    let to = PROLOGUE.len().min(from + window);
                    if scan.advance(&PROLOGUE[from..to], FreType::Addr1, Endian::Little)
                        == Stop::Done
                    {
                        break;
                    }
                    let keep = scan.found.unwrap_or(scan.next);
                    scan.slide(keep);
                    from += keep;
                }
                assert_eq!(scan.found.map(|at| at + from), whole, "{target} by {window}");
            }
        }
    }
}
