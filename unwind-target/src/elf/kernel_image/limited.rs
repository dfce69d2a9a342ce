//! Reading what a damaged image could make endless.

use std::io::{self, Read};

/// Up to one byte more than `len`.
pub(super) fn read(from: impl Read, len: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = u64::try_from(len).ok()?.checked_add(1)?;
    let read: io::Result<usize> = from.take(most).read_to_end(&mut bytes);
    read.ok().map(|_| bytes)
}
