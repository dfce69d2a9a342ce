//! What a table is built from.

use core::num::NonZeroU8;

use unwind_core::Row;

use crate::format::{fde::PauthKey, header::Version};

/// A form that tables are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Version 2, with function starts relative to the section: what GNU ld
    /// 2.41 to 2.44 links.
    V2,
    /// Version 2 with errata 1, function starts relative to their own field:
    /// what GNU ld 2.45 links.
    V2Pcrel,
    /// Version 3, which always has function starts relative to their own field.
    V3,
}

impl Format {
    /// The version in the header.
    #[must_use]
    pub const fn version(self) -> Version {
        match self {
            Self::V2 | Self::V2Pcrel => Version::V2,
            Self::V3 => Version::V3,
        }
    }

    /// Whether a function's start counts from its own field.
    #[must_use]
    pub const fn is_pcrel(self) -> bool {
        match self {
            Self::V2 => false,
            Self::V2Pcrel | Self::V3 => true,
        }
    }
}

/// A function and how to unwind from each part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Function<'a> {
    /// Address of the first byte.
    pub start: u64,
    /// Length in bytes.
    pub size: u32,
    /// Whether it is a signal trampoline. The marks that rows carry are not
    /// looked at.
    pub signal: bool,
    /// The size in bytes of the equal blocks that the function is made of, as a
    /// PLT is. The rows are those of one block.
    pub block_size: Option<NonZeroU8>,
    /// The key that signs return addresses (AArch64).
    pub pauth_key: PauthKey,
    /// Where each row begins to hold, in bytes from the function's or block's
    /// start, and the row. They ascend. One that begins at or after the end is
    /// left out; no table can say it and no lookup would find it.
    pub rows: &'a [(u32, Row)],
}

impl<'a> Function<'a> {
    /// An ordinary function.
    #[must_use]
    pub const fn new(start: u64, size: u32, rows: &'a [(u32, Row)]) -> Self {
        Self { start, size, signal: false, block_size: None, pauth_key: PauthKey::A, rows }
    }

    /// The same as a signal trampoline: the return address found for its frame
    /// is the interrupted instruction itself.
    #[must_use]
    pub const fn signal(mut self) -> Self {
        self.signal = true;
        self
    }

    /// The same as a run of blocks of `size` bytes.
    #[must_use]
    pub const fn blocks(mut self, size: NonZeroU8) -> Self {
        self.block_size = Some(size);
        self
    }

    /// The same with return addresses that `key` signs.
    #[must_use]
    pub const fn pauth_key(mut self, key: PauthKey) -> Self {
        self.pauth_key = key;
        self
    }
}
