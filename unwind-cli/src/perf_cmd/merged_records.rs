//! The records of a recording after the merge.

use std::io::{self, Write};

use unwind_perf::merge::{Outcome, whole_chain};
use unwind_perf::record::{self, Encode as _, Endian, Rechained, Record, RecordHeader};

use crate::perf_cmd::PerfError;
use crate::perf_cmd::events::Events;
use crate::perf_cmd::pipeline::{Held, Sink};
use crate::perf_cmd::reader::{PerfReader, tool_record};

/// Writes records, samples with whole chains among them.
pub(crate) struct MergedRecords<W> {
    out: W,
    endian: Endian,
    bytes: u64,
    rounds: Rounds,
    cut: u64,
    /// The sample being made.
    sample: Vec<u8>,
}

/// Round marks that hold for the order in which samples become whole.
///
/// A reader may hand on, at each mark, what is not newer than the newest
/// before the mark before. So a mark can be set once nothing older than that
/// is to come. A sample that waits for its stack holds the marks up, and the
/// reader then sorts that stretch as one.
#[derive(Clone, Copy, Debug, Default)]
struct Rounds {
    /// The newest time written, and what it was at the last mark.
    newest: u64,
    newest_at_mark: u64,
    bytes_since_mark: u64,
}

impl Rounds {
    /// How much to write between two marks at least.
    const BYTES: u64 = 1 << 16;

    const fn is_due(&self, settled: u64) -> bool {
        self.bytes_since_mark >= Self::BYTES && settled >= self.newest_at_mark
    }
}

impl<W: Write> MergedRecords<W> {
    pub(crate) fn new(out: W, endian: Endian) -> Self {
        Self { out, endian, bytes: 0, rounds: Rounds::default(), cut: 0, sample: Vec::new() }
    }

    /// Bytes written.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many chains were cut to fit a record.
    pub(crate) const fn cut(&self) -> u64 {
        self.cut
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.add_bytes(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        Ok(())
    }

    fn add_bytes(&mut self, len: u64) {
        self.bytes = self.bytes.saturating_add(len);
        self.rounds.bytes_since_mark = self.rounds.bytes_since_mark.saturating_add(len);
    }

    /// Makes `self.sample` of a sample and its stack.
    fn rechain(&mut self, held: &Held, stack: &[u64]) -> Result<(), record::Error> {
        self.sample.clear();
        let (Some(record), Some(chain)) = (held.record(), held.callchain()) else {
            return Ok(());
        };
        let mut encode = |stack| {
            Rechained::new(&record, held.format, whole_chain(chain, stack))?.encode(
                held.format,
                self.endian,
                &mut self.sample,
            )
        };
        match encode(stack) {
            Err(record::Error::TooLong { len }) => {
                // The innermost frames stay.
                let excess = len.saturating_sub(u32::from(u16::MAX)).div_ceil(8).saturating_add(1);
                let excess = usize::try_from(excess).unwrap_or(usize::MAX);
                self.cut = self.cut.saturating_add(1);
                encode(stack.get(..stack.len().saturating_sub(excess)).unwrap_or_default())
            }
            result => result,
        }
    }
}

impl<W: Write> Sink for MergedRecords<W> {
    fn sample(&mut self, events: &Events, held: &Held, outcome: Outcome<'_>) -> io::Result<()> {
        let stack = match outcome {
            Outcome::Inline => return self.record(events, held),
            Outcome::Merged(merged) => merged.stack,
            Outcome::Unmatched { .. } => &[],
        };
        if self.rechain(held, stack).is_err() {
            // No shorter chain fits either: the sample stays as it was.
            return self.record(events, held);
        }
        let sample = core::mem::take(&mut self.sample);
        self.write(&sample)?;
        self.sample = sample;
        self.rounds.newest = self.rounds.newest.max(held.time);
        Ok(())
    }

    fn record(&mut self, _events: &Events, held: &Held) -> io::Result<()> {
        self.write(held.record().map_or(&[], |record| record.bytes()))?;
        self.rounds.newest = self.rounds.newest.max(held.time);
        Ok(())
    }

    fn tool_record(&mut self, reader: &mut PerfReader) -> Result<(), PerfError> {
        let Some(record) = reader.record() else {
            return Ok(());
        };
        if record.kind() == tool_record::ATTR {
            if let Some(event) = reader.events().all().last() {
                let attr_len = event.least_attr_len(self.endian).min(event.attr.size);
                let attr = event.merged_attr(self.endian, attr_len);
                let ids = event.ids.iter().flat_map(|&id| self.endian.bytes_of_u64(id));
                let body: Vec<u8> = attr.into_iter().chain(ids).collect();
                let bytes = tool_record_bytes(&record, &body, self.endian);
                self.write(&bytes)?;
            }
            return Ok(());
        }
        self.write(record.bytes())?;
        let payload = reader.payload();
        self.add_bytes(payload);
        reader.copy_payload(&mut self.out)
    }

    fn settled(&mut self, time: u64) -> io::Result<()> {
        if self.rounds.is_due(time) {
            self.rounds.newest_at_mark = self.rounds.newest;
            let kind = self.endian.bytes_of_u32(tool_record::FINISHED_ROUND.0);
            let size = u16::try_from(RecordHeader::SIZE).unwrap_or_default();
            let rest = [self.endian.bytes_of_u16(0), self.endian.bytes_of_u16(size)];
            self.write(&kind)?;
            self.write(rest.as_flattened())?;
            self.rounds.bytes_since_mark = 0;
        }
        Ok(())
    }
}

/// A record like `record` with another body.
fn tool_record_bytes(record: &Record<'_>, body: &[u8], endian: Endian) -> Vec<u8> {
    let len = RecordHeader::SIZE.saturating_add(body.len());
    let mut bytes = endian.bytes_of_u32(record.kind().0).to_vec();
    bytes.extend(endian.bytes_of_u16(record.header().misc.0));
    // The body is not longer than the one it replaces.
    bytes.extend(endian.bytes_of_u16(u16::try_from(len).unwrap_or_default()));
    bytes.extend(body);
    bytes
}
