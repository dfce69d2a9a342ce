//! The program at work.

use std::fs::metadata;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::kernel::Shared;
use crate::program::{Constants, LoadStep, Map, Program};
use crate::record::Record;
use crate::ring::Ring;
use crate::tables::Tables;

/// A program in the kernel that takes samples and walks their stacks. It is gone with this value.
#[derive(Debug)]
pub struct Walker {
    program: Program,
    ring: Ring,
    counts: Shared,
    /// Keeps the program at the ends of tasks, and of what threads execute.
    _ends: [OwnedFd; 2],
    /// How many images there are.
    images: Arc<AtomicU32>,
}

/// What walks may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Frames of a stack, 1 to 2,048.
    pub frames: u32,
    /// Whether memory that is not resident is brought in. Without it nobody waits for a file system, and
    /// such a stack ends there.
    pub faults: bool,
    /// Whether a process is stopped (`SIGSTOP`) once a stack of it is walked, before it returns to user code: what
    /// another unwinder finds in it then is of the same moment. No stack is walked at once then.
    pub stops: bool,
    /// The number of the event whose samples are those of threads that begin to wait, if there is one. Their stacks
    /// are walked at once where that can be: such a thread may not return before the recording ends.
    pub waits: Option<u32>,
    /// Bytes of the ring of records: a power of two, at least a page.
    pub ring_bytes: u32,
}

impl Default for Limits {
    /// 2,048 frames, memory is brought in, no stops, no waits, 8 MiB.
    fn default() -> Self {
        Self { frames: 2048, faults: true, stops: false, waits: None, ring_bytes: 8 << 20 }
    }
}

/// Why there is no program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The kernel refuses it.
    #[error("the kernel does not {step}: {error}{}", advice(error))]
    Refused {
        /// What.
        step: LoadStep,
        /// With what.
        #[source]
        error: io::Error,
    },
    /// Memory of a map cannot be shared.
    #[error("the program's records cannot be mapped: {0}")]
    Map(#[source] io::Error),
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; it needs root, or CAP_BPF and CAP_PERFMON",
        _ => "",
    }
}

/// A perf event whose samples the program takes, until this value is dropped.
#[derive(Debug)]
#[must_use]
pub struct Attached {
    _link: OwnedFd,
}

/// What became of all samples so far, by the program's own counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Samples.
    pub samples: u64,
    /// Of these, those for which the ring had no room.
    pub dropped: u64,
    /// Stacks for which it had none.
    pub dropped_stacks: u64,
    /// Stacks that were walked at once.
    pub walked_now: u64,
    /// Walks that were asked for, to be made in the task.
    pub deferred: u64,
    /// Samples that share the stack of an earlier one.
    pub shared: u64,
    /// Samples without a user stack: of kernel threads, and of tasks that end.
    pub without_user: u64,
    /// Samples for which the kernel refused a later walk.
    pub refused: u64,
    /// Walks in tasks.
    pub walked_later: u64,
    /// Stacks that were copied.
    pub copied: u64,
    /// Stacks that were not walked since the process had executed another program.
    pub after_exec: u64,
    /// Stacks that were not walked since the task had ended.
    pub after_exit: u64,
}

/// The inode of the pid namespace of this process, 0 of the first one, which all threads of the machine have
/// numbers in.
fn pid_namespace() -> u32 {
    /// The kernel's number of that, `PROC_PID_INIT_INO`.
    const FIRST: u64 = 0xefff_fffc;
    let inode = metadata("/proc/self/ns/pid").map_or(FIRST, |namespace| namespace.ino());
    u32::try_from(inode).ok().filter(|_| inode != FIRST).unwrap_or(0)
}

impl Walker {
    /// Loads the program.
    ///
    /// # Errors
    ///
    /// [`LoadError`]: the kernel is older, has no BTF, or the rights are missing.
    pub fn load(limits: Limits) -> Result<Self, LoadError> {
        let constants = Constants {
            max_frames: limits.frames.clamp(1, 2048),
            may_fault: limits.faults,
            stops: limits.stops,
            waits: limits.waits,
            pid_namespace: pid_namespace(),
            ring: limits.ring_bytes,
        };
        let refused = |(step, error)| LoadError::Refused { step, error };
        let program = Program::load(constants).map_err(refused)?;
        let ring = program.map(Map::Ring).map_err(LoadError::Map)?;
        let ring = Ring::map(ring, limits.ring_bytes).map_err(LoadError::Map)?;
        let counts = program.map(Map::Counts).map_err(LoadError::Map)?;
        let counts = Shared::map(counts, 4096, 0, true).map_err(LoadError::Map)?;
        let ends = program.attach_to_ends();
        let ends = ends.map_err(|error| refused((LoadStep::Programs { verifier: None }, error)))?;
        Ok(Self { program, ring, counts, _ends: ends, images: Arc::default() })
    }

    /// Has the program take the samples of an open perf event, in place of the event's own ring. Records
    /// call the event by `number`.
    ///
    /// # Errors
    ///
    /// What the kernel refuses it with.
    pub fn attach(&self, event: BorrowedFd<'_>, number: u64) -> io::Result<Attached> {
        Ok(Attached { _link: self.program.attach(event, number)? })
    }

    /// Hands out what the program has written, in its order. Returns how full the ring was, in percent.
    pub fn drain(&mut self, mut take: impl FnMut(Record<'_>)) -> u64 {
        self.ring.drain(|bytes| {
            if let Some(record) = Record::parse(bytes) {
                take(record);
            }
        })
    }

    /// The tables that it walks by, for any thread: handing one over takes the kernel milliseconds, in which the
    /// ring fills.
    ///
    /// # Errors
    ///
    /// There are as many open files as there may be.
    pub fn tables(&self) -> io::Result<Tables> {
        let map = |map| self.program.map(map).and_then(|map| map.try_clone_to_owned());
        let maps = [map(Map::Files)?, map(Map::Images)?, map(Map::Interpreters)?];
        Ok(Tables::new(maps, Arc::clone(&self.images)))
    }

    /// How many instructions the kernel's verifier has looked at of the program, at most 1,000,000: what
    /// loading it takes.
    ///
    /// # Errors
    ///
    /// What the kernel refuses it with.
    pub fn verified_instructions(&self) -> io::Result<u32> {
        self.program.verified_instructions()
    }

    /// What became of samples so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = self.counts.words().iter().map(|count| count.load(Ordering::Relaxed));
        let mut next = || counts.next().unwrap_or(0);
        Counts {
            samples: next(),
            dropped: next(),
            dropped_stacks: next(),
            walked_now: next(),
            deferred: next(),
            shared: next(),
            without_user: next(),
            refused: next(),
            walked_later: next(),
            copied: next(),
            after_exec: next(),
            after_exit: next(),
        }
    }
}
