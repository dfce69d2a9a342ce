//! Samples whose stacks a BPF program walks in the kernel: at once, or in the task before it returns to
//! user code.
//!
//! The events, and the records of processes, are those of the engine whose samples have
//! copies; the program takes the samples in place of the events' own rings.

mod interpreted;
mod records;
mod tables;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::time::ClockId;
use unwind_bpf::{Attached, Counts, Limits, Walker};
use unwind_perf::event_attr::EventAttr;
use unwind_perf::record::{Attr, AttrFlags, Endian, RecordHeader, RecordType, SampleType};
use unwind_target::clock::nanoseconds;

use crate::engine::attrs::REGISTERS;
use crate::engine::bpf_engine::records::Records;
use crate::engine::bpf_engine::tables::Tables;
use crate::engine::bpf_error::BpfError;
use crate::engine::mapped_code::with_mapped_code;
use crate::engine::perf_engine::PerfEngine;
use crate::engine::sampling::{KernelWalk, RingSize, Sampling, cpus};
use crate::engine::{
    CpuTime, Engine, EngineError, Found, KernelWalks, SampledEvent, Shortfall, StoredRecord, WAITS,
};
use crate::recording::code_names::CodeNames;

/// Events of the kernel, the program that takes their samples, and the tables that it walks by.
#[derive(Debug)]
pub(crate) struct BpfEngine {
    /// Detached before the events are closed.
    attached: Vec<Attached>,
    perf: PerfEngine,
    walker: Walker,
    tables: Tables,
    records: Records,
    events: Vec<SampledEvent>,
    /// Since then the program takes all samples, in ns of the monotonic clock. What events write all the same is
    /// of threads that were created while the program was attached.
    begun: u64,
    /// How many samples that are.
    missed: u64,
}

/// Bytes of the ring at most, unless its size was asked for.
const MOST_RING: usize = 64 << 20;

/// Bytes of a ring of the events' own at most.
const MOST_OWN_RING: usize = 2 << 20;

/// Bytes of the program's if its size was asked for.
const MOST_ASKED_RING: usize = 1 << 30;

impl BpfEngine {
    /// Whether it is the better one for this: the kernel walks later what it cannot walk at once, and all samples
    /// are taken or counted. The program takes none of tracepoints, and none that comes while it runs for another
    /// event, which the kernel does not count.
    pub(crate) fn is_for(sampling: &Sampling) -> bool {
        let is_counted = match sampling.events.as_slice() {
            [] => true,
            [event] => !event.is_tracepoint(),
            _ => false,
        };
        unwind_bpf::is_deferring_kernel() && is_counted
    }

    /// Opens the events and loads the program.
    ///
    /// # Errors
    ///
    /// [`EngineError`].
    pub(crate) fn open(sampling: &Sampling, walk: KernelWalk) -> Result<Self, EngineError> {
        // All CPUs share it.
        let (of_cpu, most) = match sampling.ring {
            RingSize::Exactly(bytes) => (bytes, MOST_ASKED_RING),
            RingSize::AtMost(bytes) => (bytes, MOST_RING),
        };
        let ring_bytes =
            of_cpu.saturating_mul(cpus().next_power_of_two()).clamp(of_cpu, most.max(of_cpu));
        let limits = Limits {
            ring_bytes: u32::try_from(ring_bytes).unwrap_or(u32::MAX),
            faults: walk.faults,
            stops: walk.stops,
            waits: sampling.off_cpu.then(|| u32::try_from(WAITS).unwrap_or(0)),
            ..Limits::default()
        };
        let walker = Walker::load(limits).map_err(BpfError::from)?;
        // At once: a thread that is created before that has an event without the program.
        let attach = |event: BorrowedFd<'_>, place: usize| {
            let number = u64::try_from(place).unwrap_or(u64::MAX);
            Ok(walker.attach(event, number).map_err(BpfError::Attach)?)
        };
        let (perf, attached) = PerfEngine::open_each(&without_samples(sampling), attach)?;
        let begun = nanoseconds(ClockId::Monotonic).unwrap_or(0);
        let events: Vec<SampledEvent> = perf.events().into_iter().map(told).collect();
        let records = Records::new(events.clone(), walk.calls);
        let notices = sampling.notices.clone();
        let tables = Tables::start(&walker, records.interpreters(), notices);
        let tables = tables.map_err(BpfError::Tables)?;
        Ok(Self { attached, perf, walker, tables, records, events, begun, missed: 0 })
    }
}

/// What the events are opened for: their own rings have no samples, which need the most room.
fn without_samples(sampling: &Sampling) -> Sampling {
    let (RingSize::AtMost(bytes) | RingSize::Exactly(bytes)) = sampling.ring;
    Sampling { ring: RingSize::AtMost(bytes.min(MOST_OWN_RING)), ..sampling.clone() }
}

/// The event as its records are: the user part of a chain comes later.
fn told(mut event: SampledEvent) -> SampledEvent {
    event.attr.flags.remove(AttrFlags::EXCLUDE_CALLCHAIN_USER);
    event.attr.flags |= AttrFlags::DEFER_CALLCHAIN | AttrFlags::DEFER_OUTPUT;
    event
}

impl Engine for BpfEngine {
    fn events(&self) -> Vec<SampledEvent> {
        self.events.clone()
    }

    fn wait(&self, time: Duration) {
        self.perf.wait(time);
    }

    fn drain(&mut self, take: &mut dyn FnMut(&dyn StoredRecord)) -> Found {
        let Self { perf, walker, tables, records, begun, missed, .. } = self;
        let mut found = perf.drain(&mut |record| {
            with_mapped_code(record, records.format, |mapping| tables.learn(mapping));
            // What events wrote until the program took their samples is no part of the recording.
            if record.header().kind != RecordType::SAMPLE {
                take(record);
            } else if records.time_of(record).is_some_and(|time| time >= *begun) {
                *missed = missed.saturating_add(1);
            }
        });
        let percent = walker.drain(|record| match record {
            unwind_bpf::Record::Wanted(wanted) => tables.want(wanted),
            record => {
                let bytes = records.encode(record).unwrap_or_default();
                if let Ok(header) = RecordHeader::parse(bytes, Endian::NATIVE) {
                    take(&Encoded { header, bytes });
                }
            }
        });
        found.percent = found.percent.max(percent);
        found
    }

    fn shortfalls(&mut self, sampling: &Sampling) -> Vec<Shortfall> {
        self.perf.shortfalls(&without_samples(sampling))
    }

    fn copy(&mut self, _: usize) -> bool {
        false
    }

    fn stop(&mut self) {
        self.perf.stop();
        self.attached.clear();
    }

    fn lost(&self) -> Option<u64> {
        let Counts { dropped, dropped_stacks, .. } = self.walker.counts();
        let all = [dropped, dropped_stacks, self.missed];
        Some(all.into_iter().fold(self.perf.lost().unwrap_or(0), u64::saturating_add))
    }

    fn code_names(&self) -> CodeNames {
        self.records.code_names()
    }

    fn cpu_time(&self) -> Option<CpuTime> {
        self.perf.cpu_time()
    }

    fn walks(&self) -> Option<KernelWalks> {
        let counts = self.walker.counts();
        let Counts { walked_now: at_once, shared, copied, walked_later, .. } = counts;
        let others = counts.after_exec.saturating_add(counts.after_exit).saturating_add(copied);
        Some(KernelWalks { at_once, deferred: walked_later.saturating_sub(others), shared, copied })
    }
}

/// A record in memory.
struct Encoded<'a> {
    header: RecordHeader,
    bytes: &'a [u8],
}

impl StoredRecord for Encoded<'_> {
    fn header(&self) -> RecordHeader {
        self.header
    }

    fn copy(&self, from: usize, out: &mut [u8]) {
        let bytes = self.bytes.get(from..).unwrap_or_default();
        out.iter_mut().zip(bytes).for_each(|(out, &byte)| *out = byte);
    }
}

/// The layout of the samples that [copies](crate::recording::told_stack::ToldStack::Copied) are. `None` does
/// not come: it is an attr that can be read.
pub(crate) fn layout_of_copies() -> Option<Attr> {
    let mut attr = EventAttr::default();
    attr.size = 112;
    attr.sample_type = SampleType::REGS_USER | SampleType::STACK_USER;
    attr.sample_regs_user = REGISTERS;
    let mut bytes = [0; EventAttr::SIZE];
    attr.encode(&mut bytes, Endian::NATIVE)?;
    Attr::parse(&bytes, Endian::NATIVE).ok()
}
