//! Reading a recording for a report.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use unwind_target::untrusted::escaped;
use unwind_target::{Notices, Untrusted};

use crate::collected::call_tree::{CallTree, Frame};
use crate::collected::collector::Collector;
use crate::collected::debug_info::DebugInfo;
use crate::collected::error::{Ended, MissingSamples, ReadingError, SeveralEvents};
use crate::collected::expansion::expanded;
use crate::collected::grouping::By;
use crate::collected::interpreted_calls::InterpretedCalls;
use crate::collected::line_samples::LineSamples;
use crate::collected::side::Side;
use crate::collected::time_line::{Detail, TimeLine};
use crate::mapped::origin::Origin;
use crate::recording::error::RecordingError;
use crate::recording::pipeline::Summary;
use crate::recording::reader::ReadProgress;
use crate::session::ledger::Ledger;
use crate::walks::found_by::FoundBy;

/// How to read.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'r> {
    /// The event whose samples are read; without it those of each, by itself.
    pub event: Option<&'r Untrusted>,
    pub by: By,
    /// Whether waits are shown.
    pub off_cpu: bool,
    pub trust_fp: bool,
    /// About how many bytes to hold, of records and of stacks each.
    pub memory: usize,
    /// Whether functions of the kernel have names, which are those of the kernel that runs.
    pub names_kernel: bool,
    /// Whether it is kept at which lines of the source samples were taken.
    pub keeps_lines: bool,
    /// Where debug information is looked for and who reads it, if not this process where it usually is.
    pub debug_info: Option<&'r DebugInfo>,
    /// Whether functions that were inlined have frames.
    pub shows_inlined: bool,
    /// Which frames are shown of stacks with calls of an interpreter.
    pub interpreted: InterpretedCalls,
    /// What gives way where threads have many different stacks.
    pub detail: Detail,
    /// Whether files have the names by which those of two recordings are compared.
    pub is_compared: bool,
    /// Whether stacks with gaps stand apart from others.
    pub keeps_gaps_apart: bool,
    /// What is to be told of the files that samples are of.
    pub notices: Option<&'r Notices>,
    /// What is told how far the reading is.
    pub progress: Option<&'r Arc<dyn ReadProgress>>,
}

impl Reading<'_> {
    /// Where debug information is looked for, and who reads it.
    pub(crate) fn debug_info(self) -> DebugInfo {
        self.debug_info.cloned().unwrap_or_default()
    }
}

/// What one recording has, or several together.
#[derive(Debug)]
pub(crate) struct Read {
    /// The event that was asked for, or each that has samples; at least one.
    pub(crate) events: Vec<EventRead>,
    /// The others, and how many samples they have.
    pub(crate) others: Vec<(Untrusted, u64)>,
    /// That of all events.
    pub(crate) ledger: Ledger,
    /// That of the first one.
    pub(crate) origin: Origin,
    /// What could not be found out, a line each.
    pub(crate) problems: Vec<String>,
    /// Of recordings that are left out, as they cannot be read.
    pub(crate) errors: Vec<ReadingError>,
    pub(crate) ends: Vec<RecordingEnd>,
}

/// What there is of one event.
#[derive(Debug)]
pub(crate) struct EventRead {
    pub(crate) name: Untrusted,
    pub(crate) profile: CallTree,
    pub(crate) time_line: TimeLine,
    pub(crate) ledger: Ledger,
    /// Where in the program samples were taken, if that is kept.
    pub(crate) line_samples: Option<LineSamples>,
    /// How many samples end at each node, by recording, if they are compared.
    counts: Vec<(PathBuf, Vec<u64>)>,
}

impl EventRead {
    /// As one of two sides that are compared. `recordings` are the counts of those that have one on the
    /// other side. `names_options` says whether texts name options of the command.
    pub(crate) fn side<'s>(
        &'s self,
        title: &'s str,
        recordings: &'s [&'s [u64]],
        names_options: bool,
    ) -> Side<'s> {
        let (profile, ledger) = (&self.profile, &self.ledger);
        Side { title, profile, ledger, recordings, names_options }
    }

    /// How many samples of a recording end at each node of the profile, if it was read to its end and
    /// is compared.
    pub(crate) fn counts(&self, path: &Path) -> Option<&[u64]> {
        let found = self.counts.iter().find(|(of, _)| of == path);
        found.map(|(_, counts)| counts.as_slice())
    }
}

impl Read {
    /// All events and how many samples each has.
    pub(crate) fn event_list(&self) -> Vec<(Untrusted, u64)> {
        let shown = self.events.iter().map(|event| (event.name.clone(), event.ledger.written));
        shown.chain(self.others.iter().cloned()).collect()
    }

    /// The only event.
    ///
    /// # Errors
    ///
    /// [`SeveralEvents`] if there are.
    pub(crate) fn only(&self) -> Result<&EventRead, SeveralEvents> {
        match self.events.as_slice() {
            [only] => Ok(only),
            _ => {
                let path = self.ends.first().map(|end| escaped(&end.path).to_string());
                let (path, events) = (path.unwrap_or_default(), self.event_list());
                Err(SeveralEvents { path, events })
            }
        }
    }

    /// How the reading ended. What was read before is to be shown first.
    pub(crate) fn end(self) -> Ended {
        let mut ended = Ended { warnings: Vec::new(), errors: self.errors };
        for end in self.ends {
            let of_path = |warning| format!("{}: {warning}", escaped(&end.path));
            ended.warnings.extend(end.summary.warnings().map(of_path));
            ended.errors.extend(end.result().err());
        }
        ended
    }
}

/// How the reading of a recording ended.
#[derive(Debug)]
pub(crate) struct RecordingEnd {
    pub(crate) path: PathBuf,
    /// Samples that were found and that the ledger is about.
    pub(crate) found: u64,
    pub(crate) told: u64,
    pub(crate) ledger: Ledger,
    pub(crate) summary: Summary,
}

impl RecordingEnd {
    fn result(self) -> Result<(), ReadingError> {
        let Self { path, found, told, ledger, summary } = self;
        summary.end.map_err(|error| RecordingError { path, error })?;
        if found != told {
            return Err(MissingSamples { found, told }.into());
        }
        Ok(ledger.check()?)
    }
}

impl EventRead {
    /// What a collector has. Returns also what could not be found out.
    pub(crate) fn of(
        name: Untrusted,
        collector: Collector,
        ledger: Ledger,
        mut counts: Vec<(PathBuf, Vec<u64>)>,
        memory: usize,
    ) -> (Self, Vec<String>) {
        let Collector { mut profile, mut time_line, mut line_samples, code_frames, .. } = collector;
        let mut problems = Vec::new();
        if let Some(code_frames) = code_frames.filter(|frames| !frames.is_empty()) {
            let inlined = code_frames.find();
            problems = inlined.problems;
            // Frames that stand apart by address become one, too.
            let expansion = expanded(&profile, &inlined.functions, memory);
            time_line.move_to(&expansion.nodes);
            for (_, counts) in &mut counts {
                *counts = expansion.moved(counts);
            }
            if let Some(line_samples) = &mut line_samples {
                line_samples.move_to(&expansion.innermost);
            }
            profile = expansion.profile;
        }
        (Self { name, profile, time_line, ledger, line_samples, counts }, problems)
    }

    /// The same with samples of which nothing else is known, and those that waits without a sample
    /// stand for.
    pub(crate) fn with_notes(mut self, unseen: u64) -> Self {
        for (count, what) in [
            (self.ledger.lost, "[lost in a ring]"),
            (self.ledger.dropped, "[dropped]"),
            (unseen, "[waits without a sample]"),
        ] {
            if count > 0 {
                let frame = self.profile.frame(Frame::note(what));
                self.profile.add([(frame, FoundBy::Nothing)], count);
            }
        }
        self
    }
}
