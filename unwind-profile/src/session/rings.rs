//! From the kernel's rings to a stream of records, by a thread of its own: what a recording
//! and a live view have in common.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use unwind_perf::record::Attr;

use crate::engine::copy_size::CopySize;
use crate::engine::drained::{Drained, SoFar};
use crate::engine::existing::{all_processes, threads_of};
use crate::engine::priority::go_first;
use crate::engine::sampling::Whom;
use crate::engine::subject::{Subject, exists};
use crate::engine::{Engine, SampledEvent};
use crate::session::drain::Drain;
use crate::session::parts::{DrainFailed, Part, Parts, record_of_kernel};
use crate::session::stream::stream_start;

/// Bytes of a ring at most, without `--ring-kib`.
pub const RING: usize = 8192 << 10;

/// No such process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no process {0}")]
pub struct NoProcess(pub i32);

/// Whether all of these processes run.
///
/// # Errors
///
/// [`NoProcess`] for the first that does not.
pub fn check_exist(processes: &[i32]) -> Result<(), NoProcess> {
    match processes.iter().find(|&&process| !exists(process)) {
        Some(&process) => Err(NoProcess(process)),
        None => Ok(()),
    }
}

/// Whose samples to take for these processes, or for all.
#[must_use]
pub fn of_running(subject: &Subject) -> Whom {
    match subject {
        Subject::All => Whom::All,
        Subject::Processes(processes) => {
            Whom::Threads(processes.iter().flat_map(|&process| threads_of(process)).collect())
        }
    }
}

/// Whom the rings are emptied for, and until when.
#[derive(Debug)]
pub struct Span {
    pub subject: Subject,
    /// The command with which it ends, if that is not the subject.
    pub beside: Option<i32>,
    pub ends: Arc<AtomicBool>,
    pub until: Option<Instant>,
    /// How long each part is, if there are several.
    pub every: Option<Duration>,
}

/// Rings that a thread empties.
#[derive(Debug)]
pub struct Emptied {
    /// What came out of them so far.
    pub so_far: SoFar,
    drainer: JoinHandle<Drained>,
}

impl Emptied {
    /// Has a thread empty the rings of an engine. `existing` are the processes that were there
    /// before it, of which records tell first. Returns also where the parts of the recording
    /// come out.
    #[must_use]
    pub fn start(
        mut engine: Box<dyn Engine>,
        attr: Attr,
        copy_size: CopySize,
        existing: &[i32],
        span: Span,
    ) -> (Self, Receiver<Part>) {
        let mut start = stream_start(&engine.events());
        start.extend(record_of_kernel(attr));
        let (mut parts, received) = Parts::new(&span.subject, span.every, attr, start);
        let writer = parts.begin(existing.to_vec());
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
            drain.run(engine.as_mut(), watched, &span.ends, span.until)
        });
        // A command with many threads could keep the thread from its start.
        let _ = ready.recv();
        (Self { so_far, drainer }, received)
    }

    /// What came out of the rings, at their end.
    ///
    /// # Errors
    ///
    /// [`DrainFailed`] if the thread has.
    pub fn finish(self) -> Result<Drained, DrainFailed> {
        self.drainer.join().map_err(|_| DrainFailed)
    }
}

/// The processes that are there before samples of them are taken.
#[must_use]
pub fn existing(subject: &Subject) -> Vec<i32> {
    match subject {
        Subject::All => all_processes(),
        Subject::Processes(processes) => processes.clone(),
    }
}
