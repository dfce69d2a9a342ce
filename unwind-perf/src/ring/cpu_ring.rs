//! The kernel's side of a ring: writers of one CPU that interrupt each other.

use core::sync::atomic::compiler_fence;

use super::error::RingError;
use super::mmap_page::MmapPage;
use super::words::RingWords;
use crate::record::{Encode, Endian, Error, EventFormat, Lost, Output, SampleId, WriteError};
use crate::sync::{AtomicU32, AtomicU64, Ordering, Statistic, const_unless_loom};

/// From where to where a ring is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Forwards. A record that has no room is lost: the reader has to give it back.
    Forward,
    /// Backwards, over the oldest records.
    Overwrite,
}

/// What became of a record that was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// As many bytes as the watermark were written since a reader was woken: wake it.
    /// The outermost of nested writers says so.
    pub wake: bool,
}

/// A ring that one CPU writes, in any of its contexts.
///
/// A writer may be interrupted by another one at any place. Each reserves room of its own;
/// the outermost one shows all of them to the reader when it is done, since only then is
/// nothing half-written in between.
///
/// As with Linux, one byte of a forward ring stays free.
#[derive(Debug)]
pub struct CpuRing<'m> {
    page: MmapPage<'m>,
    data: RingWords<'m>,
    direction: Direction,
    watermark: u64,
    /// How many writers are at work.
    nested: AtomicU32,
    /// Up to where room is reserved.
    head: AtomicU64,
    /// Up to where the reader was told to read.
    woken: AtomicU64,
    /// Losses that are not reported to the reader yet.
    untold: AtomicU64,
    lost: Statistic,
}

impl<'m> CpuRing<'m> {
    const_unless_loom! {
        /// An empty ring over `data`, whose reader is woken each `watermark` bytes.
        ///
        /// # Errors
        ///
        /// [`RingError::BadLength`] if the length of `data` is not a power of two.
        pub fn new(
            page: MmapPage<'m>,
            data: &'m [AtomicU64],
            direction: Direction,
            watermark: u64,
        ) -> Result<Self, RingError> {
            let data = match RingWords::new(data) {
                Ok(data) => data,
                Err(error) => return Err(error),
            };
            Ok(Self {
                page,
                data,
                direction,
                watermark: if watermark == 0 { 1 } else { watermark },
                nested: AtomicU32::new(0),
                head: AtomicU64::new(0),
                woken: AtomicU64::new(0),
                untold: AtomicU64::new(0),
                lost: Statistic::new(),
            })
        }
    }

    /// Writes `record` for an event with id `event` and `format`.
    ///
    /// Earlier losses are reported first, by a record that ends in `now`. May be called in
    /// any context of the CPU, but not on another one at the same time.
    ///
    /// # Errors
    ///
    /// [`WriteError::NoRoom`] if the ring has no room, and [`WriteError::Encode`] if `format`
    /// asks for fields that `record` or `now` lacks, or the record does not end at a whole
    /// word. Either way the record counts as lost.
    pub fn write(
        &self,
        record: &impl Encode,
        format: EventFormat,
        event: u64,
        now: SampleId,
    ) -> Result<Written, WriteError> {
        let woken = self.woken.load(Ordering::Relaxed);
        // A writer that comes in between leaves the number as it was.
        let nested = self.nested.load(Ordering::Relaxed);
        self.nested.store(nested.wrapping_add(1), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let written = self.try_write(record, format, event, now);
        let is_outermost = self.publish();
        if written.is_err() {
            self.untold.fetch_add(1, Ordering::Relaxed);
            self.lost.count();
        }
        written?;
        Ok(Written { wake: is_outermost && self.woken.load(Ordering::Relaxed) != woken })
    }

    /// How many records were not written.
    pub fn lost(&self) -> u64 {
        self.lost.get()
    }

    fn try_write(
        &self,
        record: &impl Encode,
        format: EventFormat,
        event: u64,
        now: SampleId,
    ) -> Result<(), WriteError> {
        let len = record.encoded_len(format)?;
        // Whoever takes the count tells it, or puts it back.
        let untold = self.untold.fetch_and(0, Ordering::Relaxed);
        let told = self.put(record, len, format, (untold, event), now);
        if told.is_err() {
            self.untold.fetch_add(untold, Ordering::Relaxed);
        }
        told
    }

    fn put(
        &self,
        record: &impl Encode,
        len: u16,
        format: EventFormat,
        (untold, event): (u64, u64),
        now: SampleId,
    ) -> Result<(), WriteError> {
        let lost = Lost { event, count: untold, id: now };
        let lost_len = if untold == 0 { 0 } else { lost.encoded_len(format)? };
        let len = u64::from(len).saturating_add(lost_len.into());
        if len % 8 != 0 {
            return Err(Error::BadSize(u16::try_from(len).unwrap_or(u16::MAX)).into());
        }
        let at = self.reserve(len).ok_or(WriteError::NoRoom)?;
        let mut room = Room { data: self.data, at, word: [0; 8], filled: 0 };
        if untold != 0 {
            lost.encode(format, Endian::NATIVE, &mut room)?;
        }
        record.encode(format, Endian::NATIVE, &mut room)?;
        Ok(())
    }

    /// Takes room for `len` bytes and returns where it starts.
    fn reserve(&self, len: u64) -> Option<u64> {
        loop {
            // What was read is read before its place is written again.
            let tail = self.page.data_tail();
            let head = self.head.load(Ordering::Relaxed);
            let new = match self.direction {
                Direction::Forward => {
                    let room = self.data.size().checked_sub(head.wrapping_sub(tail))?;
                    if len >= room {
                        return None;
                    }
                    head.wrapping_add(len)
                }
                Direction::Overwrite if len > self.data.size() => return None,
                Direction::Overwrite => head.wrapping_sub(len),
            };
            // It fails only if a writer has come in between and is done.
            let (done, failed) = (Ordering::Relaxed, Ordering::Relaxed);
            if self.head.compare_exchange(head, new, done, failed).is_ok() {
                self.note_watermark(new);
                return Some(match self.direction {
                    Direction::Forward => head,
                    Direction::Overwrite => new,
                });
            }
        }
    }

    fn note_watermark(&self, head: u64) {
        let woken = self.woken.load(Ordering::Relaxed);
        let written = match self.direction {
            Direction::Forward => head.wrapping_sub(woken),
            Direction::Overwrite => woken.wrapping_sub(head),
        };
        if written >= self.watermark {
            self.woken.store(head, Ordering::Relaxed);
        }
    }

    /// Ends a writer. The outermost one shows the reader what all have written; returns
    /// whether this is that.
    fn publish(&self) -> bool {
        compiler_fence(Ordering::SeqCst);
        let nested = self.nested.load(Ordering::Relaxed);
        if nested > 1 {
            self.nested.store(nested.wrapping_sub(1), Ordering::Relaxed);
            return false;
        }
        loop {
            let head = self.head.load(Ordering::Relaxed);
            self.page.publish_data_head(head);
            // From here on a writer that interrupts shows its own record.
            compiler_fence(Ordering::SeqCst);
            self.nested.store(0, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            // One that came before has not been shown.
            if self.head.load(Ordering::Relaxed) == head {
                return true;
            }
            self.nested.store(1, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
        }
    }
}

/// Room in a ring, filled from the front by whole words.
struct Room<'m> {
    data: RingWords<'m>,
    at: u64,
    word: [u8; 8],
    filled: usize,
}

impl Output for Room<'_> {
    fn put(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if let Some(place) = self.word.get_mut(self.filled) {
                *place = byte;
                self.filled = self.filled.saturating_add(1);
            }
            if self.filled == self.word.len() {
                self.data.store(self.at, u64::from_ne_bytes(self.word));
                self.at = self.at.wrapping_add(8);
                self.filled = 0;
            }
        }
    }
}
