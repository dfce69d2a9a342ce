//! From the kernel's rings to a stream of records, by a thread of its own: what a recording
//! and a live view have in common.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use unwind_perf::record::Attr;

use crate::commands::record::copy_size::CopySize;
use crate::commands::record::drain::{Drain, go_first};
use crate::commands::record::drained::{Drained, SoFar};
use crate::commands::record::engine::{Engine, EngineError, SampledEvent};
use crate::commands::record::existing::{all_processes, threads_of};
use crate::commands::record::parts::{Part, Parts, record_of_kernel, records_of};
use crate::commands::record::perf_engine::PerfEngine;
use crate::commands::record::requested::TracepointError;
use crate::commands::record::sampling::{RingSize, Sampling, Whom};
use crate::commands::record::stream::stream_start;
use crate::commands::record::subject::{Subject, exists};
use crate::failure::{Failure, exit_code_of};

/// Bytes of a ring at most, without `--ring-kib`.
pub(crate) const RING: usize = 8192 << 10;

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let exit_code = match &error {
            EngineError::OffCpu => 4,
            EngineError::Deferral | EngineError::Filter { .. } => 1,
            EngineError::Tracepoint(error) => match error {
                TracepointError::Unreadable { error, .. } => exit_code_of(error),
                _ => 3,
            },
            EngineError::Open { error }
            | EngineError::Event { error, .. }
            | EngineError::OpenAll { error }
            | EngineError::OpenProcess { error }
            | EngineError::Map { error, .. } => match error.raw_os_error() {
                Some(libc::ESRCH) => 3,
                Some(libc::EPERM) => 4,
                _ => exit_code_of(error),
            },
        };
        Self::new(error, exit_code)
    }
}

/// No such process.
#[derive(Debug, thiserror::Error)]
#[error("no process {0}")]
struct NoProcess(i32);

/// Whether all of these processes run.
///
/// # Errors
///
/// [`Failure`] for the first that does not.
pub(crate) fn check_exist(processes: &[i32]) -> Result<(), Failure> {
    match processes.iter().find(|&&process| !exists(process)) {
        Some(&process) => Err(Failure::new(NoProcess(process), 3)),
        None => Ok(()),
    }
}

/// Whose samples to take for these processes, or for all.
pub(crate) fn of_running(subject: &Subject) -> Whom {
    match subject {
        Subject::All => Whom::All,
        Subject::Processes(processes) => {
            Whom::Threads(processes.iter().flat_map(|&process| threads_of(process)).collect())
        }
    }
}

/// Opens the events, and says on standard error what they lack.
///
/// # Errors
///
/// [`EngineError`].
pub(crate) fn open(sampling: &Sampling) -> Result<PerfEngine, EngineError> {
    let engine = PerfEngine::open(sampling)?;
    let ring = sampling.ring;
    if RingSize::AtMost(engine.ring) != ring && RingSize::Exactly(engine.ring) != ring {
        let kib = engine.ring / 1024;
        let _ = writeln!(
            io::stderr(),
            "unwind: rings of {kib} KiB: see kernel.perf_event_mlock_kb for larger ones"
        );
    }
    if engine.has_fewer_sizes(sampling) {
        let _ = writeln!(
            io::stderr(),
            "unwind: copies of stacks have one size, also where more would be needed: events for \
             other sizes would be more files than may be open; raise their limit (ulimit -n), or \
             choose a size by --stack-bytes"
        );
    }
    if let Some(error) = &engine.without_kernel {
        let _ = writeln!(
            io::stderr(),
            "unwind: without the kernel's part of stacks: {error}; it needs root, the capability \
             CAP_PERFMON, or for programs of one's own a kernel.perf_event_paranoid of 1 or less"
        );
    }
    Ok(engine)
}

/// Whom the rings are emptied for, and until when.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) subject: Subject,
    /// The command with which it ends, if that is not the subject.
    pub(crate) beside: Option<i32>,
    pub(crate) ends: Arc<AtomicBool>,
    pub(crate) until: Option<Instant>,
    /// How long each part is, if there are several.
    pub(crate) every: Option<Duration>,
}

/// Rings that a thread empties.
#[derive(Debug)]
pub(crate) struct Emptied {
    /// What came out of them so far.
    pub(crate) so_far: SoFar,
    drainer: JoinHandle<Drained>,
}

impl Emptied {
    /// Has a thread empty the rings of an engine. `existing` are the processes that were there
    /// before it, of which records tell first. Returns also where the parts of the recording
    /// come out.
    pub(crate) fn start(
        mut engine: impl Engine + 'static,
        attr: Attr,
        copy_size: CopySize,
        existing: &[i32],
        span: Span,
    ) -> (Self, Receiver<Part>) {
        let mut start = stream_start(&engine.events());
        start.extend(record_of_kernel(attr));
        let (mut parts, received) = Parts::new(&span.subject, span.every, attr, start);
        let writer = parts.begin(records_of(existing, attr));
        let so_far = SoFar::default();
        let so_far_there = so_far.clone();
        let place = |(at, event): (usize, &SampledEvent)| {
            event.ids.iter().map(move |&id| (id, at)).collect::<Vec<_>>()
        };
        let events = engine.events();
        let places = events.iter().enumerate().flat_map(place).collect();
        let so_far_here = so_far_there;
        let drain =
            Drain { attr, copy_size, writer, parts, so_far: so_far_here, chunk_len: 0, places };
        let (is_ready, ready) = channel();
        let drainer = thread::spawn(move || {
            go_first();
            // It is of no use once the command is at its end.
            let _ = is_ready.send(());
            let beside = span.beside.map(|process| Subject::Processes(vec![process]));
            let watched = beside.as_ref().unwrap_or(&span.subject);
            drain.run(&mut engine, watched, &span.ends, span.until)
        });
        // A command with many threads could keep the thread from its start.
        let _ = ready.recv();
        (Self { so_far, drainer }, received)
    }

    /// What came out of the rings, at their end.
    ///
    /// # Errors
    ///
    /// [`Failure`] if the thread has failed.
    pub(crate) fn finish(self) -> Result<Drained, Failure> {
        self.drainer.join().map_err(|_| Failure::new("the reader of the rings has failed", 1))
    }
}

/// The processes that are there before samples of them are taken.
pub(crate) fn existing(subject: &Subject) -> Vec<i32> {
    match subject {
        Subject::All => all_processes(),
        Subject::Processes(processes) => processes.clone(),
    }
}
