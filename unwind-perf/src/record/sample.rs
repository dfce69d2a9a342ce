//! `PERF_RECORD_SAMPLE`, up to its call chain.

use core::ops::Range;

use super::bytes::offset;
use super::encode::{Encode, Encoder, Output};
use super::header::{Misc, Record, RecordHeader, RecordType};
use super::sample_id::Task;
use super::{Attr, Callchain, Error, EventFormat, SampleType, UserState};

/// The fields that can be written.
const WRITTEN: SampleType = SampleType::IDENTIFIER
    .union(SampleType::IP)
    .union(SampleType::TID)
    .union(SampleType::TIME)
    .union(SampleType::ADDR)
    .union(SampleType::ID)
    .union(SampleType::STREAM_ID)
    .union(SampleType::CPU)
    .union(SampleType::PERIOD)
    .union(SampleType::CALLCHAIN);

/// A sample: what an event recorded when it fired.
///
/// A field that the attr does not ask for is `None`. Of the counter values
/// ([`SampleType::READ`]) only the place is worked out, and what follows the
/// call chain (registers, stack bytes and the like) is left alone.
#[derive(Clone, Copy, Debug)]
pub struct Sample<C> {
    /// Where the CPU was, and flags.
    pub misc: Misc,
    /// The event, first of all fields.
    pub identifier: Option<u64>,
    /// The interrupted pc.
    pub ip: Option<u64>,
    /// The thread.
    pub task: Option<Task>,
    /// When, in nanoseconds of the event's clock.
    pub time: Option<u64>,
    /// A data address.
    pub addr: Option<u64>,
    /// The event.
    pub id: Option<u64>,
    /// The inherited copy of the event.
    pub stream_id: Option<u64>,
    /// The CPU.
    pub cpu: Option<u32>,
    /// How many events the sample stands for.
    pub period: Option<u64>,
    /// The call chain: words with marks, and maybe a cookie.
    pub callchain: Option<C>,
}

impl<C> Sample<C> {
    /// The fields that are decoded or passed.
    pub(super) const UP_TO_CHAIN: SampleType =
        SampleType::from_bits_retain(WRITTEN.bits() | SampleType::READ.bits());

    /// Returns which fields have a value.
    #[must_use]
    pub fn fields(&self) -> SampleType {
        let bit = |has: bool, field: SampleType| if has { field } else { SampleType::empty() };
        bit(self.identifier.is_some(), SampleType::IDENTIFIER)
            | bit(self.ip.is_some(), SampleType::IP)
            | bit(self.task.is_some(), SampleType::TID)
            | bit(self.time.is_some(), SampleType::TIME)
            | bit(self.addr.is_some(), SampleType::ADDR)
            | bit(self.id.is_some(), SampleType::ID)
            | bit(self.stream_id.is_some(), SampleType::STREAM_ID)
            | bit(self.cpu.is_some(), SampleType::CPU)
            | bit(self.period.is_some(), SampleType::PERIOD)
            | bit(self.callchain.is_some(), SampleType::CALLCHAIN)
    }
}

impl<'a> Sample<Callchain<'a>> {
    /// Decodes a sample of an event with `format`.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`], [`Error::Truncated`] or [`Error::BadCount`] if
    /// the record does not have this layout, and [`Error::Trailing`] if bytes
    /// follow the last field that `format` asks for.
    pub fn decode(record: &Record<'a>, format: EventFormat) -> Result<Self, Error> {
        Self::decode_with_place(record, format).map(|(sample, _)| sample)
    }

    /// Also returns where in the record the chain is, its count included.
    fn decode_with_place(
        record: &Record<'a>,
        format: EventFormat,
    ) -> Result<(Self, Range<u32>), Error> {
        let mut c = record.body_of(RecordType::SAMPLE)?;
        let asked = |field| format.sample_type.contains(field);
        let mut sample = Self {
            misc: record.header().misc,
            identifier: c.u64_if(asked(SampleType::IDENTIFIER))?,
            ip: c.u64_if(asked(SampleType::IP))?,
            task: c.u32_pair_if(asked(SampleType::TID))?.map(Task::from_pair),
            time: c.u64_if(asked(SampleType::TIME))?,
            addr: c.u64_if(asked(SampleType::ADDR))?,
            id: c.u64_if(asked(SampleType::ID))?,
            stream_id: c.u64_if(asked(SampleType::STREAM_ID))?,
            // The other half of the word is reserved.
            cpu: c.u32_pair_if(asked(SampleType::CPU))?.map(|(cpu, _)| cpu),
            period: c.u64_if(asked(SampleType::PERIOD))?,
            callchain: None,
        };
        if asked(SampleType::READ) {
            format.read_format.skip(&mut c)?;
        }
        let chain_at = c.at();
        if asked(SampleType::CALLCHAIN) {
            sample.callchain = Some(Callchain::new(c.counted_words()?));
        }
        let place = chain_at..c.at();
        if format.sample_type.difference(Sample::<()>::UP_TO_CHAIN) == SampleType::empty() {
            c.finish()?;
        }
        Ok((sample, place))
    }
}

impl<C: IntoIterator<Item = u64, IntoIter: Clone> + Clone> Encode for Sample<C> {
    fn kind(&self) -> RecordType {
        RecordType::SAMPLE
    }

    fn misc(&self) -> Misc {
        self.misc
    }

    /// Writes the fields that `format` asks for.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedFields`] if `format` asks for fields that the type
    /// does not have, [`Error::MissingFields`] if it asks for fields that are
    /// `None`.
    fn encode_body<O: Output>(
        &self,
        format: EventFormat,
        e: &mut Encoder<'_, O>,
    ) -> Result<(), Error> {
        let fields = format.sample_type;
        let unsupported = fields.difference(WRITTEN);
        if unsupported != SampleType::empty() {
            return Err(Error::UnsupportedFields(unsupported.bits()));
        }
        let missing = fields.difference(self.fields());
        if missing != SampleType::empty() {
            return Err(Error::MissingFields(missing.bits()));
        }
        let asked = |field| fields.contains(field);
        e.u64_if(self.identifier, asked(SampleType::IDENTIFIER));
        e.u64_if(self.ip, asked(SampleType::IP));
        e.u32_pair(self.task.map(Task::pair), asked(SampleType::TID));
        e.u64_if(self.time, asked(SampleType::TIME));
        e.u64_if(self.addr, asked(SampleType::ADDR));
        e.u64_if(self.id, asked(SampleType::ID));
        e.u64_if(self.stream_id, asked(SampleType::STREAM_ID));
        e.u32_pair(self.cpu.map(|cpu| (cpu, 0)), asked(SampleType::CPU));
        e.u64_if(self.period, asked(SampleType::PERIOD));
        if let Some(chain) = self.callchain.clone().filter(|_| asked(SampleType::CALLCHAIN)) {
            e.counted_words(chain.into_iter());
        }
        Ok(())
    }
}

/// Where in a sample the call chain is, its count included.
pub(super) fn chain_place(record: &Record<'_>, format: EventFormat) -> Result<Range<u32>, Error> {
    Sample::decode_with_place(record, format).map(|(_, place)| place)
}

/// A recorded sample with another call chain in the place of its own.
///
/// All other bytes stay, also of fields that this crate does not read.
#[derive(Clone, Copy, Debug)]
pub struct WithCallchain<'a, I> {
    misc: Misc,
    before: &'a [u8],
    chain: I,
    after: [&'a [u8]; 2],
}

impl<'a, I: Iterator<Item = u64> + Clone> WithCallchain<'a, I> {
    /// Puts `chain` in the place of the chain in `record`, a sample under
    /// `format`.
    ///
    /// The result is to be encoded in the byte order of `record`.
    ///
    /// # Errors
    ///
    /// As [`Sample::decode`].
    pub fn new(record: &Record<'a>, format: EventFormat, chain: I) -> Result<Self, Error> {
        let place = chain_place(record, format)?;
        Ok(Self::of_parts(record, &place, place.end..place.end, chain))
    }

    /// The same, without the user registers and the stack bytes
    /// ([`UserState`]) that `chain` was walked from.
    ///
    /// It is a sample of an event that does not ask for them.
    ///
    /// # Errors
    ///
    /// As [`UserState::decode`].
    pub fn without_user_state(record: &Record<'a>, attr: &Attr, chain: I) -> Result<Self, Error> {
        let place = chain_place(record, attr.format)?;
        let (_, left_out) = UserState::decode_with_place(record, attr)?;
        Ok(Self::of_parts(record, &place, left_out, chain))
    }

    fn of_parts(record: &Record<'a>, place: &Range<u32>, left_out: Range<u32>, chain: I) -> Self {
        let part = |range: Range<u32>| {
            let from = usize::try_from(range.start).ok()?;
            let to = usize::try_from(range.end).ok()?;
            record.bytes().get(from..to)
        };
        let start = offset(RecordHeader::SIZE);
        let end = offset(record.bytes().len());
        Self {
            misc: record.header().misc,
            before: part(start..place.start).unwrap_or_default(),
            chain,
            after: [place.end..left_out.start, left_out.end..end]
                .map(|range| part(range).unwrap_or_default()),
        }
    }
}

impl<I: Iterator<Item = u64> + Clone> Encode for WithCallchain<'_, I> {
    fn kind(&self) -> RecordType {
        RecordType::SAMPLE
    }

    fn misc(&self) -> Misc {
        self.misc
    }

    fn encode_body<O: Output>(
        &self,
        _format: EventFormat,
        e: &mut Encoder<'_, O>,
    ) -> Result<(), Error> {
        e.bytes(self.before);
        e.counted_words(self.chain.clone());
        self.after.into_iter().for_each(|part| e.bytes(part));
        Ok(())
    }
}
