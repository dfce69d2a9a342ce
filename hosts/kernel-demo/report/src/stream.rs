//! The record stream: into order, and merged.

use std::collections::BTreeMap;

use demo_format::{FINISHED_ROUND, FORMAT};
use unwind_perf::merge::whole_chain;
use unwind_perf::merge::{MergeCounts, Merger, Outcome, Policy, Reorder, Timestamped, Unmatched};
use unwind_perf::record::{
    CallchainDeferred, Comm, DeferredLayout, Endian, Error, IdPlace, Lifecycle, Lost, Record,
    RecordType, Records, Sample, SampleId, Task,
};

use crate::tasks::Tasks;

/// How a sample ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SampleOutcome {
    /// The sample came with its user part, or has none.
    Inline,
    /// Its user part came.
    Merged,
    /// Its user part did not come.
    Unmatched(Unmatched),
}

/// A sample with what became of it.
#[derive(Clone, Debug)]
pub(crate) struct WholeSample {
    pub(crate) ip: u64,
    pub(crate) tid: u32,
    pub(crate) time: u64,
    pub(crate) cpu: u32,
    /// The number of the event that it is of.
    pub(crate) event: u64,
    pub(crate) in_user: bool,
    /// The cookie, if the user part was deferred.
    pub(crate) cookie: Option<u64>,
    /// The kernel's second opinion: which entry of the task this is, 0 if it
    /// cannot be said.
    pub(crate) entry: u64,
    /// Marks and addresses.
    pub(crate) chain: Vec<u64>,
    pub(crate) end: SampleOutcome,
}

/// The samples of one event.
#[derive(Debug)]
pub(crate) struct Events {
    pub(crate) samples: Vec<WholeSample>,
    pub(crate) counts: MergeCounts,
    /// The stacks by their cookies.
    pub(crate) stacks: BTreeMap<u64, Stack>,
}

/// What the records of one cookie's stack say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stack {
    /// How many records there are.
    pub(crate) count: u64,
    /// The task's entry into the kernel, as the kernel counts.
    pub(crate) entry: u64,
    /// The CPU on which it was walked.
    pub(crate) cpu: u32,
    /// The event that got it.
    pub(crate) event: u64,
}

impl Events {
    /// The stack of a cookie.
    pub(crate) fn stack(&self, cookie: u64) -> Option<&Stack> {
        self.stacks.get(&cookie)
    }
}

/// All there is in a stream.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Those of each group, in the order of the groups.
    pub(crate) events: Vec<Events>,
    pub(crate) tasks: Tasks,
}

impl Stream {
    /// Decodes and merges the records in `bytes`. The events of a group have one client: a
    /// stack that one of them asks for comes by any.
    pub(crate) fn decode(bytes: &[u8], groups: &[&'static [u64]]) -> Result<Self, Error> {
        let place = IdPlace::of([FORMAT])?;
        let mut sides: Vec<_> = groups.iter().map(|events| Side::new(events)).collect();
        let mut tasks = Tasks::default();
        let mut order = Reorder::new(64 << 20);
        let mut take = |record: Record<'_>| {
            for side in &mut sides {
                if place.id_of(&record).is_some_and(|id| side.events.contains(&id)) {
                    side.take(&record, &mut tasks)?;
                }
            }
            Ok(())
        };
        for record in Records::new(bytes, Endian::Little) {
            let record = record?;
            if record.kind() == FINISHED_ROUND {
                order.round();
            } else {
                order.push(time_of(&record)?, record.bytes().len(), record);
            }
            while let Some(record) = order.pop() {
                take(record)?;
            }
        }
        order.finish();
        while let Some(record) = order.pop() {
            take(record)?;
        }
        Ok(Self { events: sides.into_iter().map(Side::finish).collect(), tasks })
    }
}

fn time_of(record: &Record<'_>) -> Result<u64, Error> {
    let time = if record.kind() == RecordType::SAMPLE {
        Sample::decode(record, FORMAT)?.time
    } else {
        SampleId::decode(record, FORMAT)?.time
    };
    Ok(time.unwrap_or(0))
}

/// One event's records on their way.
struct Side {
    events: &'static [u64],
    merger: Merger<WholeSample>,
    samples: Vec<WholeSample>,
    stacks: BTreeMap<u64, Stack>,
}

impl Side {
    fn new(events: &'static [u64]) -> Self {
        let merger = Merger::new(Policy::default().ascending_cookies(true));
        Self { events, merger, samples: Vec::new(), stacks: BTreeMap::new() }
    }

    fn take(&mut self, record: &Record<'_>, tasks: &mut Tasks) -> Result<(), Error> {
        match record.kind() {
            RecordType::SAMPLE => {
                let sample = Sample::decode(record, FORMAT)?;
                let at = stamp(sample.task, sample.time);
                let chain = sample.callchain;
                let user = chain.map(|chain| chain.user_part());
                let Some(user) = user else { return Ok(()) };
                let whole = WholeSample::new(&sample);
                self.merger.sample(at, user, whole, record.bytes().len());
            }
            RecordType::CALLCHAIN_DEFERRED => {
                let stack = CallchainDeferred::decode(record, FORMAT, DeferredLayout::Cookie)?;
                let at = stamp(stack.id.task, stack.id.time);
                let cookie = stack.cookie.unwrap_or(0);
                let seen = Stack {
                    count: 1 + self.stacks.get(&cookie).map_or(0, |stack| stack.count),
                    entry: stack.id.stream_id.unwrap_or(0),
                    cpu: stack.id.cpu.unwrap_or(u32::MAX),
                    event: stack.id.identifier.unwrap_or(0),
                };
                self.stacks.insert(cookie, seen);
                self.merger.deferred(at, cookie, stack.ips);
            }
            RecordType::LOST => {
                let lost = Lost::decode(record, FORMAT)?;
                self.merger.lost(lost.count);
                tasks.loss(lost.id.time.unwrap_or(0));
            }
            RecordType::COMM => {
                let comm = Comm::decode(record, FORMAT)?;
                let at = stamp(Some(comm.task), comm.id.time);
                tasks.name(at.task.tid, at.time, &String::from_utf8_lossy(comm.name));
                if comm.exec {
                    self.merger.exec(at);
                }
            }
            RecordType::FORK | RecordType::EXIT => {
                let life = Lifecycle::decode(record, FORMAT)?;
                let at = Timestamped { task: life.task, time: life.time };
                if life.exit {
                    self.merger.exit(at);
                } else {
                    tasks.start(life.task.tid, life.parent.tid, life.time);
                }
            }
            _ => {}
        }
        self.take_ended();
        Ok(())
    }

    fn take_ended(&mut self) {
        while let Some((sample, outcome)) = self.merger.pop() {
            self.samples.push(finished(sample, outcome));
        }
    }

    fn finish(mut self) -> Events {
        self.merger.finish();
        self.take_ended();
        let Self { merger, mut samples, stacks, .. } = self;
        samples.sort_by_key(|sample| sample.time);
        Events { samples, counts: *merger.counts(), stacks }
    }
}

impl WholeSample {
    fn new(sample: &Sample<unwind_perf::record::Callchain<'_>>) -> Self {
        use unwind_perf::record::{Misc, UserPart};
        let cookie = match sample.callchain.map(|chain| chain.user_part()) {
            Some(UserPart::Deferred(cookie)) => Some(cookie),
            _ => None,
        };
        Self {
            ip: sample.ip.unwrap_or(0),
            tid: sample.task.unwrap_or_default().tid,
            time: sample.time.unwrap_or(0),
            cpu: sample.cpu.unwrap_or(u32::MAX),
            event: sample.identifier.unwrap_or(0),
            in_user: sample.misc.cpu_mode() == Misc::USER,
            cookie,
            entry: sample.stream_id.unwrap_or(0),
            chain: sample.callchain.map(|chain| chain.words().collect()).unwrap_or_default(),
            end: SampleOutcome::Inline,
        }
    }
}

/// Puts together what a sample and its outcome have.
fn finished(mut sample: WholeSample, outcome: Outcome) -> WholeSample {
    match outcome {
        Outcome::Inline => sample.end = SampleOutcome::Inline,
        Outcome::Merged(merged) => {
            let words: Vec<u8> = sample.chain.iter().flat_map(|word| word.to_le_bytes()).collect();
            let words = unwind_perf::record::Words::new(&words, Endian::Little);
            let chain = unwind_perf::record::Callchain::new(words);
            let whole = whole_chain(chain, &merged.stack).collect();
            sample.chain = whole;
            sample.end = SampleOutcome::Merged;
        }
        Outcome::Unmatched { reason, .. } => sample.end = SampleOutcome::Unmatched(reason),
    }
    sample
}

fn stamp(task: Option<Task>, time: Option<u64>) -> Timestamped {
    Timestamped { task: task.unwrap_or_default(), time: time.unwrap_or(0) }
}
