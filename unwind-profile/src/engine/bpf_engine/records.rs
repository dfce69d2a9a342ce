//! What the program writes, in the layout of perf's records.

use unwind_bpf::{End, Origin, Record, Sample, Stack, StackCopy};
use unwind_perf::record::{
    self, CallchainDeferred, Context, Encode, Endian, EventFormat, Misc, RecordType,
    Sample as PerfSample, SampleId, SampleType, Task,
};

use crate::engine::attrs::REGISTERS;
use crate::engine::bpf_engine::interpreted::{Interpreted, Interpreters};
use crate::engine::{SampledEvent, StoredRecord, bytes_of};
use crate::recording::code_names::CodeNames;
use crate::recording::told_stack::ToldStack;

/// Words of a record beside those of its head and its end, of which there are at most 16: its size is a number of 16
/// bits.
const ROOM: usize = (1 << 13) - 16;

/// Encodes records, one at a time.
#[derive(Debug)]
pub(super) struct Records {
    events: Vec<SampledEvent>,
    pub(super) format: EventFormat,
    bytes: Vec<u8>,
    interpreted: Interpreted,
    /// Whether calls of interpreters are read.
    reads_calls: bool,
}

impl Records {
    pub(super) fn new(events: Vec<SampledEvent>, reads_calls: bool) -> Self {
        let format = SampledEvent::format_of(&events);
        let interpreted = Interpreted::default();
        Self { events, format, bytes: Vec::new(), interpreted, reads_calls }
    }

    /// The interpreters whose calls are read, if calls are.
    pub(super) fn interpreters(&self) -> Option<Interpreters> {
        self.reads_calls.then(|| self.interpreted.interpreters.clone())
    }

    /// What the code of calls is called.
    pub(super) fn code_names(&self) -> CodeNames {
        self.interpreted.names.clone()
    }

    /// The bytes of a record. `None` if it is none of perf's, or longer than those can be.
    pub(super) fn encode(&mut self, record: Record<'_>) -> Option<&[u8]> {
        self.bytes.clear();
        match record {
            Record::Sample(sample) => self.sample(&sample),
            Record::Stack(stack) => self.stack(&stack),
            Record::Copy(copy) => self.copy(&copy),
            Record::Calls(calls) => {
                self.interpreted.take(&calls);
                None
            }
            _ => None,
        }?;
        Some(&self.bytes)
    }

    /// When a sample in a ring of the kernel's own was taken, in ns of the monotonic clock.
    pub(super) fn time_of(&self, record: &dyn StoredRecord) -> Option<u64> {
        let bytes = bytes_of(record);
        let record = record::Record::parse(&bytes, Endian::NATIVE).ok()?;
        PerfSample::decode(&record, self.format).ok()?.time
    }

    fn put(&mut self, record: &impl Encode) -> Option<()> {
        record.encode(self.format, Endian::NATIVE, &mut self.bytes).ok()
    }

    fn id_of(&self, event: u64) -> Option<u64> {
        let event = self.events.get(usize::try_from(event).ok()?)?;
        event.ids.first().copied()
    }

    fn sample(&mut self, sample: &Sample<'_>) -> Option<()> {
        let has = |field| self.format.sample_type.contains(field);
        let kernel = (!sample.kernel.is_empty()).then_some(Context::Kernel.word());
        let user = (sample.cookie.0 != 0)
            .then_some([Context::UserDeferred.word(), sample.cookie.0])
            .into_iter()
            .flatten();
        let chain: Vec<u64> = kernel.into_iter().chain(sample.kernel.iter()).chain(user).collect();
        let mode = if sample.is_in_user_mode { Misc::USER } else { Misc::KERNEL };
        let record = PerfSample {
            misc: mode,
            identifier: has(SampleType::IDENTIFIER)
                .then(|| self.id_of(sample.event).unwrap_or_default()),
            ip: Some(sample.pc),
            task: Some(task(&sample.origin)),
            time: Some(time(&sample.origin)),
            addr: None,
            id: None,
            stream_id: None,
            cpu: Some(sample.cpu),
            period: has(SampleType::PERIOD).then_some(sample.period),
            callchain: Some(chain),
        };
        self.put(&record)
    }

    fn deferred(
        &mut self,
        origin: &Origin,
        cookie: u64,
        ips: impl Iterator<Item = u64> + Clone,
    ) -> Option<()> {
        let has = |field| self.format.sample_type.contains(field);
        let id = SampleId {
            task: Some(task(origin)),
            time: Some(time(origin)),
            cpu: has(SampleType::CPU).then_some(0),
            identifier: has(SampleType::IDENTIFIER).then(|| self.id_of(0).unwrap_or_default()),
            ..SampleId::default()
        };
        self.put(&CallchainDeferred { cookie: Some(cookie), ips, id })
    }

    fn stack(&mut self, stack: &Stack<'_>) -> Option<()> {
        let reason = incomplete(stack.end);
        let room = ROOM.saturating_sub(stack.pcs.len());
        let calls = self.interpreted.words(stack.cookie, stack.end == End::Outermost, room);
        let mut words = match calls {
            Some((calls, is_complete)) => ToldStack::calling(reason, &calls, is_complete),
            None => vec![ToldStack::walked(reason)],
        };
        words.extend(stack.pcs.iter());
        self.deferred(&stack.origin, stack.cookie.0, words.into_iter())
    }

    fn copy(&mut self, copy: &StackCopy<'_>) -> Option<()> {
        let sample = sample_of(copy);
        let room = ROOM.saturating_sub(sample.len().div_ceil(size_of::<u64>()));
        // The walk finds out which frames have none.
        let (calls, _) = self.interpreted.words(copy.cookie, false, room).unwrap_or_default();
        let words = ToldStack::copied(&sample, self.reads_calls.then_some(&calls));
        self.deferred(&copy.origin, copy.cookie.0, words.into_iter())
    }
}

/// Why a stack is not complete.
const fn incomplete(end: End) -> Option<&'static str> {
    Some(match end {
        End::Outermost => return None,
        End::Depth => "frame-limit",
        End::Memory => "stack-not-resident",
        End::Exec => "executed-another",
        End::Exit => "thread-ended",
        End::Full => "no-room",
        _ => "no-row",
    })
}

/// A sample with the registers and the copy of a stack alone, as long as a multiple of eight.
fn sample_of(copy: &StackCopy<'_>) -> Vec<u8> {
    const WORD: usize = 8;
    // The numbers of enum perf_sample_regs_abi.
    let abi: u64 = if copy.is_32_bit { 1 } else { 2 };
    let registers = (0..64_u32).filter(|&number| REGISTERS & 1_u64.wrapping_shl(number) != 0);
    let registers = registers.map(|number| {
        usize::try_from(number).ok().and_then(|number| copy.registers.get(number)).unwrap_or(0)
    });
    let mut stack = copy.bytes.to_vec();
    let filled = stack.len();
    // A word of room that nothing was copied to says that there is no more.
    let more = if copy.is_cut { 0 } else { WORD };
    stack.resize(filled.next_multiple_of(WORD).saturating_add(more), 0);
    let word = |len: usize| u64::try_from(len).unwrap_or(0).to_ne_bytes();
    let mut bytes = RecordType::SAMPLE.0.to_ne_bytes().to_vec();
    bytes.extend(Misc::USER.0.to_ne_bytes());
    bytes.extend([0; 2]);
    bytes.extend(abi.to_ne_bytes());
    bytes.extend(registers.flat_map(u64::to_ne_bytes));
    bytes.extend(word(stack.len()));
    if !stack.is_empty() {
        bytes.extend(&stack);
        bytes.extend(word(filled));
    }
    let size = u16::try_from(bytes.len()).unwrap_or(0).to_ne_bytes();
    bytes.iter_mut().skip(6).zip(size).for_each(|(byte, value)| *byte = value);
    bytes
}

fn task(origin: &Origin) -> Task {
    Task { pid: origin.process, tid: origin.thread }
}

fn time(origin: &Origin) -> u64 {
    u64::try_from(origin.time.as_nanos()).unwrap_or(u64::MAX)
}
