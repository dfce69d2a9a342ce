//! The records of a recording after the merge.

use std::io::{self, Write};
use std::sync::Arc;
use std::thread::Scope;

use unwind_perf::merge::{Outcome, whole_chain};
use unwind_perf::record::{
    self, Attr, Context, Encode as _, Endian, Record, RecordHeader, RecordType, WithCallchain,
};

use crate::mapped::address_spaces::Spaces;
use crate::mapped::files::RecordedFiles;
use crate::recording::error::PerfError;
use crate::recording::events::{Events, is_to_walk};
use crate::recording::held::Held;
use crate::recording::pipeline::Sink;
use crate::recording::reader::PerfReader;
use crate::recording::registered_code::RegisteredCode;
use crate::recording::tool_record;
use crate::walks::call_stacks::{CallStack, CallStacks, with_calls};
use crate::walks::found_frames::{FoundFrames, FoundFramesBuilder};
use crate::walks::tally::Tally;
use crate::walks::walked_stack::{WalkedFrame, WalkedStack};
use crate::walks::walkers::{Job, WalkSetup, Walks, Work};

/// How many times as long as the recording the result is, and how much longer, before the
/// stacks that samples share are cut to as many frames as perf records.
const PER_BYTE: u64 = 64;
const START: u64 = 1 << 20;
const SHORT_STACK: usize = 127;

/// Writes records, samples with whole chains among them.
pub(crate) struct MergedRecords<'scope, 'env, W> {
    out: W,
    endian: Endian,
    bytes: u64,
    rounds: Rounds,
    cut: u64,
    /// How many bytes may be written until shared stacks are cut.
    allowed: u64,
    /// The sample being made.
    sample: Vec<u8>,
    spaces: Spaces,
    walks: Walks<'scope, 'env, Waiting>,
    tally: Tally,
    keeps_stacks: bool,
    /// How many samples are written, and how their frames were found, if that is to be kept.
    samples: usize,
    found: Option<FoundFramesBuilder>,
    /// Which samples were handed on, by their places in the recording, if that is asked for.
    order: Option<Vec<u64>>,
    call_stacks: CallStacks,
}

/// A record that waits for its stack, or for its turn.
#[derive(Debug)]
enum Waiting {
    ToWalk(Arc<Held>, Attr, Vec<u64>, Option<CallStack>),
    Record(Vec<u8>, u64),
}

/// Round marks that hold for the order in which samples become whole.
///
/// A reader may hand on, at each mark, what is not newer than the newest
/// before the mark before. So a mark can be set once nothing older than that
/// is to come. A sample that waits for its stack holds the marks up, and the
/// reader then sorts that stretch as one.
#[derive(Clone, Copy, Debug, Default)]
struct Rounds {
    /// The newest time written, and what it was at the last mark.
    newest: u64,
    newest_at_mark: u64,
    bytes_since_mark: u64,
}

impl Rounds {
    /// How much to write between two marks at least.
    const BYTES: u64 = 1 << 16;

    const fn is_due(&self, settled: u64) -> bool {
        self.bytes_since_mark >= Self::BYTES && settled >= self.newest_at_mark
    }
}

impl<'scope, 'env, W: Write> MergedRecords<'scope, 'env, W> {
    /// Stacks are walked by threads of `scope`.
    pub(crate) fn new(
        out: W,
        endian: Endian,
        spaces: Spaces,
        scope: &'scope Scope<'scope, 'env>,
        setup: &'env WalkSetup,
    ) -> Self {
        Self {
            out,
            endian,
            bytes: 0,
            rounds: Rounds::default(),
            cut: 0,
            allowed: START,
            sample: Vec::new(),
            spaces,
            walks: Walks::new(scope, setup),
            tally: Tally::default(),
            keeps_stacks: false,
            samples: 0,
            found: None,
            order: None,
            call_stacks: CallStacks::new(false, None),
        }
    }

    /// Joins stacks with the calls that the CPU recorded, if `call_stacks` are to be stitched.
    pub(crate) fn with_call_stacks(self, call_stacks: CallStacks) -> Self {
        Self { call_stacks, ..self }
    }

    /// Leaves registers and stacks in the samples: they are walked for the tally alone.
    pub(crate) fn keeping_stacks(self, keeps_stacks: bool) -> Self {
        Self { keeps_stacks, ..self }
    }

    /// Collects how the frames of samples are found, in the order in which these are written.
    pub(crate) fn with_found_frames(self) -> Self {
        Self { found: Some(FoundFramesBuilder::default()), ..self }
    }

    /// How the frames of samples were found, if that is collected.
    pub(crate) fn take_found_frames(&mut self) -> Option<FoundFrames> {
        self.found.take().map(FoundFramesBuilder::finish)
    }

    /// Takes note of the order of the samples.
    pub(crate) fn noting_order(self, is_noted: bool) -> Self {
        Self { order: is_noted.then(Vec::new), ..self }
    }

    /// The places in the recording of the samples that are written, in their order, if that was asked for and
    /// each sample that was handed on is written.
    pub(crate) fn take_order(&mut self) -> Option<Vec<u64>> {
        self.order.take().filter(|order| order.len() == self.samples)
    }

    /// Counts what becomes of samples in `tally`.
    pub(crate) fn with_tally(self, tally: Tally) -> Self {
        Self { tally, ..self }
    }

    /// The files that were mapped so far.
    pub(crate) const fn files(&self) -> &RecordedFiles {
        self.spaces.files()
    }

    /// What compilers have registered and has samples.
    pub(crate) fn registered(&self) -> RegisteredCode {
        self.spaces.registered()
    }

    /// What became of samples with a stack to walk.
    pub(crate) const fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Where records are written, and what became of samples until now.
    pub(crate) const fn parts(&mut self) -> (&mut W, &Tally) {
        (&mut self.out, &self.tally)
    }

    /// Writes what waits.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        while let Some((waiting, walked)) = self.walks.pop_all() {
            self.write_waiting(&waiting, walked)?;
        }
        Ok(())
    }

    /// Writes a record when those before it are written.
    fn hand_on(&mut self, bytes: &[u8], time: u64) -> io::Result<()> {
        if self.walks.is_empty() {
            self.rounds.newest = self.rounds.newest.max(time);
            return self.write(bytes);
        }
        self.push(Waiting::Record(bytes.to_vec(), time), None)
    }

    fn push(&mut self, waiting: Waiting, work: Option<Work>) -> io::Result<()> {
        self.walks.push(waiting, work);
        self.write_walked()
    }

    /// Writes what waits, up to the first whose stack is still walked.
    pub(crate) fn write_walked(&mut self) -> io::Result<()> {
        while let Some((waiting, walked)) = self.walks.pop() {
            self.write_waiting(&waiting, walked)?;
        }
        Ok(())
    }

    /// Takes note of a record of `len` bytes.
    fn read(&mut self, len: usize) {
        let len = u64::try_from(len).unwrap_or(u64::MAX);
        self.allowed = self.allowed.saturating_add(len.saturating_mul(PER_BYTE));
    }

    /// A stack that samples share, cut once the result is far longer than the recording.
    fn bounded<'s>(&mut self, stack: &'s [u64]) -> &'s [u64] {
        match stack.get(..SHORT_STACK).filter(|_| self.bytes > self.allowed) {
            Some(start) => {
                self.cut = self.cut.saturating_add(1);
                start
            }
            None => stack,
        }
    }

    fn sample_to_walk(&mut self, held: Held, attr: Attr, outcome: &Outcome) -> io::Result<()> {
        let chain = chain_of(&held, outcome);
        let calls = self.calls_of(&held);
        let held = Arc::new(held);
        let work = matches!(outcome, Outcome::Inline).then(|| {
            let space = self.spaces.of(held.task, held.time);
            Work::Walk(Job { held: Arc::clone(&held), attr, space, calls: None })
        });
        self.write_moved(&held)?;
        self.push(Waiting::ToWalk(held, attr, chain, calls), work)
    }

    /// Takes a sample whose stack an engine tells of, if one does.
    fn told_sample(
        &mut self,
        held: Held,
        attr: Option<Attr>,
        outcome: &Outcome,
    ) -> io::Result<Option<Held>> {
        let space = || self.spaces.of(held.task, held.time);
        let told = attr.zip(self.walks.setup().told(&held, outcome, space));
        let Some((attr, work)) = told else { return Ok(Some(held)) };
        if let Work::Walked(walked) = &work {
            self.spaces.read_registered(held.task.pid, held.time);
            self.spaces.note_stack(held.task, walked.frames.iter().map(|frame| frame.pc));
        }
        let chain = held.chain_without_user_part();
        self.write_moved(&held)?;
        let waiting = Waiting::ToWalk(Arc::new(held), attr, chain, None);
        self.push(waiting, Some(work))?;
        Ok(None)
    }

    /// Tells of code of files that was moved to memory without one.
    fn write_moved(&mut self, held: &Held) -> io::Result<()> {
        for moved in self.spaces.take_moved() {
            let mut bytes = Vec::new();
            // A name that is too long for a record is left out.
            if moved.mapping().encode(held.format, self.endian, &mut bytes).is_ok() {
                self.hand_on(&bytes, held.time)?;
            }
        }
        Ok(())
    }

    /// The calls that a sample's stack is to be joined with.
    fn calls_of(&mut self, held: &Held) -> Option<CallStack> {
        if self.call_stacks.is_stitching() { self.call_stacks.of(held) } else { None }
    }

    fn write_waiting(&mut self, waiting: &Waiting, walked: Option<WalkedStack>) -> io::Result<()> {
        let mut walked = walked;
        let (held, attr, chain) = match waiting {
            Waiting::Record(bytes, time) => {
                self.rounds.newest = self.rounds.newest.max(*time);
                return self.write(bytes);
            }
            Waiting::ToWalk(held, attr, chain, calls) => {
                if let (Some(walked), Some(calls)) = (&mut walked, calls) {
                    walked.join(calls);
                }
                (held, attr, chain)
            }
        };
        self.sample.clear();
        let cuts = self.cut;
        let rewalked = self.rewalk(held, attr, chain, walked.as_ref());
        if let (Some(found), Some(all)) = (&mut self.found, &walked) {
            let has_room = found.take_stack(self.samples, all, self.cut > cuts);
            walked = walked.map(|all| if has_room { all } else { all.lacking_calls() });
        }
        if rewalked.is_err() {
            // As it is it would be read as a sample of the new event.
            self.tally.count_damaged(held);
            if !self.keeps_stacks {
                return Ok(());
            }
        } else {
            self.tally.count(held, attr, walked.as_ref(), self.cut > cuts);
        }
        if self.keeps_stacks {
            self.sample = held.record().map(|it| it.bytes().to_vec()).unwrap_or_default();
        }
        let sample = core::mem::take(&mut self.sample);
        self.rounds.newest = self.rounds.newest.max(held.time);
        self.write(&sample)?;
        self.sample = sample;
        Ok(())
    }

    /// Makes `self.sample` of a sample and the stack that was walked of it.
    fn rewalk(
        &mut self,
        held: &Held,
        attr: &Attr,
        chain: &[u64],
        walked: Option<&WalkedStack>,
    ) -> Result<(), record::Error> {
        let Some(record) = held.record() else {
            return Ok(());
        };
        let frames = walked.map(|walked| walked.frames.as_slice()).unwrap_or_default();
        let user = Context::User.word();
        let mark = walked.filter(|_| !frames.is_empty()).map(|_| user);
        // The kernel's own chain of user frames is not one more.
        let kernels = chain.iter().position(|&word| word == user && mark.is_some());
        let chain = kernels.and_then(|at| chain.get(..at)).unwrap_or(chain);
        let mut encode = |frames: &[WalkedFrame]| {
            let words = chain.iter().copied().chain(mark);
            let words = words.chain(frames.iter().map(|frame| frame.pc));
            WithCallchain::without_user_state(&record, attr, words)?.encode(
                held.format,
                self.endian,
                &mut self.sample,
            )
        };
        match encode(frames) {
            Err(record::Error::TooLong { len }) => {
                self.cut = self.cut.saturating_add(1);
                encode(frames.get(..frames.len().saturating_sub(excess(len))).unwrap_or_default())
            }
            result => result,
        }
    }

    /// Bytes written.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many chains were cut: to fit a record, or since many samples share a stack.
    pub(crate) const fn cut(&self) -> u64 {
        self.cut
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        let kind = bytes.first_chunk().map(|&kind| RecordType(self.endian.u32(kind)));
        if kind == Some(RecordType::SAMPLE) {
            self.samples = self.samples.saturating_add(1);
        }
        self.add_bytes(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        Ok(())
    }

    fn add_bytes(&mut self, len: u64) {
        self.bytes = self.bytes.saturating_add(len);
        self.rounds.bytes_since_mark = self.rounds.bytes_since_mark.saturating_add(len);
    }

    /// Makes `self.sample` of a sample with a call stack and that, joined with its chain.
    /// `None` if the chain has no user part, or too many marks to fit.
    fn join(&mut self, held: &Held, outcome: &Outcome, calls: &CallStack) -> Option<()> {
        self.sample.clear();
        let (record, chain) = (held.record()?, chain_of(held, outcome));
        let (mut words, frames) = with_calls(&chain, calls, held, true)?;
        words.extend(frames.iter().map(|frame| frame.pc));
        let mut encode = |words: &[u64]| {
            let sample = WithCallchain::new(&record, held.format, words.iter().copied())?;
            sample.encode(held.format, self.endian, &mut self.sample)
        };
        match encode(&words) {
            Err(record::Error::TooLong { len }) => {
                self.cut = self.cut.saturating_add(1);
                encode(words.get(..words.len().checked_sub(excess(len))?)?).ok()
            }
            result => result.ok(),
        }
    }

    /// Makes `self.sample` of a sample and its stack.
    fn rechain(&mut self, held: &Held, stack: &[u64]) -> Result<(), record::Error> {
        self.sample.clear();
        let (Some(record), Some(chain)) = (held.record(), held.callchain()) else {
            return Ok(());
        };
        let mut encode = |stack| {
            WithCallchain::new(&record, held.format, whole_chain(chain, stack))?.encode(
                held.format,
                self.endian,
                &mut self.sample,
            )
        };
        match encode(stack) {
            Err(record::Error::TooLong { len }) => {
                // The innermost frames stay.
                self.cut = self.cut.saturating_add(1);
                encode(stack.get(..stack.len().saturating_sub(excess(len))).unwrap_or_default())
            }
            result => result,
        }
    }
}

impl<W: Write> Sink for MergedRecords<'_, '_, W> {
    fn sample(&mut self, events: &Events, held: Held, outcome: &Outcome) -> io::Result<()> {
        self.order.iter_mut().for_each(|order| order.push(held.number));
        let attr = events.get(held.event).map(|event| event.attr);
        if let Some(attr) = attr.filter(is_to_walk) {
            return self.sample_to_walk(held, attr, outcome);
        }
        let Some(held) = self.told_sample(held, attr, outcome)? else { return Ok(()) };
        self.tally.count_kernels(&held, outcome);
        let calls = self.calls_of(&held);
        if let Some(calls) = calls
            && self.join(&held, outcome, &calls).is_some()
        {
            self.read(held.len());
            let sample = core::mem::take(&mut self.sample);
            self.hand_on(&sample, held.time)?;
            self.sample = sample;
            return Ok(());
        }
        let stack = match outcome {
            Outcome::Inline => return self.record(events, held),
            Outcome::Merged(merged) => {
                self.read(held.len());
                self.spaces.note_stack(held.task, merged.stack.iter().copied());
                self.bounded(&merged.stack)
            }
            Outcome::Unmatched { .. } => &[],
        };
        if self.rechain(&held, stack).is_err() {
            // No shorter chain fits either: the sample stays as it was.
            return self.record(events, held);
        }
        let sample = core::mem::take(&mut self.sample);
        self.hand_on(&sample, held.time)?;
        self.sample = sample;
        Ok(())
    }

    fn record(&mut self, _events: &Events, held: Held) -> io::Result<()> {
        self.read(held.len());
        self.spaces.take(&held);
        self.call_stacks.take(&held);
        self.hand_on(held.record().map_or(&[], |record| record.bytes()), held.time)?;
        self.write_moved(&held)
    }

    fn tool_record(&mut self, reader: &mut PerfReader) -> Result<(), PerfError> {
        self.finish()?;
        self.call_stacks.learn_depth(reader.told_branch_entries());
        let Some(record) = reader.record() else {
            return Ok(());
        };
        if record.kind() == tool_record::ATTR {
            let is_joined = self.call_stacks.is_stitching();
            if let Some(event) = reader.events().all().last() {
                let attr_len = event.least_attr_len(self.endian, is_joined).min(event.attr.size);
                let attr = event.merged_attr(self.endian, attr_len, is_joined);
                let ids = event.ids.iter().flat_map(|&id| self.endian.bytes_of_u64(id));
                let body: Vec<u8> = attr.into_iter().chain(ids).collect();
                let bytes = tool_record_bytes(&record, &body, self.endian);
                self.write(&bytes)?;
            }
            return Ok(());
        }
        self.write(record.bytes())?;
        let payload = reader.payload();
        self.add_bytes(payload);
        reader.copy_payload(&mut self.out)
    }

    fn settled(&mut self, time: u64) -> io::Result<()> {
        if self.rounds.is_due(time) {
            self.finish()?;
            self.rounds.newest_at_mark = self.rounds.newest;
            let kind = self.endian.bytes_of_u32(tool_record::FINISHED_ROUND.0);
            let size = u16::try_from(RecordHeader::SIZE).unwrap_or_default();
            let rest = [self.endian.bytes_of_u16(0), self.endian.bytes_of_u16(size)];
            self.write(&kind)?;
            self.write(rest.as_flattened())?;
            self.rounds.bytes_since_mark = 0;
        }
        Ok(())
    }
}

/// The chain of a sample with its user part, if that is known.
fn chain_of(held: &Held, outcome: &Outcome) -> Vec<u64> {
    match (held.callchain(), outcome) {
        (None, _) => Vec::new(),
        (Some(chain), Outcome::Inline) => chain.words().collect(),
        (Some(chain), Outcome::Merged(merged)) => whole_chain(chain, &merged.stack).collect(),
        (Some(chain), Outcome::Unmatched { .. }) => chain.without_cookie().collect(),
    }
}

/// By how many words a record of `len` bytes is too long.
fn excess(len: u32) -> usize {
    let words = len.saturating_sub(u32::from(u16::MAX)).div_ceil(8).saturating_add(1);
    usize::try_from(words).unwrap_or(usize::MAX)
}

/// A record like `record` with another body.
fn tool_record_bytes(record: &Record<'_>, body: &[u8], endian: Endian) -> Vec<u8> {
    let len = RecordHeader::SIZE.saturating_add(body.len());
    let mut bytes = endian.bytes_of_u32(record.kind().0).to_vec();
    bytes.extend(endian.bytes_of_u16(record.header().misc.0));
    // The body is not longer than the one it replaces.
    bytes.extend(endian.bytes_of_u16(u16::try_from(len).unwrap_or_default()));
    bytes.extend(body);
    bytes
}
