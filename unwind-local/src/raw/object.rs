//! A loaded object, and a part of one.

use core::ops::Range;

/// A part of a loaded object, and its address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'o> {
    pub(crate) addr: u64,
    pub(crate) bytes: &'o [u8],
}

/// A loaded object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    map_start: u64,
    map_end: u64,
    /// Where its `.eh_frame_hdr` is; zero if it has none.
    pub(crate) eh_frame_hdr: u64,
}

impl Object {
    /// An object with its first and last pages, and where its `.eh_frame_hdr` is.
    pub(super) const fn new(map: Range<u64>, eh_frame_hdr: u64) -> Self {
        Self { map_start: map.start, map_end: map.end, eh_frame_hdr }
    }

    /// The same as words.
    pub(super) const fn words(self) -> [u64; 3] {
        [self.map_start, self.map_end, self.eh_frame_hdr]
    }

    /// Its first address, or that of a part of it.
    pub(super) const fn start(self) -> u64 {
        self.map_start
    }

    /// The end of its last page.
    pub(super) const fn end(self) -> u64 {
        self.map_end
    }

    /// Whether an address is between its first and last pages.
    pub(super) const fn has(self, addr: u64) -> bool {
        addr >= self.map_start && addr < self.map_end
    }
}
