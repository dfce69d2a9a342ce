//! The file of a recording: a `perf.data` with whole call chains and the ledger.

use std::fs::File;
use std::io::{self, BufWriter, Seek as _, SeekFrom, Write};
use std::thread::scope;

use serde::{Deserialize, Serialize};
use unwind_perf::merge::Outcome;
use unwind_perf::record::{Endian, RecordType};

use crate::commands::perf::address_spaces::Spaces;
use crate::commands::perf::error::PerfError;
use crate::commands::perf::event_desc;
use crate::commands::perf::events::Events;
use crate::commands::perf::files::RecordedFiles;
use crate::commands::perf::found_frames::{FOUND_FRAMES, FoundFrames};
use crate::commands::perf::header::{Feature, FileHeader, Section};
use crate::commands::perf::held::Held;
use crate::commands::perf::merged_records::MergedRecords;
use crate::commands::perf::origin::Origin;
use crate::commands::perf::pipeline::{self, Options, Sink, Summary};
use crate::commands::perf::reader::PerfReader;
use crate::commands::perf::stream::StreamReader;
use crate::commands::perf::tally::Tally;
use crate::commands::perf::walks::WalkSetup;
use crate::commands::record::compression::{RecordsWriter, feature_section};
use crate::commands::record::copy_size::CopySize;
use crate::commands::record::engine::SampledEvent;
use crate::commands::record::ledger::Ledger;
use crate::commands::record::off_cpu::{OffCpu, Waits};
use crate::commands::record::stream::read_start;
use crate::commands::record::told::Told;
use crate::commands::stack::frame_pointers::FramePointerRows;

/// What the ledger's section holds, as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LedgerSection {
    pub(crate) ledger: Ledger,
    /// The samples whose stacks are not complete: time in nanoseconds, thread, reason.
    pub(crate) incomplete: Vec<(u64, u32, String)>,
}

impl LedgerSection {
    /// Whether the stacks that it does not list are complete. Those that the kernel has walked may
    /// be or not.
    pub(crate) const fn others_are_complete(&self) -> bool {
        self.ledger.unchecked == 0
    }
}

/// The feature section with the ledger. perf leaves out those that it does not know.
pub(crate) const LEDGER: Feature = Feature(255);

/// How a file is to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    /// Registers and bytes of stacks stay in the samples.
    pub(crate) keeps_stacks: bool,
    /// How far frame pointers are believed.
    pub(crate) frame_pointers: FramePointerRows,
    /// Samples a second.
    pub(crate) rate: u32,
    /// Whether records are compressed.
    pub(crate) is_compressed: bool,
}

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct Recording {
    out: BufWriter<File>,
    header: FileHeader,
    features: Features,
    found_frames: Option<FoundFrames>,
    form: Form,
    copy_size: CopySize,
}

/// The sections after the records.
#[derive(Debug, Default)]
struct Features {
    sections: Vec<(Feature, Vec<u8>)>,
}

impl Features {
    /// In the order of their bits, as readers look for them.
    fn in_order(&self) -> Vec<&(Feature, Vec<u8>)> {
        let mut sections: Vec<_> = self.sections.iter().collect();
        sections.sort_by_key(|&(feature, _)| *feature);
        sections
    }

    /// Sets their bits in the header, and returns them, each with its place, for a file
    /// whose records end at `end`.
    fn placed(&self, header: &mut FileHeader, end: u64, endian: Endian) -> Vec<u8> {
        let count = u64::try_from(self.sections.len()).unwrap_or(0);
        let mut at = end.saturating_add(count.saturating_mul(16));
        let (mut places, mut bytes) = (Vec::new(), Vec::<u8>::new());
        for (feature, section) in self.in_order() {
            feature.set(&mut header.features);
            let len = u64::try_from(section.len()).unwrap_or(u64::MAX);
            places.extend([at, len].into_iter().flat_map(|word| endian.bytes_of_u64(word)));
            bytes.extend(section);
            at = at.saturating_add(len);
        }
        places.extend(bytes);
        places
    }
}

/// What the walks and the records came to.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) tally: Tally,
    pub(crate) told: Told,
    pub(crate) off_cpu: OffCpu,
    pub(crate) summary: Summary,
}

impl Recording {
    /// Begins the file of these events. `copy_size` learns how deep stacks turn out to be.
    ///
    /// # Errors
    ///
    /// [`PerfError`] if it cannot be written.
    pub(crate) fn begin(
        out: File,
        sampled: &[SampledEvent],
        form: Form,
        copy_size: CopySize,
    ) -> Result<Self, PerfError> {
        let reader = read_start(sampled)?;
        let endian = reader.endian();
        let events = reader.events().all();
        let lens = events.iter().map(|event| match form.keeps_stacks {
            true => event.attr.size,
            false => event.least_attr_len(endian, false),
        });
        let attr_len = lens.max().unwrap_or(0);
        let attrs: Vec<Vec<u8>> = events
            .iter()
            .map(|event| match form.keeps_stacks {
                true => event.attr_bytes.clone(),
                false => event.merged_attr(endian, attr_len, false),
            })
            .collect();
        let len = |bytes: &[u8]| u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        // The ids, and then the attrs, each followed by the place of its ids.
        let (mut ids, mut list) = (Vec::new(), Vec::new());
        for (event, attr) in events.iter().zip(&attrs) {
            let at = FileHeader::LEN.saturating_add(len(&ids));
            ids.extend(event.ids.iter().flat_map(|&id| endian.bytes_of_u64(id)));
            let ids_len = FileHeader::LEN.saturating_add(len(&ids)).saturating_sub(at);
            list.extend(attr);
            list.extend([at, ids_len].into_iter().flat_map(|word| endian.bytes_of_u64(word)));
        }
        let mut features = Features::default();
        if let Some(event) = sampled.first() {
            features.sections = Origin::sections(&event.attr, endian);
        }
        if form.is_compressed {
            features.sections.push((Feature::COMPRESSED, feature_section(endian)));
        }
        if sampled.iter().any(|event| event.name.is_some()) {
            let described =
                events.iter().zip(sampled).zip(&attrs).map(|((event, sampled), attr)| {
                    let name = sampled.name.map_or(event.name.as_bytes(), str::as_bytes);
                    (attr.as_slice(), event.ids.as_slice(), name)
                });
            let section = event_desc::section(described, attr_len, endian);
            features.sections.push((Feature::EVENT_DESC, section));
        }
        let attrs = Section { at: FileHeader::LEN.saturating_add(len(&ids)), len: len(&list) };
        let data = Section { at: attrs.at.saturating_add(attrs.len), len: 0 };
        let header = FileHeader {
            attr_len: u64::from(attr_len).saturating_add(16),
            attrs,
            data,
            event_types: Section::default(),
            features: [0; 4],
        };
        let mut out = BufWriter::with_capacity(1 << 16, out);
        out.write_all(&header.bytes(endian))?;
        out.write_all(&ids)?;
        out.write_all(&list)?;
        Ok(Self { out, header, features, found_frames: None, form, copy_size })
    }

    /// Walks the stacks of the samples in a stream, and writes all that is in it.
    ///
    /// # Errors
    ///
    /// [`PerfError`] if the file cannot be written.
    pub(crate) fn write(&mut self, stream: StreamReader) -> Result<Recorded, PerfError> {
        let setup = WalkSetup::new(self.form.frame_pointers)
            .beside_programs(stream.backlog(), self.copy_size.clone());
        let mut reader = PerfReader::from_stream(stream)?;
        let form = self.form;
        let options = Options {
            merge: true,
            memory: 1 << 30,
            frame_pointers: form.frame_pointers,
            stitch_lbr: false,
        };
        let spaces = Spaces::new(RecordedFiles::of_running());
        let recorded = scope(|scope| -> io::Result<_> {
            let mut out = RecordsWriter::new(&mut self.out, form.is_compressed);
            let records = MergedRecords::new(&mut out, Endian::Little, spaces, scope, &setup)
                .keeping_stacks(form.keeps_stacks)
                .with_tally(Tally::with_marks());
            // Stacks that are kept are walked again.
            let records = if form.keeps_stacks { records } else { records.with_found_frames() };
            let mut sink =
                RecordingSink { records, told: Told::new(form.rate), waits: Waits::default() };
            let summary = pipeline::run(&mut reader, options, &mut sink)?;
            for sample in sink.waits.finish() {
                sink.write_sample(reader.events(), sample, &Outcome::Inline)?;
            }
            sink.records.finish()?;
            self.found_frames = sink.records.take_found_frames();
            let recorded = Recorded {
                tally: sink.records.tally().clone(),
                told: sink.told,
                off_cpu: sink.waits.counts,
                summary,
            };
            self.header.data.len = out.finish()?;
            Ok(recorded)
        })?;
        Ok(recorded)
    }

    /// Ends the file with the ledger.
    ///
    /// # Errors
    ///
    /// [`PerfError`] if the file cannot be written.
    pub(crate) fn finish(mut self, section: &LedgerSection) -> Result<(), PerfError> {
        let endian = Endian::Little;
        let text = serde_json::to_vec(section).map_err(io::Error::from)?;
        self.features.sections.push((LEDGER, text));
        if let Some(found) = &self.found_frames {
            let text = serde_json::to_vec(found).map_err(io::Error::from)?;
            self.features.sections.push((FOUND_FRAMES, text));
        }
        let data = self.header.data;
        let end = data.at.saturating_add(data.len);
        let sections = self.features.placed(&mut self.header, end, endian);
        self.out.write_all(&sections)?;
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&self.header.bytes(endian))?;
        Ok(self.out.flush()?)
    }
}

/// Writes what comes out of the pipeline, and counts.
struct RecordingSink<'scope, 'env, W> {
    records: MergedRecords<'scope, 'env, W>,
    told: Told,
    waits: Waits,
}

/// The place of the event of waits among the events.
const WAITS: usize = 1;

impl<W: Write> RecordingSink<'_, '_, W> {
    fn write_sample(&mut self, events: &Events, held: Held, outcome: &Outcome) -> io::Result<()> {
        self.records.sample(events, held, outcome)
    }
}

impl<W: Write> Sink for RecordingSink<'_, '_, W> {
    fn sample(&mut self, events: &Events, held: Held, outcome: &Outcome) -> io::Result<()> {
        if held.event != WAITS {
            return self.write_sample(events, held, outcome);
        }
        // It is written when its thread runs again.
        let unended = self.waits.sample(held);
        unended.map_or(Ok(()), |last| self.write_sample(events, last, outcome))
    }

    fn record(&mut self, events: &Events, held: Held) -> io::Result<()> {
        self.told.take(&held);
        let kind = held.record().map(|record| record.kind());
        if let Some(RecordType::SWITCH | RecordType::SWITCH_CPU_WIDE) = kind {
            // What it says is in the samples of waits.
            let ended = self.waits.record(&held);
            let outcome = &Outcome::Inline;
            return ended.map_or(Ok(()), |last| self.write_sample(events, last, outcome));
        }
        self.waits.record(&held);
        self.records.record(events, held)
    }

    /// The file has the event in front of the records.
    fn tool_record(&mut self, _: &mut PerfReader) -> Result<(), PerfError> {
        Ok(())
    }

    fn settled(&mut self, time: u64) -> io::Result<()> {
        self.records.settled(time)
    }
}
