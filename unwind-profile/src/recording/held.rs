//! A record of the kernel that waits for its turn.

use bytes::Bytes;
use unwind_perf::record::{
    self, BranchEntry, BranchStack, Callchain, CallchainDeferred, Comm, Context, DeferredLayout,
    Endian, EventFormat, Lifecycle, Lost, Misc, Record, RecordHeader, RecordType, Sample, SampleId,
    SampleType, Task, UserPart, Words,
};

/// A record of the kernel, held until its turn.
#[derive(Debug)]
pub struct Held {
    bytes: Bytes,
    endian: Endian,
    /// The event that wrote it.
    pub event: usize,
    pub(crate) format: EventFormat,
    /// The layout of deferred call chains.
    pub(crate) layout: DeferredLayout,
    pub(crate) meaning: Meaning,
    pub task: Task,
    /// In nanoseconds, or 0 if the record has none.
    pub time: u64,
    /// How many samples are before this one in the file.
    pub number: u64,
}

/// What a record means for the merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// A sample.
    Sample(UserPart),
    /// A stack, under a cookie if records have cookies.
    Stack(Option<u64>),
    /// An exec of the thread.
    Exec,
    /// The end of the thread.
    Exit,
    /// As many lost records.
    Lost(u64),
    /// Nothing but that time passes.
    Other,
}

impl Held {
    /// Reads what is needed to put a record of these bytes in order.
    pub(crate) fn new(
        bytes: Bytes,
        endian: Endian,
        event: usize,
        format: EventFormat,
        layout: DeferredLayout,
    ) -> Result<Self, record::Error> {
        let record = &Record::parse(&bytes, endian)?;
        let id = match record.kind() {
            RecordType::SAMPLE => SampleId::default(),
            _ => SampleId::decode(record, format)?,
        };
        let mut task = id.task;
        let mut time = id.time;
        let meaning = match record.kind() {
            RecordType::SAMPLE => {
                let sample = Sample::decode(record, format)?;
                (task, time) = (sample.task, sample.time);
                Meaning::Sample(sample.callchain.map_or(UserPart::Inline, |c| c.user_part()))
            }
            RecordType::CALLCHAIN_DEFERRED => {
                Meaning::Stack(CallchainDeferred::decode(record, format, layout)?.cookie)
            }
            RecordType::COMM => {
                let comm = Comm::decode(record, format)?;
                task = Some(comm.task);
                if comm.exec { Meaning::Exec } else { Meaning::Other }
            }
            RecordType::EXIT => {
                task = Some(Lifecycle::decode(record, format)?.task);
                Meaning::Exit
            }
            RecordType::LOST => Meaning::Lost(Lost::decode(record, format)?.count),
            _ => Meaning::Other,
        };
        // All ones is what a recorder writes that knows no time.
        let time = time.filter(|&time| time != u64::MAX).unwrap_or(0);
        Ok(Self {
            bytes,
            endian,
            event,
            format,
            layout,
            meaning,
            task: task.unwrap_or_default(),
            time,
            number: 0,
        })
    }

    /// The same sample, with its place among the samples of the file.
    pub(crate) fn with_number(self, number: u64) -> Self {
        Self { number, ..self }
    }

    /// The same record with bytes of its own: one that is held for long would keep all that was
    /// read with it.
    pub(crate) fn apart(self) -> Self {
        Self { bytes: Bytes::copy_from_slice(&self.bytes), ..self }
    }

    /// The same sample with another time and period, where it has these.
    pub(crate) fn with_time_and_period(self, time: u64, period: u64) -> Self {
        let mut bytes = Vec::from(self.bytes);
        for (field, value) in [(SampleType::TIME, time), (SampleType::PERIOD, period)] {
            let place = place_of(field, self.format.sample_type);
            let place = place.and_then(|at| bytes.get_mut(at..)?.first_chunk_mut());
            if let Some(place) = place {
                *place = self.endian.bytes_of_u64(value);
            }
        }
        Self { bytes: bytes.into(), time, ..self }
    }

    /// The cookie that a sample shares with its stack, which comes apart.
    pub(crate) const fn cookie(&self) -> Option<u64> {
        match self.meaning {
            Meaning::Sample(UserPart::Deferred(cookie)) => Some(cookie),
            _ => None,
        }
    }

    /// The record. It was split off a stream by its own size, so that is not
    /// `None`.
    pub fn record(&self) -> Option<Record<'_>> {
        Record::parse(&self.bytes, self.endian).ok()
    }

    /// The addresses of a stack.
    pub(crate) fn ips(&self) -> Words<'_> {
        let stack = self
            .record()
            .and_then(|record| CallchainDeferred::decode(&record, self.format, self.layout).ok());
        stack.map_or(Words::new(&[], self.endian), |stack| stack.ips)
    }

    /// A sample.
    fn sample(&self) -> Option<Sample<Callchain<'_>>> {
        Sample::decode(&self.record()?, self.format).ok()
    }

    /// Bytes of the record.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether samples of the event have a time.
    pub fn has_time(&self) -> bool {
        self.format.sample_type.contains(SampleType::TIME)
    }

    /// Whether samples of the event have call chains.
    pub fn has_callchain(&self) -> bool {
        self.format.sample_type.contains(SampleType::CALLCHAIN)
    }

    /// The call chain of a sample, as recorded.
    pub fn callchain(&self) -> Option<Callchain<'_>> {
        self.sample()?.callchain
    }

    /// The call chain of a sample whose user part comes apart, without that part's mark and cookie: readers that do
    /// not know the mark read no more than that.
    pub(crate) fn chain_without_user_part(&self) -> Vec<u64> {
        let is_mark = |&word: &u64| word == Context::UserDeferred.word();
        let chain = self.callchain();
        chain.map_or_else(Vec::new, |chain| {
            chain.without_cookie().filter(|word| !is_mark(word)).collect()
        })
    }

    /// Whether a sample with a whole chain has a user part, if only the address that user code
    /// was interrupted at.
    pub(crate) fn has_user_part(&self) -> bool {
        let is_of_user = |record: &Record<'_>| record.header().misc.cpu_mode() == Misc::USER;
        self.record().as_ref().is_some_and(is_of_user)
            || self
                .callchain()
                .is_some_and(|chain| chain.words().any(|word| word == Context::User.word()))
    }

    /// The branches of a sample, the newest first, and which register held that.
    pub fn branches(&self) -> (Option<u64>, impl Iterator<Item = BranchEntry> + use<'_>) {
        let stack = self
            .record()
            .and_then(|record| BranchStack::decode(&record, self.format).ok().flatten());
        let hw_index = stack.and_then(|stack| stack.hw_index);
        (hw_index, stack.into_iter().flat_map(|stack| stack.entries()))
    }

    /// The interrupted pc of a sample.
    pub fn ip(&self) -> Option<u64> {
        self.sample()?.ip
    }

    /// How many events a sample stands for, if the event records that.
    pub fn period(&self) -> Option<u64> {
        self.sample()?.period
    }

    /// The CPU of a sample or a stack.
    pub fn cpu(&self) -> Option<u32> {
        match self.meaning {
            Meaning::Sample(_) => self.sample()?.cpu,
            _ => SampleId::decode(&self.record()?, self.format).ok()?.cpu,
        }
    }
}

/// The fields of a sample that have a word each, in their order.
const WORDS: [SampleType; 9] = [
    SampleType::IDENTIFIER,
    SampleType::IP,
    SampleType::TID,
    SampleType::TIME,
    SampleType::ADDR,
    SampleType::ID,
    SampleType::STREAM_ID,
    SampleType::CPU,
    SampleType::PERIOD,
];

/// Where such a field is in a sample, in bytes; `None` if the sample has not got it.
fn place_of(field: SampleType, fields: SampleType) -> Option<usize> {
    let before = WORDS.iter().take_while(|&&word| word != field);
    let before = before.filter(|&&word| fields.contains(word)).count();
    let at = RecordHeader::SIZE.checked_add(before.checked_mul(8)?);
    at.filter(|_| fields.contains(field))
}
