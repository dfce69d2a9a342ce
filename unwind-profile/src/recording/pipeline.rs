//! From records as they are in the file to samples with their stacks.

use std::io;

use unwind_core::CacheStats;
use unwind_perf::merge::{
    CookiesByTime, MergeCounts, Merger, Outcome, Policy, Reorder, ReorderCounts, Timestamped,
};
use unwind_perf::record::{DeferredLayout, RecordType, UserPart};
use unwind_target::rows::frame_pointers::FramePointerRows;

use crate::recording::error::{Fault, PerfError};
use crate::recording::events::Events;
use crate::recording::held::{Held, Meaning};
use crate::recording::off_cpu::{OffCpu, Waits};
use crate::recording::reader::PerfReader;
use crate::recording::tool_record;

/// What receives records and samples.
pub(crate) trait Sink {
    /// Takes a sample, once it is known how it ends.
    fn sample(&mut self, events: &Events, held: Held, outcome: &Outcome) -> io::Result<()>;

    /// Takes any other record of the kernel, in order of time.
    fn record(&mut self, events: &Events, held: Held) -> io::Result<()>;

    /// Takes a record of a tool, with the bytes after it if it has some, when
    /// it is read.
    fn tool_record(&mut self, reader: &mut PerfReader) -> Result<(), PerfError>;

    /// Takes note that nothing older than `time` will follow.
    fn settled(&mut self, time: u64) -> io::Result<()>;

    /// Takes note that all rings were emptied once.
    fn round(&mut self, _events: &Events) -> io::Result<()> {
        Ok(())
    }
}

/// How to read.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether to merge, or to hand out samples and stacks as they were
    /// recorded.
    pub merge: bool,
    /// About how many bytes may be held, half of them to sort and half to
    /// merge.
    pub memory: usize,
    /// How far frame pointers are believed where a stack is walked.
    pub frame_pointers: FramePointerRows,
    /// Whether calls that the CPU recorded are stitched and joined with walks.
    pub stitch_lbr: bool,
}

/// What was read, and how it ended.
#[derive(Debug)]
pub struct Summary {
    pub merge: MergeCounts,
    /// How many of the merged samples were joined with their stack by time, as the records
    /// have no cookie.
    pub by_time: u64,
    pub(crate) reorder: ReorderCounts,
    /// How long threads waited, if that was asked for.
    pub(crate) off_cpu: OffCpu,
    /// How often a row of a table was looked up for stacks that were walked; filled in
    /// when all walks are done.
    pub rows: CacheStats,
    /// Why the reading ended, if that was not the end of the data.
    pub end: Result<(), PerfError>,
}

impl Summary {
    /// What the memory limit cost, and what does not go together, a line each.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let merge = &self.merge;
        let warnings = [
            (self.reorder.disordered, "records came too late to be put in order"),
            (merge.unmatched_evicted, "samples could not wait for their stack"),
            (merge.records_conflicting, "stacks disagree with an earlier one of their cookie"),
        ];
        let warnings = warnings.into_iter().filter(|(count, _)| *count > 0);
        warnings.map(|(count, what)| format!("{count} {what}"))
    }
}

/// Reads all records.
///
/// # Errors
///
/// [`PerfError::Io`] if `sink` fails. What is wrong with the input is in the
/// summary: what came before it has been handed out.
pub(crate) fn run(
    reader: &mut PerfReader,
    options: Options,
    sink: &mut impl Sink,
) -> Result<Summary, io::Error> {
    run_with_waits(reader, options, None, sink)
}

/// The same, with the samples of the event in place `waits` turned into waits.
///
/// # Errors
///
/// As of [`run`].
pub(crate) fn run_with_waits(
    reader: &mut PerfReader,
    options: Options,
    waits: Option<usize>,
    sink: &mut impl Sink,
) -> Result<Summary, io::Error> {
    let half = options.memory.checked_div(2).unwrap_or(0);
    let mut pipeline = Pipeline {
        reorder: Reorder::new(half),
        merger: options.merge.then(|| Merger::new(policy(half))),
        by_time: CookiesByTime::new(),
        joined_by_time: 0,
        samples: 0,
        left_out: None,
        waits: waits.map(|event| (event, Waits::default())),
        sink,
    };
    let end = loop {
        match reader.read() {
            Ok(true) => match pipeline.take(reader) {
                Ok(()) => {}
                Err(Stop::Sink(error)) => return Err(error),
                Err(Stop::Input(error)) => break Err(error),
            },
            Ok(false) if reader.is_unfinished() => break Err(PerfError::Unfinished),
            Ok(false) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    pipeline.finish(reader.events(), end)
}

/// Whether a sample without a cookie is joined with a stack by time: records have no
/// cookies, and are in order.
fn is_by_time(held: &Held) -> bool {
    held.layout == DeferredLayout::MarkerFirst && held.time != 0
}

/// What the merge waits for: its input is in order.
fn policy(max_bytes: usize) -> Policy {
    Policy::default().window(0).sample_window(10_000_000_000).max_bytes(max_bytes)
}

/// Why to stop reading.
enum Stop {
    Sink(io::Error),
    Input(PerfError),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Sink(error)
    }
}

struct Pipeline<'s, S> {
    reorder: Reorder<Held>,
    merger: Option<Merger<Held>>,
    by_time: CookiesByTime,
    joined_by_time: u64,
    /// How many samples were read.
    samples: u64,
    /// How many records were left out; where the first one is, and why.
    left_out: Option<(u64, u64, Fault)>,
    /// The event of waits, and the threads that wait.
    waits: Option<(usize, Waits)>,
    sink: &'s mut S,
}

impl<S: Sink> Pipeline<'_, S> {
    /// Takes the record that was read last.
    fn take(&mut self, reader: &mut PerfReader) -> Result<(), Stop> {
        let Some(kind) = reader.record().map(|record| record.kind()) else {
            return Ok(());
        };
        if kind == tool_record::FINISHED_ROUND {
            self.reorder.round();
        } else if kind.is_kernel() {
            self.take_kernel_record(reader)?;
        } else {
            self.sink.tool_record(reader).map_err(|error| match error {
                PerfError::Io(error) => Stop::Sink(error),
                error => Stop::Input(error),
            })?;
        }
        self.drain(reader.events())?;
        if kind == tool_record::FINISHED_ROUND {
            self.sink.round(reader.events())?;
        }
        Ok(())
    }

    fn take_kernel_record(&mut self, reader: &mut PerfReader) -> Result<(), Stop> {
        let at = reader.record_at();
        let event = reader.event_of_record().map_err(Stop::Input)?;
        let events = reader.events();
        let number = self.samples;
        if reader.record().is_some_and(|record| record.kind() == RecordType::SAMPLE) {
            self.samples = number.saturating_add(1);
        }
        let held = event.and_then(|event| {
            let (format, layout) = (events.format(event), events.deferred_layout());
            let held = Held::new(reader.kept_record(), reader.endian(), event, format, layout)?;
            Ok(held.with_number(number))
        });
        match held {
            Ok(held) if held.time == 0 => {
                // Written by the recorder for what was there before it.
                self.hand_on(events, held)?;
            }
            Ok(held) => self.reorder.push(held.time, held.len(), held),
            Err(fault) => {
                let (count, ..) = self.left_out.get_or_insert((0, at, fault));
                *count = count.saturating_add(1);
            }
        }
        Ok(())
    }

    /// Hands on what is in order.
    fn drain(&mut self, events: &Events) -> io::Result<()> {
        while let Some(held) = self.reorder.pop() {
            self.hand_on(events, held)?;
        }
        Ok(())
    }

    /// Takes a record in order of time.
    fn hand_on(&mut self, events: &Events, held: Held) -> io::Result<()> {
        let Some((event, waits)) = &mut self.waits else { return self.join(events, held) };
        let passed = waits.pass(held, *event);
        passed.into_iter().flatten().try_for_each(|held| self.join(events, held))
    }

    /// Joins samples with their stacks.
    fn join(&mut self, events: &Events, held: Held) -> io::Result<()> {
        let time = held.time;
        let Some(merger) = &mut self.merger else {
            return match held.meaning {
                Meaning::Sample(_) => self.sink.sample(events, held, &Outcome::Inline),
                _ => self.sink.record(events, held),
            };
        };
        let at = Timestamped { task: held.task, time };
        let mut other = None;
        match held.meaning {
            Meaning::Sample(user) => {
                let bytes = size_of::<Held>().saturating_add(held.len());
                let user = match user {
                    UserPart::CookieLost if is_by_time(&held) => {
                        UserPart::Deferred(self.by_time.of_sample(held.task.tid))
                    }
                    user => user,
                };
                merger.sample(at, user, held, bytes);
            }
            Meaning::Stack(cookie) => {
                match cookie.or_else(|| self.by_time.of_stack(held.task.tid)) {
                    Some(cookie) => merger.deferred(at, cookie, held.ips()),
                    None => merger.unused(),
                }
            }
            meaning => {
                match meaning {
                    Meaning::Exec => merger.exec(at),
                    Meaning::Exit => {
                        self.by_time.exit(held.task.tid);
                        merger.exit(at);
                    }
                    Meaning::Lost(count) => {
                        self.by_time.lost();
                        merger.lost(count);
                    }
                    _ => {}
                }
                merger.advance(time);
                other = Some(held);
            }
        }
        // What the record ended comes before the record.
        while let Some((sample, outcome)) = merger.pop() {
            if is_by_time(&sample) && matches!(outcome, Outcome::Merged(_)) {
                self.joined_by_time = self.joined_by_time.saturating_add(1);
            }
            self.sink.sample(events, sample, &outcome)?;
        }
        let settled = merger.oldest_waiting().map_or(time, |waiting| waiting.min(time));
        if let Some(held) = other {
            self.sink.record(events, held)?;
        }
        self.sink.settled(settled)
    }

    /// Hands on all that is held.
    fn finish(mut self, events: &Events, end: Result<(), PerfError>) -> Result<Summary, io::Error> {
        self.reorder.finish();
        self.drain(events)?;
        let mut off_cpu = OffCpu::default();
        if let Some((_, mut waits)) = self.waits.take() {
            waits.finish().into_iter().try_for_each(|held| self.join(events, held))?;
            off_cpu = waits.counts;
        }
        let mut merge = MergeCounts::default();
        if let Some(merger) = &mut self.merger {
            merger.finish();
            while let Some((sample, outcome)) = merger.pop() {
                self.sink.sample(events, sample, &outcome)?;
            }
            merge = *merger.counts();
        }
        let left_out = self
            .left_out
            .map_or(Ok(()), |(count, at, fault)| Err(PerfError::BadRecords { count, at, fault }));
        let (reorder, rows) = (self.reorder.counts(), CacheStats::default());
        let by_time = self.joined_by_time;
        Ok(Summary { merge, by_time, reorder, off_cpu, rows, end: end.and(left_out) })
    }
}
