//! `unwind report`: what a recording shows, as a table, as pictures and for other tools.

mod collector;
mod flame_graph;
mod folded;
mod found_by;
mod grouping;
mod html;
mod pprof;
mod profile;
mod speedscope;
mod table;
mod time_line;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::thread::scope;

use clap::ValueEnum;

use crate::commands::perf::address_spaces::Spaces;
use crate::commands::perf::call_stacks::CallStacks;
use crate::commands::perf::error::{PerfError, RecordingError};
use crate::commands::perf::fields::Layout;
use crate::commands::perf::files::RecordedFiles;
use crate::commands::perf::names::Names;
use crate::commands::perf::pipeline::{self, Options, Summary};
use crate::commands::perf::reader::PerfReader;
use crate::commands::perf::shown::ShownSink;
use crate::commands::perf::summary::{Memory, report};
use crate::commands::perf::walks::{WalkSetup, Walks};
use crate::commands::record::ledger::{EXIT_CODE, Ledger};
use crate::commands::record::recording::{LEDGER, LedgerSection};
use crate::commands::report::collector::{Collector, Marks};
use crate::commands::report::found_by::FoundBy;
use crate::commands::report::grouping::By;
use crate::commands::report::profile::{Frame, Profile};
use crate::commands::report::time_line::TimeLine;
use crate::commands::stack::frame_pointers::FramePointerRows;
use crate::counted::counted;
use crate::failure::Failure;
use crate::same_file::is_same_file;
use crate::untrusted::escaped;

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
    /// The recording; `-` is standard input, for pipe form
    #[arg(value_name = "FILE", default_value = "perf.data")]
    file: PathBuf,

    /// What to write
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    format: Format,

    /// Where to write; without it on standard output
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,

    /// What stacks are put together under
    #[arg(long, value_enum, value_name = "GROUP", default_value = "name")]
    by: By,

    /// How many functions the table has at most
    #[arg(long, value_name = "N", default_value_t = 40)]
    top: usize,

    /// Declare that all code without a table keeps frame pointers
    #[arg(long)]
    trust_fp: bool,

    #[command(flatten)]
    memory: Memory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table of functions, and the ledger
    Text,
    /// Stacks a line each, for flame graph tools
    Folded,
    /// A page for a browser: flame graph, call tree, functions and threads
    Html,
    /// A flame graph, as an SVG that a browser opens
    Svg,
    /// For speedscope
    Speedscope,
    /// For pprof, compressed by gzip
    Pprof,
}

const LONG_HELP: &str = "\
The share of a function is `self` where it was the innermost one, and `total` where it was
anywhere in a stack.

In the other formats a stack begins with what --by says: the name of its thread. A root
`[incomplete: REASON]` holds the stacks that are not complete, `[lost in a ring]` and `[dropped]`
the samples of which nothing is known, `[too many different stacks]` those for whose stacks
--memory has no room. Functions of the kernel end in `_[k]` in folded stacks and flame graphs.

What became of the samples is told in each format: under the table; on standard error beside
folded stacks; in the page; in the subtitle of a flame graph; as `ledger` in speedscope's JSON;
as comments for pprof. Of a recording of perf it is what can be told from it: chains that the kernel found
by frame pointers are `unchecked`.";

/// Runs `unwind report`.
///
/// # Errors
///
/// [`Failure`] if the file cannot be read whole, the output not be written, or the ledger
/// does not add up.
pub(crate) fn run(args: &ReportArgs) -> Result<(), Failure> {
    let input_error = |error| Failure::from(RecordingError { path: args.file.clone(), error });
    let mut reader = PerfReader::open(&args.file).map_err(input_error)?;
    let told = told(&mut reader).map_err(input_error)?;
    let (collector, summary) =
        collect(args, &mut reader, told.as_ref()).map_err(Failure::output)?;
    let (mut profile, time_line) = (collector.profile, collector.time_line);
    let ledger = match told {
        Some(told) => told.ledger,
        None => Ledger {
            written: collector.seen.samples,
            complete: collector.seen.complete,
            incomplete: collector.seen.incomplete,
            kernel_only: collector.seen.kernel_only,
            unmatched: collector.seen.unmatched,
            unchecked: collector.seen.unchecked,
            lost: summary.merge.lost,
            lost_told: summary.merge.lost,
            ..Ledger::new()
        },
    };
    for (count, what) in [(ledger.lost, "[lost in a ring]"), (ledger.dropped, "[dropped]")] {
        if count > 0 {
            let frame = profile.frame(Frame::note(what));
            profile.add([(frame, FoundBy::Nothing)], count);
        }
    }
    let title = title(&args.file);
    let view = View { title: &title, profile: &profile, time_line: &time_line, ledger: &ledger };
    match &args.output {
        Some(path) => {
            let output_error =
                |error: io::Error| RecordingError { path: path.clone(), error: error.into() };
            // It would be emptied while it is read.
            if is_same_file(&args.file, path) {
                return Err(input_error(PerfError::SameFile));
            }
            let file = File::create(path).map_err(output_error)?;
            write(args, &view, BufWriter::new(file)).map_err(output_error)?;
        }
        None => {
            let out = BufWriter::new(io::stdout().lock());
            write(args, &view, out).map_err(Failure::output)?;
        }
    }
    report(summary, &args.file)?;
    let in_file = ledger.written.saturating_sub(ledger.dropped);
    if collector.seen.samples.saturating_add(ledger.damaged) != in_file {
        return Err(Failure::new(
            MissingSamples { found: collector.seen.samples, told: in_file },
            EXIT_CODE,
        ));
    }
    ledger.check().map_err(|error| Failure::new(error, EXIT_CODE))
}

/// A recording has not the samples that its ledger is about.
#[derive(Debug, thiserror::Error)]
#[error("the recording has {found} samples, and its ledger is about {told}")]
struct MissingSamples {
    found: u64,
    told: u64,
}

/// What a recording of `unwind record` says of itself.
fn told(reader: &mut PerfReader) -> Result<Option<LedgerSection>, PerfError> {
    let Some(place) = reader.place_of(LEDGER)? else { return Ok(None) };
    let section = reader.section("ledger", place)?;
    let bad = PerfError::BadSection { part: "ledger", at: place.at, len: place.len };
    let mut told: LedgerSection = serde_json::from_slice(&section).map_err(|_| bad)?;
    // Its words come from outside.
    let shown = |reason: &str| escaped(reason).at_most(MAX_REASON).to_string();
    let reasons = std::mem::take(&mut told.ledger.incomplete);
    for (reason, count) in reasons {
        let sum = told.ledger.incomplete.entry(shown(&reason)).or_default();
        *sum = sum.saturating_add(count);
    }
    told.incomplete.iter_mut().for_each(|(_, _, reason)| *reason = shown(reason));
    Ok(Some(told))
}

/// The longest word for a reason, in characters.
const MAX_REASON: usize = 64;

/// Reads the recording.
fn collect(
    args: &ReportArgs,
    reader: &mut PerfReader,
    told: Option<&LedgerSection>,
) -> io::Result<(Collector, Summary)> {
    let options = Options {
        merge: true,
        memory: args.memory.bytes(),
        frame_pointers: FramePointerRows { is_trusted: args.trust_fp },
        stitch_lbr: false,
    };
    let build_ids = reader.build_ids();
    let kernel_id = build_ids.get(&b"[kernel.kallsyms]"[..]).cloned();
    let names = Names::new(kernel_id, Layout::Perf7_2);
    let marks = told.map(|told| {
        let marks = told.incomplete.iter();
        let marks = marks.map(|(time, thread, reason)| ((*time, *thread), reason.clone()));
        marks.collect::<Marks>()
    });
    let collector = Collector::new(names, marks, args.by, args.memory.bytes());
    let spaces = Spaces::new(RecordedFiles::new(build_ids));
    let call_stacks = CallStacks::new(false, reader.branch_entries());
    let setup = WalkSetup::new(options.frame_pointers);
    scope(|scope| {
        let walks = Walks::new(scope, &setup);
        let mut sink = ShownSink::new(collector, spaces, walks, call_stacks);
        let summary = pipeline::run(reader, options, &mut sink)?;
        sink.finish(reader.events())?;
        Ok((sink.printer, summary))
    })
}

/// What there is to write.
#[derive(Clone, Copy, Debug)]
struct View<'v> {
    /// To be shown as it is.
    title: &'v str,
    profile: &'v Profile,
    time_line: &'v TimeLine,
    ledger: &'v Ledger,
}

impl View<'_> {
    /// What the formats tell beside the samples: the ledger, and what was not kept.
    fn notes(&self) -> String {
        let mut notes = self.ledger.to_string();
        if self.profile.not_kept > 0 {
            let _ = writeln!(
                notes,
                "of these, without their stacks: {}, as more does not fit into --memory",
                counted(self.profile.not_kept, "sample", "samples")
            );
        }
        notes
    }
}

fn write(args: &ReportArgs, view: &View<'_>, mut out: impl Write) -> io::Result<()> {
    let View { title, profile, ledger, .. } = *view;
    match args.format {
        Format::Text => {
            table::write(&mut out, profile, args.top)?;
            write!(out, "\n{}", view.notes())?;
        }
        Format::Folded => {
            folded::write(&mut out, profile)?;
            // With standard error gone there is no other place to tell it.
            let _ = write!(io::stderr(), "{}", view.notes());
        }
        Format::Html => html::write(&mut out, view)?,
        Format::Svg => flame_graph::write(&mut out, profile, title, ledger.summary())?,
        Format::Speedscope => speedscope::write(&mut out, profile, title, ledger)?,
        Format::Pprof => pprof::write(&mut out, profile, view.notes().lines())?,
    }
    out.flush()
}

/// What a picture is called.
fn title(file: &Path) -> String {
    escaped(file).to_string()
}
