//! Reading the records of a ring, the oldest first.

use super::error::RingError;
use super::mmap_page::MmapPage;
use super::ring_record::RingRecord;
use super::words::RingWords;
use crate::record::{Endian, Record};
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
        let Some(record) = self.first()? else { return Ok(None) };
        let (at, size) = (self.tail, record.size());
        record.copy_whole(buf)?;
        self.skip_to(at.wrapping_add(size.into()));
        parsed(buf, at, size).map(Some)
    }

    /// Lets `take` copy what it wants of the next record, and gives the record's place back
    /// then. `None` if there is none now.
    ///
    /// ```no_run
    /// use unwind_perf::ring::{RingError, RingReader};
    ///
    /// /// The kinds of all records, none of which is copied.
    /// fn kinds(ring: &mut RingReader<'_>) -> Result<Vec<u32>, RingError> {
    ///     let mut kinds = Vec::new();
    ///     while let Some(kind) = ring.take(|record| record.header().kind)? {
    ///         kinds.push(kind.0);
    ///     }
    ///     Ok(kinds)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`RingError::Overrun`] and [`RingError::BadRecord`], after which the next call
    /// continues with what is written from now on.
    pub fn take<T>(
        &mut self,
        take: impl FnOnce(RingRecord<'_>) -> T,
    ) -> Result<Option<T>, RingError> {
        let Some(record) = self.first()? else { return Ok(None) };
        let end = self.tail.wrapping_add(record.size().into());
        let taken = take(record);
        self.skip_to(end);
        Ok(Some(taken))
    }

    /// The oldest record that was not read. After an error all that is there now is passed.
    fn first(&mut self) -> Result<Option<RingRecord<'m>>, RingError> {
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
        let record = RingRecord::new(self.data, tail, left);
        if record.is_err() {
            self.skip_to(head);
        }
        record.map(Some)
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

/// The record that was copied into `buf`.
pub(super) fn parsed(buf: &[u8], at: u64, size: u16) -> Result<Record<'_>, RingError> {
    let bytes = buf.get(..usize::from(size)).unwrap_or_default();
    Record::parse(bytes, Endian::NATIVE).map_err(|_| RingError::BadRecord { at, size })
}
