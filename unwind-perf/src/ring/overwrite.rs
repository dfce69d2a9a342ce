//! Reading a ring that its writer overwrites, from the newest record back.

use super::error::RingError;
use super::mmap_page::MmapPage;
use super::reader::parsed;
use super::ring_record::RingRecord;
use super::words::RingWords;
use crate::record::Record;
use crate::sync::AtomicU64;

/// Reads a ring that is written backwards and overwritten (`write_backward`).
///
/// The ring has what came last, whenever it is looked at. The writer has to be paused
/// meanwhile (`PERF_EVENT_IOC_PAUSE_OUTPUT`). Linux overwrites a ring that is mapped without
/// the right to write (`PROT_READ` alone).
#[derive(Debug)]
pub struct OverwriteReader<'m> {
    page: MmapPage<'m>,
    data: RingWords<'m>,
    /// Where the head was at the last look; 0 at the start.
    seen: u64,
}

impl<'m> OverwriteReader<'m> {
    /// A reader that has seen nothing yet.
    ///
    /// # Errors
    ///
    /// [`RingError::BadLength`] if the length of `data` is not a power of two.
    pub const fn new(page: MmapPage<'m>, data: &'m [AtomicU64]) -> Result<Self, RingError> {
        match RingWords::new(data) {
            Ok(data) => Ok(Self { page, data, seen: 0 }),
            Err(error) => Err(error),
        }
    }

    /// The records that came since the last look, the newest first, as far as they are not
    /// overwritten.
    pub fn look(&mut self) -> Snapshot<'m> {
        let head = self.page.data_head();
        let written = core::mem::replace(&mut self.seen, head).wrapping_sub(head);
        let left = written.min(self.data.size());
        let is_cut = left < written;
        Snapshot { page: self.page, data: self.data, head, at: head, left, is_cut }
    }
}

/// The records of one look at a ring.
#[derive(Debug)]
pub struct Snapshot<'m> {
    page: MmapPage<'m>,
    data: RingWords<'m>,
    /// Where the head was when the look began.
    head: u64,
    /// The next record.
    at: u64,
    /// How many bytes there are from there on.
    left: u64,
    is_cut: bool,
}

impl Snapshot<'_> {
    /// Whether records were overwritten that no look has seen.
    #[must_use]
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Copies the next older record into `buf`. `None` after the last one that is whole.
    ///
    /// # Errors
    ///
    /// [`RingError::ShortBuffer`], after which a longer buffer may be tried;
    /// [`RingError::Overwritten`] if the writer was found not to be paused, and
    /// [`RingError::BadRecord`], after which there are no more records.
    pub fn next<'b>(&mut self, buf: &'b mut [u8]) -> Result<Option<Record<'b>>, RingError> {
        if self.left == 0 {
            return Ok(None);
        }
        let at = self.at;
        let record = RingRecord::new(self.data, at, self.left);
        let copied = record.and_then(|record| record.copy_whole(buf).map(|()| record.size()));
        // A writer that was not paused has shown a record by now, as a rule.
        let now = self.page.data_head();
        if now != self.head {
            self.left = 0;
            return Err(RingError::Overwritten { head: self.head, now });
        }
        match copied {
            Ok(size) => {
                self.at = at.wrapping_add(size.into());
                self.left = self.left.saturating_sub(size.into());
                parsed(buf, at, size).map(Some)
            }
            Err(error @ RingError::ShortBuffer { .. }) => Err(error),
            // The oldest record, whose end is overwritten.
            Err(RingError::BadRecord { size, .. }) if self.is_cut && size >= 8 && size % 8 == 0 => {
                self.left = 0;
                Ok(None)
            }
            Err(error) => {
                self.left = 0;
                Err(error)
            }
        }
    }
}
