//! Reading a recording for a report.

use std::io;
use std::path::Path;
use std::rc::Rc;

use crate::commands::perf::call_stacks::CallStacks;
use crate::commands::perf::error::{PerfError, RecordingError};
use crate::commands::perf::fields::Layout;
use crate::commands::perf::files::RecordedFiles;
use crate::commands::perf::found_frames::FoundFrames;
use crate::commands::perf::names::Names;
use crate::commands::perf::origin::Origin;
use crate::commands::perf::pipeline::{Options, Summary};
use crate::commands::perf::printed::print;
use crate::commands::perf::reader::PerfReader;
use crate::commands::perf::summary::report;
use crate::commands::record::ledger::{EXIT_CODE, Ledger};
use crate::commands::record::recording::{LEDGER, LedgerSection};
use crate::commands::report::collector::{Collector, Marks};
use crate::commands::report::expansion::expanded;
use crate::commands::report::found_by::FoundBy;
use crate::commands::report::grouping::By;
use crate::commands::report::inlined::CodeFrames;
use crate::commands::report::line_samples::LineSamples;
use crate::commands::report::profile::{Frame, Profile};
use crate::commands::report::time_line::{Detail, TimeLine};
use crate::commands::report::waits::of_unseen;
use crate::commands::stack::frame_pointers::FramePointerRows;
use crate::debug_files::DebugFiles;
use crate::failure::Failure;
use crate::untrusted::escaped;

/// How to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) by: By,
    /// Whether waits are shown.
    pub(crate) off_cpu: bool,
    pub(crate) trust_fp: bool,
    /// About how many bytes to hold, of records and of stacks each.
    pub(crate) memory: usize,
    /// Whether functions of the kernel have names, which are those of the kernel that runs.
    pub(crate) names_kernel: bool,
    /// Whether it is kept at which lines of the source samples were taken.
    pub(crate) keeps_lines: bool,
    /// Whether servers are asked for what was stripped off files.
    pub(crate) asks_servers: bool,
    /// Whether functions that were inlined have frames.
    pub(crate) shows_inlined: bool,
    /// What gives way where threads have many different stacks.
    pub(crate) detail: Detail,
    /// Whether files have the names by which those of two recordings are compared.
    pub(crate) is_compared: bool,
}

/// What a recording has.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) profile: Profile,
    pub(crate) time_line: TimeLine,
    pub(crate) ledger: Ledger,
    pub(crate) origin: Origin,
    /// Where in the program samples were taken, if that is kept.
    pub(crate) line_samples: Option<LineSamples>,
    /// What could not be found out, a line each.
    pub(crate) problems: Vec<String>,
    /// Samples that were found and that the ledger is about.
    found: u64,
    told: u64,
    summary: Summary,
}

impl Read {
    /// Says how the reading ended. What was read before is to be shown first.
    ///
    /// # Errors
    ///
    /// [`Failure`] if it did not come to the end, or the ledger does not add up.
    pub(crate) fn end(self, path: &Path) -> Result<(), Failure> {
        report(self.summary, path)?;
        if self.found != self.told {
            let error = MissingSamples { found: self.found, told: self.told };
            return Err(Failure::new(error, EXIT_CODE));
        }
        self.ledger.check().map_err(|error| Failure::new(error, EXIT_CODE))
    }
}

/// Reads all of a recording.
///
/// # Errors
///
/// [`Failure`] if it is none.
pub(crate) fn read(path: &Path, reading: Reading) -> Result<Read, Failure> {
    let input_error = |error| Failure::from(RecordingError { path: path.to_owned(), error });
    let mut reader = PerfReader::open(path).map_err(input_error)?;
    reader.show_progress(path);
    read_from(&mut reader, reading).map_err(input_error)
}

/// The same of a recording that is open.
///
/// # Errors
///
/// [`PerfError`] if its ledger cannot be read.
pub(crate) fn read_from(reader: &mut PerfReader, reading: Reading) -> Result<Read, PerfError> {
    let told = told(reader)?;
    // Without it frames have the colours of tables as they are now.
    let found_frames = FoundFrames::read(reader).ok().flatten();
    let origin = Origin::read(reader)?;
    let (collector, summary) = collect(reader, reading, told.as_ref(), found_frames, &origin)?;
    let Collector { mut profile, mut time_line, seen, mut line_samples, code_frames, .. } =
        collector;
    let mut problems = Vec::new();
    if let Some(code_frames) = code_frames.filter(|frames| !frames.is_empty()) {
        let inlined = code_frames.find();
        problems = inlined.problems;
        // Frames that stand apart by address become one, too.
        let expansion = expanded(&profile, &inlined.functions, reading.memory);
        time_line.move_to(&expansion.nodes);
        if let Some(line_samples) = &mut line_samples {
            line_samples.move_to(&expansion.innermost);
        }
        profile = expansion.profile;
    }
    let found = seen.samples;
    let ledger = match told {
        Some(told) => told.ledger,
        None => Ledger {
            written: seen.samples,
            complete: seen.complete,
            incomplete: seen.incomplete,
            kernel_only: seen.kernel_only,
            unmatched: seen.unmatched,
            unchecked: seen.unchecked,
            lost: summary.merge.lost,
            lost_told: summary.merge.lost,
            ..Ledger::new()
        },
    };
    let unseen = ledger.off_cpu.filter(|_| reading.off_cpu);
    let unseen =
        unseen.map_or(0, |waits| of_unseen(reader.events(), waits.nanoseconds_without_sample));
    for (count, what) in [
        (ledger.lost, "[lost in a ring]"),
        (ledger.dropped, "[dropped]"),
        (unseen, "[waits without a sample]"),
    ] {
        if count > 0 {
            let frame = profile.frame(Frame::note(what));
            profile.add([(frame, FoundBy::Nothing)], count);
        }
    }
    let told = ledger.written.saturating_sub(ledger.dropped).saturating_sub(ledger.damaged);
    Ok(Read { profile, time_line, ledger, origin, line_samples, problems, found, told, summary })
}

/// A recording has not the samples that its ledger is about.
#[derive(Debug, thiserror::Error)]
#[error("the recording has {found} samples, and its ledger is about {told}")]
struct MissingSamples {
    found: u64,
    told: u64,
}

/// What a recording of `unwind record` says of itself.
///
/// # Errors
///
/// [`PerfError`] if it cannot be read.
pub(crate) fn told(reader: &mut PerfReader) -> Result<Option<LedgerSection>, PerfError> {
    let Some(place) = reader.place_of(LEDGER)? else { return Ok(None) };
    let section = reader.section("ledger", place)?;
    let bad = PerfError::BadSection { part: "ledger", at: place.at, len: place.len };
    ledger_of(&section).map(Some).ok_or(bad)
}

/// What the bytes of the ledger's section say; `None` if they are none.
pub(crate) fn ledger_of(section: &[u8]) -> Option<LedgerSection> {
    let mut told: LedgerSection = serde_json::from_slice(section).ok()?;
    // Its words come from outside.
    let shown = |reason: &str| escaped(reason).at_most(MAX_REASON).to_string();
    let reasons = std::mem::take(&mut told.ledger.incomplete);
    for (reason, count) in reasons {
        let sum = told.ledger.incomplete.entry(shown(&reason)).or_default();
        *sum = sum.saturating_add(count);
    }
    told.incomplete.iter_mut().for_each(|(_, _, reason)| *reason = shown(reason));
    Some(told)
}

/// The longest word for a reason, in characters.
const MAX_REASON: usize = 64;

/// Reads the recording.
fn collect(
    reader: &mut PerfReader,
    reading: Reading,
    told: Option<&LedgerSection>,
    found_frames: Option<FoundFrames>,
    origin: &Origin,
) -> io::Result<(Collector, Summary)> {
    let options = Options {
        merge: true,
        memory: reading.memory,
        frame_pointers: FramePointerRows { is_trusted: reading.trust_fp },
        stitch_lbr: false,
    };
    let build_ids = reader.build_ids();
    let kernel_id = build_ids.get(&b"[kernel.kallsyms]"[..]).cloned();
    let names = Names::new(kernel_id, Layout::Perf7_2);
    let names = if reading.names_kernel { names } else { names.without_kernel() };
    let marks = told.map(|told| {
        let marks = told.incomplete.iter();
        let marks = marks.map(|(time, thread, reason)| ((*time, *thread), reason.clone()));
        Marks { incomplete: marks.collect(), others_are_complete: told.others_are_complete() }
    });
    let mut collector = Collector::new(names, marks, reading.by, reading.memory);
    collector.time_line = TimeLine::new(reading.detail);
    collector.waits.are_shown = reading.off_cpu;
    collector.is_compared = reading.is_compared;
    collector.line_samples = reading.keeps_lines.then(LineSamples::default);
    collector.found_frames = found_frames.map(Rc::new);
    let asking =
        if reading.asks_servers { DebugFiles::default().asking_servers().ok() } else { None };
    collector.code_frames =
        reading.shows_inlined.then(|| CodeFrames::new(asking.clone().unwrap_or_default()));
    let files = RecordedFiles::new(build_ids).recorded_at(origin.moment);
    let files = match asking {
        Some(debug_files) => files.with_debug_files(debug_files),
        None => files,
    };
    let call_stacks = CallStacks::new(false, reader.branch_entries());
    let (collector, ended) = print(reader, options, files, call_stacks, collector);
    Ok((collector, ended?))
}
