//! The fields at the end of a record that give its thread, time, CPU and event.

use super::bytes::{Cursor, offset};
use super::encode::Encoder;
use super::header::{Record, RecordHeader, RecordType};
use super::{Error, EventFormat, Output, SampleType};

/// A thread and the process it belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Task {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
}

impl Task {
    pub(super) const fn from_pair((pid, tid): (u32, u32)) -> Self {
        Self { pid, tid }
    }

    pub(super) const fn pair(self) -> (u32, u32) {
        (self.pid, self.tid)
    }
}

/// Who, when and where: the `sample_id` at the end of records.
///
/// A field that the attr does not ask for is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleId {
    /// The thread.
    pub task: Option<Task>,
    /// When, in nanoseconds of the event's clock.
    pub time: Option<u64>,
    /// The event.
    pub id: Option<u64>,
    /// The inherited copy of the event.
    pub stream_id: Option<u64>,
    /// The CPU.
    pub cpu: Option<u32>,
    /// The event, at a place that no other field moves.
    pub identifier: Option<u64>,
}

impl SampleId {
    /// Decodes the fields that end `record` under `format`.
    ///
    /// For a sample use [`Sample::decode`](super::Sample::decode): it has the
    /// same fields at other places.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] if the record has no room for them.
    pub fn decode(record: &Record<'_>, format: EventFormat) -> Result<Self, Error> {
        split_trailer(
            Cursor::new(record.body(), offset(RecordHeader::SIZE), record.endian()),
            format,
        )
        .map(|(_, id)| id)
    }

    fn read(c: &mut Cursor<'_>, fields: SampleType) -> Result<Self, Error> {
        let asked = |field| fields.contains(field);
        Ok(Self {
            task: c.u32_pair_if(asked(SampleType::TID))?.map(Task::from_pair),
            time: c.u64_if(asked(SampleType::TIME))?,
            id: c.u64_if(asked(SampleType::ID))?,
            stream_id: c.u64_if(asked(SampleType::STREAM_ID))?,
            // The other half of the word is reserved.
            cpu: c.u32_pair_if(asked(SampleType::CPU))?.map(|(cpu, _)| cpu),
            identifier: c.u64_if(asked(SampleType::IDENTIFIER))?,
        })
    }

    /// Returns which fields have a value.
    #[must_use]
    pub fn fields(&self) -> SampleType {
        let bit = |has: bool, field: SampleType| if has { field } else { SampleType::empty() };
        bit(self.task.is_some(), SampleType::TID)
            | bit(self.time.is_some(), SampleType::TIME)
            | bit(self.id.is_some(), SampleType::ID)
            | bit(self.stream_id.is_some(), SampleType::STREAM_ID)
            | bit(self.cpu.is_some(), SampleType::CPU)
            | bit(self.identifier.is_some(), SampleType::IDENTIFIER)
    }

    /// Writes the fields that `format` asks for.
    pub(super) fn encode<O: Output>(
        &self,
        format: EventFormat,
        e: &mut Encoder<'_, O>,
    ) -> Result<(), Error> {
        let fields = format.trailer();
        let missing = fields.difference(self.fields());
        if missing != SampleType::empty() {
            return Err(Error::MissingFields(missing.bits()));
        }
        let asked = |field| fields.contains(field);
        e.u32_pair(self.task.map(Task::pair), asked(SampleType::TID));
        e.u64_if(self.time, asked(SampleType::TIME));
        e.u64_if(self.id, asked(SampleType::ID));
        e.u64_if(self.stream_id, asked(SampleType::STREAM_ID));
        e.u32_pair(self.cpu.map(|cpu| (cpu, 0)), asked(SampleType::CPU));
        e.u64_if(self.identifier, asked(SampleType::IDENTIFIER));
        Ok(())
    }
}

/// Splits the body at `c` into what the record says and the trailer.
pub(super) fn split_trailer(
    mut c: Cursor<'_>,
    format: EventFormat,
) -> Result<(Cursor<'_>, SampleId), Error> {
    let fields = format.trailer();
    let len =
        usize::try_from(fields.bits().count_ones()).unwrap_or(0).saturating_mul(size_of::<u64>());
    let Some(body_len) = c.left().len().checked_sub(len) else {
        return Err(Error::Truncated { at: c.at(), needed: offset(len) });
    };
    let endian = c.endian();
    let at = c.at();
    let body = c.take(body_len)?;
    let id = SampleId::read(&mut c, fields)?;
    Ok((Cursor::new(body, at, endian), id))
}

/// Where records of several events carry the id of their event.
///
/// Records of different events differ in layout, so the id has to be found
/// before the layout is known. It can be, if every event puts it at the same
/// distance from the start of a sample and from the end of other records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdPlace {
    /// All events have one layout without an id: records belong to the first.
    Nowhere,
    /// At fixed places, in words.
    At {
        /// Words from the start of a sample's body.
        in_sample: usize,
        /// Words from the end of another record, at least one, or `None` if
        /// other records do not end in id fields.
        from_end: Option<usize>,
    },
}

impl IdPlace {
    /// Finds the place that all of `formats` agree on.
    ///
    /// # Errors
    ///
    /// [`Error::NoCommonId`] if layouts differ and there is none.
    pub fn of(formats: impl IntoIterator<Item = EventFormat>) -> Result<Self, Error> {
        let mut formats = formats.into_iter();
        let Some(first) = formats.next() else {
            return Ok(Self::Nowhere);
        };
        let place = Self::of_one(first);
        let mut same = true;
        for other in formats {
            same &= other.sample_type == first.sample_type && other.trailer() == first.trailer();
            if place != Self::of_one(other) || (place == Self::Nowhere && !same) {
                return Err(Error::NoCommonId);
            }
        }
        Ok(place)
    }

    fn of_one(format: EventFormat) -> Self {
        let fields = format.sample_type;
        let words = |of: &[SampleType]| of.iter().filter(|&&field| fields.contains(field)).count();
        let ends_in_id = format.flags.contains(super::AttrFlags::SAMPLE_ID_ALL);
        let (in_sample, from_end) = if fields.contains(SampleType::IDENTIFIER) {
            (0, 1)
        } else if fields.contains(SampleType::ID) {
            (
                words(&[SampleType::IP, SampleType::TID, SampleType::TIME, SampleType::ADDR]),
                words(&[SampleType::STREAM_ID, SampleType::CPU]).saturating_add(1),
            )
        } else {
            return Self::Nowhere;
        };
        Self::At { in_sample, from_end: ends_in_id.then_some(from_end) }
    }

    /// Returns the id of the event that wrote `record`, or `None` if the
    /// record has none.
    #[must_use]
    pub fn id_of(self, record: &Record<'_>) -> Option<u64> {
        let Self::At { in_sample, from_end } = self else {
            return None;
        };
        let mut words = super::Words::new(record.body(), record.endian());
        if record.kind() == RecordType::SAMPLE {
            words.get(in_sample)
        } else if record.kind().is_kernel() {
            words.nth_back(from_end?.checked_sub(1)?)
        } else {
            None
        }
    }
}
