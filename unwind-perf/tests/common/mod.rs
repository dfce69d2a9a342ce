//! Recorded streams as the tests walk them.

use std::collections::HashMap;

use testdata::PerfRecording;
use unwind_perf::merge::{Merger, Timestamped};
use unwind_perf::record::{
    Attr, CallchainDeferred, Comm, DeferredLayout, Endian, EventFormat, IdPlace, Lifecycle, Lost,
    Record, RecordType, Records, Sample, SampleId, UserPart, Words,
};

/// A record with where it was and whose it is.
#[derive(Clone, Copy)]
pub(crate) struct Located<'a> {
    pub(crate) ring: usize,
    pub(crate) offset: usize,
    pub(crate) event: usize,
    pub(crate) format: EventFormat,
    pub(crate) record: Record<'a>,
}

/// Tells the events of a recording apart.
pub(crate) struct Events {
    formats: Vec<EventFormat>,
    place: IdPlace,
    by_id: HashMap<u64, usize>,
}

impl Events {
    pub(crate) fn of(recording: &PerfRecording) -> Self {
        let formats: Vec<EventFormat> = recording
            .events
            .iter()
            .map(|event| Attr::parse(&event.attr, Endian::Little).unwrap().format)
            .collect();
        let place = IdPlace::of(formats.iter().copied()).unwrap();
        let ids = recording.events.iter().enumerate();
        let by_id = ids
            .flat_map(|(event, recorded)| recorded.ids.iter().map(move |&id| (id, event)))
            .collect();
        Self { formats, place, by_id }
    }

    pub(crate) fn locate<'a>(&self, ring: usize, offset: usize, record: Record<'a>) -> Located<'a> {
        let event = match self.place.id_of(&record) {
            None | Some(0) => 0,
            Some(id) => self.by_id[&id],
        };
        Located { ring, offset, event, format: self.formats[event], record }
    }
}

/// All records in the order in which they were drained.
pub(crate) fn drained(recording: &PerfRecording) -> Vec<Located<'_>> {
    let events = Events::of(recording);
    let mut drained_of_ring = vec![0; recording.rings.len()];
    let mut located = Vec::new();
    for (ring, chunk) in &recording.chunks {
        let mut records = Records::new(chunk, Endian::Little);
        loop {
            let offset = drained_of_ring[*ring] + records.offset();
            let Some(record) = records.next().unwrap() else { break };
            located.push(events.locate(*ring, offset, record));
        }
        drained_of_ring[*ring] += chunk.len();
    }
    located
}

/// Gives a record to a merger.
pub(crate) fn feed<'a>(merger: &mut Merger<Located<'a>>, located: Located<'a>) {
    let Located { record, format, .. } = located;
    let stamp = |id: SampleId| Timestamped { task: id.task.unwrap(), time: id.time.unwrap() };
    match record.kind() {
        RecordType::SAMPLE => {
            let sample = Sample::decode(&record, format).unwrap();
            let at = Timestamped { task: sample.task.unwrap(), time: sample.time.unwrap() };
            let user = sample.callchain.map_or(UserPart::Inline, |chain| chain.user_part());
            merger.sample(at, user, located, record.bytes().len());
        }
        RecordType::CALLCHAIN_DEFERRED => {
            let deferred = decode_deferred(&located);
            merger.deferred(stamp(deferred.id), deferred.cookie.unwrap(), deferred.ips);
        }
        RecordType::COMM => {
            let comm = Comm::decode(&record, format).unwrap();
            let at = Timestamped { task: comm.task, time: comm.id.time.unwrap() };
            if comm.exec {
                merger.exec(at);
            }
        }
        RecordType::EXIT => {
            let exit = Lifecycle::decode(&record, format).unwrap();
            merger.exit(Timestamped { task: exit.task, time: exit.time });
        }
        RecordType::LOST => merger.lost(Lost::decode(&record, format).unwrap().count),
        _ => {}
    }
}

pub(crate) fn decode_deferred<'a>(located: &Located<'a>) -> CallchainDeferred<Words<'a>> {
    CallchainDeferred::decode(&located.record, located.format, DeferredLayout::Cookie).unwrap()
}
