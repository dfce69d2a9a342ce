//! Recording into a profile.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::gettid;
use unwind_target::rows::frame_pointers::FramePointerRows;
use unwind_target::untrusted::escaped;

use crate::collected::error::ReadingError;
use crate::engine::caller_signals::CallerSignals;
use crate::engine::existing::threads_of;
use crate::engine::requested::{NameError, Requested, parse};
use crate::engine::sampling::{
    Copies, CopySizes, KernelWalk, Often, RingSize, Sampling, WalkedBy, Whom,
};
use crate::engine::subject::{HeldCommand, StartError, Subject};
use crate::formats::format::Format;
use crate::profile::{Profile, ProfileOptions};
use crate::session::recording::Form;
use crate::session::rings::{NoProcess, RING, Span, check_exist, existing, of_running};
use crate::session::{Opened, Session, SessionError};

/// Records where time is spent: a part of the own program, a command, or a process that runs.
///
/// Samples are taken by the kernel's clock or, where there is a PMU, by the CPU's cycles. Their stacks are walked
/// by tables, also in code without frame pointers: in the kernel where that can be, else from copies, while the
/// recording runs.
///
/// ```
/// use unwind_profile::{Format, Recorder};
///
/// # fn work() -> u64 { (0..3_000_000_u64).map(std::hint::black_box).sum() }
/// let (sum, profile) = Recorder::new().rate(4999).record(work)?;
/// println!("{sum}, with {} samples", profile.samples());
/// profile.write(Format::Text, std::io::stdout())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Recorder {
    rate: u32,
    events: Vec<Requested>,
    off_cpu: bool,
    walked_by: WalkedBy,
    kernel_walk: KernelWalk,
    stack_bytes: Option<u32>,
    has_all_threads: bool,
    output: Option<PathBuf>,
    options: ProfileOptions,
}

/// Why nothing is recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Samples cannot be taken, or the recording not be written.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The file of the recording cannot be made or opened.
    #[error("the recording cannot be written to {}: {error}", escaped(path))]
    NoFile {
        /// Where it was to be: the file, or the folder for temporary files.
        path: PathBuf,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// There is no such process.
    #[error(transparent)]
    NoProcess(#[from] NoProcess),
    /// The command cannot be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The recording cannot be read again.
    #[error(transparent)]
    Reading(#[from] ReadingError),
    /// A thread has failed.
    #[error("the thread that records has failed")]
    Failed,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// 999 samples a second of CPU time, of cycles or the clock.
    pub fn new() -> Self {
        Self {
            rate: 999,
            events: Vec::new(),
            off_cpu: false,
            walked_by: WalkedBy::Any,
            kernel_walk: KernelWalk::default(),
            stack_bytes: None,
            has_all_threads: false,
            output: None,
            options: ProfileOptions::new(Format::DETAILED),
        }
    }

    /// Samples a second of CPU time, 1 to 50,000; others are taken for the nearest of these. The kernel takes
    /// fewer if its limits are lower.
    pub fn rate(self, hertz: u32) -> Self {
        Self { rate: hertz.clamp(1, 50_000), ..self }
    }

    /// Takes samples of an event in place of cycles or the clock, by perf's names: `page-faults`, `cycles:u`,
    /// `sched:sched_switch`. Further calls add further events.
    ///
    /// # Errors
    ///
    /// [`EventNameError`](crate::EventNameError) if there is no event of this name.
    pub fn event(mut self, name: &str) -> Result<Self, NameError> {
        self.events.extend(parse(name)?);
        Ok(self)
    }

    /// Whether it is recorded where threads wait, too. This takes samples of the kernel, for which one needs
    /// rights; it is for one event.
    pub fn off_cpu(self, off_cpu: bool) -> Self {
        Self { off_cpu, options: self.options.off_cpu(off_cpu), ..self }
    }

    /// What walks stacks. This replaces what [`stack_bytes`](Self::stack_bytes) has said of it.
    pub fn walked_by(self, walked_by: WalkedBy) -> Self {
        Self { walked_by, ..self }
    }

    /// Whether a walk in the kernel brings in memory of a stack that is not resident, as it does by default. Without
    /// it no thread waits for a file system, and a stack ends at such a page.
    pub fn brings_in_memory(mut self, faults: bool) -> Self {
        self.kernel_walk.faults = faults;
        self
    }

    /// Whether a walk in the kernel reads the calls of Python and JavaScript, as it does by default. Without it stacks
    /// have native frames alone.
    pub fn reads_calls(mut self, calls: bool) -> Self {
        self.kernel_walk.calls = calls;
        self
    }

    /// Has stacks copied, and says how many bytes of each are looked at, 8 to 65,528; others are taken for the
    /// nearest of these. Copies have without it 65,528 at first, and then as many as make enough stacks complete.
    /// Stacks that are deeper are incomplete.
    pub fn stack_bytes(self, bytes: u32) -> Self {
        let stack_bytes = Some(bytes.clamp(8, 65_528) & !7);
        Self { stack_bytes, walked_by: WalkedBy::Copies, ..self }
    }

    /// Whether [`record`](Self::record) also takes samples of threads that run already. Without it those are of
    /// the calling thread and what that starts.
    pub fn all_threads(self, all: bool) -> Self {
        Self { has_all_threads: all, ..self }
    }

    /// Keeps the recording in this file, a `perf.data` that perf reads. A file that was there is overwritten.
    pub fn output(self, path: impl Into<PathBuf>) -> Self {
        Self { output: Some(path.into()), ..self }
    }

    /// How the recording is turned into a profile. This replaces what [`off_cpu`](Self::off_cpu) has said of it.
    pub fn options(self, options: ProfileOptions) -> Self {
        Self { options, ..self }
    }

    /// Records this program while it runs `run`. Returns what that returns, and the profile, once the recording
    /// is read and has names: this may take as long again.
    ///
    /// # Errors
    ///
    /// [`RecordError`]. If samples cannot be taken, `run` is not called.
    pub fn record<T>(&self, run: impl FnOnce() -> T) -> Result<(T, Profile), RecordError> {
        let caller = gettid().as_raw();
        let ends = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = channel();
        thread::scope(|scope| {
            // It is not a child of what is sampled, nor is any thread that it starts.
            let recording = scope.spawn(|| {
                let own = gettid().as_raw();
                let process = i32::try_from(std::process::id()).unwrap_or(0);
                let mut threads = match self.has_all_threads {
                    true => threads_of(process),
                    false => vec![caller],
                };
                threads.retain(|&thread| thread != own);
                let subject = Subject::Processes(vec![process]);
                let until = Until { ends: Arc::clone(&ends), time: None };
                self.run(Whom::Threads(threads), subject, until, || {
                    // No one waits any more if the caller has failed.
                    let _ = ready.send(());
                    Ok(())
                })
            });
            let value = match is_ready.recv() {
                Ok(()) => {
                    // The recording ends also if it panics.
                    let _end = EndsWhenDropped(Arc::clone(&ends));
                    Some(run())
                }
                Err(_) => None,
            };
            let recorded = recording.join().map_err(|_| RecordError::Failed)?;
            let ((), profile) = recorded?;
            value.map(|value| (value, profile)).ok_or(RecordError::Failed)
        })
    }

    /// Starts a command and records it and what it starts, until it has ended.
    ///
    /// # Errors
    ///
    /// [`RecordError`].
    pub fn command(&self, command: Command) -> Result<(ExitStatus, Profile), RecordError> {
        let program = command.get_program().to_owned();
        let held = HeldCommand::of(command, CallerSignals::of_this_thread(false))?;
        let process = held.pid();
        let subject = Subject::Processes(vec![process]);
        let go = || Ok(held.go()?);
        let (mut child, profile) =
            self.run(Whom::Command(process), subject, Until::default(), go)?;
        let status = child.wait().map_err(|error| StartError { program, error })?;
        Ok((status, profile))
    }

    /// Records a process that runs, and what it starts from now on, for a time or until it has ended.
    ///
    /// # Errors
    ///
    /// [`RecordError`].
    pub fn process(&self, id: u32, time: Duration) -> Result<Profile, RecordError> {
        let id = i32::try_from(id).unwrap_or(i32::MAX);
        check_exist(&[id])?;
        let until = Until { time: Some(time), ..Until::default() };
        let subject = Subject::Processes(vec![id]);
        let ((), profile) = self.run(of_running(&subject), subject, until, || Ok(()))?;
        Ok(profile)
    }

    /// Records, and reads the recording. `begin` is called once samples can be taken.
    fn run<T>(
        &self,
        whom: Whom,
        subject: Subject,
        until: Until,
        begin: impl FnOnce() -> Result<T, RecordError>,
    ) -> Result<(T, Profile), RecordError> {
        let is_started = matches!(whom, Whom::Command(_));
        let sampling = self.sampling(whom);
        let opened = Opened::new(&sampling, self.rate)?;
        let notices = self.options.told_to().clone();
        opened.shortfalls.iter().for_each(|shortfall| notices.add(shortfall.to_string()));
        let file_error = |error| RecordError::NoFile { path: self.path(), error };
        let file = self.file().map_err(file_error)?;
        // A command that waits to be started has nothing mapped of its own yet.
        let existing = if is_started { Vec::new() } else { existing(&subject) };
        let end = until.time.and_then(|time| Instant::now().checked_add(time));
        let span = Span { subject, beside: None, ends: until.ends, until: end, every: None };
        let form = Form {
            keeps_stacks: false,
            frame_pointers: FramePointerRows { is_trusted: false },
            rate: self.rate,
            is_compressed: true,
        };
        let mut session =
            Session::begin(opened, &sampling, form, (&existing, span), (false, notices));
        let begun = begin()?;
        if let Some(part) = session.next_part() {
            session.write(file.try_clone().map_err(file_error)?, part)?;
        }
        session.finish().map_err(SessionError::from)?;
        let profile = match &self.output {
            Some(path) => self.options.open(path)?,
            None => {
                let options = self.options.clone().titled("recording");
                options.open(format!("/proc/self/fd/{}", file.as_raw_fd()))?
            }
        };
        Ok((begun, profile))
    }

    fn sampling(&self, whom: Whom) -> Sampling {
        let sizes = match self.stack_bytes {
            Some(bytes) => CopySizes::one(bytes),
            // A part of a program may be over before other sizes are known to be better.
            None => CopySizes::several(&whom, self.events.len(), self.off_cpu).largest_first(),
        };
        let copies = Copies { sizes, with_chains: false, with_data: false };
        Sampling {
            often: Often::Rate(self.rate),
            events: self.events.clone(),
            cpus: None,
            user_stacks: self.walked_by.user_stacks(copies, self.kernel_walk),
            off_cpu: self.off_cpu,
            ring: RingSize::AtMost(RING),
            whom,
            notices: self.options.told_to().clone(),
        }
    }

    /// Where the recording goes to.
    fn path(&self) -> PathBuf {
        self.output.clone().unwrap_or_else(std::env::temp_dir)
    }

    /// The file that the recording goes to: one without a name if it is not kept.
    fn file(&self) -> io::Result<File> {
        match &self.output {
            Some(path) => {
                File::options().create(true).truncate(true).read(true).write(true).open(path)
            }
            None => tempfile::tempfile(),
        }
    }
}

/// When a recording ends.
#[derive(Debug, Default)]
struct Until {
    ends: Arc<AtomicBool>,
    time: Option<Duration>,
}

/// Ends a recording when it is dropped.
struct EndsWhenDropped(Arc<AtomicBool>);

impl Drop for EndsWhenDropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::sampling::UserStacks;

    #[test]
    fn walks_in_the_kernel_bring_in_memory_unless_that_is_not_wanted() {
        let faults = |recorder: Recorder| {
            let sampling = recorder.walked_by(WalkedBy::Kernel).sampling(Whom::Threads(vec![1]));
            match sampling.user_stacks {
                UserStacks::Walked(walk) => walk.faults,
                other => panic!("{other:?}"),
            }
        };
        assert!(faults(Recorder::new()));
        assert!(!faults(Recorder::new().brings_in_memory(false)));
    }
}
