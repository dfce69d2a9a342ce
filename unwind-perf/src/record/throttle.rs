//! Records about samples that were not taken.

use super::encode::{Encode, Encoder, Output};
use super::header::{Record, RecordType};
use super::sample_id::{SampleId, split_trailer};
use super::{Error, EventFormat};

/// Samples of an event stop for the rest of a tick, or come again
/// (`PERF_RECORD_THROTTLE`, `PERF_RECORD_UNTHROTTLE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// Whether they stop.
    pub stops: bool,
    /// When, in nanoseconds of the event's clock.
    pub time: u64,
    /// The event.
    pub event: u64,
    /// The inherited copy of the event.
    pub stream: u64,
    /// When and where.
    pub id: SampleId,
}

impl Throttle {
    /// Decodes a record of either type that an event with `format` received.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`], [`Error::Truncated`] or [`Error::Trailing`] if the record does
    /// not have this layout.
    pub fn decode(record: &Record<'_>, format: EventFormat) -> Result<Self, Error> {
        let stops = record.kind() != RecordType::UNTHROTTLE;
        let kind = if stops { RecordType::THROTTLE } else { RecordType::UNTHROTTLE };
        let (mut c, id) = split_trailer(record.body_of(kind)?, format)?;
        let (time, event, stream) = (c.u64()?, c.u64()?, c.u64()?);
        c.finish()?;
        Ok(Self { stops, time, event, stream, id })
    }
}

impl Encode for Throttle {
    fn kind(&self) -> RecordType {
        if self.stops { RecordType::THROTTLE } else { RecordType::UNTHROTTLE }
    }

    fn encode_body<O: Output>(
        &self,
        format: EventFormat,
        e: &mut Encoder<'_, O>,
    ) -> Result<(), Error> {
        e.u64(self.time);
        e.u64(self.event);
        e.u64(self.stream);
        self.id.encode(format, e)
    }
}

/// Samples were dropped before they came to the ring (`PERF_RECORD_LOST_SAMPLES`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostSamples {
    /// How many.
    pub count: u64,
    /// When and where.
    pub id: SampleId,
}

impl LostSamples {
    /// Decodes a record that an event with `format` received.
    ///
    /// # Errors
    ///
    /// As [`Throttle::decode`].
    pub fn decode(record: &Record<'_>, format: EventFormat) -> Result<Self, Error> {
        let (mut c, id) = split_trailer(record.body_of(RecordType::LOST_SAMPLES)?, format)?;
        let count = c.u64()?;
        c.finish()?;
        Ok(Self { count, id })
    }
}

impl Encode for LostSamples {
    fn kind(&self) -> RecordType {
        RecordType::LOST_SAMPLES
    }

    fn encode_body<O: Output>(
        &self,
        format: EventFormat,
        e: &mut Encoder<'_, O>,
    ) -> Result<(), Error> {
        e.u64(self.count);
        self.id.encode(format, e)
    }
}
