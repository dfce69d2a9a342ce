//! `unwind record`: samples of running programs, walked while they are taken.

mod copy_size;
mod drain;
pub(crate) mod engine;
mod existing;
pub(crate) mod ledger;
mod off_cpu;
mod perf_engine;
pub(crate) mod recording;
mod stream;
mod subject;
mod trim;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use unwind_perf::record::Attr;

use crate::commands::perf::error::RecordingError;
use crate::commands::record::drain::{Drain, Drained, go_first};
use crate::commands::record::engine::{Engine as _, EngineError};
use crate::commands::record::existing::{Existing, all_processes, threads_of};
use crate::commands::record::ledger::{EXIT_CODE, Ledger};
use crate::commands::record::perf_engine::{PerfEngine, RingSize, Sampling, Whom};
use crate::commands::record::recording::{Form, LedgerSection, Recording, stream_start};
use crate::commands::record::stream::stream;
use crate::commands::record::subject::{HeldCommand, Subject, exists};
use crate::commands::stack::frame_pointers::FramePointerRows;
use crate::failure::{Failure, exit_code_of};

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

    /// How many bytes of a stack are looked at, at most 65,528
    ///
    /// Without it, 16,384 at first, and 65,528 once stacks turn out to be deeper.
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

    /// Walk on where a uretprobe has displaced a return address, by the kernel's own chain
    ///
    /// Samples then have that chain, too, which costs the kernel its walk along frame
    /// pointers. A function that is watched and keeps no frame pointer still ends a stack,
    /// as `return-probe`.
    #[arg(long)]
    uretprobes: bool,

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
(threads without a user part), `unmatched`, `damaged`, `dropped` (too many waited to be walked),
`lost` (records of any kind for which a ring had no room). Reasons:
  gap                   callers may be missing between two frames
  stack-copy-too-short  the stack is deeper than --stack-bytes
  stack-not-copied      a part of the stack that was not in memory
  no-row                no table covers the code
  return-probe          a uretprobe has the return address, see --uretprobes
  no-start              the sample has no registers to start with
  record-limit          more frames than a record can have
  others                as `unwind script` says of each such stack
If the classes do not add up to what the kernel wrote, the exit code is 10.
The file has the ledger in a section that perf leaves out.";

fn ring_size(args: &RecordArgs) -> RingSize {
    let bytes = |kib: usize| kib.saturating_mul(1024);
    let default = RingSize::AtMost(bytes(RING_KIB));
    args.ring_kib.map_or(default, |kib| RingSize::Exactly(bytes(kib)))
}

fn ring_kib(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(kib) if kib.is_power_of_two() && (4..=1 << 20).contains(&kib) => Ok(kib),
        _ => Err("a power of two from 4 to 1048576".into()),
    }
}

/// Bytes of a stack that are copied if nobody says otherwise: at first, and once stacks turn
/// out to be deeper. A record's length has 16 bits.
const STACK: u32 = 16_384;
const LARGER_STACK: u32 = 65_528;

/// KiB of a ring if nobody says otherwise.
const RING_KIB: usize = 8192;

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let exit_code = match &error {
            EngineError::OffCpu => 4,
            EngineError::Open { error } | EngineError::Map { error, .. } => {
                match error.raw_os_error() {
                    Some(libc::ESRCH) => 3,
                    Some(libc::EPERM) => 4,
                    _ => exit_code_of(error),
                }
            }
        };
        Self::new(error, exit_code)
    }
}

/// No such process.
#[derive(Debug, thiserror::Error)]
#[error("no process {0}")]
struct NoProcess(i32);

/// Runs `unwind record`.
///
/// # Errors
///
/// [`Failure`] if samples cannot be taken, the file not be written, or the ledger does not
/// add up.
pub(crate) fn run(args: &RecordArgs) -> Result<(), Failure> {
    let file_error = |error| Failure::from(RecordingError { path: args.output.clone(), error });
    if let Some(&process) = args.pid.iter().find(|&&process| !exists(process)) {
        return Err(Failure::new(NoProcess(process), 3));
    }
    let ends = end_at_signals();
    let held = match args.command.as_slice() {
        [program, arguments @ ..] => Some(HeldCommand::new(program, arguments)?),
        [] => None,
    };
    let (whom, subject) = match &held {
        _ if args.all => (Whom::All, Subject::All),
        Some(held) => (Whom::Command(held.pid()), Subject::Processes(vec![held.pid()])),
        None => {
            let threads = args.pid.iter().flat_map(|&process| threads_of(process)).collect();
            (Whom::Threads(threads), Subject::Processes(args.pid.clone()))
        }
    };
    let (stack, larger_stack) =
        args.stack_bytes.map_or((STACK, Some(LARGER_STACK)), |stack| (stack, None));
    let (rate, user_chains, ring) = (args.rate, args.uretprobes, ring_size(args));
    let off_cpu = args.off_cpu;
    let sampling = Sampling { rate, stack, larger_stack, off_cpu, user_chains, ring, whom };
    let mut engine = PerfEngine::open(&sampling)?;
    if RingSize::AtMost(engine.ring) != ring && RingSize::Exactly(engine.ring) != ring {
        let kib = engine.ring / 1024;
        let _ = writeln!(
            io::stderr(),
            "unwind: rings of {kib} KiB: see kernel.perf_event_mlock_kb for larger ones"
        );
    }
    if let Some(error) = &engine.without_kernel {
        let _ = writeln!(io::stderr(), "unwind: without the kernel's part of stacks: {error}");
    }
    let events = engine.events();
    // What cannot be written is known before the command is started.
    let form = Form {
        keeps_stacks: args.keep_stacks,
        frame_pointers: FramePointerRows { is_trusted: args.trust_fp },
        rate: args.rate,
    };
    let out = File::create(&args.output).map_err(|error| file_error(error.into()))?;
    let mut recording = Recording::begin(out, &events, form).map_err(file_error)?;
    let (writer, reader) = stream();
    writer.write(stream_start(&events));
    let attr = recording.attr();
    writer.write(existing(args, attr));
    let until =
        args.duration.and_then(|seconds| Instant::now().checked_add(Duration::from_secs(seconds)));
    let drain = Drain { attr, copy_size: recording.copy_size(), writer };
    let (is_ready, ready) = channel();
    let drainer = thread::spawn(move || {
        go_first();
        // Whether anybody waits for this makes no difference.
        let _ = is_ready.send(());
        drain.run(&mut engine, &subject, &ends, until)
    });
    // A command with many threads could keep the thread from its start.
    let _ = ready.recv();
    let mut child = held.map(HeldCommand::go).transpose()?;
    let recorded = recording.write(reader);
    let drained =
        drainer.join().map_err(|_| Failure::new("the reader of the rings has failed", 1))?;
    if let Some(child) = &mut child {
        // It has ended, or goes on alone after the time of the recording.
        let _ = child.try_wait();
    }
    let recorded = recorded.map_err(file_error)?;
    let Drained { written, dropped, skipped_bytes, lost: lost_by_kernel } = drained;
    let incomplete = recorded.tally.incomplete.iter();
    let ledger = Ledger {
        written,
        complete: recorded.tally.complete,
        incomplete: incomplete.map(|(&reason, &count)| (reason.to_owned(), count)).collect(),
        kernel_only: recorded.tally.kernel_only,
        unmatched: recorded.summary.merge.unmatched(),
        damaged: recorded.tally.damaged,
        dropped,
        lost: lost_by_kernel.unwrap_or(recorded.lost_told),
        lost_told: recorded.lost_told,
        lost_by_kernel,
        skipped_bytes,
        throttled: recorded.throttled,
        off_cpu: args.off_cpu.then_some(recorded.off_cpu),
        ..Ledger::new()
    };
    let marks = recorded.tally.marks.into_iter().flatten();
    let incomplete = marks.map(|mark| (mark.time, mark.thread, mark.reason.to_owned())).collect();
    let section = LedgerSection { ledger, incomplete };
    recording.finish(&section).map_err(file_error)?;
    recorded.summary.end.map_err(file_error)?;
    tell(args, &section.ledger)?;
    section.ledger.check().map_err(|error| Failure::new(error, EXIT_CODE))
}

/// Shows the ledger.
fn tell(args: &RecordArgs, ledger: &Ledger) -> Result<(), Failure> {
    if args.json {
        let text = serde_json::to_string(ledger).map_err(|error| Failure::new(error, 1))?;
        writeln!(io::stdout(), "{text}").map_err(Failure::output)
    } else {
        // With standard error gone there is no other place to tell it.
        let _ = write!(io::stderr(), "{ledger}");
        Ok(())
    }
}

/// What there is to say of what was there before.
fn existing(args: &RecordArgs, attr: Attr) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut existing = Existing { format: attr.format, out: &mut bytes };
    existing.kernel();
    let processes = if args.all { all_processes() } else { args.pid.clone() };
    for process in processes {
        existing.process(process);
    }
    bytes
}

/// A flag that is set at Ctrl-C and at SIGTERM. The command gets the former, too, and ends by
/// it; the recorder has to write the end of the file.
fn end_at_signals() -> Arc<AtomicBool> {
    let ends = Arc::new(AtomicBool::new(false));
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    // All threads that this one starts have them blocked, and the standard library takes
    // the block from the command.
    if signals.thread_block().is_ok() {
        let told = Arc::clone(&ends);
        thread::spawn(move || {
            while signals.wait().is_ok() {
                told.store(true, Ordering::Relaxed);
            }
        });
    }
    ends
}
