//! What became of each sample: the ledger of a recording.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};
use unwind_target::counted::counted;

use crate::engine::drained::{Drained, OfEvent};
use crate::engine::{CpuTime, KernelWalks};
use crate::recording::off_cpu::OffCpu;
use crate::session::guest_stops::GuestStops;
use crate::session::told::{Throttled, Told};
use crate::walks::tally::Tally;

/// The version of the structure: it rises when a field changes its meaning or goes.
const SCHEMA: u32 = 1;

/// What became of the samples: each that the kernel wrote or counted as lost is in exactly
/// one class. As text it has a line for each class, and serialized it is what `unwind record --json` prints.
///
/// Why stacks are not complete:
///
/// | reason | what it says | what helps |
/// |---|---|---|
/// | `gap` | callers may be missing between two frames, which were found by a guess | tables, or frame pointers that are [trusted](crate::ProfileOptions::trust_frame_pointers) |
/// | `stack-copy-too-short` | the stack is deeper than what was copied | more [bytes](crate::Recorder::stack_bytes), up to 65,528 |
/// | `stack-not-copied` | a part of the stack was not in memory, or is below the stack pointer | |
/// | `other-stack` | the caller is on another stack than the one that was copied | |
/// | `no-row` | no table covers the code | tables: `.eh_frame` or `.sframe` |
/// | `file-gone` | the file with the code was removed or replaced, and its process has ended | a recording while it is there |
/// | `return-probe` | a uretprobe has the return address | |
/// | `no-start` | the sample has no registers to start with | |
/// | `frame-limit` | there are more frames than are looked for in the kernel: 2,048, by the Linux module 127 | |
/// | `stack-not-resident` | in the kernel: a part of the stack is not there, or is not to be brought in | |
/// | `executed-another` | the process has executed another program before its stack could be walked | |
/// | `thread-ended` | the thread has ended before its stack could be walked | |
/// | `interpreted-calls` | in the kernel: calls of an interpreter may be missing, or not at their frames | |
/// | `no-memory` | the Linux module had no memory for the walk | |
/// | `table-awaited` | by the Linux module: the table of a file was still being made, or could not be handed in | |
/// | `record-limit` | there are more frames than a record can have | |
/// | others | why a [walk](unwind_target::EndReason) has ended | |
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// The version of the JSON: it rises when a field changes its meaning or goes.
    pub schema: u32,
    /// Samples that came out of the rings.
    pub written: u64,
    /// Stacks whose last frame is the outermost one, with no gap before it.
    pub complete: u64,
    /// How many of these have a call of JavaScript that may be one of the functions that are inlined in it, which
    /// is said at its place. With node's `--detailed-line-info` V8 keeps which.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub inlined_calls: u64,
    /// Other stacks, by the reason why they are not complete.
    pub incomplete: BTreeMap<String, u64>,
    /// Samples of threads that have no user part.
    pub kernel_only: u64,
    /// Samples whose user part should have come in a later record, and did not.
    pub unmatched: u64,
    /// Samples whose user part was not checked: of recordings by frame pointers.
    pub unchecked: u64,
    /// Samples whose fields cannot be told apart.
    pub damaged: u64,
    /// Samples that came out of a ring when too many others waited to be walked.
    pub dropped: u64,
    /// Records of any kind for which a ring had no room.
    pub lost: u64,
    /// How many of these the kernel has told by records.
    pub lost_told: u64,
    /// The kernel's own count of them, where it has one.
    pub lost_by_kernel: Option<u64>,
    /// Bytes of the rings that were no records.
    pub skipped_bytes: u64,
    /// Spans in which the kernel took no samples.
    pub throttled: Throttled,
    /// CPU time and samples of it, where the kernel counts the former.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_time: Option<TimeOfSamples>,
    /// Waits, of a recording with these; their samples are in the classes like all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off_cpu: Option<OffCpu>,
    /// How stacks were walked, of a recording whose stacks were walked in the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walks: Option<KernelWalks>,
    /// How a guest was stopped, of a recording of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<GuestStops>,
    /// The classes by event, if there are several: their sums are those of the whole, but for what
    /// was lost, of which no event can be told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<EventLedger>,
}

/// What became of the samples of one event, as [`Ledger`] has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventLedger {
    /// Its name, as it is shown.
    pub event: String,
    /// Samples that came out of the rings.
    pub written: u64,
    /// Stacks whose last frame is the outermost one, with no gap before it.
    pub complete: u64,
    /// Other stacks, by the reason why they are not complete.
    pub incomplete: BTreeMap<String, u64>,
    /// Samples of threads that have no user part.
    pub kernel_only: u64,
    /// Samples whose user part did not come.
    pub unmatched: u64,
    /// Samples whose user part was not checked.
    pub unchecked: u64,
    /// Samples whose fields cannot be told apart.
    pub damaged: u64,
    /// Samples that came when too many others waited to be walked.
    pub dropped: u64,
}

impl EventLedger {
    /// That of one event alone.
    fn alone(&self) -> Ledger {
        let Self { event: _, incomplete, .. } = self;
        Ledger {
            written: self.written,
            complete: self.complete,
            incomplete: incomplete.clone(),
            kernel_only: self.kernel_only,
            unmatched: self.unmatched,
            unchecked: self.unchecked,
            damaged: self.damaged,
            dropped: self.dropped,
            ..Ledger::new()
        }
    }

    /// Adds it to that of the same event, if there is one.
    fn add_to(self, events: &mut Vec<Self>) {
        match events.iter_mut().find(|event| event.event == self.event) {
            Some(event) => {
                let sum = event.alone().with(&self.alone());
                *event = Self::named(self.event, sum);
            }
            None => events.push(self),
        }
    }

    /// That of an event of this name.
    pub(crate) fn named(event: String, of_event: Ledger) -> Self {
        Self {
            event,
            written: of_event.written,
            complete: of_event.complete,
            incomplete: of_event.incomplete,
            kernel_only: of_event.kernel_only,
            unmatched: of_event.unmatched,
            unchecked: of_event.unchecked,
            damaged: of_event.damaged,
            dropped: of_event.dropped,
        }
    }
}

/// The CPU time of all that was recorded, by the kernel's count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeOfSamples {
    /// All of it.
    pub nanoseconds: u64,
    /// About how many samples there would be more if all of it had been sampled: a process or a
    /// thread that ends before its first sample has none, and a timer that is late takes one for
    /// several. Those of throttled spans are not in it.
    pub samples_missing_estimated: u64,
}

/// A ledger does not add up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ledger does not add up: {0}")]
pub struct LedgerError(String);

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// How many samples fewer than its time stands for any thread may have by chance, about.
const CHANCE: u64 = 20;

impl Ledger {
    #[doc(hidden)]
    #[must_use]
    pub fn new() -> Self {
        Self { schema: SCHEMA, ..Self::default() }
    }

    /// That of samples that came out of the rings, of which the tally counts those whose stacks
    /// were walked.
    #[doc(hidden)]
    #[must_use]
    pub fn of(drained: Drained, tally: &Tally, unmatched: u64, told: &Told) -> Self {
        let Drained { written, dropped, skipped_bytes, lost: lost_by_kernel, walks, .. } = drained;
        let incomplete = tally.incomplete.iter();
        Self {
            written,
            complete: tally.complete,
            inlined_calls: tally.inlined_calls,
            incomplete: incomplete.map(|(&reason, &count)| (reason.to_owned(), count)).collect(),
            kernel_only: tally.kernel_only,
            unmatched,
            unchecked: tally.unchecked,
            damaged: tally.damaged,
            dropped,
            lost: lost_by_kernel.unwrap_or(told.lost),
            lost_told: told.lost,
            lost_by_kernel,
            skipped_bytes,
            throttled: told.throttled,
            walks,
            ..Self::new()
        }
    }

    /// The same with the CPU time that the kernel has counted, of samples at this rate.
    pub(crate) fn with_cpu_time(mut self, time: Option<CpuTime>, rate: u32) -> Self {
        let Some(CpuTime { running, sampled }) = time else { return self };
        let samples_of = |nanoseconds: u64| {
            let samples = u128::from(nanoseconds).saturating_mul(rate.into()) / 1_000_000_000;
            u64::try_from(samples).unwrap_or(u64::MAX)
        };
        let of_waits = self.off_cpu;
        let of_waits = of_waits.map_or(0, |waits| {
            waits.samples.saturating_add(waits.without_end).saturating_add(waits.without_wait)
        });
        let taken = self.written.saturating_sub(of_waits).saturating_add(self.lost);
        let samples_missing_estimated = samples_of(sampled).saturating_sub(taken);
        if self.throttled.spans > 0 {
            // Of the spans only what the threads have run meanwhile.
            self.throttled.samples_estimated = samples_of(running.saturating_sub(sampled));
        }
        self.cpu_time = Some(TimeOfSamples { nanoseconds: running, samples_missing_estimated });
        self
    }

    /// The same with the classes of each event of these names, if there are several. Of a recording that
    /// is not at its end all that is in a class counts as written.
    pub(crate) fn with_events(
        mut self,
        names: &[String],
        drained: Option<&Drained>,
        tally: &Tally,
    ) -> Self {
        for (at, (name, tally)) in names.iter().zip(&tally.events).enumerate() {
            let of_event = drained.and_then(|drained| drained.events.get(at)).copied();
            let OfEvent { written, dropped } = of_event.unwrap_or_default();
            let out = Drained { written, dropped, ..Drained::default() };
            let alone = Self::of(out, tally, tally.unmatched, &Told::new(0));
            let classified = alone.classified();
            let written = if drained.is_some() { written } else { classified };
            let alone = EventLedger::named(name.clone(), Self { written, ..alone });
            alone.add_to(&mut self.events);
        }
        self
    }

    /// That of an event by its name, if there are several.
    pub(crate) fn of_event(&self, name: impl Display) -> Option<Self> {
        let name = name.to_string();
        self.events.iter().find(|of_event| of_event.event == name).map(EventLedger::alone)
    }

    /// The classes by event, of both.
    fn events_with(&self, other: &Self) -> Vec<EventLedger> {
        let mut events = self.events.clone();
        for of_event in &other.events {
            of_event.clone().add_to(&mut events);
        }
        events
    }

    /// The sum of two ledgers. What one of them does not have the sum has not.
    pub(crate) fn with(self, other: &Self) -> Self {
        let events = self.events_with(other);
        let mut incomplete = self.incomplete;
        for (reason, count) in &other.incomplete {
            let sum = incomplete.entry(reason.clone()).or_default();
            *sum = sum.saturating_add(*count);
        }
        let lost_by_kernel = self.lost_by_kernel.zip(other.lost_by_kernel);
        Self {
            schema: self.schema,
            written: self.written.saturating_add(other.written),
            complete: self.complete.saturating_add(other.complete),
            inlined_calls: self.inlined_calls.saturating_add(other.inlined_calls),
            incomplete,
            kernel_only: self.kernel_only.saturating_add(other.kernel_only),
            unmatched: self.unmatched.saturating_add(other.unmatched),
            unchecked: self.unchecked.saturating_add(other.unchecked),
            damaged: self.damaged.saturating_add(other.damaged),
            dropped: self.dropped.saturating_add(other.dropped),
            lost: self.lost.saturating_add(other.lost),
            lost_told: self.lost_told.saturating_add(other.lost_told),
            lost_by_kernel: lost_by_kernel.map(|(a, b)| a.saturating_add(b)),
            skipped_bytes: self.skipped_bytes.saturating_add(other.skipped_bytes),
            throttled: self.throttled.with(other.throttled),
            cpu_time: self.cpu_time.zip(other.cpu_time).map(|(a, b)| TimeOfSamples {
                nanoseconds: a.nanoseconds.saturating_add(b.nanoseconds),
                samples_missing_estimated: a
                    .samples_missing_estimated
                    .saturating_add(b.samples_missing_estimated),
            }),
            off_cpu: match (self.off_cpu, other.off_cpu) {
                (Some(a), Some(b)) => Some(a.with(b)),
                (one, None) | (None, one) => one,
            },
            walks: match (self.walks, other.walks) {
                (Some(a), Some(b)) => Some(a.with(b)),
                (one, None) | (None, one) => one,
            },
            // Of two there is no median.
            guest: None,
            events,
        }
    }

    /// Samples whose stacks are not complete.
    pub(crate) fn all_incomplete(&self) -> u64 {
        self.incomplete.values().fold(0, |sum, &count| sum.saturating_add(count))
    }

    /// The most important of it, in a line.
    #[must_use]
    pub fn summary(&self) -> String {
        let all = self.written.saturating_add(self.lost);
        let parts = [
            (self.complete, "complete"),
            (self.all_incomplete(), "incomplete"),
            (self.kernel_only, "kernel only"),
            (self.unmatched, "unmatched"),
            (self.unchecked, "unchecked"),
            (self.damaged, "damaged"),
            (self.dropped, "dropped"),
            (self.lost, "lost"),
        ];
        let parts = parts.into_iter().filter(|&(count, _)| count > 0);
        let parts: Vec<String> =
            parts.map(|(count, what)| format!("{} % {what}", share(count, all))).collect();
        format!("{}: {}", counted(all, "sample", "samples"), parts.join(", "))
    }

    /// How many samples each class has, of which `complete` is there always, and for those that
    /// are not complete why.
    pub fn classes(&self) -> impl Iterator<Item = (&'static str, Option<&str>, u64)> {
        let incomplete = self.incomplete.iter();
        let incomplete = incomplete.map(|(why, &count)| ("incomplete", Some(why.as_str()), count));
        let others = [
            ("kernel_only", self.kernel_only),
            ("unmatched", self.unmatched),
            ("unchecked", self.unchecked),
            ("damaged", self.damaged),
            ("dropped", self.dropped),
            ("lost", self.lost),
        ];
        let others = others.into_iter().filter(|&(_, count)| count > 0);
        let others = others.map(|(class, count)| (class, None, count));
        [("complete", None, self.complete)].into_iter().chain(incomplete).chain(others)
    }

    /// All classes of samples that were written.
    pub fn classified(&self) -> u64 {
        let classes = [
            self.complete,
            self.all_incomplete(),
            self.kernel_only,
            self.unmatched,
            self.unchecked,
            self.damaged,
            self.dropped,
        ];
        classes.into_iter().fold(0, u64::saturating_add)
    }

    /// Whether each sample is in one class, and the losses agree with the kernel's count.
    ///
    /// # Errors
    ///
    /// [`LedgerError`] with what does not come out.
    pub fn check(&self) -> Result<(), LedgerError> {
        let classified = self.classified();
        if classified != self.written {
            let written = self.written;
            return Err(LedgerError(format!(
                "{written} samples were written, and {classified} are in its classes"
            )));
        }
        self.check_events()?;
        match self.lost_by_kernel {
            Some(counted) if counted != self.lost || self.lost_told > counted => {
                Err(LedgerError(format!(
                    "the kernel counts {counted} lost records, {} are in it, and records tell of {}",
                    self.lost, self.lost_told
                )))
            }
            _ => Ok(()),
        }
    }
}

impl Ledger {
    /// Whether each sample is of one event, in the same class.
    fn check_events(&self) -> Result<(), LedgerError> {
        if self.events.is_empty() {
            return Ok(());
        }
        let mut sum = Self::new();
        for of_event in &self.events {
            let alone = of_event.alone();
            let (name, classified) = (&of_event.event, alone.classified());
            if classified != alone.written {
                return Err(LedgerError(format!(
                    "{} samples of {name} were written, and {classified} are in its classes",
                    alone.written
                )));
            }
            sum = sum.with(&alone);
        }
        let whole = EventLedger::named(String::new(), self.clone());
        if EventLedger::named(String::new(), sum) != whole {
            return Err(LedgerError("those of its events are not those of the whole".to_owned()));
        }
        Ok(())
    }
}

/// Lines for people.
impl Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.written.saturating_add(self.lost);
        let samples = counted(all, "sample", "samples");
        match all {
            0 if self.guest.is_some() => {
                writeln!(f, "{samples}: the recording ended before the guest was looked at")?
            }
            // Of a file that is cut it is not known.
            0 if self.lost_by_kernel.is_none() => writeln!(f, "{samples}")?,
            0 => writeln!(f, "{samples}: nothing that was recorded has run for long enough")?,
            _ => writeln!(f, "{samples}:")?,
        }
        let mut line = |count: u64, what: &str| {
            let share = share(count, all);
            if count > 0 { writeln!(f, "  {count:>9} {share:>6} % {what}") } else { Ok(()) }
        };
        line(self.complete, "complete")?;
        line(
            self.inlined_calls,
            "of these with a call of JavaScript that may be a function inlined in it",
        )?;
        for (reason, &count) in &self.incomplete {
            line(count, &format!("incomplete: {reason}"))?;
        }
        line(self.kernel_only, "kernel only")?;
        line(self.unmatched, "unmatched: the record with the user part did not come")?;
        line(self.unchecked, "unchecked: as the recorder found them")?;
        line(self.damaged, "damaged")?;
        line(self.dropped, "dropped for want of time")?;
        line(self.lost, "lost in a ring (records of any kind)")?;
        for of_event in &self.events {
            writeln!(f, "of these, {}: {}", of_event.event, of_event.alone().summary())?;
        }
        if self.skipped_bytes > 0 {
            let bytes = counted(self.skipped_bytes, "byte", "bytes");
            writeln!(f, "  {bytes} of the rings were no records")?;
        }
        if let Some(KernelWalks { at_once, deferred, shared, copied }) = self.walks {
            writeln!(
                f,
                "stacks walked at once: {at_once}, before the thread returned to user code: \
                 {deferred}, copied for want of a row: {copied}; samples that share one: {shared}"
            )?;
        }
        if let Some(stops) = self.guest {
            writeln!(f, "{stops}")?;
        }
        if let Some(waits) = self.off_cpu {
            writeln!(
                f,
                "of these, {}, {} ms in all",
                counted(
                    waits.samples,
                    "sample of a thread that waits",
                    "samples of threads that wait"
                ),
                waits.nanoseconds / 1_000_000
            )?;
            if waits.without_sample > 0 {
                let waits_unseen = counted(waits.without_sample, "wait", "waits");
                let ms = waits.nanoseconds_without_sample / 1_000_000;
                writeln!(f, "apart from these, {waits_unseen} without a sample, {ms} ms in all")?;
            }
            if waits.without_end > 0 {
                let samples = counted(waits.without_end, "sample", "samples");
                writeln!(f, "  {samples} of waits whose end was not told")?;
            }
            if waits.without_wait > 0 {
                let samples = counted(waits.without_wait, "sample", "samples");
                writeln!(f, "  {samples} of threads that had ended and of idle CPUs, for no time")?;
            }
        }
        if let Some(TimeOfSamples { nanoseconds, samples_missing_estimated: missing }) =
            self.cpu_time
            && missing >= CHANCE
            && missing > all / 50
        {
            let ms = nanoseconds / 1_000_000;
            writeln!(
                f,
                "apart from these, about {missing} samples are missing of {ms} ms of CPU time: of \
                 what ends before its first sample, or while the timer was late"
            )?;
        }
        if self.throttled.spans > 0 {
            let Throttled { spans, nanoseconds, samples_estimated } = self.throttled;
            writeln!(
                f,
                "apart from these, throttled: {}, {} ms in all, about {samples_estimated} samples",
                counted(spans, "span", "spans"),
                nanoseconds / 1_000_000
            )?;
        }
        match self.check() {
            Ok(()) => Ok(()),
            Err(error) => writeln!(f, "{error}"),
        }
    }
}

/// How many of a hundred, with one digit after the point, cut: 100.0 are all.
fn share(count: u64, all: u64) -> String {
    let tenths = u128::from(count).saturating_mul(1000).checked_div(all.into()).unwrap_or(0);
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        let mut ledger = Ledger { written: 21, complete: 1, kernel_only: 2, ..Ledger::new() };
        ledger.incomplete = [("no-row".to_owned(), 3), ("gap".to_owned(), 4)].into();
        (ledger.unmatched, ledger.damaged, ledger.dropped) = (5, 6, 0);
        (ledger.lost, ledger.lost_told, ledger.lost_by_kernel) = (9, 7, Some(9));
        ledger
    }

    #[test]
    fn d14_a_ledger_adds_up_only_if_each_sample_is_in_one_class() {
        assert_eq!(ledger().check(), Ok(()));
        let changes: [fn(&mut Ledger); 10] = [
            |ledger| ledger.written += 1,
            |ledger| ledger.complete += 1,
            |ledger| *ledger.incomplete.entry("gap".into()).or_default() += 1,
            |ledger| ledger.kernel_only += 1,
            |ledger| ledger.unmatched += 1,
            |ledger| ledger.damaged += 1,
            |ledger| ledger.unchecked += 1,
            |ledger| ledger.dropped += 1,
            |ledger| ledger.lost += 1,
            |ledger| ledger.lost_told = 10,
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let mut ledger = ledger();
            change(&mut ledger);
            assert!(ledger.check().is_err(), "change {at}");
            assert!(ledger.to_string().contains("does not add up"), "change {at}");
        }
    }

    #[test]
    fn d14_cpu_time_without_a_sample_is_told_once() {
        let with = |written, lost, running: u64, sampled: u64| {
            let mut ledger = Ledger { written, complete: written, lost, ..Ledger::new() };
            ledger.throttled.spans = u64::from(running > sampled);
            let [running, sampled] = [running, sampled].map(|ms| ms * 1_000_000);
            let ledger = ledger.with_cpu_time(Some(CpuTime { running, sampled }), 1_000);
            let missing = ledger.cpu_time.unwrap().samples_missing_estimated;
            (missing, ledger.throttled.samples_estimated, ledger.to_string())
        };
        let (missing, throttled, text) = with(500, 100, 1_000, 1_000);
        assert_eq!((missing, throttled), (400, 0));
        assert!(text.contains("about 400 samples are missing of 1000 ms"), "{text}");
        // While samples are stopped none are missing.
        let (missing, throttled, _) = with(500, 100, 1_000, 700);
        assert_eq!((missing, throttled), (100, 300));
        // A sample of each thread is chance.
        let (missing, _, text) = with(990, 0, 1_000, 1_000);
        assert!(missing == 10 && !text.contains("missing"), "{text}");
        assert_eq!(with(1_001, 0, 1_000, 1_000).0, 0);
    }

    #[test]
    fn d14_the_text_has_each_class_with_its_share() {
        let text = ledger().to_string();
        for line in ["30 samples", "1    3.3 % complete", "3   10.0 % incomplete: no-row"] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        let whole = Ledger { lost_by_kernel: Some(0), ..Ledger::new() };
        let reason = "nothing that was recorded has run for long enough";
        assert_eq!(whole.to_string(), format!("0 samples: {reason}\n"));
        assert_eq!(Ledger::new().to_string(), "0 samples\n", "of a file that is cut");
    }
}
