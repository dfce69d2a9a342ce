//! What takes samples: an engine of the kernel's.

pub mod attrs;
pub mod bpf_engine;
pub mod bpf_error;
pub mod caller_signals;
pub mod copy_size;
pub mod depths;
pub mod drained;
pub mod existing;
pub mod held_child;
pub mod mapped_code;
pub mod module_engine;
pub mod module_error;
pub mod perf_engine;
pub mod perf_event;
pub mod priority;
pub mod requested;
pub mod sampling;
pub mod subject;
pub mod trim;

use std::fmt::Debug;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use unwind_perf::event_attr::EventAttr;
use unwind_perf::record::{EventFormat, RecordHeader};
use unwind_perf::ring::RingRecord;

use crate::engine::bpf_error::BpfError;
use crate::engine::module_error::ModuleError;
use crate::engine::requested::TracepointError;
use crate::engine::sampling::Sampling;
use crate::recording::code_names::CodeNames;

/// An event whose samples an engine takes.
#[derive(Clone, Debug)]
pub struct SampledEvent {
    pub(crate) attr: EventAttr,
    /// The ids of its copies; none are needed where there is one event.
    pub(crate) ids: Vec<u64>,
    /// Its name, where it is not the one that the attr has.
    pub(crate) name: Option<String>,
}

impl SampledEvent {
    /// The layout of the records of these events, which is that of the first.
    pub(crate) fn format_of(events: &[Self]) -> EventFormat {
        events.first().map_or_else(EventFormat::default, |Self { attr, .. }| EventFormat {
            sample_type: attr.sample_type,
            read_format: attr.read_format,
            flags: attr.flags,
            ..EventFormat::default()
        })
    }
}

/// The place of that event among the events.
pub(crate) const WAITS: usize = 1;

/// Takes samples of programs and hands out records in the layout of perf's rings.
///
/// What follows it (walks, names, ledger, files) knows no more of an engine than this.
pub trait Engine: Send + Debug {
    /// The events whose samples it takes. All records have the layout of the first.
    fn events(&self) -> Vec<SampledEvent>;

    /// What samples lack of what was asked for.
    fn shortfalls(&mut self, sampling: &Sampling) -> Vec<Shortfall>;

    /// Waits until there is much to read, or for `time`.
    fn wait(&self, time: Duration);

    /// Hands out all records that there are. Each stays where the engine has it until `take`
    /// has copied what is wanted of it.
    fn drain(&mut self, take: &mut dyn FnMut(&dyn StoredRecord)) -> Found;

    /// Has samples have copies of stacks of the size at this place from now on, of the sizes in
    /// [`Sampling`](crate::engine::sampling::Sampling). Returns whether they have: the kernel may refuse.
    fn copy(&mut self, size: usize) -> bool;

    /// Takes no more samples. What was taken can still be drained.
    fn stop(&mut self);

    /// How many records the kernel counts as lost, if it counts.
    fn lost(&self) -> Option<u64>;

    /// The CPU time of all that samples are taken of, if the kernel counts that.
    fn cpu_time(&self) -> Option<CpuTime>;

    /// What the code of an interpreter's calls is called, of the numbers in what it tells of stacks.
    fn code_names(&self) -> CodeNames {
        CodeNames::default()
    }

    /// How stacks were walked, if the engine walks them in the kernel.
    fn walks(&self) -> Option<KernelWalks> {
        None
    }
}

/// A record where an engine has it.
pub trait StoredRecord {
    /// Its header.
    fn header(&self) -> RecordHeader;

    /// Fills `out` with its bytes from the one numbered `from` on, as far as it has some.
    fn copy(&self, from: usize, out: &mut [u8]);
}

/// All bytes of a record.
pub(crate) fn bytes_of(record: &dyn StoredRecord) -> Vec<u8> {
    let mut bytes = vec![0; record.header().size.into()];
    record.copy(0, &mut bytes);
    bytes
}

impl StoredRecord for RingRecord<'_> {
    fn header(&self) -> RecordHeader {
        self.header()
    }

    fn copy(&self, from: usize, out: &mut [u8]) {
        self.copy(from, out);
    }
}

/// What was found when records were handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Bytes that were skipped since they were no records.
    pub(crate) skipped: u64,
    /// How full the fullest of what holds the records was, in percent.
    pub(crate) percent: u64,
}

impl Found {
    /// Both.
    pub(crate) fn with(self, other: Self) -> Self {
        Self {
            skipped: self.skipped.saturating_add(other.skipped),
            percent: self.percent.max(other.percent),
        }
    }
}

/// How stacks were walked in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelWalks {
    /// Stacks that were walked where the sample was taken.
    pub at_once: u64,
    /// Stacks that were walked by the thread itself, before it returned to user code.
    pub deferred: u64,
    /// Samples that share the stack of an earlier one, of the same entry into the kernel.
    pub shared: u64,
    /// Stacks that tables do not tell, or did not yet: they were copied, and walked outside.
    pub copied: u64,
}

impl KernelWalks {
    /// What came after `before`.
    pub(crate) const fn since(self, before: Self) -> Self {
        Self {
            at_once: self.at_once.saturating_sub(before.at_once),
            deferred: self.deferred.saturating_sub(before.deferred),
            shared: self.shared.saturating_sub(before.shared),
            copied: self.copied.saturating_sub(before.copied),
        }
    }

    /// The sum of both.
    pub(crate) const fn with(self, other: Self) -> Self {
        Self {
            at_once: self.at_once.saturating_add(other.at_once),
            deferred: self.deferred.saturating_add(other.deferred),
            shared: self.shared.saturating_add(other.shared),
            copied: self.copied.saturating_add(other.copied),
        }
    }
}

/// CPU time in nanoseconds, by the kernel's count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// All of it.
    pub(crate) running: u64,
    /// That in which samples were taken; in the rest the kernel had stopped them.
    pub(crate) sampled: u64,
}

impl CpuTime {
    /// What came after `before`.
    pub(crate) const fn since(self, before: Self) -> Self {
        Self {
            running: self.running.saturating_sub(before.running),
            sampled: self.sampled.saturating_sub(before.sampled),
        }
    }
}

/// What samples lack that are taken all the same.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Shortfall {
    /// Rings are smaller than was asked for, as this user may not lock more memory.
    #[error("rings of {kib} KiB: see kernel.perf_event_mlock_kb for larger ones")]
    SmallRings {
        /// The size of each in KiB.
        kib: usize,
    },
    /// Copies of stacks have one size.
    #[error(
        "copies of stacks have one size, also where more would be needed: events for other sizes \
         would be more files than may be open; raise their limit (ulimit -n)"
    )]
    OneSize,
    /// Stacks have no part of the kernel.
    #[error(
        "without the kernel's part of stacks: {error}; it needs root, the capability CAP_PERFMON, \
         or for programs of one's own a kernel.perf_event_paranoid of 1 or less"
    )]
    NoKernel {
        /// Why not.
        #[source]
        error: io::Error,
    },
}

/// Why samples cannot be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The kernel lets no event be opened.
    #[error("the kernel lets no sampling event be opened: {error}{}", advice(error))]
    Open {
        #[source]
        error: io::Error,
    },
    /// The same, of whatever CPUs execute.
    #[error(
        "the kernel lets no sampling event be opened: {error}; all processes together need root, \
         the capability CAP_PERFMON, or a kernel.perf_event_paranoid of 0 or less"
    )]
    OpenAll {
        #[source]
        error: io::Error,
    },
    /// The same, of a process.
    #[error(
        "the kernel lets no sampling event be opened: {error}; a process of another user, or one \
         that has changed its user, needs root or the capability CAP_PERFMON"
    )]
    OpenProcess {
        #[source]
        error: io::Error,
    },
    /// An event that was asked for.
    #[error("{name} cannot be recorded: {error}{}", event_advice(error, *is_of_hardware))]
    Event {
        name: String,
        is_of_hardware: bool,
        #[source]
        error: io::Error,
    },
    /// An event that was asked for takes samples of the kernel alone.
    #[error(
        "{name} cannot be recorded: {error}; samples of the kernel need root, the capability CAP_PERFMON, or \
         for programs of one's own a kernel.perf_event_paranoid of 1 or less"
    )]
    KernelEvent {
        name: String,
        #[source]
        error: io::Error,
    },
    /// A tracepoint that was asked for.
    #[error(transparent)]
    Tracepoint(#[from] TracepointError),
    /// The kernel does not take the filter.
    #[error(
        "{name}: the kernel does not take the filter: {error}; its fields are in the file `format` \
         of the event in tracefs"
    )]
    Filter {
        name: String,
        #[source]
        error: io::Error,
    },
    /// A thread's switches cannot be sampled.
    #[error(
        "waits need samples of the kernel: root, the capability CAP_PERFMON, or for \
         programs of one's own a kernel.perf_event_paranoid of 1 or less"
    )]
    OffCpu,
    /// Waits are as wide as their time, and samples of another event are not.
    #[error(
        "waits are shown by their time, and {name} is not sampled by time: leave it out, or take \
         cpu-clock or cycles without -c"
    )]
    WaitsBeside { name: String },
    /// The kernel does not walk stacks later.
    #[error(
        "this kernel does not walk user stacks for samples when a thread returns to user code \
         (Linux does from 6.19 on)"
    )]
    Deferral,
    /// The program that walks stacks in the kernel takes no samples.
    #[error("stacks cannot be walked in the kernel: {0}")]
    Bpf(#[from] BpfError),
    /// The Linux module takes no samples.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// The ring cannot be mapped.
    #[error("a ring of {bytes} bytes cannot be mapped: {error}{}", ring_advice(error))]
    Map {
        bytes: usize,
        #[source]
        error: io::Error,
    },
}

/// What to do about an event that was asked for.
fn event_advice(error: &io::Error, is_of_hardware: bool) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP | libc::EINVAL) if is_of_hardware => {
            "; this machine has no such counter of the CPU, as virtual machines often have none, or not \
             with these modes; the event cpu-clock takes samples by a timer"
        }
        _ => advice(error),
    }
}

/// What to do about it.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; it needs root, the capability CAP_PERFMON, or for programs of one's own a \
             kernel.perf_event_paranoid of 2 or less"
        }
        _ if error.raw_os_error() == Some(libc::EMFILE) => {
            "; each thread has several events on each CPU: raise the limit of open files \
             (ulimit -n)"
        }
        _ => "",
    }
}

fn ring_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; see kernel.perf_event_mlock_kb",
        _ => "",
    }
}
