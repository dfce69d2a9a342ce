//! Reading the AUX area, where hardware writes a trace.

use core::ops::Range;

use super::error::RingError;
use super::mmap_page::MmapPage;
use super::words::RingWords;
use crate::sync::AtomicU64;

/// Reads the AUX area of an event.
///
/// Where in the area a piece of the trace is comes in a record of the ring
/// ([`Aux`](crate::record::Aux)); this reader copies it and gives its place back.
#[derive(Debug)]
pub struct AuxReader<'m> {
    page: MmapPage<'m>,
    data: RingWords<'m>,
    tail: u64,
}

impl<'m> AuxReader<'m> {
    /// A reader that continues where the page says that was read up to.
    ///
    /// # Errors
    ///
    /// [`RingError::BadLength`] if the length of `data` is not a power of two.
    pub fn new(page: MmapPage<'m>, data: &'m [AtomicU64]) -> Result<Self, RingError> {
        Ok(Self { page, data: RingWords::new(data)?, tail: page.aux_tail() })
    }

    /// The positions that may be read now: those of the area at most.
    #[must_use]
    pub fn written(&self) -> Range<u64> {
        let head = self.page.aux_head();
        let len = head.wrapping_sub(self.tail).min(self.data.size());
        head.wrapping_sub(len)..head
    }

    /// Copies the bytes from position `at` on.
    ///
    /// # Errors
    ///
    /// [`RingError::NotInAux`] if not all of them are in [`written`](Self::written).
    pub fn copy(&self, at: u64, out: &mut [u8]) -> Result<(), RingError> {
        let written = self.written();
        let len = written.end.wrapping_sub(written.start);
        let skipped = at.wrapping_sub(written.start);
        let needed = u64::try_from(out.len()).unwrap_or(u64::MAX);
        if skipped.checked_add(needed).is_none_or(|end| end > len) {
            return Err(RingError::NotInAux { at });
        }
        self.data.copy(at, out);
        Ok(())
    }

    /// Gives the place of what is before `tail` back to the hardware.
    pub fn release(&mut self, tail: u64) {
        self.tail = tail;
        self.page.publish_aux_tail(tail);
    }

    /// How many bytes the area has.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.data.size()
    }
}
