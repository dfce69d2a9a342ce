//! Reading a recording for a report.

use std::io;
use std::path::{Path, PathBuf};

use crate::commands::perf::call_stacks::CallStacks;
use crate::commands::perf::error::{PerfError, RecordingError};
use crate::commands::perf::fields::Layout;
use crate::commands::perf::files::{RecordedFiles, SharedFiles};
use crate::commands::perf::found_frames::FoundFrames;
use crate::commands::perf::names::Names;
use crate::commands::perf::origin::Origin;
use crate::commands::perf::pipeline::{Options, Summary};
use crate::commands::perf::printed::print;
use crate::commands::perf::reader::PerfReader;
use crate::commands::perf::summary::report;
use crate::commands::record::ledger::{EXIT_CODE, Ledger};
use crate::commands::record::recording::{LEDGER, LedgerSection};
use crate::commands::report::collector::{Collector, Marks, Seen};
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

impl Reading {
    /// Where debug files are looked for, if servers are asked for them.
    fn asked(self) -> Option<DebugFiles> {
        if self.asks_servers { DebugFiles::default().asking_servers().ok() } else { None }
    }
}

/// What one recording has, or several together.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) profile: Profile,
    pub(crate) time_line: TimeLine,
    pub(crate) ledger: Ledger,
    /// That of the first one.
    pub(crate) origin: Origin,
    /// Where in the program samples were taken, if that is kept.
    pub(crate) line_samples: Option<LineSamples>,
    /// What could not be found out, a line each.
    pub(crate) problems: Vec<String>,
    /// Of recordings that are left out, as they cannot be read.
    failures: Vec<Failure>,
    ends: Vec<RecordingEnd>,
    /// How many samples end at each node, by recording, if they are compared.
    counts: Vec<(PathBuf, Vec<u64>)>,
}

impl Read {
    /// How many samples of a recording end at each node of the profile, if it was read to its end and
    /// is compared.
    pub(crate) fn counts(&self, path: &Path) -> Option<&[u64]> {
        let found = self.counts.iter().find(|(of, _)| of == path);
        found.map(|(_, counts)| counts.as_slice())
    }

    /// Says how the reading ended. What was read before is to be shown first.
    ///
    /// # Errors
    ///
    /// [`Failure`] if it did not come to the end, or the ledger does not add up; that of the
    /// first recording, if there are several. Of the others the user is told.
    pub(crate) fn end(self) -> Result<(), Failure> {
        let ends = self.ends.into_iter().filter_map(|end| end.result().err());
        Failure::first_of(self.failures.into_iter().chain(ends))
    }
}

/// How the reading of a recording ended.
#[derive(Debug)]
struct RecordingEnd {
    path: PathBuf,
    /// Samples that were found and that the ledger is about.
    found: u64,
    told: u64,
    ledger: Ledger,
    summary: Summary,
}

impl RecordingEnd {
    fn result(self) -> Result<(), Failure> {
        report(self.summary, &self.path)?;
        if self.found != self.told {
            let error = MissingSamples { found: self.found, told: self.told };
            return Err(Failure::new(error, EXIT_CODE));
        }
        self.ledger.check().map_err(|error| Failure::new(error, EXIT_CODE))
    }
}

/// Reads all of recordings, which are put together. Of several those that cannot be read are
/// left out, which [`Read::end`] says.
///
/// # Errors
///
/// [`Failure`] if none is one.
pub(crate) fn read<P: AsRef<Path>>(paths: &[P], reading: Reading) -> Result<Read, Failure> {
    let mut together = Together::new(reading);
    let mut failures = Vec::new();
    for path in in_order(paths) {
        let input_error = |error| Failure::from(RecordingError { path: path.to_owned(), error });
        match PerfReader::open(path) {
            Ok(mut reader) => {
                reader.show_progress(path);
                let added;
                (together, added) = together.add(&mut reader, path);
                failures.extend(added.err().map(input_error));
            }
            Err(error) => failures.push(input_error(error)),
        }
    }
    together.finish(failures)
}

/// The same of a recording that is open.
///
/// # Errors
///
/// [`PerfError`] if its ledger cannot be read.
pub(crate) fn read_from(reader: &mut PerfReader, reading: Reading) -> Result<Read, PerfError> {
    let (together, added) = Together::new(reading).add(reader, Path::new("-"));
    added.map(|()| together.whole(Vec::new()))
}

/// Recordings in the order in which they were made, if all say when that was.
fn in_order<P: AsRef<Path>>(paths: &[P]) -> Vec<&Path> {
    let mut paths: Vec<&Path> = paths.iter().map(AsRef::as_ref).collect();
    // Standard input is read once.
    if paths.len() > 1 && !paths.contains(&Path::new("-")) {
        let began = |path: &&Path| {
            let moment = Origin::read(&mut PerfReader::open(path).ok()?).ok()?.moment?;
            Some(moment.of_wall())
        };
        let began: Option<Vec<_>> = paths.iter().map(began).collect();
        if let Some(began) = began {
            let mut ordered: Vec<_> = began.into_iter().zip(paths).collect();
            ordered.sort_by_key(|&(began, _)| began);
            paths = ordered.into_iter().map(|(_, path)| path).collect();
        }
    }
    paths
}

/// Recordings that are put together.
struct Together {
    reading: Reading,
    collector: Collector,
    files: SharedFiles,
    /// Those of the first one.
    origin: Option<Origin>,
    /// The sum of all.
    ledger: Option<Ledger>,
    /// Samples that waits without one stand for.
    unseen: u64,
    ends: Vec<RecordingEnd>,
    /// How many samples end at each node, by recording, if they are compared.
    counts: Vec<(PathBuf, Vec<u64>)>,
}

impl Together {
    fn new(reading: Reading) -> Self {
        let names = Names::new(None, Layout::Perf7_2);
        let mut collector = Collector::new(names, reading.by, reading.memory);
        collector.time_line = TimeLine::new(reading.detail);
        collector.waits.are_shown = reading.off_cpu;
        collector.is_compared = reading.is_compared;
        collector.line_samples = reading.keeps_lines.then(LineSamples::default);
        collector.code_frames =
            reading.shows_inlined.then(|| CodeFrames::new(reading.asked().unwrap_or_default()));
        Self {
            reading,
            collector,
            files: SharedFiles::default(),
            origin: None,
            ledger: None,
            unseen: 0,
            ends: Vec::new(),
            counts: Vec::new(),
        }
    }

    /// Reads one more. An error says that it is left out, or a part of it.
    fn add(mut self, reader: &mut PerfReader, path: &Path) -> (Self, Result<(), PerfError>) {
        let begun = (|| {
            let told = told(reader)?;
            Ok((told, Origin::read(reader)?))
        })();
        let (told, origin) = match begun {
            Ok(begun) => begun,
            Err(error) => return (self, Err(error)),
        };
        let moments = self.origin.as_ref().and_then(|first| first.moment).zip(origin.moment);
        self.collector.time_shift = moments.map_or(0, |(first, own)| own.shift_to(first));
        let before = self.own_counts();
        let ended;
        (self.collector, ended) =
            collect(self.collector, reader, self.reading, &self.files, told.as_ref(), &origin);
        let seen = std::mem::take(&mut self.collector.seen);
        self.origin.get_or_insert(origin);
        let summary = match ended {
            Ok(summary) => summary,
            Err(error) => return (self, Err(error.into())),
        };
        if self.reading.is_compared {
            let before = before.into_iter().chain(std::iter::repeat(0));
            let own = self.own_counts().into_iter().zip(before);
            let own = own.map(|(now, before)| now.saturating_sub(before)).collect();
            self.counts.push((path.to_owned(), own));
        }
        let found = seen.samples;
        let ledger = told.map_or_else(|| ledger_of_seen(seen, &summary), |told| told.ledger);
        if let Some(waits) = ledger.off_cpu.filter(|_| self.reading.off_cpu) {
            let unseen = of_unseen(reader.events(), waits.nanoseconds_without_sample);
            self.unseen = self.unseen.saturating_add(unseen);
        }
        let told = ledger.written.saturating_sub(ledger.dropped).saturating_sub(ledger.damaged);
        let sum = match self.ledger.take() {
            Some(sum) => sum.with(&ledger),
            None => ledger.clone(),
        };
        self.ledger = Some(sum);
        self.ends.push(RecordingEnd { path: path.to_owned(), found, told, ledger, summary });
        (self, Ok(()))
    }

    /// How many samples end at each node so far, if that is asked for.
    fn own_counts(&self) -> Vec<u64> {
        let nodes = self.collector.profile.nodes.iter().filter(|_| self.reading.is_compared);
        nodes.map(|node| node.own).collect()
    }

    /// What there is, if there is a recording.
    fn finish(self, mut failures: Vec<Failure>) -> Result<Read, Failure> {
        if self.ends.is_empty() {
            Failure::first_of(failures.drain(..))?;
        }
        Ok(self.whole(failures))
    }

    fn whole(self, failures: Vec<Failure>) -> Read {
        let Self { reading, collector, origin, ledger, unseen, ends, mut counts, .. } = self;
        let Collector { mut profile, mut time_line, mut line_samples, code_frames, .. } = collector;
        let ledger = ledger.unwrap_or_else(Ledger::new);
        let mut problems = Vec::new();
        if let Some(code_frames) = code_frames.filter(|frames| !frames.is_empty()) {
            let inlined = code_frames.find();
            problems = inlined.problems;
            // Frames that stand apart by address become one, too.
            let expansion = expanded(&profile, &inlined.functions, reading.memory);
            time_line.move_to(&expansion.nodes);
            for (_, counts) in &mut counts {
                *counts = expansion.moved(counts);
            }
            if let Some(line_samples) = &mut line_samples {
                line_samples.move_to(&expansion.innermost);
            }
            profile = expansion.profile;
        }
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
        let origin = origin.unwrap_or_default();
        Read { profile, time_line, ledger, origin, line_samples, problems, failures, ends, counts }
    }
}

/// What can be told of a recording without a ledger.
fn ledger_of_seen(seen: Seen, summary: &Summary) -> Ledger {
    Ledger {
        written: seen.samples,
        complete: seen.complete,
        incomplete: seen.incomplete,
        kernel_only: seen.kernel_only,
        unmatched: seen.unmatched,
        unchecked: seen.unchecked,
        lost: summary.merge.lost,
        lost_told: summary.merge.lost,
        ..Ledger::new()
    }
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

/// Has a collector continue with a recording.
fn collect(
    mut collector: Collector,
    reader: &mut PerfReader,
    reading: Reading,
    shared: &SharedFiles,
    told: Option<&LedgerSection>,
    origin: &Origin,
) -> (Collector, io::Result<Summary>) {
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
    // Without them frames have the colours of tables as they are now.
    let found_frames = FoundFrames::read(reader).ok().flatten();
    collector.begin(names, marks, found_frames);
    let files = RecordedFiles::new(build_ids).recorded_at(origin.moment).sharing(shared.clone());
    let files = match reading.asked() {
        Some(debug_files) => files.with_debug_files(debug_files),
        None => files,
    };
    let call_stacks = CallStacks::new(false, reader.branch_entries());
    print(reader, options, files, call_stacks, collector)
}
