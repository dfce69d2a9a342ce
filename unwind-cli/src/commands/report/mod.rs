//! `unwind report`: what a recording shows, as a table, as pictures and for other tools.

mod by_event;
mod chance;
pub(crate) mod collector;
mod comparison;
mod diff;
mod dwarf_file;
mod expansion;
#[cfg(feature = "firefox")]
mod firefox;
#[cfg(feature = "svg")]
mod flame_graph;
mod folded;
mod format;
pub(crate) mod found_by;
pub(crate) mod grouping;
#[cfg(feature = "html")]
mod html;
mod inlined;
pub(crate) mod labels;
mod line_samples;
#[cfg(feature = "otlp")]
pub(crate) mod otlp;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(feature = "pprof")]
mod pprof;
pub(crate) mod profile;
pub(crate) mod reading;
mod side;
mod source_lines;
mod speedscope;
mod spread;
pub(crate) mod table;
pub(crate) mod time_line;
pub(crate) mod view;
mod waits;

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::ValueEnum as _;
use clap::builder::{OsStringValueParser, TypedValueParser as _};
use unwind_target::counted::counted;
use unwind_target::files::same_file::is_same_file;
use unwind_target::untrusted::escaped;
use unwind_target::{DebugFiles, Untrusted};

use crate::commands::perf::error::{PerfError, RecordingError};
use crate::commands::perf::origin::Origin;
use crate::commands::perf::reader::PerfReader;
use crate::commands::perf::summary::Memory;
use crate::commands::report::format::Format;
use crate::commands::report::grouping::By;
use crate::commands::report::labels::Labels;
use crate::commands::report::reading::{EventRead, Read, Reading, read, read_from};
use crate::commands::report::side::Side;
use crate::commands::report::source_lines::SourceLines;
use crate::commands::report::time_line::Detail;
use crate::commands::report::view::View;
use crate::debug_options::DebugDirectories;
use crate::failure::Failure;
use crate::output_file::write_file;

/// Show where the samples of a recording were taken.
///
/// Reads what `unwind record` wrote, and perf's own recordings: those with copies of stacks
/// (`--call-graph dwarf`) are walked as by `unwind script`.
///
/// Stacks that are not complete stand apart: under a frame that says why, outside of all
/// others. So do samples that were lost.
#[derive(Debug, clap::Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct ReportArgs {
    /// The recording, or several that are put together, such as the parts of --every; `-` is standard
    /// input, for pipe form
    #[arg(value_name = "FILE", default_value = "perf.data")]
    file: Vec<PathBuf>,

    /// What differs from one recording to another: `text`, `folded`, `svg` or `html`
    ///
    /// Given several times, with recordings made in turn, it also tells by how much runs of one program
    /// differ, so smaller differences can be told from those.
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], conflicts_with = "file")]
    diff: Vec<PathBuf>,

    /// The event whose samples are shown, of a recording with several, such as `page-faults`
    ///
    /// Without it the text has a table for each; other formats are of one.
    #[arg(long, value_name = "NAME",
          value_parser = OsStringValueParser::new().map(|name| Untrusted::from(&name)))]
    event: Option<Untrusted>,

    /// What to write
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    format: Format,

    /// Where to write; without it, or with `-`, on standard output. For `parquet` a folder, which is made
    /// and which has the tables of many recordings
    #[arg(short, long, value_name = "OUT", required_if_eq("format", "parquet"))]
    output: Option<PathBuf>,

    /// The machine that was recorded, for `parquet` and `otlp`; without it as the recording
    /// says
    #[arg(long, value_name = "NAME")]
    host: Option<OsString>,

    /// What was recorded, such as its version, for `parquet` and `otlp`
    #[arg(long, value_name = "NAME")]
    release: Option<OsString>,

    /// What stacks are put together under
    #[arg(long, value_enum, value_name = "GROUP", default_value = "name")]
    by: By,

    /// How many functions the table has at most
    #[arg(long, value_name = "N", default_value_t = 40)]
    top: usize,

    /// Show where threads wait, too, of a recording with `--off-cpu`
    ///
    /// A wait counts as many samples as the thread would have had if it had run meanwhile, so
    /// that widths are shares of the time that passed. Such stacks end in `[off CPU]`.
    #[arg(long, conflicts_with = "diff")]
    off_cpu: bool,

    /// Declare that all code without a table keeps frame pointers
    #[arg(long)]
    trust_fp: bool,

    #[command(flatten)]
    debug_directories: DebugDirectories,

    /// Ask the servers in `DEBUGINFOD_URLS` for what was stripped off and is not here, by elfutils'
    /// debuginfod-find
    #[arg(long)]
    debuginfod: bool,

    /// Count functions that compilers have inlined as a part of those that have their code
    ///
    /// Without this they have frames of their own, where a file has debug information or what was
    /// stripped off it is here.
    #[arg(long)]
    no_inlined: bool,

    /// Show stacks that have gaps apart, below `[incomplete: gap]`
    ///
    /// Without it a stack that reaches its outermost frame stands where others do, with
    /// `[callers may be missing]` where a caller was guessed.
    #[arg(long)]
    gaps_apart: bool,

    /// Leave the text of source files out of the page; the numbers of lines stay
    #[arg(long)]
    no_source: bool,

    #[command(flatten)]
    memory: Memory,
}

const LONG_HELP: &str = "\
The share of a function is `self` where it was the innermost one, and `total` where it was
anywhere in a stack.

In the other formats a stack begins with what --by says: the name of its thread. A root
`[incomplete: REASON]` holds the stacks that do not reach their outermost frame, `[lost in a ring]` and `[dropped]`
the samples of which nothing is known, `[too many different stacks]` those for whose stacks
--memory has no room, with their innermost function alone. Functions of the kernel end in `_[k]`
in folded stacks and flame graphs.

What became of the samples is told in each format: under the table; on standard error beside
folded stacks; in the page; in the subtitle of a flame graph; as `ledger` in the JSON for
speedscope and Firefox; as comments for pprof; as a table for parquet. Of a recording of perf it
is what can be told from it: chains that the kernel found by frame pointers are `unchecked`.";

/// Runs `unwind report`.
///
/// # Errors
///
/// [`Failure`] if a file cannot be read whole, the output not be written, or a ledger does not
/// add up.
pub(crate) fn run(args: &ReportArgs) -> Result<(), Failure> {
    let debug_files = args.debug_directories.files_and_servers(None, args.debuginfod)?;
    if !args.diff.is_empty() {
        return run_diff(args, &debug_files);
    }
    match (args.format, args.file.as_slice()) {
        // Each recording has rows of its own there.
        (format, files) if format.is_of_tables() => {
            let reported = files.iter().map(|file| report_one(args, &debug_files, &[file]));
            Failure::first_of(reported.filter_map(Result::err))
        }
        #[cfg(feature = "otlp")]
        (Format::Otlp, [_, _, ..]) => {
            Err(Failure::new("a profile of OpenTelemetry is of one recording", 2))
        }
        (_, files) => report_one(args, &debug_files, files),
    }
}

/// Reports recordings together.
fn report_one<P: AsRef<Path>>(
    args: &ReportArgs,
    debug_files: &DebugFiles,
    files: &[P],
) -> Result<(), Failure> {
    let mut read = read(files, args.reading(debug_files))?;
    let labels = args.labels(&read.origin, files);
    if args.format != Format::Text {
        read.only()?;
    }
    let lines: Vec<SourceLines> = read
        .events
        .iter_mut()
        .map(|event| {
            let lines = event.line_samples.take().map(|samples| {
                SourceLines::find(samples, &event.profile.frames, debug_files, !args.no_source)
            });
            lines.unwrap_or_default()
        })
        .collect();
    for problem in read.problems.iter().chain(lines.iter().flat_map(|lines| &lines.problems)) {
        // With standard error gone there is no other place to tell it.
        let _ = writeln!(io::stderr(), "unwind: {problem}");
    }
    let titles: Vec<String> =
        read.events.iter().map(|event| title_of_event(files, &read, event)).collect();
    let views: Vec<View<'_>> = read
        .events
        .iter()
        .zip(&lines)
        .zip(&titles)
        .map(|((event, lines), title)| View {
            title,
            profile: &event.profile,
            time_line: &event.time_line,
            ledger: &event.ledger,
            labels: &labels,
            lines,
        })
        .collect();
    #[cfg(feature = "parquet")]
    if let (Format::Parquet, Some(folder), [view]) = (args.format, &args.output, views.as_slice()) {
        let output_error =
            |error: io::Error| RecordingError { path: folder.clone(), error: error.into() };
        parquet::write(folder, view).map_err(output_error)?;
        return read.end();
    }
    let inputs: Vec<&Path> = files.iter().map(AsRef::as_ref).collect();
    write_to(args, &inputs, |out| match views.as_slice() {
        [view] => write(args, view, out),
        views => write_events(args, &read, views, out),
    })?;
    read.end()
}

/// Writes the difference of recordings before and after.
fn run_diff(args: &ReportArgs, debug_files: &DebugFiles) -> Result<(), Failure> {
    if !args.format.is_of_difference() {
        return Err(Failure::new("--diff is written as text, folded, svg or html", 2));
    }
    let files = [0, 1].map(|side| args.diff.iter().skip(side).step_by(2).collect::<Vec<_>>());
    for files in &files {
        let is_twice = |(at, file): &(usize, &&PathBuf)| {
            files.iter().take(*at).any(|other| other == *file || is_same_file(other, file))
        };
        if let Some((_, file)) = files.iter().enumerate().find(is_twice) {
            let path = escaped(file.as_path());
            return Err(Failure::new(format!("{path} is given twice to --diff on one side"), 2));
        }
    }
    let [before, after] = &files;
    let reading = args.reading(debug_files);
    let reads = [read(before, reading)?, read(after, reading)?];
    let [event_before, event_after] = [reads[0].only()?, reads[1].only()?];
    // A pair of which one could not be read is none.
    let pairs = before.iter().zip(after).filter_map(|(before, after)| {
        Some((event_before.counts(before)?, event_after.counts(after)?))
    });
    let (of_before, of_after): (Vec<_>, Vec<_>) = pairs.unzip();
    let titles = files.each_ref().map(|files| title(files));
    let [title_before, title_after] = &titles;
    let sides =
        [side(title_before, event_before, &of_before), side(title_after, event_after, &of_after)];
    let inputs: Vec<&Path> = args.diff.iter().map(PathBuf::as_path).collect();
    write_to(args, &inputs, |out| {
        diff::write(out, args.format, &sides, args.top, args.memory.bytes())
    })?;
    Failure::first_of(reads.into_iter().filter_map(|read| read.end().err()))
}

/// What was read of one side, and the counts of those of its recordings that have one on the other.
const fn side<'s>(title: &'s str, event: &'s EventRead, recordings: &'s [&'s [u64]]) -> Side<'s> {
    Side { title, profile: &event.profile, ledger: &event.ledger, recordings }
}

impl ReportArgs {
    fn reading<'r>(&'r self, debug_files: &'r DebugFiles) -> Reading<'r> {
        let memory = self.memory.bytes();
        let (by, off_cpu, trust_fp) = (self.by, self.off_cpu, self.trust_fp);
        let keeps_lines = self.format.has_lines() && self.diff.is_empty();
        let shows_inlined = !self.no_inlined;
        Reading {
            event: self.event.as_ref(),
            by,
            off_cpu,
            trust_fp,
            memory,
            names_kernel: true,
            keeps_lines,
            debug_files: Some(debug_files),
            shows_inlined,
            detail: self.format.detail(),
            is_compared: !self.diff.is_empty(),
            keeps_gaps_apart: self.gaps_apart,
        }
    }

    /// What tells a recording in these files from others.
    fn labels<P: AsRef<Path>>(&self, origin: &Origin, files: &[P]) -> Labels {
        // Standard input has no file.
        let modified = |file: &P| fs::metadata(file).and_then(|metadata| metadata.modified()).ok();
        let written = files.first().and_then(modified).unwrap_or_else(SystemTime::now);
        let [host, release] =
            [&self.host, &self.release].map(|text| text.as_ref().map(Untrusted::from));
        Labels::new(origin, written, host, release)
    }
}

/// Has the output written, to a file that is not one of the inputs.
fn write_to(
    args: &ReportArgs,
    inputs: &[&Path],
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    let Some(path) = args.output.as_ref().filter(|path| path.as_os_str() != "-") else {
        return write(&mut BufWriter::new(io::stdout().lock())).map_err(Failure::output);
    };
    let output_error =
        |error: io::Error| RecordingError { path: path.clone(), error: error.into() };
    // The recording would be gone once it is read.
    if let Some(&input) = inputs.iter().find(|input| is_same_file(input, path)) {
        return Err(RecordingError { path: input.to_owned(), error: PerfError::SameFile }.into());
    }
    Ok(write_file(path, |file| write(&mut BufWriter::new(file))).map_err(output_error)?)
}

fn write(args: &ReportArgs, view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    if args.format == Format::Folded {
        // With standard error gone there is no other place to tell it.
        let _ = write!(io::stderr(), "{}", view.notes());
    }
    write_as(args.format, view, args.top, args.memory.bytes(), out)
}

/// Writes a list of events, and a table for each.
fn write_events(
    args: &ReportArgs,
    read: &Read,
    views: &[View<'_>],
    out: &mut dyn Write,
) -> io::Result<()> {
    let events = read.event_list();
    writeln!(out, "{} events:\n   samples  event", events.len())?;
    for (name, count) in &events {
        writeln!(out, "{count:>10}  {}", name.escaped())?;
    }
    for (event, view) in read.events.iter().zip(views) {
        writeln!(out, "\n{}:", event.name.escaped())?;
        write_as(args.format, view, args.top, args.memory.bytes(), out)?;
    }
    if read.ledger.lost > 0 {
        let records = counted(read.ledger.lost, "record", "records");
        writeln!(out, "\napart from these, lost in a ring, of any event: {records}")?;
    }
    out.flush()
}

/// Writes one format, of functions at most `top`. Formats that need whole stacks in memory have
/// about `room` bytes for them.
fn write_as(
    format: Format,
    view: &View<'_>,
    top: usize,
    room: usize,
    mut out: &mut dyn Write,
) -> io::Result<()> {
    let View { title, profile, ledger, .. } = *view;
    match format {
        Format::Text => {
            table::write(&mut out, profile, top)?;
            write!(out, "\n{}", view.notes())?;
        }
        Format::Folded => folded::write(&mut out, profile)?,
        #[cfg(feature = "html")]
        Format::Html => html::write(&mut out, view)?,
        #[cfg(feature = "svg")]
        Format::Svg => flame_graph::write(&mut out, profile, title, ledger.summary(), room)?,
        Format::Speedscope => speedscope::write(&mut out, profile, title, ledger)?,
        #[cfg(feature = "firefox")]
        Format::Firefox => firefox::write(&mut out, view)?,
        #[cfg(feature = "pprof")]
        Format::Pprof => pprof::write(&mut out, profile, view.notes().lines())?,
        #[cfg(feature = "otlp")]
        Format::Otlp => otlp::write(&mut out, view, room)?,
        #[cfg(feature = "parquet")]
        Format::Parquet => parquet::write_all(&mut out, view)?,
    }
    out.flush()
}

/// How recordings are read with little memory, for bounds.
const BOUNDED: Reading<'_> = Reading {
    event: None,
    by: By::Process,
    off_cpu: true,
    trust_fp: false,
    memory: 1 << 20,
    names_kernel: false,
    keeps_lines: true,
    debug_files: None,
    shows_inlined: false,
    detail: Detail::OfTimes(1 << 10),
    is_compared: false,
    keeps_gaps_apart: false,
};

/// Reads a recording and reports it in each format with little memory. Returns the lengths of
/// all outputs in bytes, or `None` if it is no recording.
pub(crate) fn reported_len(bytes: &[u8]) -> Option<Vec<usize>> {
    let mut reader = PerfReader::from_bytes(bytes.to_vec()).ok()?;
    let read = read_from(&mut reader, BOUNDED).ok()?;
    let mut lengths = Vec::new();
    for event in &read.events {
        let view = View {
            title: "-",
            profile: &event.profile,
            time_line: &event.time_line,
            ledger: &event.ledger,
            labels: &Labels::default(),
            lines: &SourceLines::default(),
        };
        for &format in Format::value_variants() {
            let mut out = Vec::new();
            write_as(format, &view, 40, BOUNDED.memory, &mut out).ok()?;
            lengths.push(out.len());
        }
        let counts: Vec<u64> = event.profile.nodes.iter().map(|node| node.own).collect();
        let recordings = [&counts[..]];
        let side = side("-", event, &recordings);
        // Another target writes all of them.
        let of_difference = [
            Format::Text,
            #[cfg(feature = "html")]
            Format::Html,
        ];
        for format in of_difference {
            let mut out = Vec::new();
            diff::write(&mut out, format, &[side, side], 40, BOUNDED.memory).ok()?;
            lengths.push(out.len());
        }
    }
    Some(lengths)
}

fn formats_of_differences() -> impl Iterator<Item = &'static Format> {
    Format::value_variants().iter().filter(|format| format.is_of_difference())
}

/// Reads two recordings and writes their difference in each format, with little memory. Returns
/// the lengths of all outputs in bytes, or `None` if one of them is no recording.
pub(crate) fn compared_len(before: &[u8], after: &[u8]) -> Option<Vec<usize>> {
    let (by, off_cpu, keeps_lines, is_compared) = (By::Thread, false, false, true);
    let reading = Reading { by, off_cpu, keeps_lines, is_compared, ..BOUNDED };
    let read =
        |bytes: &[u8]| read_from(&mut PerfReader::from_bytes(bytes.to_vec()).ok()?, reading).ok();
    let reads = [read(before)?, read(after)?];
    let [first, second] = reads.each_ref().map(|read| read.events.first());
    let events = [first?, second?];
    let recordings =
        events.map(|event| event.counts(Path::new("-")).into_iter().collect::<Vec<_>>());
    let ([event_before, event_after], [of_before, of_after]) = (events, &recordings);
    let sides = [side("-", event_before, of_before), side("-", event_after, of_after)];
    let mut lengths = Vec::new();
    for &format in formats_of_differences() {
        let mut out = Vec::new();
        diff::write(&mut out, format, &sides, 40, BOUNDED.memory).ok()?;
        lengths.push(out.len());
    }
    Some(lengths)
}

/// What a picture of an event is called.
fn title_of_event<P: AsRef<Path>>(files: &[P], read: &Read, event: &EventRead) -> String {
    let title = title(files);
    match read.event_list().as_slice() {
        [_] => title,
        _ => format!("{title}: {}", event.name.escaped()),
    }
}

/// What a picture is called.
fn title<P: AsRef<Path>>(files: &[P]) -> String {
    let name = |file: &P| escaped(file.as_ref()).to_string();
    match files {
        [] => String::new(),
        [only] => name(only),
        [first, others @ ..] => format!("{} and {} more", name(first), others.len()),
    }
}
