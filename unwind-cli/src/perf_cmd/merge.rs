//! `unwind merge`: a `perf.data` whose call chains are whole.

use std::fs::File;
use std::io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::perf_cmd::PerfError;
use crate::perf_cmd::event_desc::clear_deferrals;
use crate::perf_cmd::events::Events;
use crate::perf_cmd::header::{Feature, FileHeader, Section, Start};
use crate::perf_cmd::merged_records::MergedRecords;
use crate::perf_cmd::pipeline::{self, Options, Summary};
use crate::perf_cmd::reader::PerfReader;
use crate::perf_cmd::summary::{Memory, report, stats_lines};
use crate::same_file::is_same_file;

/// Write a perf.data file whose call chains are whole.
///
/// Every perf reads the result, also one that knows no deferred call chains:
/// the stacks are in the samples, their records are gone, and so are the
/// switches for them. The form stays: a file from a file, a pipe from a pipe.
#[derive(Debug, clap::Args)]
pub(crate) struct MergeArgs {
    /// The recording, in file or pipe form; `-` is standard input
    #[arg(value_name = "FILE", default_value = "perf.data")]
    file: PathBuf,

    /// Where to write; `-` is standard output, for pipe form
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,

    /// Say on standard error what became of the samples
    #[arg(long)]
    stats: bool,

    #[command(flatten)]
    memory: Memory,
}

/// Runs `unwind merge`.
///
/// # Errors
///
/// [`Error`] if the file cannot be read whole, or the output not be written.
/// What could be read is in the output.
pub(crate) fn run(args: &MergeArgs) -> Result<(), Error> {
    let input_error = |error| Error::Perf { path: args.file.clone(), error };
    let output_error =
        |error: io::Error| Error::Perf { path: args.output.clone(), error: error.into() };
    // It would be emptied before it is read.
    if is_same_file(&args.file, &args.output) {
        return Err(input_error(PerfError::SameFile));
    }
    let mut reader = PerfReader::open(&args.file).map_err(input_error)?;
    let options = Options { merge: true, memory: args.memory.bytes() };
    let to_stdout = args.output == Path::new("-");
    let (summary, cut) = match reader.header().copied() {
        Some(_) if to_stdout => return Err(input_error(PerfError::FileFormToPipe)),
        Some(header) => {
            let out = File::create(&args.output).map_err(output_error)?;
            write_file(&mut reader, header, options, &out).map_err(output_error)?
        }
        None if to_stdout => {
            write_pipe(&mut reader, options, io::stdout().lock()).map_err(Error::Output)?
        }
        None => {
            let out = File::create(&args.output).map_err(output_error)?;
            write_pipe(&mut reader, options, out).map_err(output_error)?
        }
    };
    let mut lines = if args.stats { stats_lines(&summary) } else { Vec::new() };
    if cut > 0 {
        lines.push(format!("{cut} call chains were cut to fit a record"));
    }
    for line in lines {
        // With standard error gone there is nobody left to tell.
        let _ = writeln!(io::stderr(), "{line}");
    }
    report(summary, &args.file)
}

/// Writes pipe form. Returns also how many chains were cut.
fn write_pipe(
    reader: &mut PerfReader,
    options: Options,
    out: impl Write,
) -> io::Result<(Summary, u64)> {
    let mut out = BufWriter::with_capacity(1 << 16, out);
    out.write_all(&Start { endian: reader.endian(), size: Start::PIPE }.bytes())?;
    let mut records = MergedRecords::new(&mut out, reader.endian());
    let summary = pipeline::run(reader, options, &mut records)?;
    let cut = records.cut();
    out.flush()?;
    Ok((summary, cut))
}

/// Writes file form. Returns also how many chains were cut.
fn write_file(
    reader: &mut PerfReader,
    header: FileHeader,
    options: Options,
    file: &File,
) -> io::Result<(Summary, u64)> {
    let endian = reader.endian();
    let mut out = BufWriter::with_capacity(1 << 16, file);
    let mut merged = FileHeader { event_types: Section::default(), features: [0; 4], ..header };
    let before_data = events_section(reader, &mut merged);
    out.write_all(&merged.bytes(endian))?;
    out.write_all(&before_data)?;
    let mut records = MergedRecords::new(&mut out, endian);
    let mut summary = pipeline::run(reader, options, &mut records)?;
    merged.data.len = records.bytes();
    let cut = records.cut();
    // The features are copied even if the data were damaged.
    let features = copy_features(reader, &header, &mut merged, &mut out)?;
    summary.end = summary.end.and(features);
    out.seek(SeekFrom::Start(0))?;
    out.write_all(&merged.bytes(endian))?;
    out.flush()?;
    Ok((summary, cut))
}

/// Returns the ids and attrs, which stand between the header and the data, and
/// fills in where they are.
fn events_section(reader: &PerfReader, merged: &mut FileHeader) -> Vec<u8> {
    let endian = reader.endian();
    let events = reader.events();
    let mut ids = Vec::new();
    let mut attrs = Vec::new();
    let attr_len = merged_attr_len(events, reader);
    for event in events.all() {
        let ids_at = FileHeader::LEN.saturating_add(len(&ids));
        ids.extend(event.ids.iter().flat_map(|&id| endian.bytes_of_u64(id)));
        let ids_len = FileHeader::LEN.saturating_add(len(&ids)).saturating_sub(ids_at);
        attrs.extend(event.merged_attr(endian, attr_len));
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
fn merged_attr_len(events: &Events, reader: &PerfReader) -> u32 {
    let lens = events.all().iter().map(|event| event.least_attr_len(reader.endian()));
    lens.max().unwrap_or(0)
}

fn len(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// Copies the feature sections, and the table of them in front, to where the
/// data end, and sets their bits.
///
/// What is wrong with a section is returned inside; the others are copied.
fn copy_features(
    reader: &mut PerfReader,
    header: &FileHeader,
    merged: &mut FileHeader,
    out: &mut (impl Write + io::Seek),
) -> io::Result<Result<(), PerfError>> {
    let endian = reader.endian();
    let mut end = Ok(());
    let places = match reader.feature_places(header) {
        Ok(places) => places,
        Err(error) => return Ok(Err(error)),
    };
    // Trace data are elsewhere after the merge. Without the list of their
    // places perf finds them by reading.
    let places: Vec<_> = places
        .into_iter()
        .filter(|&(feature, _)| feature != Feature::AUXTRACE)
        .filter(|&(_, place)| match reader.check_place("feature section", place) {
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
    for &(feature, place) in &places {
        feature.set(&mut merged.features);
        out.write_all(&endian.bytes_of_u64(at))?;
        out.write_all(&endian.bytes_of_u64(place.len))?;
        at = at.saturating_add(place.len);
    }
    for (feature, place) in places {
        let copied = copy_feature(reader, feature, place, out)?;
        end = end.and(copied);
    }
    Ok(end)
}

fn copy_feature(
    reader: &mut PerfReader,
    feature: Feature,
    place: Section,
    out: &mut impl Write,
) -> io::Result<Result<(), PerfError>> {
    let endian = reader.endian();
    if feature == Feature::EVENT_DESC {
        return match reader.section("list of event names", place) {
            Ok(mut section) => {
                clear_deferrals(&mut section, endian);
                out.write_all(&section)?;
                Ok(Ok(()))
            }
            Err(error) => Ok(Err(error)),
        };
    }
    let file = match reader.file() {
        Ok(file) => file,
        Err(error) => return Ok(Err(error)),
    };
    file.seek(SeekFrom::Start(place.at))?;
    io::copy(&mut file.take(place.len), out)?;
    Ok(Ok(()))
}
