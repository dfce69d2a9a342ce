//! A recording while it is made: rings, walks beside the programs, the ledger and the files.

pub mod drain;
pub mod guest_recording;
pub mod guest_stops;
pub mod keeper;
pub mod ledger;
pub mod ledger_section;
pub mod parts;
pub mod recorded_stacks;
pub mod recording;
pub mod rings;
pub mod stream;
pub mod told;

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;

use unwind_perf::record::Attr;
use unwind_target::Notices;

use crate::engine::bpf_engine::BpfEngine;
use crate::engine::copy_size::CopySize;
use crate::engine::module_engine::ModuleEngine;
use crate::engine::perf_engine::PerfEngine;
use crate::engine::sampling::{Sampling, UserStacks};
use crate::engine::{Engine, EngineError, SampledEvent, Shortfall};
use crate::recording::code_names::CodeNames;
use crate::recording::error::PerfError;
use crate::session::keeper::Keeper;
use crate::session::ledger::Ledger;
use crate::session::ledger_section::LedgerSection;
use crate::session::parts::{DrainFailed, Part};
use crate::session::recording::{Form, Recording, names_of};
use crate::session::rings::{Emptied, Span};
use crate::session::stream::layout;

/// Why a recording cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// Samples cannot be taken.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The file cannot be written.
    #[error(transparent)]
    File(#[from] PerfError),
    /// The rings cannot be emptied.
    #[error(transparent)]
    Drain(#[from] DrainFailed),
}

/// Events that are open, and whose samples come once the [command](crate::engine::sampling::Whom::Command)
/// starts or, of what runs, at once.
#[derive(Debug)]
pub struct Opened {
    engine: Box<dyn Engine>,
    /// The names of code in stacks that it tells of, if it does.
    told: Option<CodeNames>,
    attr: Attr,
    copy_size: CopySize,
    /// What samples lack.
    pub shortfalls: Vec<Shortfall>,
}

impl Opened {
    /// Opens events. `rate` is about how many samples a second there will be.
    ///
    /// # Errors
    ///
    /// [`SessionError::Engine`] if the kernel refuses them.
    pub fn new(sampling: &Sampling, rate: u32) -> Result<Self, SessionError> {
        let (mut engine, sampling) = open(sampling)?;
        let shortfalls = engine.shortfalls(&sampling);
        let attr = layout(&engine.events())?;
        let copy_size = CopySize::new(sampling.user_stacks.sizes(), rate);
        let is_told = matches!(sampling.user_stacks, UserStacks::Walked(_) | UserStacks::Module(_));
        let told = is_told.then(|| engine.code_names());
        Ok(Self { engine, told, attr, copy_size, shortfalls })
    }

    /// The names of code in stacks that are walked in the kernel by tables; `None` if none are.
    #[must_use]
    pub fn told_stacks(&self) -> Option<CodeNames> {
        self.told.clone()
    }

    /// What learns how deep stacks turn out to be.
    #[must_use]
    pub const fn copy_size(&self) -> &CopySize {
        &self.copy_size
    }

    /// Has a thread empty the rings. `existing` are the processes that were there before, of which records
    /// tell first. Returns also where the parts of the recording come out.
    #[must_use]
    pub fn empty(self, existing: &[i32], span: Span) -> (Emptied, Receiver<Part>) {
        Emptied::start(self.engine, self.attr, self.copy_size, existing, span)
    }
}

/// Opens the events by the engine that is chosen. Returns also the choice.
fn open(sampling: &Sampling) -> Result<(Box<dyn Engine>, Sampling), EngineError> {
    let by = |user_stacks| Sampling { user_stacks, ..sampling.clone() };
    match &sampling.user_stacks {
        UserStacks::Any(copies, walks) => {
            let walked = by(UserStacks::Walked(*walks));
            if BpfEngine::is_for(sampling) {
                match BpfEngine::open(&walked, *walks) {
                    Ok(engine) => return Ok((Box::new(engine), walked)),
                    // Copies are for kernels without the program, and for those who may not load it.
                    Err(EngineError::Bpf(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            let copied = by(UserStacks::Copied(copies.clone()));
            Ok((Box::new(PerfEngine::open(&copied)?), copied))
        }
        UserStacks::Walked(walks) => {
            Ok((Box::new(BpfEngine::open(sampling, *walks)?), sampling.clone()))
        }
        UserStacks::Module(_) => Ok((Box::new(ModuleEngine::open(sampling)?), sampling.clone())),
        UserStacks::Copied(_) | UserStacks::Deferred => {
            Ok((Box::new(PerfEngine::open(sampling)?), sampling.clone()))
        }
    }
}

/// A recording that is being made.
#[derive(Debug)]
pub struct Session {
    emptied: Emptied,
    parts: Receiver<Part>,
    events: Vec<SampledEvent>,
    form: Form,
    copy_size: CopySize,
    /// Keeps the files that have samples.
    keeper: Option<Keeper>,
    has_waits: bool,
    told: Option<CodeNames>,
    /// Losses of earlier parts that records have not told of yet.
    untold: u64,
    notices: Notices,
    /// Ends the recording.
    ends: Arc<AtomicBool>,
}

impl Session {
    /// Begins a recording of `sampling`, for which these events are open. With `keeps_files` the files that
    /// have samples are kept by their build ids. `notices` tell what is to be known besides.
    #[must_use]
    pub fn begin(
        opened: Opened,
        sampling: &Sampling,
        form: Form,
        (existing, span): (&[i32], Span),
        (keeps_files, notices): (bool, Notices),
    ) -> Self {
        let (events, copy_size) = (opened.engine.events(), opened.copy_size.clone());
        let keeper = keeps_files.then(|| Keeper::start(notices.clone())).flatten();
        let (has_waits, told) = (sampling.off_cpu, opened.told.clone());
        let ends = Arc::clone(&span.ends);
        let (emptied, parts) = opened.empty(existing, span);
        Self {
            emptied,
            parts,
            events,
            form,
            copy_size,
            keeper,
            has_waits,
            told,
            untold: 0,
            notices,
            ends,
        }
    }

    /// Waits for the next part to begin. `None` says that the recording is at its end.
    pub fn next_part(&mut self) -> Option<Part> {
        self.parts.recv().ok()
    }

    /// Has the stacks of a part walked, and writes its file until the part ends. Returns what became of its
    /// samples.
    ///
    /// # Errors
    ///
    /// [`SessionError::File`] and [`SessionError::Drain`].
    pub fn write(&mut self, file: File, part: Part) -> Result<Ledger, SessionError> {
        let (copy_size, notices) = (self.copy_size.clone(), self.notices.clone());
        let mut recording = Recording::begin(file, &self.events, self.form, copy_size, notices)?;
        let recorded = recording.write(part.reader, self.keeper.as_ref(), self.told.clone());
        if recorded.is_err() {
            // What comes now has no place.
            self.ends.store(true, Ordering::Relaxed);
        }
        let drained = part.end.wait()?;
        let mut recorded = recorded?;
        // The kernel tells of losses when there is room again, which may be in the next part.
        let told = recorded.told.lost;
        recorded.told.lost = told.saturating_sub(self.untold);
        let counted = self.untold.saturating_add(drained.lost.unwrap_or(told));
        self.untold = counted.saturating_sub(told);
        let unmatched = recorded.summary.merge.unmatched();
        let ledger = Ledger {
            off_cpu: self.has_waits.then_some(recorded.summary.off_cpu),
            ..Ledger::of(drained, &recorded.tally, unmatched, &recorded.told)
        };
        let ledger = ledger.with_cpu_time(drained.cpu_time, self.form.rate);
        let names = names_of(&self.events);
        let ledger = ledger.with_events(&names, Some(&drained), &recorded.tally);
        let marks = recorded.tally.marks.unwrap_or_default();
        let section = LedgerSection::of_marks(ledger, &marks);
        recording.finish(&section)?;
        recorded.summary.end?;
        Ok(section.ledger)
    }

    /// Waits until all is done.
    ///
    /// # Errors
    ///
    /// [`DrainFailed`] if the rings could not be emptied.
    pub fn finish(self) -> Result<(), DrainFailed> {
        self.emptied.finish()?;
        self.keeper.into_iter().for_each(Keeper::finish);
        Ok(())
    }
}
