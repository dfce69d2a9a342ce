//! `unwind record`: samples of running programs, walked while they are taken.

mod attrs;
mod compression;
pub(crate) mod copy_size;
mod drain;
pub(crate) mod drained;
pub(crate) mod engine;
mod existing;
mod files;
pub(crate) mod ledger;
mod off_cpu;
mod parts;
pub(crate) mod perf_engine;
mod receiver;
pub(crate) mod recording;
pub(crate) mod rings;
pub(crate) mod sampling;
pub(crate) mod shown;
pub(crate) mod signals;
pub(crate) mod stream;
pub(crate) mod subject;
pub(crate) mod told;
mod trim;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::Signal;

use crate::commands::perf::error::RecordingError;
use crate::commands::record::copy_size::CopySize;
use crate::commands::record::engine::{Engine as _, SampledEvent};
use crate::commands::record::files::{Files, OpenFile};
use crate::commands::record::ledger::{EXIT_CODE, Ledger};
use crate::commands::record::parts::Part;
use crate::commands::record::receiver::Receiver;
use crate::commands::record::recording::{Form, LedgerSection, Recording};
use crate::commands::record::rings::{
    Emptied, RING, Span, check_exist, existing, of_running, open,
};
use crate::commands::record::sampling::{Copies, CopySizes, RingSize, Sampling, UserStacks, Whom};
use crate::commands::record::signals::end_at;
use crate::commands::record::stream::layout;
use crate::commands::record::subject::{HeldCommand, Subject};
use crate::commands::report::grouping::By;
use crate::commands::report::otlp;
use crate::commands::report::reading::Reading;
use crate::commands::report::time_line::Detail;
use crate::commands::stack::frame_pointers::FramePointerRows;
use crate::counted::counted;
use crate::failure::Failure;
use crate::notices;
use crate::progress::Elapsed;
use crate::untrusted::escaped;

/// Record where programs spend their time.
///
/// Samples of all threads are taken by the kernel's clock or, where there is a PMU, by the
/// CPU's cycles. The user part of their stacks is walked while the recording runs, by the
/// tables of the mapped files, also in code without frame pointers. The result is a
/// perf.data file that perf and `unwind script` read; `unwind report` makes pictures of it.
///
/// At the end a ledger says what became of each sample: complete, incomplete and why, lost.
#[derive(Debug, clap::Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct RecordArgs {
    /// Samples a second of CPU time
    #[arg(short = 'F', long, value_name = "HZ", default_value_t = 999,
          value_parser = clap::value_parser!(u32).range(1..=50_000))]
    rate: u32,

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
    #[arg(long, value_name = "PID", group = "subject", num_args = 1..,
          value_parser = clap::value_parser!(i32).range(1..))]
    pid: Vec<i32>,

    /// All processes
    #[arg(long, group = "subject")]
    all: bool,

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
    #[arg(long, value_name = "URL", value_parser = Receiver::new)]
    otlp: Option<Receiver>,

    /// How many bytes of a stack are looked at, at most 65,528
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

    /// Declare that all code without a table keeps frame pointers
    #[arg(long)]
    trust_fp: bool,

    /// Print the ledger as JSON on standard output
    #[arg(long)]
    json: bool,

    /// A command to start
    #[arg(
        last = true,
        value_name = "COMMAND",
        group = "subject",
        required_unless_present = "subject"
    )]
    command: Vec<OsString>,
}

const LONG_HELP: &str = "\
A recording ends when the command or all given processes have ended, after --duration, or
at Ctrl-C or SIGTERM; the file is whole in each case.

It needs root or the capability CAP_PERFMON, or, for programs of one's own without the
kernel's part, a kernel.perf_event_paranoid of 2 or less.

The ledger has each sample in one class: `complete`, `incomplete` with a reason, `kernel_only`
(threads without a user part), `unmatched` (of --deferred: the stack did not come before the
recording ended, or was lost), `unchecked` (of --deferred), `damaged`, `dropped` (too many waited to be walked),
`lost` (records of any kind for which a ring had no room). Reasons:
  gap                   callers may be missing between two frames
  stack-copy-too-short  the stack is deeper than --stack-bytes
  stack-not-copied      a part of the stack that was not in memory
  no-row                no table covers the code
  file-gone             the file with the code was removed or replaced, and the process has ended
  return-probe          a uretprobe has the return address, see --uretprobes
  no-start              the sample has no registers to start with
  record-limit          more frames than a record can have
  others                as `unwind script` says of each such stack
If the classes do not add up to what the kernel wrote, the exit code is 10. That a command has failed
is told on standard error, and changes nothing of it.
The file has the ledger in a section that perf leaves out.

JSON (its JSON Schema: docs/schema/ledger.json), an object a file: `schema` (1; rises when a field
changes its meaning or goes), the classes above as counts, `incomplete` as an object of counts by reason, and
  written         samples that came out of the rings: the sum of all classes but `lost`
  lost_told       how many of `lost` the kernel's records tell
  lost_by_kernel  its count of them, or null where it has none
  skipped_bytes   bytes of the rings that were no records
  throttled       spans, nanoseconds, samples_estimated
  cpu_time        nanoseconds, samples_missing_estimated; left out where the kernel does not count
  off_cpu         of --off-cpu: samples and nanoseconds of waits, without_sample and
                  nanoseconds_without_sample of those without one, without_end";

fn user_stacks(args: &RecordArgs, whom: &Whom) -> UserStacks {
    if args.deferred {
        return UserStacks::Deferred;
    }
    let several = || CopySizes::several(whom, if args.off_cpu { 2 } else { 1 });
    let sizes = args.stack_bytes.map_or_else(several, CopySizes::one);
    UserStacks::Copied(Copies { sizes, with_chains: args.uretprobes })
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

/// Runs `unwind record`.
///
/// # Errors
///
/// [`Failure`] if samples cannot be taken, the file not be written, or the ledger does not
/// add up.
pub(crate) fn run(args: &RecordArgs) -> Result<(), Failure> {
    let file_error = |error| Failure::from(RecordingError { path: args.output.clone(), error });
    check_exist(&args.pid)?;
    // The recorder has to write the end of the file.
    let ends = end_at(&[Signal::SIGINT, Signal::SIGTERM]);
    let held = match args.command.as_slice() {
        [program, arguments @ ..] => Some(HeldCommand::new(program, arguments)?),
        [] => None,
    };
    let (whom, subject, existing) = match &held {
        Some(held) => (Whom::Command(held.pid()), Subject::Processes(vec![held.pid()]), Vec::new()),
        None => {
            let processes = Subject::Processes(args.pid.clone());
            let subject = if args.all { Subject::All } else { processes };
            (of_running(&subject), subject.clone(), existing(&subject))
        }
    };
    let sampling = Sampling {
        rate: args.rate,
        user_stacks: user_stacks(args, &whom),
        off_cpu: args.off_cpu,
        ring: ring_size(args),
        whom,
    };
    let files = Files {
        path: args.output.clone(),
        limit: args.every.map(|_| args.disk.saturating_mul(1 << 20)),
    };
    let engine = open(&sampling)?;
    let events = engine.events();
    // What cannot be written is known before the command is started.
    let form = Form {
        keeps_stacks: args.keep_stacks,
        frame_pointers: FramePointerRows { is_trusted: args.trust_fp },
        rate: args.rate,
        // Stacks are many bytes, each of which takes time.
        is_compressed: args.compression_level.map_or(!args.keep_stacks, |level| level > 0),
    };
    let attr = layout(&events).map_err(file_error)?;
    let copy_size = CopySize::new(sampling.user_stacks.sizes(), args.rate);
    let mut writing =
        Writing { args, events, form, copy_size: copy_size.clone(), untold: 0, unsent: 0 };
    let mut first = Some(files.begin(SystemTime::now()).map_err(|error| file_error(error.into()))?);
    let until =
        args.duration.and_then(|seconds| Instant::now().checked_add(Duration::from_secs(seconds)));
    let every = args.every.map(Duration::from_secs);
    let span = Span { subject, ends: ends.clone(), until, every };
    let (emptied, parts) = Emptied::start(engine, attr, copy_size, &existing, span);
    let mut child = held.map(HeldCommand::go).transpose()?;
    let mut result = Ok(());
    for part in parts {
        let written = match first.take() {
            Some(file) => writing.write(&files, file, part),
            None => files
                .begin(part.begun)
                .map_err(|error| file_error(error.into()))
                .and_then(|file| writing.write(&files, file, part)),
        };
        // A ledger that does not add up says nothing of the parts after it.
        if written.as_ref().is_err_and(|error| error.exit_code() != EXIT_CODE) {
            ends.store(true, Ordering::Relaxed);
        }
        result = result.and(written);
        // It may run for days.
        notices::tell();
    }
    emptied.finish()?;
    if writing.unsent > 0 {
        let unsent = counted(writing.unsent, "profile was", "profiles were");
        result = result.and(Err(Failure::new(format!("{unsent} not sent"), NOT_SENT)));
    }
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

/// About how many bytes a profile takes that is sent, and its stacks as many more.
const SEND_MEMORY: usize = 128 << 20;

/// The exit code if a profile was not received.
const NOT_SENT: u8 = 1;

/// What there is to know for each part of a recording.
struct Writing<'a> {
    args: &'a RecordArgs,
    events: Vec<SampledEvent>,
    form: Form,
    copy_size: CopySize,
    /// Losses of earlier parts that records have not told of yet.
    untold: u64,
    /// Profiles that were not received.
    unsent: u64,
}

impl Writing<'_> {
    /// Has the stacks of a part walked, and writes its file.
    fn write(&mut self, files: &Files, file: OpenFile, part: Part) -> Result<(), Failure> {
        let file_error =
            |error| Failure::from(RecordingError { path: self.args.output.clone(), error });
        file.clear().map_err(|error| file_error(error.into()))?;
        let OpenFile { file, at, path } = file;
        let copy_size = self.copy_size.clone();
        let mut recording =
            Recording::begin(file, &self.events, self.form, copy_size).map_err(file_error)?;
        // A command has the terminal for its own output.
        let is_alone = self.args.every.is_none() && self.args.command.is_empty();
        let elapsed = match is_alone {
            true => Elapsed::new("recording until Ctrl-C, the end or --duration:"),
            false => Elapsed::hidden(),
        };
        let recorded = recording.write(part.reader);
        let drained = part.end.wait()?;
        let mut recorded = recorded.map_err(file_error)?;
        // The kernel tells of losses when there is room again, which may be in the next part.
        let told = recorded.told.lost;
        recorded.told.lost = told.saturating_sub(self.untold);
        let counted = self.untold.saturating_add(drained.lost.unwrap_or(told));
        self.untold = counted.saturating_sub(told);
        let unmatched = recorded.summary.merge.unmatched();
        let ledger = Ledger {
            off_cpu: self.args.off_cpu.then_some(recorded.off_cpu),
            ..Ledger::of(drained, &recorded.tally, unmatched, &recorded.told)
        };
        let ledger = ledger.with_cpu_time(drained.cpu_time, self.args.rate);
        let marks = recorded.tally.marks.into_iter().flatten();
        let incomplete =
            marks.map(|mark| (mark.time, mark.thread, mark.reason.to_owned())).collect();
        let section = LedgerSection { ledger, incomplete };
        recording.finish(&section).map_err(file_error)?;
        recorded.summary.end.map_err(file_error)?;
        files.finish(&at, &path).map_err(|error| file_error(error.into()))?;
        elapsed.finish();
        tell(self.args, &path, &section.ledger)?;
        if let Some(receiver) = &self.args.otlp {
            self.send(receiver, &path);
        }
        section.ledger.check().map_err(|error| Failure::new(error, EXIT_CODE))
    }

    /// Sends the profile of a file, or says why not.
    fn send(&mut self, receiver: &Receiver, path: &Path) {
        let reading = Reading {
            by: By::Name,
            off_cpu: self.args.off_cpu,
            trust_fp: self.args.trust_fp,
            memory: SEND_MEMORY,
            names_kernel: true,
            keeps_lines: false,
            asks_servers: false,
            // To read DWARF each time takes longer than the rest.
            shows_inlined: false,
            detail: Detail::OfStacks,
            is_compared: false,
        };
        let sent = otlp::request_of(path, reading).and_then(|request| {
            let error = |error| Failure::new(error, NOT_SENT);
            receiver.send(&request).map_err(error)
        });
        if let Err(error) = sent {
            self.unsent = self.unsent.saturating_add(1);
            let _ = writeln!(io::stderr(), "unwind: {} is not sent: {error}", escaped(path));
        }
    }
}

/// Shows the ledger.
fn tell(args: &RecordArgs, path: &Path, ledger: &Ledger) -> Result<(), Failure> {
    if args.json {
        let text = serde_json::to_string(ledger).map_err(|error| Failure::new(error, 1))?;
        writeln!(io::stdout(), "{text}").map_err(Failure::output)
    } else {
        // With standard error gone there is no other place to tell it.
        let _ = match args.every {
            Some(_) => writeln!(io::stderr(), "{}: {}", escaped(path), ledger.summary()),
            None => write!(io::stderr(), "{ledger}"),
        };
        Ok(())
    }
}
