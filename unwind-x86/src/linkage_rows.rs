//! The rows of a linkage table, all at once.

use core::{iter::FusedIterator, ops::Range};

use unwind_core::{Row, VirtAddr, WordSize};

use crate::linkage::linkage_row;

/// The rows of a section of linkage entries, such as `.plt`, `.plt.sec` or `.plt.got`, as its
/// instructions prove them: for tables of files whose linker wrote no call frame information for it.
///
/// Each row holds in the addresses that come with it. Code that is no known entry has none.
///
/// # Example
///
/// ```
/// use unwind_core::{CfaRule, WordSize};
/// use unwind_x86::LinkageRows;
///
/// let plt = [
///     0xff, 0x35, 2, 0, 0, 0, 0xff, 0x25, 4, 0, 0, 0, 0x0f, 0x1f, 0x40, 0, // push; jmp
///     0xff, 0x25, 2, 0, 0, 0, 0x68, 0, 0, 0, 0, 0xe9, 0xe0, 0xff, 0xff, 0xff, // jmp; push; jmp
/// ];
/// let rows = LinkageRows::new(WordSize::Eight, 0x1000, &plt);
/// let cfas: Vec<_> = rows.map(|(range, row)| (range.start, row.cfa())).collect();
/// let first = [(0x1000, CfaRule::sp(16)), (0x1006, CfaRule::sp(24))];
/// let entry = [(0x1010, CfaRule::sp(8)), (0x1016, CfaRule::sp(8)), (0x101b, CfaRule::sp(16))];
/// assert_eq!(cfas, [&first[..], &entry[..]].concat());
/// ```
#[derive(Clone, Debug)]
pub struct LinkageRows<'a> {
    word: WordSize,
    /// The address of the first byte.
    addr: u64,
    code: &'a [u8],
    /// The first place in `code` that was not looked at.
    next: usize,
    /// The row before that, and where it begins to hold.
    found: Option<(usize, Row)>,
}

/// As many bytes as are looked at after and before an instruction.
const WINDOW: usize = 32;
/// The longest instruction, and the padding of an entry.
const LONGEST: usize = 15;

impl<'a> LinkageRows<'a> {
    /// Those of the section at `addr`, with these bytes and this size of stack slots.
    #[must_use]
    pub fn new(word: WordSize, addr: u64, code: &'a [u8]) -> Self {
        let mut rows = Self { word, addr, code, next: 0, found: None };
        rows.found = rows.look();
        rows
    }

    /// The next place with a row.
    fn look(&mut self) -> Option<(usize, Row)> {
        while self.next < self.code.len() {
            let at = self.next;
            self.next = at.saturating_add(1);
            let (before, after) = self.code.split_at_checked(at)?;
            let ahead = after.get(..WINDOW).unwrap_or(after);
            let preceding = before.get(at.saturating_sub(WINDOW)..).unwrap_or(before);
            let pc = VirtAddr::new(self.address(at));
            if let Some(row) = linkage_row(self.word, pc, ahead, preceding) {
                return Some((at, row));
            }
        }
        None
    }

    fn address(&self, at: usize) -> u64 {
        self.addr.saturating_add(u64::try_from(at).unwrap_or(u64::MAX))
    }
}

impl Iterator for LinkageRows<'_> {
    type Item = (Range<u64>, Row);

    fn next(&mut self) -> Option<Self::Item> {
        let (at, row) = self.found?;
        self.found = self.look();
        let longest = at.saturating_add(LONGEST).min(self.code.len());
        let end = self.found.map_or(longest, |(next, _)| next.min(longest));
        Some((self.address(at)..self.address(end), row))
    }
}

impl FusedIterator for LinkageRows<'_> {}
