//! Records: into rings, and out of the machine.
//!
//! There are two rings, one that NMIs write and one that tasks write, so that
//! neither ever finds the other in the middle of a record. The reader merges
//! them by time and cookie, as it has to with the rings of several CPUs.

use core::sync::atomic::{AtomicU64, Ordering};

use demo_format::{FINISHED_ROUND, FORMAT};
use unwind_core::deferred::Cookie;
use unwind_core::{Trace, VirtAddr};
use unwind_perf::record::{
    CallchainDeferred, Comm, Encode, Endian, Lifecycle, Misc, Output, Ring, RingWriter, Sample,
    SampleId,
};

use super::Client;
use crate::exclusive::Exclusive;
use crate::task::state::Task;
use crate::{cpu, serial};

/// Words of a ring: 64 KiB.
const WORDS: usize = 8 << 10;

/// Memory between one writer and one reader.
struct Buffer {
    words: [AtomicU64; WORDS],
    /// How many words were written in all.
    written: AtomicU64,
    /// How many of them were read.
    read: AtomicU64,
}

impl Buffer {
    const fn new() -> Self {
        Self {
            words: [const { AtomicU64::new(0) }; WORDS],
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
        }
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        &self.words[(at % WORDS as u64) as usize]
    }

    /// Reads all whole records that are there; returns whether there were any.
    fn drain(&self, mut word: impl FnMut(u64)) -> bool {
        let (from, to) = (self.read.load(Ordering::Relaxed), self.written.load(Ordering::Acquire));
        for at in from..to {
            word(self.word(at).load(Ordering::Relaxed));
        }
        self.read.store(to, Ordering::Release);
        from != to
    }
}

/// The writer's end of a buffer.
struct Writer {
    buffer: &'static Buffer,
    /// Where the next word goes.
    next: u64,
    /// The bytes of an unfinished word.
    bytes: [u8; 8],
    filled: usize,
}

impl Writer {
    const fn new(buffer: &'static Buffer) -> Self {
        Self { buffer, next: 0, bytes: [0; 8], filled: 0 }
    }
}

impl Output for Writer {
    fn put(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.bytes[self.filled] = byte;
            self.filled += 1;
            if self.filled == 8 {
                let word = u64::from_le_bytes(self.bytes);
                self.buffer.word(self.next).store(word, Ordering::Relaxed);
                self.next += 1;
                self.filled = 0;
            }
        }
    }
}

impl Ring for Writer {
    fn reserve(&mut self, len: usize) -> bool {
        let used = self.next - self.buffer.read.load(Ordering::Acquire);
        used + (len as u64).div_ceil(8) <= WORDS as u64
    }

    fn commit(&mut self) {
        self.buffer.written.store(self.next, Ordering::Release);
    }
}

static NMI_BUFFER: Buffer = Buffer::new();
static TASK_BUFFER: Buffer = Buffer::new();

static NMI_RING: Exclusive<RingWriter<Writer>> =
    Exclusive::new(RingWriter::new(Writer::new(&NMI_BUFFER), Endian::Little));
static TASK_RING: Exclusive<RingWriter<Writer>> =
    Exclusive::new(RingWriter::new(Writer::new(&TASK_BUFFER), Endian::Little));

/// Writes a sample of the profiler. In NMIs, which do not nest.
pub(super) fn write_sample_in_nmi(task: &Task, misc: Misc, pc: u64, chain: &[u64]) {
    let client = Client::Profiler;
    let sample = sample(task, client, misc, pc, chain);
    let written = NMI_RING.try_with(|ring| {
        // What finds no room is counted by the ring, and told by the next
        // record that does.
        let _ = ring.write(&sample, FORMAT, client.event(), id(task, client));
    });
    assert!(written.is_some(), "an nmi in an nmi");
}

/// Writes a sample of the tracer. In task context.
pub(super) fn write_trace(task: &Task, misc: Misc, pc: u64, chain: &[u64]) {
    let client = Client::Tracer;
    write(task, client, &sample(task, client, misc, pc, chain));
}

/// Writes a delivered stack. In task context.
pub(super) fn write_stack(task: &Task, client: Client, cookie: Cookie, trace: &Trace) {
    let ips = trace.pcs().map(VirtAddr::get);
    let id = id(task, client);
    write(task, client, &CallchainDeferred { cookie: Some(cookie.get()), ips, id });
}

/// Writes that a task has a name. In task context.
pub(crate) fn write_name(task: &Task, name: &str, exec: bool) {
    for client in Client::ALL {
        let id = id(task, client);
        write(task, client, &Comm { task: ids(task.id()), name: name.as_bytes(), exec, id });
    }
}

/// Writes that a task starts or ends. In task context.
pub(crate) fn write_life(task: &Task, parent: u32, exit: bool) {
    for client in Client::ALL {
        let (id, time) = (id(task, client), cpu::clock());
        let parent = ids(parent);
        write(task, client, &Lifecycle { exit, task: ids(task.id()), parent, time, id });
    }
}

fn write(task: &Task, client: Client, record: &impl Encode) {
    TASK_RING.with(|ring| {
        // As in NMIs: the ring keeps count of what is lost.
        let _ = ring.write(record, FORMAT, client.event(), id(task, client));
    });
}

fn sample<'c>(
    task: &Task,
    client: Client,
    misc: Misc,
    pc: u64,
    chain: &'c [u64],
) -> Sample<core::iter::Copied<core::slice::Iter<'c, u64>>> {
    let id = id(task, client);
    Sample {
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
    }
}

fn id(task: &Task, client: Client) -> SampleId {
    let changing = task.returning.load(Ordering::Relaxed);
    let returns = task.returns.load(Ordering::Relaxed);
    SampleId {
        task: Some(ids(task.id())),
        time: Some(cpu::clock()),
        id: None,
        stream_id: Some(if changing { 0 } else { returns + 1 }),
        cpu: Some(0),
        identifier: Some(client.event()),
    }
}

/// Tasks have one thread each.
const fn ids(id: u32) -> unwind_perf::record::Task {
    unwind_perf::record::Task { pid: id, tid: id }
}

/// Sends what is in the rings out of the machine, and a mark after each round
/// through them. Called by one thread.
pub(crate) fn export() {
    let mut any = false;
    for buffer in [&NMI_BUFFER, &TASK_BUFFER] {
        any |= buffer.drain(|word| serial::export(&word.to_le_bytes()));
    }
    if any {
        let header = u64::from(FINISHED_ROUND.0) | (size_of::<u64>() as u64) << 48;
        serial::export(&header.to_le_bytes());
    }
}

/// How many records found no room.
pub(crate) fn lost() -> u64 {
    let of_nmis = NMI_RING.with(|ring| ring.lost());
    of_nmis + TASK_RING.with(|ring| ring.lost())
}
