//! Samples whose stacks the Linux module of this project walks: in the task, before it returns to user code.
//!
//! The module writes perf's records. What processes map and are called is told by an event of perf that takes no
//! samples.

mod device;
mod tables;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use unwind_perf::event_attr::EventAttr;
use unwind_perf::record::{AttrFlags, EventFormat, RecordHeader, RecordType, SampleType};

use crate::engine::existing::all_processes;
use crate::engine::mapped_code::with_mapped_code;
use crate::engine::module_engine::device::{
    AWAIT_TABLES, Counts, Device, FREQUENCY, ON_EXEC, Setup, TELL_ENDS, USER_ONLY,
};
use crate::engine::module_engine::tables::Tables;
use crate::engine::module_error::ModuleError;
use crate::engine::perf_engine::{PerfEngine, possible};
use crate::engine::perf_event::EventRing;
use crate::engine::requested::Requested;
use crate::engine::sampling::{Often, RingSize, Sampling, UserStacks, Whom, cpus};
use crate::engine::subject::process_of;
use crate::engine::{
    CpuTime, Engine, EngineError, Found, KernelWalks, SampledEvent, Shortfall, StoredRecord,
};
use crate::recording::told_stack::ToldStack;

/// Bytes of a ring, unless its size was asked for.
const RING: usize = 2 << 20;

/// The module, what it says, and what perf says of processes.
#[derive(Debug)]
pub(crate) struct ModuleEngine {
    device: Arc<Device>,
    perf: PerfEngine,
    rings: Vec<EventRing>,
    tables: Tables,
    events: Vec<SampledEvent>,
    /// That of perf's records.
    format: EventFormat,
    /// What the module had counted before.
    before: Counts,
}

impl ModuleEngine {
    /// Opens the device and has samples taken.
    ///
    /// # Errors
    ///
    /// [`EngineError`].
    pub(crate) fn open(sampling: &Sampling) -> Result<Self, EngineError> {
        check(sampling)?;
        let device = Arc::new(Device::open()?);
        let (attr, _) = possible(sampling)?;
        let ring = match sampling.ring {
            RingSize::Exactly(bytes) => bytes,
            RingSize::AtMost(bytes) => bytes.min(RING),
        };
        let stride = device.set_up(setup(sampling, &attr, ring)?)?;
        let before = device.counts().map_err(ModuleError::Setup)?;
        let perf = PerfEngine::open(&without_samples(sampling))?;
        let rings = (0..cpus()).map(|cpu| {
            let ring_of = |cpu| device.map(cpu, stride, ring);
            let mapped = u64::try_from(cpu).map_err(io::Error::other).and_then(ring_of);
            mapped.map_err(|error| EngineError::Map { bytes: ring, error })
        });
        let rings = rings.collect::<Result<_, _>>()?;
        let tables = Tables::start(Arc::clone(&device), &existing(&sampling.whom));
        add(&device, sampling)?;
        let format = SampledEvent::format_of(&perf.events());
        let name = sampling.events.first().map(|event| event.name.clone());
        let events = vec![SampledEvent { attr: told(attr), ids: Vec::new(), name }];
        Ok(Self { device, perf, rings, tables, events, format, before })
    }

    /// What the module has counted since this was opened.
    fn since(&self, count: impl Fn(&Counts) -> u64) -> u64 {
        let now = self.device.counts().map_or(0, |now| count(&now));
        now.saturating_sub(count(&self.before))
    }
}

/// What the module cannot do.
fn check(sampling: &Sampling) -> Result<(), ModuleError> {
    let is_of_cpus = matches!(sampling.whom, Whom::All);
    let may_fault = matches!(sampling.user_stacks, UserStacks::Module(walk) if walk.faults);
    let others = [
        (sampling.off_cpu, "waits"),
        (!may_fault, "without page faults"),
        (sampling.events.len() > 1, "several events"),
        (sampling.events.iter().any(Requested::is_tracepoint), "tracepoints"),
        (matches!(sampling.whom, Whom::ControlGroup(_)), "control groups"),
        (sampling.cpus.is_some() && !is_of_cpus, "threads on some CPUs alone"),
    ];
    match others.into_iter().find(|&(is_asked, _)| is_asked) {
        Some((_, what)) => Err(ModuleError::Unsupported(what)),
        None => Ok(()),
    }
}

/// What the module is asked for.
fn setup(sampling: &Sampling, attr: &EventAttr, ring: usize) -> Result<Setup, ModuleError> {
    /// The bits that say how precise an event is.
    const PRECISE: AttrFlags = AttrFlags::from_bits_retain(3 << 15);
    if attr.flags.intersects(AttrFlags::EXCLUDE_USER | AttrFlags::EXCLUDE_HOST | PRECISE) {
        return Err(ModuleError::Unsupported("events with these modes"));
    }
    let flags = [
        (attr.flags.contains(AttrFlags::FREQ), FREQUENCY),
        (matches!(sampling.whom, Whom::Command(_)), ON_EXEC),
        (attr.flags.contains(AttrFlags::EXCLUDE_KERNEL), USER_ONLY),
    ];
    let flags = flags.into_iter().filter(|&(is_set, _)| is_set).map(|(_, flag)| flag);
    Ok(Setup {
        flags: flags.fold(TELL_ENDS | AWAIT_TABLES, |all, flag| all | flag),
        kind: attr.kind,
        ring_bytes: u32::try_from(ring).unwrap_or(u32::MAX),
        config: attr.config,
        value: attr.sample_period,
        ..Setup::default()
    })
}

/// What perf's event is opened for.
fn without_samples(sampling: &Sampling) -> Sampling {
    Sampling { events: vec![Requested::dummy()], often: Often::Each(1), ..sampling.clone() }
}

/// The processes that have files mapped before.
fn existing(whom: &Whom) -> Vec<i32> {
    match whom {
        Whom::All => all_processes(),
        Whom::Threads(threads) => {
            let processes = threads.iter().filter_map(|&thread| process_of(thread));
            processes.collect::<BTreeSet<_>>().into_iter().collect()
        }
        Whom::Command(_) | Whom::ControlGroup(_) => Vec::new(),
    }
}

/// Has samples taken.
fn add(device: &Device, sampling: &Sampling) -> Result<(), ModuleError> {
    let (wanted, gone): (Vec<io::Result<()>>, i32) = match &sampling.whom {
        Whom::Command(process) => (vec![device.add_thread(*process)], 0),
        Whom::Threads(threads) => {
            (threads.iter().map(|&thread| device.add_thread(thread)).collect(), libc::ESRCH)
        }
        Whom::All | Whom::ControlGroup(_) => {
            let cpus = sampling.on_cpus();
            (cpus.into_iter().map(|cpu| device.add_cpu(cpu)).collect(), libc::ENODEV)
        }
    };
    let is_gone = |error: &io::Error| error.raw_os_error() == Some(gone);
    let mut errors = wanted.into_iter().filter_map(Result::err);
    match errors.find(|error| !is_gone(error)) {
        Some(error) => Err(ModuleError::Add(error)),
        None => Ok(()),
    }
}

/// The event as the module's records are.
fn told(mut attr: EventAttr) -> EventAttr {
    attr.sample_type |= SampleType::PERIOD;
    attr.flags.remove(AttrFlags::EXCLUDE_CALLCHAIN_USER);
    attr.flags |= AttrFlags::DEFER_CALLCHAIN | AttrFlags::DEFER_OUTPUT;
    attr
}

impl Engine for ModuleEngine {
    fn events(&self) -> Vec<SampledEvent> {
        self.events.clone()
    }

    fn shortfalls(&mut self, sampling: &Sampling) -> Vec<Shortfall> {
        self.perf.shortfalls(&without_samples(sampling))
    }

    fn wait(&self, time: Duration) {
        self.perf.wait(time);
    }

    fn drain(&mut self, take: &mut dyn FnMut(&dyn StoredRecord)) -> Found {
        let Self { perf, rings, tables, format, .. } = self;
        let mut found = perf.drain(&mut |record| {
            with_mapped_code(record, *format, |mapping| tables.learn(mapping));
            take(record);
        });
        for ring in rings {
            let of_ring = ring.drain(&mut |record| {
                if record.header().kind == RecordType::CALLCHAIN_DEFERRED {
                    take(&ToldRecord { record });
                } else {
                    take(record);
                }
            });
            found = found.with(of_ring);
        }
        found
    }

    fn copy(&mut self, _: usize) -> bool {
        false
    }

    fn stop(&mut self) {
        // They end with the device in any case.
        let _ = self.device.stop();
        self.perf.stop();
    }

    fn lost(&self) -> Option<u64> {
        let by_module = self.since(|counts| counts.no_room);
        Some(self.perf.lost().unwrap_or(0).saturating_add(by_module))
    }

    fn cpu_time(&self) -> Option<CpuTime> {
        None
    }

    fn walks(&self) -> Option<KernelWalks> {
        // By enum unwind_sample and enum unwind_outcome: those with a stack, and requests that found one.
        let sum = |counts: &[u64]| counts.iter().fold(0, |all: u64, it| all.saturating_add(*it));
        let deferred = self.since(|counts| sum(counts.deliveries.get(1..3).unwrap_or_default()));
        let shared = self.since(|counts| sum(counts.outcomes.get(2..4).unwrap_or_default()));
        Some(KernelWalks { at_once: 0, deferred, shared, copied: 0 })
    }
}

/// A stack of the module, whose first word becomes that of stacks that engines tell.
struct ToldRecord<'r> {
    record: &'r dyn StoredRecord,
}

impl ToldRecord<'_> {
    /// The header, the cookie and the length come before it.
    const WORD: usize = 24;
}

impl StoredRecord for ToldRecord<'_> {
    fn header(&self) -> RecordHeader {
        self.record.header()
    }

    fn copy(&self, from: usize, out: &mut [u8]) {
        self.record.copy(from, out);
        let mut word = [0; 8];
        self.record.copy(Self::WORD, &mut word);
        let told = first_word(u64::from_ne_bytes(word)).to_ne_bytes();
        for (at, byte) in (Self::WORD..).zip(told) {
            if let Some(to) = at.checked_sub(from).and_then(|at| out.get_mut(at)) {
                *to = byte;
            }
        }
    }
}

/// What the module's word says: `enum unwind_sample`, from bit 8 on `enum unwind_end`, whether it is complete, and
/// whether a table is awaited.
fn first_word(word: u64) -> u64 {
    const COMPLETE: u64 = 1 << 16;
    const AWAITED: u64 = 1 << 17;
    let [sample, end, ..] = word.to_le_bytes();
    match sample {
        1 | 2 if word & COMPLETE != 0 => ToldStack::walked(None),
        // At the outermost frame, but after a guess.
        1 | 2 if matches!(end, 1 | 2) => ToldStack::walked(Some("gap")),
        1 | 2 if word & AWAITED != 0 => ToldStack::walked(Some("table-awaited")),
        1 | 2 => ToldStack::ended(end),
        4 => ToldStack::walked(Some("thread-ended")),
        5 => ToldStack::walked(Some("executed-another")),
        _ => ToldStack::walked(Some("no-memory")),
    }
}

#[cfg(test)]
mod tests {
    use unwind_perf::record::Endian;

    use super::*;

    struct Bytes(Vec<u8>);

    impl StoredRecord for Bytes {
        fn header(&self) -> RecordHeader {
            RecordHeader::parse(&self.0, Endian::NATIVE).unwrap()
        }

        fn copy(&self, from: usize, out: &mut [u8]) {
            out.copy_from_slice(self.0.get(from..).unwrap().get(..out.len()).unwrap());
        }
    }

    #[test]
    fn d14_a_stack_of_the_module_says_why_it_is_not_complete() {
        for (word, reason) in [
            (0x1_0101, None),
            (0x0101, Some("gap")),
            (0x0302, Some("frame-limit")),
            (0x0401, Some("no-row")),
            (0x0601, Some("bad-table")),
            (0x2_0601, Some("table-awaited")),
            (0x2101, Some("unreadable")),
            (3, Some("no-memory")),
            (4, Some("thread-ended")),
            (5, Some("executed-another")),
        ] {
            let words = [first_word(word), 0x1000];
            let walked = ToldStack::Walked(&words[1..], reason);
            assert_eq!(ToldStack::of(&words), Some(walked), "{word:#x}");
        }
    }

    #[test]
    fn d14_whatever_part_of_a_record_is_copied_has_the_word_as_engines_tell_it() {
        let word = 0x1_0101_u64;
        let len = 48_u16;
        let mut bytes = [22_u32.to_ne_bytes(), [0; 4]].concat();
        bytes[6..].copy_from_slice(&len.to_ne_bytes());
        for word in [7, 2, word, 0x1000, 0] {
            bytes.extend(word.to_ne_bytes());
        }
        let mut whole = bytes.clone();
        whole[24..32].copy_from_slice(&first_word(word).to_ne_bytes());
        let record = Bytes(bytes);
        let told = ToldRecord { record: &record };
        for from in 0..whole.len() {
            for to in from..=whole.len() {
                let mut part = vec![0; to - from];
                told.copy(from, &mut part);
                assert_eq!(part, whole[from..to], "{from}..{to}");
            }
        }
    }
}
