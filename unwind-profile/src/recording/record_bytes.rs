//! The bytes of the record that was read last.

use std::ops::Deref;

use bytes::Bytes;

/// A record of at least this many bytes shares, while it is kept, the bytes that were read with it.
/// A shorter one is copied: it would keep all of them in memory.
const SHARED: usize = 1024;

/// The bytes of the record that was read last.
#[derive(Debug, Default)]
pub(crate) struct RecordBytes {
    /// Of a stream of this process; else they were copied from a file.
    shared: Option<Bytes>,
    copied: Vec<u8>,
}

impl RecordBytes {
    /// Room to copy the next record to.
    pub(super) fn room(&mut self) -> &mut Vec<u8> {
        self.shared = None;
        &mut self.copied
    }

    /// Takes bytes that others share.
    pub(super) fn share(&mut self, bytes: Bytes) {
        self.shared = Some(bytes);
    }

    /// The same, for as long as they are needed.
    pub(super) fn kept(&self) -> Bytes {
        match &self.shared {
            Some(shared) if shared.len() >= SHARED => shared.clone(),
            _ => Bytes::copy_from_slice(self),
        }
    }
}

impl Deref for RecordBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.shared.as_ref().map_or(&self.copied, |shared| shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_records_are_shared_and_short_ones_copied() {
        let mut record = RecordBytes::default();
        for (len, is_shared) in [(8, false), (SHARED, true)] {
            let chunk = Bytes::from(vec![7; 2 * SHARED]);
            record.share(chunk.slice(..len));
            let kept = record.kept();
            assert_eq!((&kept[..], &record[..]), (&chunk[..len], &chunk[..len]));
            assert_eq!(kept.as_ptr() == chunk.as_ptr(), is_shared, "{len}");
        }
        record.room().extend(b"ab");
        assert_eq!((&record[..], &record.kept()[..]), (&b"ab"[..], &b"ab"[..]));
    }
}
