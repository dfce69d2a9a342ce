//! Reading the records of a ring, the oldest first.

use super::error::RingError;
use super::mmap_page::MmapPage;
use super::words::RingWords;
use crate::record::{Endian, Record, RecordHeader};
use crate::sync::AtomicU64;

/// Reads the records of a ring that its writer does not overwrite, and gives their place
/// back to it.
///
/// ```no_run
/// use std::sync::atomic::AtomicU64;
///
/// use unwind_perf::ring::{MmapPage, RingError, RingReader};
///
/// fn drain(page: &[AtomicU64], data: &[AtomicU64]) -> Result<u64, RingError> {
///     let mut ring = RingReader::new(MmapPage::new(page)?, data)?;
///     let mut buf = [0; RingReader::MAX_RECORD];
///     let mut samples = 0;
///     while let Some(record) = ring.next(&mut buf)? {
///         samples += u64::from(record.kind() == unwind_perf::record::RecordType::SAMPLE);
///     }
///     Ok(samples)
/// }
/// ```
#[derive(Debug)]
pub struct RingReader<'m> {
    page: MmapPage<'m>,
    data: RingWords<'m>,
    /// Up to where was read.
    tail: u64,
    /// Up to where may be read, when that was looked at last.
    head: u64,
}

impl<'m> RingReader<'m> {
    /// A buffer of as many bytes has room for any record.
    pub const MAX_RECORD: usize = 1 << 16;

    /// A reader that continues where the page says that was read up to.
    ///
    /// # Errors
    ///
    /// [`RingError::BadLength`] if the length of `data` is not a power of two.
    pub fn new(page: MmapPage<'m>, data: &'m [AtomicU64]) -> Result<Self, RingError> {
        let data = RingWords::new(data)?;
        let tail = page.data_tail();
        Ok(Self { page, data, tail, head: tail })
    }

    /// Copies the next record into `buf` and gives its place back. `None` if there is none
    /// now.
    ///
    /// # Errors
    ///
    /// [`RingError::ShortBuffer`], after which a longer buffer may be tried;
    /// [`RingError::Overrun`] and [`RingError::BadRecord`], after which the next call
    /// continues with what is written from now on.
    pub fn next<'b>(&mut self, buf: &'b mut [u8]) -> Result<Option<Record<'b>>, RingError> {
        if self.tail == self.head {
            self.head = self.page.data_head();
        }
        let (head, tail) = (self.head, self.tail);
        let left = head.wrapping_sub(tail);
        if left == 0 {
            return Ok(None);
        }
        if left > self.data.size() {
            self.skip_to(head);
            return Err(RingError::Overrun { head, tail });
        }
        let copied = copy_record(self.data, tail, left, buf);
        match copied {
            Ok(size) => self.skip_to(tail.wrapping_add(size.into())),
            Err(RingError::ShortBuffer { .. }) => {}
            Err(_) => self.skip_to(head),
        }
        let size = copied?;
        parsed(buf, tail, size).map(Some)
    }

    /// How many bytes wait to be read.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.page.data_head().wrapping_sub(self.tail)
    }

    /// How many bytes the ring has.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.data.size()
    }

    fn skip_to(&mut self, tail: u64) {
        self.tail = tail;
        self.page.publish_data_tail(tail);
    }
}

/// Copies the record at `at`, of which there are `left` bytes at most. Returns its size.
pub(super) fn copy_record(
    data: RingWords<'_>,
    at: u64,
    left: u64,
    buf: &mut [u8],
) -> Result<u16, RingError> {
    let word = data.load(at).to_ne_bytes();
    let [.., low, high] = word;
    let size = u16::from_ne_bytes([low, high]);
    let whole = usize::from(size);
    let is_possible = whole >= RecordHeader::SIZE && size % 8 == 0 && u64::from(size) <= left;
    if !is_possible {
        return Err(RingError::BadRecord { at, size });
    }
    let buf = buf.get_mut(..whole).ok_or(RingError::ShortBuffer { needed: size })?;
    let (header, body) = buf.split_at_mut(RecordHeader::SIZE);
    // As it was checked, whatever is there by now.
    header.copy_from_slice(&word);
    data.copy(at.wrapping_add(8), body);
    Ok(size)
}

/// The record that was copied into `buf`.
pub(super) fn parsed(buf: &[u8], at: u64, size: u16) -> Result<Record<'_>, RingError> {
    let bytes = buf.get(..usize::from(size)).unwrap_or_default();
    Record::parse(bytes, Endian::NATIVE).map_err(|_| RingError::BadRecord { at, size })
}
