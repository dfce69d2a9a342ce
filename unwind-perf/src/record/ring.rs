//! Writing records into a host's ring buffer, and counting the records that do
//! not fit.

use core::fmt;

use super::encode::{Encode, Output};
use super::side_band::Lost;
use super::{Endian, Error, EventFormat, SampleId};

/// A host's ring buffer, as its writer sees it.
///
/// The bytes of one reservation become visible to the reader together.
pub trait Ring: Output {
    /// Reserves room for `len` bytes; `false` if the ring has less.
    ///
    /// After `true` exactly `len` bytes are [`put`](Output::put), then
    /// [`commit`](Self::commit) is called.
    #[must_use]
    fn reserve(&mut self, len: usize) -> bool;

    /// Shows the bytes that were put since the reservation to the reader.
    fn commit(&mut self);
}

/// A record was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteError {
    /// The ring has no room. The loss is counted and told to the reader with
    /// the next record that fits.
    NoRoom,
    /// The record cannot be encoded under the event's format.
    Encode(Error),
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoom => f.write_str("the ring has no room for the record"),
            Self::Encode(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for WriteError {}

impl From<Error> for WriteError {
    fn from(error: Error) -> Self {
        Self::Encode(error)
    }
}

/// Writes records into a ring, with `PERF_RECORD_LOST` where some are missing.
///
/// ```
/// use unwind_perf::record::{
///     CallchainDeferred, Encode, Endian, EventFormat, Output, Ring, RingWriter, SampleId,
/// };
///
/// /// Room for one page, never drained.
/// struct Page(Vec<u8>);
///
/// impl Output for Page {
///     fn put(&mut self, bytes: &[u8]) {
///         self.0.extend_from_slice(bytes);
///     }
/// }
///
/// impl Ring for Page {
///     fn reserve(&mut self, len: usize) -> bool {
///         len <= 4096 - self.0.len()
///     }
///
///     fn commit(&mut self) {}
/// }
///
/// let id = SampleId::default();
/// let ips = [0x401136, 0x401020].into_iter();
/// let stack = CallchainDeferred { cookie: Some(0x3_0000_0001), ips, id };
/// let mut writer = RingWriter::new(Page(Vec::new()), Endian::NATIVE);
/// writer.write(&stack, EventFormat::default(), 1, id)?;
/// assert_eq!(writer.ring().0.len(), 8 + 8 + 8 + 2 * 8);
/// # Ok::<(), unwind_perf::record::WriteError>(())
/// ```
#[derive(Debug)]
pub struct RingWriter<R> {
    ring: R,
    endian: Endian,
    /// Losses that are not reported to the reader yet.
    untold: u64,
    lost: u64,
}

impl<R: Ring> RingWriter<R> {
    /// A writer of records in the byte order `endian`.
    pub const fn new(ring: R, endian: Endian) -> Self {
        Self { ring, endian, untold: 0, lost: 0 }
    }

    /// Writes `record` for an event with id `event` and `format`.
    ///
    /// Earlier losses are reported first, by a record that ends in `now`.
    ///
    /// # Errors
    ///
    /// [`WriteError::NoRoom`] if the ring has no room for both, and
    /// [`WriteError::Encode`] if `format` asks for fields that `record` or
    /// `now` lacks. Either way the ring is unchanged, and the record counts as
    /// lost.
    pub fn write(
        &mut self,
        record: &impl Encode,
        format: EventFormat,
        event: u64,
        now: SampleId,
    ) -> Result<(), WriteError> {
        self.try_write(record, format, event, now).inspect_err(|_| {
            self.untold = self.untold.saturating_add(1);
            self.lost = self.lost.saturating_add(1);
        })
    }

    fn try_write(
        &mut self,
        record: &impl Encode,
        format: EventFormat,
        event: u64,
        now: SampleId,
    ) -> Result<(), WriteError> {
        let lost = Lost { event, count: self.untold, id: now };
        let lost_len = if self.untold == 0 { 0 } else { lost.encoded_len(format)? };
        let len = usize::from(record.encoded_len(format)?).saturating_add(lost_len.into());
        if !self.ring.reserve(len) {
            return Err(WriteError::NoRoom);
        }
        if self.untold != 0 {
            lost.encode(format, self.endian, &mut self.ring)?;
        }
        record.encode(format, self.endian, &mut self.ring)?;
        self.untold = 0;
        self.ring.commit();
        Ok(())
    }

    /// How many records were not written.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// The ring.
    #[must_use]
    pub const fn ring(&self) -> &R {
        &self.ring
    }

    /// The ring, for its reader's side.
    pub const fn ring_mut(&mut self) -> &mut R {
        &mut self.ring
    }
}
