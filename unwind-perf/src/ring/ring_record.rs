//! A record that is still in its ring.

use super::error::RingError;
use super::words::RingWords;
use crate::record::{Endian, RecordHeader};

/// A record that is still in its ring: what is wanted of it is copied out, and the rest is not
/// read.
///
/// Its header is that which was checked. The other words are what the ring has when they are
/// copied: a word that is copied twice may differ.
#[derive(Clone, Copy, Debug)]
pub struct RingRecord<'m> {
    data: RingWords<'m>,
    at: u64,
    /// The first word, as it was checked.
    first: [u8; 8],
    header: RecordHeader,
}

impl<'m> RingRecord<'m> {
    /// The record at `at`, of which there are `left` bytes at most.
    pub(super) fn new(data: RingWords<'m>, at: u64, left: u64) -> Result<Self, RingError> {
        let first = data.load(at).to_ne_bytes();
        let [.., low, high] = first;
        let size = u16::from_ne_bytes([low, high]);
        let header = RecordHeader::parse(&first, Endian::NATIVE).ok();
        let header = header.filter(|_| size % 8 == 0 && u64::from(size) <= left);
        let header = header.ok_or(RingError::BadRecord { at, size })?;
        Ok(Self { data, at, first, header })
    }

    /// The header.
    #[must_use]
    pub const fn header(&self) -> RecordHeader {
        self.header
    }

    /// Bytes of the record, header included.
    pub(super) const fn size(&self) -> u16 {
        self.header.size
    }

    /// Fills `out` with the bytes of the record from the one numbered `from` on, the header's
    /// first byte being 0. What `out` has more than the record is left as it is.
    pub fn copy(&self, from: usize, out: &mut [u8]) {
        let left = usize::from(self.size()).saturating_sub(from);
        let out = if out.len() > left { out.get_mut(..left).unwrap_or_default() } else { out };
        let of_first = self.first.get(from..).unwrap_or_default();
        let (head, rest) = out.split_at_mut(out.len().min(of_first.len()));
        head.iter_mut().zip(of_first).for_each(|(to, &from)| *to = from);
        let from = from.saturating_add(head.len());
        let from = u64::try_from(from).unwrap_or(u64::MAX);
        self.data.copy(self.at.wrapping_add(from), rest);
    }

    /// Copies the record to the start of `buf`.
    pub(super) fn copy_whole(&self, buf: &mut [u8]) -> Result<(), RingError> {
        let short = RingError::ShortBuffer { needed: self.size() };
        let buf = buf.get_mut(..self.size().into()).ok_or(short)?;
        self.copy(0, buf);
        Ok(())
    }
}
