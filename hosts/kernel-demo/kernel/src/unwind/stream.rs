//! Records: into rings, and out of the machine.
//!
//! Each CPU has one ring. A task writes into that of the CPU on which it is, and an NMI
//! that interrupts it there writes on top of it. The reader merges the rings by time and
//! cookie.

use core::sync::atomic::AtomicU64;

use demo_format::{FINISHED_ROUND, FORMAT};
use unwind_core::deferred::Cookie;
use unwind_core::{Trace, VirtAddr};
use unwind_perf::record::{
    CallchainDeferred, Comm, Encode, Lifecycle, Misc, Sample, SampleId, WriteError,
};
use unwind_perf::ring::{CpuRing, Direction, MmapPage, RingReader};

use crate::cpu::CPUS;
use crate::each_cpu::{EachCpu, are_several, online};
use crate::exclusive::Exclusive;
use crate::options::Protection;
use crate::task::state::Task;
use crate::{cpu, serial};

/// Words of a ring: 1 MiB.
const WORDS: usize = 128 << 10;

/// More bytes than any record of this kernel has.
const MAX_RECORD: usize = 4 << 10;

static PAGES: [[AtomicU64; MmapPage::WORDS]; CPUS] =
    [const { [const { AtomicU64::new(0) }; MmapPage::WORDS] }; CPUS];
static DATA: [[AtomicU64; WORDS]; CPUS] = [const { [const { AtomicU64::new(0) }; WORDS] }; CPUS];

static RINGS: EachCpu<CpuRing<'static>> =
    EachCpu([ring(0), ring(1), ring(2), ring(3), ring(4), ring(5), ring(6), ring(7)]);

/// The ring of a machine with one CPU: a short one, which a reader that stalls lets fill up.
static ONLY_RING: CpuRing<'static> = ring_of(0, SHORT_WORDS);

/// Words of that: 64 KiB.
const SHORT_WORDS: usize = 8 << 10;

const fn ring(cpu: usize) -> CpuRing<'static> {
    ring_of(cpu, WORDS)
}

const fn ring_of(cpu: usize, words: usize) -> CpuRing<'static> {
    let (data, _) = DATA[cpu].split_at(words);
    match CpuRing::new(page(cpu), data, Direction::Forward, words as u64) {
        Ok(ring) => ring,
        Err(_) => panic!("not a power of two"),
    }
}

const fn page(cpu: usize) -> MmapPage<'static> {
    match MmapPage::new(&PAGES[cpu]) {
        Ok(page) => page,
        Err(_) => panic!("a short page"),
    }
}

/// Writes a sample. In NMIs, and in task context.
pub(super) fn write_sample(task: &Task, event: u64, misc: Misc, pc: u64, chain: &[u64]) {
    write(task, event, |id| Sample {
        misc,
        identifier: id.identifier,
        ip: Some(pc),
        task: id.task,
        time: id.time,
        addr: None,
        id: None,
        stream_id: id.stream_id,
        cpu: id.cpu,
        period: None,
        callchain: Some(chain.iter().copied()),
    });
}

/// Writes a delivered stack. In task context.
///
/// # Errors
///
/// [`WriteError`]: the record is lost, which the ring counts.
pub(super) fn write_stack(
    task: &Task,
    event: u64,
    cookie: Cookie,
    trace: &Trace,
) -> Result<(), WriteError> {
    let cookie = Some(cookie.get());
    try_write(task, event, |id| {
        let ips = trace.pcs().map(VirtAddr::get);
        CallchainDeferred { cookie, ips, id }
    })
}

/// The events that hear of all tasks. On several CPUs those of a registry stand for the
/// profiler.
fn events_of_all_tasks() -> &'static [u64] {
    if are_several() {
        use demo_format::{CYCLES, FOLLOWER, OWN, TRACER, WATCHER};
        &[CYCLES, WATCHER, TRACER, FOLLOWER, OWN]
    } else {
        &[demo_format::PROFILER, demo_format::TRACER]
    }
}

/// Writes that a task has a name. In task context.
pub(crate) fn write_name(task: &Task, name: &str, exec: bool) {
    for &event in events_of_all_tasks() {
        let name = name.as_bytes();
        write(task, event, |id| Comm { task: ids(task.id()), name, exec, id });
    }
}

/// Writes that a task starts or ends. In task context.
pub(crate) fn write_life(task: &Task, parent: u32, exit: bool) {
    for &event in events_of_all_tasks() {
        write(task, event, |id| {
            let (parent, time) = (ids(parent), id.time.unwrap_or(0));
            Lifecycle { exit, task: ids(task.id()), parent, time, id }
        });
    }
}

/// Writes a record. What finds no room is counted by the ring, and told by the next record
/// that does.
fn write<R: Encode>(task: &Task, event: u64, record: impl FnOnce(SampleId) -> R) {
    let _ = try_write(task, event, record);
}

fn try_write<R: Encode>(
    task: &Task,
    event: u64,
    record: impl FnOnce(SampleId) -> R,
) -> Result<(), WriteError> {
    // From its time on to its end, a record is in the way of this CPU's interrupts: so a
    // round that each CPU has ticked in has all records that are older.
    let interrupts = cpu::disable_interrupts();
    let id = id(task, event);
    let ring = match (online(), Protection::OwnRing.is_on()) {
        (1, _) => &ONLY_RING,
        (_, true) => RINGS.own(),
        (_, false) => RINGS.of(0),
    };
    let written = ring.write(&record(id), FORMAT, event, id);
    cpu::restore_interrupts(interrupts);
    written.map(|_| ())
}

fn id(task: &Task, event: u64) -> SampleId {
    use core::sync::atomic::Ordering;
    let changing = task.returning.load(Ordering::Relaxed);
    let returns = task.returns.load(Ordering::Relaxed);
    SampleId {
        task: Some(ids(task.id())),
        time: Some(cpu::clock()),
        id: None,
        stream_id: Some(if changing { 0 } else { returns + 1 }),
        cpu: Some(cpu::number() as u32),
        identifier: Some(event),
    }
}

/// Tasks have one thread each.
const fn ids(id: u32) -> unwind_perf::record::Task {
    unwind_perf::record::Task { pid: id, tid: id }
}

/// Sends what is in the rings out of the machine, and a mark after the round through them.
/// `false` if that is being done at this moment.
pub(crate) fn export() -> bool {
    static BUFFER: Exclusive<[u8; MAX_RECORD]> = Exclusive::new([0; MAX_RECORD]);
    BUFFER.try_with(|buffer| (0..online()).for_each(|cpu| drain(cpu, buffer))).is_some()
}

/// Sends the mark of a round: records after it are not older than those before the
/// previous one.
pub(crate) fn end_round() {
    let header = u64::from(FINISHED_ROUND.0) | (size_of::<u64>() as u64) << 48;
    serial::export(&header.to_le_bytes());
}

fn drain(cpu: usize, buffer: &mut [u8]) {
    let words = if online() == 1 { SHORT_WORDS } else { WORDS };
    let (data, _) = DATA[cpu].split_at(words);
    let Ok(mut reader) = RingReader::new(page(cpu), data) else { return };
    // Not for ever, if the CPUs write as fast as this reads.
    for _ in 0..WORDS {
        match reader.next(buffer) {
            Ok(Some(record)) => serial::export(record.bytes()),
            Ok(None) => return,
            Err(error) => panic!("ring of cpu {cpu}: {error}"),
        }
    }
}

/// How many records found no room.
pub(crate) fn lost() -> u64 {
    RINGS.iter().chain([&ONLY_RING]).map(CpuRing::lost).sum()
}
