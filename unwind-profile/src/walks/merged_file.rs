//! A `perf.data` whose call chains are whole.

use crate::mapped::address_spaces::Spaces;
use crate::mapped::files::RecordedFiles;
use crate::mapped::origin::Origin;
use crate::recording::error::PerfError;
use crate::recording::event_desc::make_all_whole;
use crate::recording::events::Events;
use crate::recording::header::{Feature, FileHeader, Section, Start};
use crate::recording::pipeline::{self, Options, Summary};
use crate::recording::reader::PerfReader;
use crate::walks::call_stacks::CallStacks;
use crate::walks::found_frames::{FOUND_FRAMES, FoundFrames};
use crate::walks::merged_records::MergedRecords;
use crate::walks::walkers::WalkSetup;
use std::io::{self, BufWriter, Seek as _, SeekFrom, Write};
use std::thread::scope;
use unwind_target::Notices;
use unwind_target::rows::frame_pointers::FramePointerRows;

/// What became of call chains besides the merge.
#[derive(Clone, Copy, Debug)]
pub struct Notes {
    /// How many were cut: to fit a record, or since many samples share a stack.
    cut: u64,
    walked: u64,
    incomplete: u64,
    damaged: u64,
    /// Lists of how frames were found, which have the calls of interpreters.
    lost_lists: u64,
}

impl Notes {
    /// A line each for what there was.
    pub fn lines(self) -> impl Iterator<Item = String> {
        let Self { cut, walked, incomplete, damaged, lost_lists } = self;
        let lines = [
            (cut, "call chains were cut: they do not fit a record, or make the file too long"),
            (walked, "stacks were walked"),
            (incomplete, "of these are not complete; `unwind script` says why"),
            (damaged, "samples were left out: their fields cannot be told apart"),
            (
                lost_lists,
                "list of calls of interpreters was left out: not all of its samples are written",
            ),
        ];
        lines
            .into_iter()
            .filter(|&(count, _)| count > 0)
            .map(|(count, what)| format!("{count} {what}"))
    }
}

/// What comes of the records of a recording.
struct Written {
    summary: Summary,
    notes: Notes,
    bytes: u64,
    /// The places in the recording of the samples, in their order, if that was asked for and is known.
    order: Option<Vec<u64>>,
}

/// Reads all records and writes them to `out`.
fn write_records(
    reader: &mut PerfReader,
    options: Options,
    notices: &Notices,
    is_ordered: bool,
    out: impl Write,
) -> io::Result<Written> {
    // A recording whose sections cannot be read says nothing of its time.
    let origin = Origin::read(reader).unwrap_or_default();
    let spaces = Spaces::new(
        RecordedFiles::new(reader.build_ids()).of_origin(&origin).with_notices(notices),
    );
    let setup = WalkSetup::new(options.frame_pointers);
    let call_stacks = CallStacks::new(options.stitch_lbr, reader.branch_entries());
    let mut written = scope(|scope| -> io::Result<_> {
        let mut records = MergedRecords::new(out, reader.endian(), spaces, scope, &setup)
            .with_call_stacks(call_stacks)
            .noting_order(is_ordered);
        let summary = pipeline::run(reader, options, &mut records)?;
        records.finish()?;
        let tally = records.tally();
        let (walked, incomplete) = (tally.walked(), tally.all_incomplete());
        let (cut, damaged) = (records.cut(), tally.damaged);
        let notes = Notes { cut, walked, incomplete, damaged, lost_lists: 0 };
        let (bytes, order) = (records.bytes(), records.take_order());
        Ok(Written { summary, notes, bytes, order })
    })?;
    written.summary.rows = setup.into_rows();
    Ok(written)
}

/// Writes pipe form.
pub fn write_pipe(
    reader: &mut PerfReader,
    options: Options,
    notices: &Notices,
    out: impl Write,
) -> io::Result<(Summary, Notes)> {
    let mut out = BufWriter::with_capacity(1 << 16, out);
    out.write_all(&Start { endian: reader.endian(), size: Start::PIPE }.bytes())?;
    let Written { summary, notes, .. } = write_records(reader, options, notices, false, &mut out)?;
    out.flush()?;
    Ok((summary, notes))
}

/// Writes file form.
pub fn write_whole(
    reader: &mut PerfReader,
    header: FileHeader,
    options: Options,
    notices: &Notices,
    out: impl Write + io::Seek,
) -> io::Result<(Summary, Notes)> {
    let endian = reader.endian();
    let mut out = BufWriter::with_capacity(1 << 16, out);
    let mut merged = FileHeader { event_types: Section::default(), features: [0; 4], ..header };
    // One that cannot be read is of no use.
    let found = FoundFrames::read(reader).unwrap_or_default();
    let before_data = events_section(reader, &mut merged, options.stitch_lbr);
    out.write_all(&merged.bytes(endian))?;
    out.write_all(&before_data)?;
    let is_ordered = found.is_some();
    let Written { mut summary, mut notes, bytes, order } =
        write_records(reader, options, notices, is_ordered, &mut out)?;
    merged.data.len = bytes;
    notes.lost_lists = u64::from(found.is_some() && order.is_none());
    let found = found.zip(order).map(|(found, order)| found.in_order(&order).to_section());
    let found = found.transpose()?;
    // The features are copied even if the data were damaged.
    let how = (options.stitch_lbr, found.as_deref());
    let features = copy_features(reader, &header, &mut merged, how, &mut out)?;
    summary.end = summary.end.and(features);
    out.seek(SeekFrom::Start(0))?;
    out.write_all(&merged.bytes(endian))?;
    out.flush()?;
    Ok((summary, notes))
}

/// Merges a recording that is in memory. Returns the length of the result in bytes.
#[must_use]
pub fn merged_len(bytes: Vec<u8>) -> Option<usize> {
    let mut reader = PerfReader::from_bytes(bytes).ok()?;
    let frame_pointers = FramePointerRows { is_trusted: false };
    let options = Options { merge: true, memory: 1 << 20, frame_pointers, stitch_lbr: false };
    let (mut out, notices) = (io::Cursor::new(Vec::new()), &Notices::default());
    let result = match reader.header().copied() {
        Some(header) => write_whole(&mut reader, header, options, notices, &mut out),
        None => write_pipe(&mut reader, options, notices, &mut out),
    };
    result.is_ok().then_some(out.into_inner().len())
}

/// Returns the ids and attrs, which stand between the header and the data, and
/// fills in where they are.
fn events_section(reader: &PerfReader, merged: &mut FileHeader, is_joined: bool) -> Vec<u8> {
    let endian = reader.endian();
    let events = reader.events();
    let mut ids = Vec::new();
    let mut attrs = Vec::new();
    let attr_len = merged_attr_len(events, reader, is_joined);
    for event in events.all() {
        let ids_at = FileHeader::LEN.saturating_add(len(&ids));
        ids.extend(event.ids.iter().flat_map(|&id| endian.bytes_of_u64(id)));
        let ids_len = FileHeader::LEN.saturating_add(len(&ids)).saturating_sub(ids_at);
        attrs.extend(event.merged_attr(endian, attr_len, is_joined));
        attrs.extend(endian.bytes_of_u64(ids_at));
        attrs.extend(endian.bytes_of_u64(ids_len));
    }
    let attrs_at = FileHeader::LEN.saturating_add(len(&ids));
    merged.attr_len = u64::from(attr_len).saturating_add(16);
    merged.attrs = Section { at: attrs_at, len: len(&attrs) };
    merged.data = Section { at: attrs_at.saturating_add(len(&attrs)), len: 0 };
    ids.extend(attrs);
    ids
}

/// The one length that all attrs of a file have.
fn merged_attr_len(events: &Events, reader: &PerfReader, is_joined: bool) -> u32 {
    let lens = events.all().iter().map(|event| event.least_attr_len(reader.endian(), is_joined));
    lens.max().unwrap_or(0)
}

fn len(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// Copies the feature sections, and the table of them in front, to where the
/// data end, and sets their bits. `found` is the one of how frames were found.
///
/// What is wrong with a section is returned inside; the others are copied.
fn copy_features(
    reader: &mut PerfReader,
    header: &FileHeader,
    merged: &mut FileHeader,
    (is_joined, found): (bool, Option<&[u8]>),
    out: &mut (impl Write + io::Seek),
) -> io::Result<Result<(), PerfError>> {
    let endian = reader.endian();
    let mut end = Ok(());
    let places = match reader.feature_places(header) {
        Ok(places) => places,
        Err(error) => return Ok(Err(error)),
    };
    // Sections that share bytes would be copied once each.
    let mut left = reader.file_len().unwrap_or(0);
    let mut check = |Section { at, len }| {
        reader.check_place("feature section", Section { at, len })?;
        left = left.checked_sub(len).ok_or(PerfError::SharedSections { at, len })?;
        Ok(())
    };
    // Trace data are elsewhere after the merge. Without the list of their
    // places perf finds them by reading. Samples are in another order, and records not compressed.
    let mut left_out = vec![Feature::AUXTRACE, Feature::COMPRESSED];
    left_out.extend(found.is_none().then_some(FOUND_FRAMES));
    let places: Vec<_> = places
        .into_iter()
        .filter(|(feature, _)| !left_out.contains(feature))
        .filter(|&(_, place)| match check(place) {
            Ok(()) => true,
            Err(error) => {
                end = Err(error);
                false
            }
        })
        .collect();
    let table_at = merged.data.at.saturating_add(merged.data.len);
    let table_len = u64::try_from(places.len()).unwrap_or(0).saturating_mul(16);
    let mut at = table_at.saturating_add(table_len);
    let made = |feature| found.filter(|_| feature == FOUND_FRAMES);
    for &(feature, place) in &places {
        feature.set(&mut merged.features);
        let len = made(feature).map_or(place.len, len);
        out.write_all(&endian.bytes_of_u64(at))?;
        out.write_all(&endian.bytes_of_u64(len))?;
        at = at.saturating_add(len);
    }
    for (feature, place) in places {
        match made(feature) {
            Some(section) => out.write_all(section)?,
            None => end = end.and(copy_feature(reader, feature, place, is_joined, out)?),
        }
    }
    Ok(end)
}

fn copy_feature(
    reader: &mut PerfReader,
    feature: Feature,
    place: Section,
    is_joined: bool,
    out: &mut impl Write,
) -> io::Result<Result<(), PerfError>> {
    let endian = reader.endian();
    if feature == Feature::EVENT_DESC {
        return match reader.section("list of event names", place) {
            Ok(mut section) => {
                make_all_whole(&mut section, endian, is_joined);
                out.write_all(&section)?;
                Ok(Ok(()))
            }
            Err(error) => Ok(Err(error)),
        };
    }
    reader.copy_section(place, out)
}
