//! How a stream of records begins, and what is said between records.

use unwind_perf::event_attr::EventAttr;
use unwind_perf::record::{Attr, Endian};

use crate::engine::SampledEvent;
use crate::recording::error::PerfError;
use crate::recording::header::Start;
use crate::recording::reader::PerfReader;
use crate::recording::tool_record;

/// How a stream of records begins: the start of pipe form, and the events.
pub(crate) fn stream_start(events: &[SampledEvent]) -> Vec<u8> {
    let endian = Endian::Little;
    let mut bytes = Start { endian, size: Start::PIPE }.bytes().to_vec();
    for event in events {
        let mut attr = vec![0; EventAttr::SIZE];
        let len = event.attr.encode(&mut attr, endian).unwrap_or(0);
        attr.truncate(len);
        let ids = event.ids.iter().flat_map(|&id| endian.bytes_of_u64(id));
        let body: Vec<u8> = attr.into_iter().chain(ids).collect();
        let len = body.len().saturating_add(8);
        bytes.extend(endian.bytes_of_u32(tool_record::ATTR.0));
        bytes.extend(endian.bytes_of_u16(0));
        bytes.extend(endian.bytes_of_u16(u16::try_from(len).unwrap_or(u16::MAX)));
        bytes.extend(body);
    }
    bytes
}

/// The layout of all records of a stream of these events.
///
/// # Errors
///
/// [`PerfError`] if there are no events.
pub fn layout(events: &[SampledEvent]) -> Result<Attr, PerfError> {
    Ok(read_start(events)?.events().all().first().ok_or(PerfError::NoEvents)?.attr)
}

/// A reader that has read the start of a stream.
///
/// # Errors
///
/// [`PerfError`] if there is too much of it.
pub(crate) fn read_start(events: &[SampledEvent]) -> Result<PerfReader, PerfError> {
    let mut reader = PerfReader::from_bytes(stream_start(events))?;
    while reader.read()? {}
    Ok(reader)
}

/// The mark that all rings were emptied once.
pub(crate) fn round() -> [u8; 8] {
    let [a, b, c, d] = Endian::Little.bytes_of_u32(tool_record::FINISHED_ROUND.0);
    [a, b, c, d, 0, 0, 8, 0]
}
