//! `unwind record`: samples of running programs, walked while they are taken.

mod control_group;
mod cpu_list;
mod files;
mod guest;
mod help;
#[cfg(feature = "otlp")]
mod receiver;
#[cfg(feature = "otlp")]
mod sender;
pub(crate) mod signals;
mod told;

use std::ffi::{CString, OsString};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use clap::ArgGroup;
use nix::sys::signal::Signal;
use unwind_profile::engine::caller_signals::CallerSignals;
use unwind_profile::engine::requested::{MOST, NameError, Requested, parse};
use unwind_profile::engine::sampling::{
    Copies, CopySizes, Often, RingSize, Sampling, UserStacks, Whom,
};
use unwind_profile::engine::subject::{HeldCommand, Subject, process_of, processes_of_user};
use unwind_profile::recording::error::RecordingError;
use unwind_profile::session::parts::Part;
use unwind_profile::session::recording::Form;
use unwind_profile::session::rings::{RING, Span, check_exist, existing, of_running};
use unwind_profile::session::{Session, SessionError};
use unwind_target::rows::frame_pointers::FramePointerRows;
use unwind_target::untrusted::escaped;

use crate::commands::engine::EngineArgs;
use crate::commands::opened::open;
use crate::commands::record::control_group::control_group;
use crate::commands::record::cpu_list::{Cpus, parse_cpus};
use crate::commands::record::files::{Files, OpenFile};
use crate::commands::record::guest::{GuestArgs, How};
use crate::commands::record::help::LONG_HELP;
#[cfg(feature = "otlp")]
use crate::commands::record::receiver::Receiver;
#[cfg(feature = "otlp")]
use crate::commands::record::sender::{Reading, Sender};
use crate::commands::record::signals::end_at;
use crate::commands::record::told::{Telling, tell};
use crate::failure::{Failure, LEDGER};
use crate::progress::Elapsed;
use crate::{ignored_pipe, notices};

/// Record where programs spend their time.
///
/// Samples of all threads are taken by the kernel's clock or, where there is a PMU, by the
/// CPU's cycles. The user part of their stacks is walked while the recording runs, by the
/// tables of the mapped files, also in code without frame pointers. The result is a
/// perf.data file that perf and `unwind script` read; `unwind report` makes pictures of it.
///
/// At the end a ledger says what became of each sample: complete, incomplete and why, lost.
#[derive(Debug, clap::Args)]
#[command(after_long_help = LONG_HELP,
          group(ArgGroup::new("monitor").args(["qmp", "gdb"]).requires("guest")))]
pub(crate) struct RecordArgs {
    /// The events of which samples are taken, by perf's names, with commas between them; can be given
    /// several times
    ///
    /// `cpu-clock`, `page-faults`, `context-switches`, `cycles`, `instructions` and so on, `rNNN` as the
    /// CPU's manual numbers them, tracepoints and probes as `sched:sched_switch`. After a colon `u` and `k`
    /// limit an event to user code or the kernel, `p` asks for precise places. Without it cycles or,
    /// where there is no PMU, the clock.
    #[arg(short, long, value_name = "EVENTS", value_parser = requested_events)]
    event: Vec<Events>,

    /// Which hits of a tracepoint are taken, as an expression of its fields
    ///
    /// The first one is of the first tracepoint, the second of the second, and so on.
    #[arg(long, value_name = "EXPRESSION", requires = "event")]
    filter: Vec<CString>,

    /// Samples a second of CPU time; of tracepoints each hit is one
    #[arg(short = 'F', long, value_name = "HZ", default_value_t = 999, alias = "freq",
          default_value_if("guest", "true", "49"),
          value_parser = clap::value_parser!(u32).range(1..=50_000))]
    rate: u32,

    /// A sample each N times that an event comes, in place of a number a second; clocks count
    /// nanoseconds
    #[arg(short, long, value_name = "N", conflicts_with_all = ["rate", "off_cpu"],
          value_parser = clap::value_parser!(u64).range(1..=1 << 62))]
    count: Option<u64>,

    /// Stacks, which are always recorded: accepted since perf's users type it
    #[arg(short = 'g')]
    stacks: bool,

    /// Where to write
    #[arg(short, long, value_name = "FILE", default_value = "perf.data")]
    output: PathBuf,

    /// Also record where threads wait, and how long
    ///
    /// A sample is taken when a CPU switches away from a thread; its weight is the time until
    /// the thread runs again. `unwind report` then shows times, waiting beside running.
    #[arg(long)]
    off_cpu: bool,

    /// A process that runs; can be given several times
    #[arg(short, long, value_name = "PID", group = "subject", num_args = 1.., value_delimiter = ',',
          value_parser = clap::value_parser!(i32).range(1..))]
    pid: Vec<i32>,

    /// A thread, and what it starts; can be given several times
    #[arg(short, long, value_name = "TID", group = "subject", num_args = 1.., value_delimiter = ',',
          value_parser = clap::value_parser!(i32).range(1..))]
    tid: Vec<i32>,

    /// All processes
    #[arg(short, long, group = "subject", alias = "all-cpus")]
    all: bool,

    /// The processes that a user has at the start, by name or number, and what they start
    #[arg(short, long, value_name = "USER", group = "subject", alias = "uid")]
    user: Option<OsString>,

    /// What runs in a control group, by its name below the folder of control groups, or its path
    #[arg(long, value_name = "NAME", group = "subject")]
    cgroup: Option<PathBuf>,

    /// These CPUs alone, as in 0,2-4; without processes, threads, a user or a control group, all that they
    /// execute
    #[arg(short = 'C', long, value_name = "CPUS", value_parser = parse_cpus)]
    cpu: Option<Cpus>,

    /// End after this many seconds
    #[arg(long, value_name = "SECONDS")]
    duration: Option<u64>,

    /// Begin a new file after this many seconds; the time at which it begins is added to its name
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    every: Option<u64>,

    /// How many MiB the files of --every may have together, also of earlier recordings
    ///
    /// The oldest are removed. One file more is there while it is written.
    #[arg(long, value_name = "MIB", default_value_t = 1024, requires = "every")]
    disk: u64,

    /// Send the profile to a receiver of OpenTelemetry, such as `http://localhost:4318`; with
    /// --every that of each file
    #[cfg(feature = "otlp")]
    #[arg(long, value_name = "URL", value_parser = Receiver::new)]
    otlp: Option<Receiver>,

    /// Have the kernel copy stacks, and look at this many bytes of each, at most 65,528
    ///
    /// Without it, 16,384 at first, and then 8,192 to 65,528: as many as make enough stacks
    /// complete.
    #[arg(long, value_name = "BYTES",
          value_parser = clap::value_parser!(u32).range(8..=65_528))]
    stack_bytes: Option<u32>,

    /// The ring of each CPU in KiB, a power of two
    ///
    /// Without it, 8192, or less if this user may not lock as much memory.
    #[arg(long, value_name = "KIB", value_parser = ring_kib)]
    ring_kib: Option<usize>,

    /// Keep registers and bytes of stacks in the file, as `perf record --call-graph dwarf`
    #[arg(long)]
    keep_stacks: bool,

    /// Compress records by zstd, as `perf record -z` does; 0 writes them as they are
    ///
    /// Without it records are compressed, to about a quarter or less, but for --keep-stacks. There
    /// is one level: all numbers but 0 stand for it.
    #[arg(short = 'z', long, value_name = "LEVEL", num_args = 0..=1,
          default_missing_value = "1", alias = "compress",
          value_parser = clap::value_parser!(u8).range(0..=22))]
    compression_level: Option<u8>,

    /// Keep no files: what is rebuilt or removed later has no names then
    ///
    /// Without it the files that have samples, and the symbols of the kernel, are kept by their
    /// build ids where perf keeps them, in `~/.debug` or as `PERF_BUILDID_DIR` or `buildid.dir` of
    /// `~/.perfconfig` say: at most 2 GiB, of which the oldest goes first.
    #[arg(short = 'N', long)]
    no_buildid_cache: bool,

    /// Walk on where a uretprobe has displaced a return address, by the kernel's own chain
    ///
    /// Samples then have that chain, too, which costs the kernel its walk along frame
    /// pointers. A function that is watched and keeps no frame pointer still ends a stack,
    /// as `return-probe`.
    #[arg(long)]
    uretprobes: bool,

    /// Have the kernel walk user stacks, when a thread returns to user code
    ///
    /// Nothing is copied, and samples of one system call share a walk. The kernel follows frame
    /// pointers: callers of code without them are missing, and nothing tells where. The ledger
    /// has these stacks as `unchecked`. Linux can do so from 6.19 on.
    #[arg(long, conflicts_with_all = ["off_cpu", "stack_bytes", "keep_stacks", "uretprobes",
                                      "trust_fp"])]
    deferred: bool,

    #[command(flatten)]
    engine: EngineArgs,

    #[command(flatten)]
    guest: GuestArgs,

    /// Declare that all code without a table keeps frame pointers
    #[arg(long)]
    trust_fp: bool,

    /// Print the ledger as JSON on standard output, after what the command prints there
    #[arg(long)]
    json: bool,

    /// A command to start; beside -a, -p, -t, -u, -C or --cgroup the recording is of those and ends
    /// with the command
    #[arg(last = true, value_name = "COMMAND", required_unless_present_any = ["subject", "cpu"])]
    command: Vec<OsString>,
}

fn user_stacks(args: &RecordArgs, whom: &Whom) -> UserStacks {
    let events = args.event.iter().map(|events| events.0.len()).sum();
    let several = || CopySizes::several(whom, events, args.off_cpu);
    if args.deferred {
        return UserStacks::Deferred;
    }
    let sizes = args.stack_bytes.map_or_else(several, CopySizes::one);
    let needs_copies = args.stack_bytes.is_some() || args.keep_stacks || args.uretprobes;
    let copies = Copies { sizes, with_chains: args.uretprobes, with_data: args.keep_stacks };
    args.engine.user_stacks(copies, needs_copies)
}

fn ring_size(args: &RecordArgs) -> RingSize {
    let exactly = |kib: usize| RingSize::Exactly(kib.saturating_mul(1024));
    args.ring_kib.map_or(RingSize::AtMost(RING), exactly)
}

fn ring_kib(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(kib) if kib.is_power_of_two() && (4..=1 << 20).contains(&kib) => Ok(kib),
        _ => Err("a power of two from 4 to 1048576".into()),
    }
}

/// Events of one option.
#[derive(Clone, Debug)]
struct Events(Vec<Requested>);

fn requested_events(text: &str) -> Result<Events, NameError> {
    parse(text).map(Events)
}

impl RecordArgs {
    /// Why a recording with these arguments cannot be made.
    fn session_error(&self, error: SessionError) -> Failure {
        match error {
            SessionError::File(error) => RecordingError { path: self.output.clone(), error }.into(),
            error => error.into(),
        }
    }

    const fn telling(&self) -> Telling {
        Telling { is_json: self.json, is_one_of_many: self.every.is_some() }
    }

    /// What the engine that walks in the kernel cannot do.
    fn check_engine(&self, events: &[Requested]) -> Result<(), Failure> {
        let others = [
            (self.keep_stacks, "--keep-stacks"),
            (self.stack_bytes.is_some(), "--stack-bytes"),
            (self.deferred, "--deferred"),
            (self.uretprobes, "--uretprobes"),
            (events.iter().any(Requested::is_tracepoint), "a tracepoint"),
        ];
        match others.into_iter().find(|&(is_asked, _)| is_asked) {
            Some((_, what)) if self.engine.must_be_in_kernel() => {
                Err(Failure::new(format!("{what} is for --engine perf"), 2))
            }
            _ => Ok(()),
        }
    }

    /// The events that are asked for, with their filters.
    fn events(&self) -> Result<Vec<Requested>, Failure> {
        let mut events: Vec<_> = self.event.iter().flat_map(|events| events.0.clone()).collect();
        if events.len() > MOST {
            return Err(Failure::new(format!("at most {MOST} events can be recorded at once"), 2));
        }
        if self.off_cpu && events.len() > 1 {
            return Err(Failure::new("--off-cpu is recorded beside one event", 2));
        }
        let mut filters = self.filter.iter().cloned();
        for event in events.iter_mut().filter(|event| event.is_tracepoint()) {
            event.filter = filters.next();
        }
        match filters.next() {
            Some(filter) => {
                let filter = escaped(filter.as_bytes()).to_string();
                let error =
                    format!("--filter '{filter}' is of no tracepoint: each has one at most");
                Err(Failure::new(error, 2))
            }
            None => Ok(events),
        }
    }

    /// What is recorded, if that is not a command.
    fn subject(&self) -> Result<Option<(Whom, Subject)>, Failure> {
        let of_processes = |processes: Vec<i32>| {
            let subject = Subject::Processes(processes);
            (of_running(&subject), subject)
        };
        if let Some(name) = &self.cgroup {
            return Ok(Some((Whom::ControlGroup(Arc::new(control_group(name)?)), Subject::All)));
        }
        if let Some(user) = &self.user {
            return Ok(Some(of_processes(processes_of_user(user)?)));
        }
        if !self.tid.is_empty() {
            let processes = self.tid.iter().filter_map(|&thread| process_of(thread)).collect();
            return Ok(Some((Whom::Threads(self.tid.clone()), Subject::Processes(processes))));
        }
        let is_of_cpus = self.cpu.is_some() && self.pid.is_empty();
        Ok(match (self.all || is_of_cpus, self.pid.is_empty()) {
            (true, _) => Some((Whom::All, Subject::All)),
            (_, false) => Some(of_processes(self.pid.clone())),
            _ => None,
        })
    }
}

/// Runs `unwind record`.
///
/// # Errors
///
/// [`Failure`] if samples cannot be taken, the file not be written, or the ledger does not
/// add up.
pub(crate) fn run(args: &RecordArgs) -> Result<(), Failure> {
    if args.guest.guest {
        let how = How {
            output: &args.output,
            rate: args.rate,
            duration: args.duration,
            trust_fp: args.trust_fp,
            telling: args.telling(),
        };
        return guest::record(&args.guest, &how);
    }
    let file_error = |error| Failure::from(RecordingError { path: args.output.clone(), error });
    check_exist(&args.pid)?;
    check_exist(&args.tid)?;
    let events = args.events()?;
    args.check_engine(&events)?;
    let chosen = args.subject()?;
    // The recorder has to write the end of the file.
    let (signals, started) =
        (CallerSignals::of_this_thread(ignored_pipe::is_ignored()), Arc::new(AtomicI32::new(0)));
    let ends = end_at(&[Signal::SIGINT, Signal::SIGTERM], &started);
    let held = match args.command.as_slice() {
        [program, arguments @ ..] => Some(HeldCommand::new(program, arguments, signals)?),
        [] => None,
    };
    let (whom, subject) = match (chosen, &held) {
        (Some(chosen), _) => chosen,
        (None, Some(held)) => (Whom::Command(held.pid()), Subject::Processes(vec![held.pid()])),
        (None, None) => (Whom::All, Subject::All),
    };
    let is_beside = !matches!(whom, Whom::Command(_));
    let beside = held.as_ref().map(HeldCommand::pid).filter(|_| is_beside);
    let sampling = Sampling {
        often: args.count.map_or(Often::Rate(args.rate), Often::Each),
        events,
        cpus: args.cpu.clone().map(|cpus| cpus.0),
        user_stacks: user_stacks(args, &whom),
        off_cpu: args.off_cpu,
        ring: ring_size(args),
        whom,
        notices: notices::all().clone(),
    };
    let files = Files {
        path: args.output.clone(),
        limit: args.every.map(|_| args.disk.saturating_mul(1 << 20)),
    };
    let opened = open(&sampling, args.rate).map_err(|error| args.session_error(error))?;
    // What cannot be written is known before the command is started.
    let form = Form {
        keeps_stacks: args.keep_stacks,
        frame_pointers: FramePointerRows { is_trusted: args.trust_fp },
        rate: args.rate,
        // Stacks are many bytes, each of which takes time.
        is_compressed: args.compression_level.map_or(!args.keep_stacks, |level| level > 0),
    };
    let mut first = Some(files.begin(SystemTime::now()).map_err(file_error)?);
    let until =
        args.duration.and_then(|seconds| Instant::now().checked_add(Duration::from_secs(seconds)));
    let every = args.every.map(Duration::from_secs);
    // Of those that begin from here on records tell.
    let existing = if is_beside { existing(&subject) } else { Vec::new() };
    let span = Span { subject, beside, ends: ends.clone(), until, every };
    let kept = (!args.no_buildid_cache, notices::all().clone());
    let session = Session::begin(opened, &sampling, form, (&existing, span), kept);
    #[cfg(feature = "otlp")]
    let sender = {
        let reading = Reading { off_cpu: args.off_cpu, trusts_frame_pointers: args.trust_fp };
        let start = |receiver| Sender::start(receiver, reading);
        args.otlp.clone().map(start).transpose()?
    };
    let mut writing = Writing {
        args,
        session,
        #[cfg(feature = "otlp")]
        sender,
    };
    let mut child = held.map(HeldCommand::go).transpose()?;
    let process = child.as_ref().and_then(|child| i32::try_from(child.id()).ok());
    started.store(process.unwrap_or(0), Ordering::Relaxed);
    let mut result = Ok(());
    while let Some(part) = writing.session.next_part() {
        let written = match first.take() {
            Some(file) => writing.write(&files, file, part),
            None => files
                .begin(part.begun)
                .map_err(file_error)
                .and_then(|file| writing.write(&files, file, part)),
        };
        // A ledger that does not add up says nothing of the parts after it.
        if written.as_ref().is_err_and(|error| error.exit_code() != LEDGER) {
            ends.store(true, Ordering::Relaxed);
        }
        result = result.and(written);
        // It may run for days.
        notices::tell();
    }
    let emptied = writing.session.finish();
    #[cfg(feature = "otlp")]
    if let Some(sender) = writing.sender {
        result = result.and(sender.finish());
    }
    emptied?;
    // Its number may be that of another process once it was waited for.
    started.store(0, Ordering::Relaxed);
    if let Some(child) = &mut child {
        // It has ended, or continues alone after the time of the recording.
        if let (Ok(Some(status)), [program, ..]) = (child.try_wait(), args.command.as_slice())
            && !status.success()
        {
            let _ = writeln!(io::stderr(), "unwind: {}: {status}", escaped(program));
        }
    }
    result
}

/// What there is to know for each part of a recording.
struct Writing<'a> {
    args: &'a RecordArgs,
    session: Session,
    #[cfg(feature = "otlp")]
    sender: Option<Sender>,
}

impl Writing<'_> {
    /// Has the stacks of a part walked, and writes its file.
    fn write(&mut self, files: &Files, file: OpenFile, part: Part) -> Result<(), Failure> {
        let file_error =
            |error| Failure::from(RecordingError { path: self.args.output.clone(), error });
        file.clear().map_err(|error| file_error(error.into()))?;
        let OpenFile { file, at, path } = file;
        // A command has the terminal for its own output.
        let is_alone = self.args.every.is_none() && self.args.command.is_empty();
        let elapsed = match is_alone {
            true => Elapsed::new("recording until Ctrl-C, the end or --duration:"),
            false => Elapsed::hidden(),
        };
        let session_error = |error| self.args.session_error(error);
        let ledger = self.session.write(file, part).map_err(session_error)?;
        files.finish(&at, &path).map_err(|error| file_error(error.into()))?;
        elapsed.finish();
        tell(self.args.telling(), &path, &ledger)?;
        #[cfg(feature = "otlp")]
        if let Some(sender) = &mut self.sender {
            sender.send(&path);
        }
        Ok(ledger.check()?)
    }
}
