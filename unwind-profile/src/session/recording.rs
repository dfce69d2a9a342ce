//! The file of a recording: a `perf.data` with whole call chains and the ledger.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::thread::scope;
use std::time::{Duration, Instant};

use unwind_perf::merge::Outcome;
use unwind_perf::record::Endian;
use unwind_target::Notices;
use unwind_target::rows::frame_pointers::FramePointerRows;
use unwind_target::untrusted::escaped;

use crate::engine::copy_size::CopySize;
use crate::engine::{SampledEvent, WAITS};
use crate::mapped::address_spaces::Spaces;
use crate::mapped::files::RecordedFiles;
use crate::mapped::kernel::running_build_id;
use crate::mapped::origin::Origin;
use crate::recording::build_ids;
use crate::recording::code_names::CodeNames;
use crate::recording::compression::{RecordsWriter, feature_section};
use crate::recording::error::PerfError;
use crate::recording::event_desc;
use crate::recording::events::Events;
use crate::recording::events::OFF_CPU;
use crate::recording::header::{Feature, FileHeader, Section};
use crate::recording::held::Held;
use crate::recording::pipeline::{self, Options, Sink, Summary};
use crate::recording::reader::PerfReader;
use crate::recording::record_file::{RecordFile, Sections};
use crate::recording::registered_code::{REGISTERED_CODE, RegisteredCode};
use crate::recording::stream::StreamReader;
use crate::session::keeper::Keeper;
use crate::session::ledger_section::LedgerSection;
use crate::session::stream::read_start;
use crate::session::told::Told;
use crate::walks::found_frames::{FOUND_FRAMES, FoundFrames};
use crate::walks::merged_records::MergedRecords;
use crate::walks::tally::Tally;
use crate::walks::walkers::WalkSetup;

/// How a file is to be written.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// Registers and bytes of stacks stay in the samples.
    pub keeps_stacks: bool,
    /// How far frame pointers are believed.
    pub frame_pointers: FramePointerRows,
    /// Samples a second.
    pub rate: u32,
    /// Whether records are compressed.
    pub is_compressed: bool,
}

/// A file that is being written.
#[derive(Debug)]
pub struct Recording {
    out: RecordFile,
    found_frames: Option<FoundFrames>,
    /// The section with the build ids of what has samples.
    build_ids: Vec<u8>,
    /// What compilers have registered and has samples.
    registered: RegisteredCode,
    form: Form,
    copy_size: CopySize,
    /// The names of the events as they are shown, if there are several.
    events: Vec<String>,
    /// Whether the second event is that of waits.
    has_waits: bool,
    notices: Notices,
}

/// The names of events as they are shown, if there are several. Waits belong to the event beside them.
#[must_use]
pub fn names_of(sampled: &[SampledEvent]) -> Vec<String> {
    if sampled.len() < 2 || has_waits(sampled) {
        return Vec::new();
    }
    let names = sampled.iter().map(|event| event.name.as_deref().unwrap_or_default());
    names.map(|name| escaped(name).to_string()).collect()
}

/// Whether the second event is that of waits.
fn has_waits(sampled: &[SampledEvent]) -> bool {
    sampled.get(WAITS).is_some_and(|event| event.name.as_deref() == Some(OFF_CPU))
}

/// What the walks and the records came to.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) tally: Tally,
    pub(crate) told: Told,
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
        notices: Notices,
    ) -> Result<Self, PerfError> {
        Ok(Self {
            out: begin_file(out, sampled, form.keeps_stacks, form.is_compressed)?,
            found_frames: None,
            build_ids: Vec::new(),
            registered: RegisteredCode::default(),
            form,
            copy_size,
            events: names_of(sampled),
            has_waits: has_waits(sampled),
            notices,
        })
    }

    /// Walks the stacks of the samples in a stream, and writes all that is in it. `keeper` keeps the
    /// files that have samples. If an engine tells of stacks that it has walked, `told` has the names of code in them.
    ///
    /// # Errors
    ///
    /// [`PerfError`] if the file cannot be written.
    pub(crate) fn write(
        &mut self,
        stream: StreamReader,
        keeper: Option<&Keeper>,
        told: Option<CodeNames>,
    ) -> Result<Recorded, PerfError> {
        let setup = WalkSetup::new(self.form.frame_pointers)
            .beside_programs(stream.backlog(), self.copy_size.clone())
            .with_told_stacks(told);
        let mut reader = PerfReader::from_stream(stream)?;
        let form = self.form;
        let options = Options {
            merge: true,
            memory: 1 << 30,
            frame_pointers: form.frame_pointers,
            stitch_lbr: false,
        };
        let spaces = Spaces::new(RecordedFiles::of_running().with_notices(&self.notices));
        let recorded = scope(|scope| -> io::Result<_> {
            let out = RecordsWriter::new(&mut self.out, form.is_compressed);
            let records = MergedRecords::new(out, Endian::Little, spaces, scope, &setup)
                .keeping_stacks(form.keeps_stacks)
                .with_tally(Tally::with_marks().of_events(self.events.len()));
            // Stacks that are kept are walked again.
            let records = if form.keeps_stacks { records } else { records.with_found_frames() };
            let mut sink = RecordingSink {
                records,
                told: Told::new(form.rate),
                events: self.events.clone(),
                due: None,
                keeper,
                taken: HashSet::new(),
                kernel: running_build_id(),
            };
            let waits = self.has_waits.then_some(WAITS);
            let summary = pipeline::run_with_waits(&mut reader, options, waits, &mut sink)?;
            sink.records.finish()?;
            sink.records.parts().0.finish()?;
            sink.keep_files();
            self.build_ids = sink.build_ids();
            self.registered = sink.records.registered();
            self.found_frames = sink.records.take_found_frames();
            let recorded =
                Recorded { tally: sink.records.tally().clone(), told: sink.told, summary };
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
        let text = serde_json::to_vec(section).map_err(io::Error::from)?;
        let mut last = vec![(Feature::BUILD_ID, self.build_ids), (Feature::LEDGER, text)];
        if let Some(found) = &self.found_frames {
            last.push((FOUND_FRAMES, found.to_section()?));
        }
        last.extend(registered_section(&self.registered)?);
        Ok(self.out.finish(&last)?)
    }
}

/// Begins a file of these events, with what comes before the records.
pub(crate) fn begin_file(
    out: File,
    sampled: &[SampledEvent],
    keeps_stacks: bool,
    is_compressed: bool,
) -> Result<RecordFile, PerfError> {
    let reader = read_start(sampled)?;
    let endian = reader.endian();
    let events = reader.events().all();
    let lens = events.iter().map(|event| match keeps_stacks {
        true => event.attr.size,
        false => event.least_attr_len(endian, false),
    });
    let attr_len = lens.max().unwrap_or(0);
    let attrs: Vec<Vec<u8>> = events
        .iter()
        .map(|event| match keeps_stacks {
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
    let mut sections = Sections::default();
    if let Some(event) = sampled.first() {
        sections.0 = Origin::sections(&event.attr, endian);
    }
    if is_compressed {
        sections.0.push((Feature::COMPRESSED, feature_section(endian)));
    }
    if sampled.iter().any(|event| event.name.is_some()) {
        let described = events.iter().zip(sampled).zip(&attrs).map(|((event, sampled), attr)| {
            let name = sampled.name.as_deref().map_or(event.name.as_bytes(), str::as_bytes);
            (attr.as_slice(), event.ids.as_slice(), name)
        });
        let section = event_desc::section(described, attr_len, endian);
        sections.0.push((Feature::EVENT_DESC, section));
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
    ids.extend(list);
    Ok(RecordFile::begin(out, header, &ids, sections)?)
}

/// Writes what comes out of the pipeline, and counts.
struct RecordingSink<'scope, 'env, 'f> {
    records: MergedRecords<'scope, 'env, RecordsWriter<&'f mut RecordFile>>,
    told: Told,
    events: Vec<String>,
    /// When what there is has to be in the file.
    due: Option<Instant>,
    keeper: Option<&'f Keeper>,
    /// The numbers of the files that it was given.
    taken: HashSet<u64>,
    /// The build id of the kernel.
    kernel: Option<Vec<u8>>,
}

/// What is older can be read whatever ends the recorder.
const KEPT_WITHIN: Duration = Duration::from_millis(500);

/// How many bytes of registered objects are in the file before its end.
const MAX_REGISTERED: usize = 4 << 20;

/// The section of what compilers have registered, if there is any.
fn registered_section(code: &RegisteredCode) -> io::Result<Option<(Feature, Vec<u8>)>> {
    let section = code.section().map_err(io::Error::from)?;
    Ok((!section.is_empty()).then_some((REGISTERED_CODE, section)))
}

impl RecordingSink<'_, '_, '_> {
    /// Makes what there is readable, if it is time.
    fn keep(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let due = *self.due.get_or_insert_with(|| now.checked_add(KEPT_WITHIN).unwrap_or(now));
        if now < due && !self.records.parts().0.file().is_full() {
            return Ok(());
        }
        self.records.write_walked()?;
        self.keep_files();
        let build_ids = self.build_ids();
        let registered = self.records.registered();
        let (out, tally) = self.records.parts();
        let section = LedgerSection::so_far(tally, &self.told, &self.events);
        let text = serde_json::to_vec(&section).map_err(io::Error::from)?;
        let mut last = vec![(Feature::BUILD_ID, build_ids), (Feature::LEDGER, text)];
        // Sections are written anew each time.
        if registered.byte_len() <= MAX_REGISTERED {
            last.extend(registered_section(&registered)?);
        }
        out.checkpoint(&last)?;
        self.due = None;
        Ok(())
    }

    fn keep_files(&mut self) {
        if let Some(keeper) = self.keeper {
            keeper.take(self.records.files(), &mut self.taken);
        }
    }

    /// The section with the build ids of what has samples so far.
    fn build_ids(&self) -> Vec<u8> {
        let found = self.records.files().found_build_ids();
        let kernel = self.kernel.iter().map(|id| (&b"[kernel.kallsyms]"[..], id.as_slice()));
        let files = found.iter().map(|(&name, id)| (name, id.as_slice()));
        build_ids::section(kernel.chain(files), Endian::Little)
    }
}

impl Sink for RecordingSink<'_, '_, '_> {
    fn sample(&mut self, events: &Events, held: Held, outcome: &Outcome) -> io::Result<()> {
        self.records.sample(events, held, outcome)
    }

    fn record(&mut self, events: &Events, held: Held) -> io::Result<()> {
        self.told.take(&held);
        self.records.record(events, held)
    }

    /// The file has the event in front of the records.
    fn tool_record(&mut self, _: &mut PerfReader) -> Result<(), PerfError> {
        Ok(())
    }

    fn settled(&mut self, time: u64) -> io::Result<()> {
        self.records.settled(time)
    }

    fn round(&mut self, _: &Events) -> io::Result<()> {
        self.keep()
    }
}
