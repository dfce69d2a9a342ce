//! Recordings that are read together.

use std::collections::HashMap;
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use unwind_target::rows::frame_pointers::FramePointerRows;
use unwind_target::untrusted::escaped;
use unwind_target::{Notices, Untrusted};

use crate::collected::by_event::ByEvent;
use crate::collected::collector::{Collector, Seen};
use crate::collected::error::ReadingError;
use crate::collected::inlined::CodeFrames;
use crate::collected::line_samples::LineSamples;
use crate::collected::time_line::TimeLine;
use crate::collected::waits::of_unseen;
use crate::mapped::files::{RecordedFiles, SharedFiles};
use crate::mapped::kernel::SampledKernel;
use crate::mapped::layout::Layout;
use crate::mapped::names::Names;
use crate::mapped::origin::Origin;
use crate::recording::error::{PerfError, RecordingError};
use crate::recording::events::Event;
use crate::recording::pipeline::{Options, Summary};
use crate::recording::reader::PerfReader;
use crate::session::ledger::Ledger;
use crate::session::ledger_section::{LedgerSection, told, unfinished};
use crate::session::recorded_stacks::RecordedStacks;
use crate::walks::call_stacks::CallStacks;
use crate::walks::chosen_event::NoEvent;
use crate::walks::printed::print;

use crate::collected::reading::{EventRead, Read, Reading, RecordingEnd};

/// Reads all of recordings, which are put together. Of several those that cannot be read are
/// left out, which [`Read::end`] says.
///
/// # Errors
///
/// [`ReadingError`] if none is one, or the event that was asked for is in none.
pub(crate) fn read<P: AsRef<Path>>(
    paths: &[P],
    reading: Reading<'_>,
) -> Result<Read, ReadingError> {
    let mut together = Together::new(reading);
    let mut errors = Vec::new();
    for path in in_order(paths) {
        let input_error =
            |error| ReadingError::from(RecordingError { path: path.to_owned(), error });
        match PerfReader::open(path) {
            Ok(mut reader) => {
                if let Some(progress) = reading.progress {
                    reader.tell_progress_to(Arc::clone(progress), path);
                }
                let added;
                (together, added) = together.add(&mut reader, path);
                errors.extend(added.err().map(input_error));
            }
            Err(error) => errors.push(input_error(error)),
        }
    }
    together.finish(errors)
}

/// The same of a recording that is open.
///
/// # Errors
///
/// [`PerfError`] if its ledger cannot be read.
pub(crate) fn read_from(reader: &mut PerfReader, reading: Reading<'_>) -> Result<Read, PerfError> {
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
struct Together<'r> {
    reading: Reading<'r>,
    notices: Notices,
    collectors: ByEvent,
    files: SharedFiles,
    /// Those of the first one.
    origin: Option<Origin>,
    /// The sum of all.
    ledger: Option<Ledger>,
    /// The same of each event.
    event_ledgers: HashMap<Untrusted, Ledger>,
    /// Samples that waits without one stand for.
    unseen: u64,
    ends: Vec<RecordingEnd>,
    /// How many samples end at each node, by event and recording, if they are compared.
    counts: Vec<(usize, PathBuf, Vec<u64>)>,
}

impl<'r> Together<'r> {
    fn new(reading: Reading<'r>) -> Self {
        let notices = reading.notices.cloned().unwrap_or_default();
        let names = Names::new(SampledKernel::Running, Layout::Perf7_2, &notices);
        let mut collector = Collector::new(names, reading.by, reading.memory);
        collector.time_line = TimeLine::new(reading.detail);
        collector.waits.are_shown = reading.off_cpu;
        collector.is_compared = reading.is_compared;
        collector.interpreted = reading.interpreted;
        collector.keeps_gaps_apart = reading.keeps_gaps_apart;
        collector.line_samples = reading.keeps_lines.then(LineSamples::default);
        collector.code_frames =
            reading.shows_inlined.then(|| CodeFrames::new(reading.debug_info()));
        Self {
            reading,
            notices,
            collectors: ByEvent::new(reading.event.cloned(), collector),
            files: SharedFiles::default(),
            origin: None,
            ledger: None,
            event_ledgers: HashMap::new(),
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
        if told.as_ref().is_some_and(|told| told.is_unfinished) {
            self.notices.add(unfinished(path));
        }
        let moments = self.origin.as_ref().and_then(|first| first.moment).zip(origin.moment);
        let shift = moments.map_or(0, |(first, own)| own.shift_to(first));
        self.collectors.collectors().for_each(|(_, collector)| collector.time_shift = shift);
        let before = self.own_counts();
        let of_others = |by_event: &ByEvent| by_event.others.iter().map(|(_, count)| count).sum();
        let others_before: u64 = of_others(&self.collectors);
        let ended;
        let beside = (&self.files, &self.notices);
        (self.collectors, ended) =
            collect(self.collectors, reader, self.reading, beside, told.as_ref(), &origin);
        self.collectors.learn_events(reader.events());
        if self.reading.off_cpu && !reader.events().all().iter().any(Event::is_of_waits) {
            let path = escaped(path);
            self.notices.add(format!("{path}: no waits are in it: see unwind record --off-cpu"));
        }
        let seen = self.collectors.collectors();
        let seen: Vec<(Untrusted, Seen)> =
            seen.map(|(name, one)| (name.clone(), mem::take(&mut one.seen))).collect();
        let others: u64 = of_others(&self.collectors);
        self.origin.get_or_insert(origin);
        let summary = match ended {
            Ok(summary) => summary,
            Err(error) => return (self, Err(error.into())),
        };
        if self.reading.is_compared {
            let before = before.into_iter().chain(std::iter::repeat_with(Vec::new));
            for (at, (now, before)) in self.own_counts().into_iter().zip(before).enumerate() {
                let own = now.into_iter().zip(before.into_iter().chain(std::iter::repeat(0)));
                let own = own.map(|(now, before)| now.saturating_sub(before)).collect();
                self.counts.push((at, path.to_owned(), own));
            }
        }
        // Where there is no ledger nothing is told of samples that are not asked for.
        let others_now = if told.is_some() { others.saturating_sub(others_before) } else { 0 };
        let found = seen.iter().map(|(_, seen)| seen.samples).fold(others_now, u64::saturating_add);
        let is_of_one =
            seen.iter().filter(|(_, seen)| seen.samples > 0).count() < 2 && others == others_before;
        let of_events: Vec<_> =
            seen.into_iter().map(|(name, seen)| (name, ledger_of_seen(seen))).collect();
        let lost = summary.merge.lost;
        let of_seen = || {
            let sum = of_events.iter().fold(Ledger::new(), |sum, (_, one)| sum.with(one));
            Ledger { lost, lost_told: lost, lost_by_kernel: None, ..sum }
        };
        let ledger = told.map_or_else(of_seen, |told| told.ledger);
        let seen_at = of_events.iter().position(|(_, seen)| seen.written > 0).unwrap_or(0);
        for (at, (name, of_seen)) in of_events.into_iter().enumerate() {
            let of_event = match ledger.of_event(name.escaped()) {
                Some(told) => told,
                // What is lost is of no event that could be told, unless there is one.
                None if is_of_one && at == seen_at => ledger.clone(),
                None => of_seen,
            };
            let sum = self.event_ledgers.entry(name);
            let sum = sum.and_modify(|sum| *sum = mem::take(sum).with(&of_event));
            sum.or_insert(of_event);
        }
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
    fn own_counts(&mut self) -> Vec<Vec<u64>> {
        let is_compared = self.reading.is_compared;
        let collectors = self.collectors.collectors().filter(|_| is_compared);
        let own =
            |collector: &Collector| collector.profile.nodes.iter().map(|node| node.own).collect();
        collectors.map(|(_, collector)| own(collector)).collect()
    }

    /// What there is, if there is a recording, and the event that was asked for.
    fn finish(self, errors: Vec<ReadingError>) -> Result<Read, ReadingError> {
        if self.ends.is_empty() {
            return Err(match <[_; 1]>::try_from(errors) {
                Ok([only]) => only,
                Err(errors) => ReadingError::NoRecording(errors),
            });
        }
        if let (false, Some(asked)) = (self.collectors.has_asked(), self.reading.event) {
            let path = self.ends.first().map(|end| escaped(&end.path).to_string());
            let (path, events) = (path.unwrap_or_default(), self.collectors.others);
            return Err(NoEvent { path, asked: asked.clone(), events }.into());
        }
        Ok(self.whole(errors))
    }

    fn whole(mut self, errors: Vec<ReadingError>) -> Read {
        let ledger = self.ledger.take().unwrap_or_default();
        let mut others = mem::take(&mut self.collectors.others);
        let mut collectors: Vec<_> =
            self.collectors.into_collectors().into_iter().enumerate().collect();
        // Of events without samples one is enough, where there is no other.
        let is_seen = |collector: &Collector| !collector.profile.nodes.is_empty();
        let some = collectors.iter().position(|(_, (_, one))| is_seen(one)).unwrap_or(0);
        let mut at = 0_usize;
        collectors.retain(|(_, (name, collector))| {
            let is_kept = at == some || is_seen(collector);
            at = at.saturating_add(1);
            if !is_kept && !name.as_bytes().starts_with(b"dummy") {
                others.push((name.clone(), 0));
            }
            is_kept
        });
        let is_of_one = collectors.len() < 2;
        let mut problems = Vec::new();
        let mut counts = self.counts;
        let events = collectors.into_iter().map(|(at, (name, collector))| {
            let of_event = self.event_ledgers.remove(&name).unwrap_or_default();
            let own = counts.extract_if(.., |(of, ..)| *of == at);
            let counts = own.map(|(_, path, counts)| (path, counts)).collect();
            let unseen = if is_of_one { self.unseen } else { 0 };
            let event = EventRead::of(name, collector, of_event, counts, self.reading.memory);
            problems.extend(event.1);
            event.0.with_notes(unseen)
        });
        let events = events.collect();
        let origin = self.origin.unwrap_or_default();
        Read { events, others, ledger, origin, problems, errors, ends: self.ends }
    }
}

/// What can be told of a recording without a ledger.
fn ledger_of_seen(seen: Seen) -> Ledger {
    Ledger {
        written: seen.samples,
        complete: seen.complete,
        inlined_calls: seen.inlined_calls,
        incomplete: seen.incomplete,
        kernel_only: seen.kernel_only,
        unmatched: seen.unmatched,
        unchecked: seen.unchecked,
        ..Ledger::new()
    }
}

/// Has collectors continue with a recording.
fn collect(
    mut collectors: ByEvent,
    reader: &mut PerfReader,
    reading: Reading<'_>,
    (shared, notices): (&SharedFiles, &Notices),
    told: Option<&LedgerSection>,
    origin: &Origin,
) -> (ByEvent, io::Result<Summary>) {
    let options = Options {
        merge: true,
        memory: reading.memory,
        frame_pointers: FramePointerRows { is_trusted: reading.trust_fp },
        stitch_lbr: false,
    };
    let build_ids = reader.build_ids();
    let names = Names::new(origin.kernel(&build_ids), Layout::Perf7_2, notices);
    let names = if reading.names_kernel { names } else { names.without_kernel() };
    let (recorded, error) = RecordedStacks::read(reader, told);
    if let Some(error) = error {
        notices.add(format!(
            "how frames were found is told by tables as they are now, and calls of interpreters are missing: {error}"
        ));
    }
    collectors.begin(names, recorded);
    let files = RecordedFiles::new(build_ids).of_origin(origin).sharing(shared.clone());
    let files = files.with_notices(notices);
    let files = files.with_debug_files(reading.debug_info().files);
    let call_stacks = CallStacks::new(false, reader.branch_entries());
    print(reader, options, files, call_stacks, collectors)
}
