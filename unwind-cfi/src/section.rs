//! A section of call frame information: `.eh_frame` or `.debug_frame`.

use core::ops::Range;

use crate::work_counter;

/// The bytes of call frame information, and what its addresses count from.
#[derive(Clone, Copy, Debug)]
pub struct CfiSection<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) is_eh: bool,
    pub(crate) addr: u64,
    pub(crate) text: Option<u64>,
    pub(crate) data: Option<u64>,
    pub(crate) code: &'a [Range<u64>],
}

impl<'a> CfiSection<'a> {
    /// The bytes of `.eh_frame`, linked or loaded at `addr`.
    #[must_use]
    pub const fn eh_frame(bytes: &'a [u8], addr: u64) -> Self {
        Self { bytes, is_eh: true, addr, text: None, data: None, code: &[] }
    }

    /// The bytes of `.debug_frame`.
    #[must_use]
    pub const fn debug_frame(bytes: &'a [u8]) -> Self {
        Self { bytes, is_eh: false, addr: 0, text: None, data: None, code: &[] }
    }

    /// Says where the code is that text-relative addresses count from.
    #[must_use]
    pub const fn text(mut self, addr: u64) -> Self {
        self.text = Some(addr);
        self
    }

    /// Says where the data is (the GOT, on x86-64) that data-relative addresses
    /// count from.
    #[must_use]
    pub const fn data(mut self, addr: u64) -> Self {
        self.data = Some(addr);
        self
    }

    /// Says where code is. Entries about other addresses are left out: linkers
    /// leave such for functions that they drop. Without this, or with no
    /// ranges, every address may be code.
    ///
    /// Ranges that ascend and do not overlap are searched by bisection; others
    /// are looked through for each entry.
    #[must_use]
    pub const fn code(mut self, ranges: &'a [Range<u64>]) -> Self {
        self.code = ranges;
        self
    }

    /// The length of the section in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn len_u64(&self) -> u64 {
        u64::try_from(self.bytes.len()).unwrap_or(u64::MAX)
    }

    /// Whether the section has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether the ranges of code ascend.
    pub(crate) fn is_ascending(&self) -> bool {
        work_counter::steps(self.code.len());
        self.code.is_sorted_by(|a, b| a.start <= a.end && a.end <= b.start)
    }
}
