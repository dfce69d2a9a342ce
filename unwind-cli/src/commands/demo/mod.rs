//! The built-in demonstration: stacks that are known beforehand, walked from outside
//! by each method, beside the truth.

mod chain;
mod child;
mod comparison;
mod text;

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use unwind_core::{FramePc, VirtAddr};
use unwind_target::rows::frame_pointers::FramePointerRows;
use unwind_target::rows::stack_switches::SwitchNames;
use unwind_target::stack::walk::{StackWalker, Ways};
use unwind_target::target::{Look, Target};
use unwind_target::{HoldLimit, Method};

use crate::after_limit::AfterLimit;
use crate::commands::demo::chain::Object;
use crate::commands::demo::child::{ChildError, Message, ParkedThread};
use crate::commands::demo::comparison::{Comparison, Place, Walk, WalkedFrame};
use crate::failure::Failure;
use crate::open_files;

/// The methods in the order of their columns.
const METHODS: [Method; 3] = [Method::Sframe, Method::Fp, Method::Auto];

/// A frame more than the chain has, or a few, would be seen.
const MAX_FRAMES: u32 = 32;

/// How long the child is held at most.
const HOLD_LIMIT: HoldLimit = AfterLimit::Continue.limit(Duration::from_secs(30));

/// The demonstration, with what its tests and its own child need.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Use the object that comes with the source, not the one that was compiled
    #[arg(long)]
    prebuilt: bool,

    /// Be the program whose stacks are walked
    #[arg(long)]
    child: bool,
}

/// Why the demonstration failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum DemoError {
    /// In the child.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// The child could not bring its threads where they should be.
    #[error("{0}")]
    NotParked(String),
    /// The child cannot be started.
    #[error("cannot start the demonstration's child: {error}")]
    Start {
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// The child did not say where its threads are.
    #[error("the demonstration's child did not start ({status})")]
    ChildStart {
        /// How it ended.
        status: ExitStatus,
    },
    /// The child did not continue as if it had not been stopped.
    #[error("the demonstration's child did not end well after its stacks were taken ({status})")]
    ChildEnd {
        /// How it ended.
        status: ExitStatus,
    },
    /// The pipes to the child do not work.
    #[error("the demonstration's child cannot be talked to: {error}")]
    Io {
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// A thread is missing.
    #[error("the demonstration's thread {0} was not found")]
    NoThread(i32),
    /// Stacks are not the true ones.
    #[error("{0} of the demonstration's stacks differ from the truth")]
    Differs(usize),
}

impl From<DemoError> for Failure {
    fn from(error: DemoError) -> Self {
        let exit_code = if matches!(error, DemoError::Differs(_)) { 8 } else { 1 };
        Self::new(error, exit_code)
    }
}

/// Runs the demonstration.
///
/// # Errors
///
/// [`Failure`] if a method that has to find the true stack does not, or if the
/// child cannot be started or looked at.
pub(crate) fn run() -> Result<(), Failure> {
    run_with(&Args { prebuilt: false, child: false })
}

/// Runs the demonstration, or its child.
///
/// # Errors
///
/// As [`run`].
pub(crate) fn run_with(args: &Args) -> Result<(), Failure> {
    let object = if args.prebuilt { Object::Prebuilt } else { Object::Default };
    if args.child {
        return Ok(child::run(object).map_err(DemoError::Child)?);
    }
    let mut child = DemoChild::start(args)?;
    let comparisons = compare(child.id(), &child.parked()?)?;
    child.finish()?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    text::write(&mut out, object, &comparisons)
        .and_then(|()| out.flush())
        .map_err(Failure::output)?;
    match comparisons.iter().flat_map(Comparison::failures).count() {
        0 => Ok(()),
        count => Err(DemoError::Differs(count).into()),
    }
}

/// Stops the child and walks the stacks of its parked threads by each method.
fn compare(process: i32, parked: &[ParkedThread]) -> Result<Vec<Comparison>, Failure> {
    open_files::allow_all();
    let mut target = Target::of_process(process, HOLD_LIMIT, Look::InPlace)?;
    let Target { modules, mappings, threads, memory, .. } = &mut target;
    let mut walkers = METHODS.map(|method| {
        let frame_pointers = FramePointerRows { is_trusted: false };
        let switches = SwitchNames::NONE;
        let ways = Ways { method, frame_pointers, switches, max_frames: MAX_FRAMES };
        (method, StackWalker::new(modules, mappings, ways))
    });
    let mut comparisons = Vec::new();
    for ParkedThread { kind, thread, truth } in parked {
        let registers = threads.iter().find(|found| found.id == *thread);
        let registers = registers.and_then(|found| found.registers.ok());
        let registers = registers.ok_or(DemoError::NoThread(*thread))?;
        let walks = walkers.iter_mut().map(|(method, walker)| {
            let stack = walker.walk(&registers, memory);
            let frames = stack.frames.iter().map(|frame| WalkedFrame {
                pc: frame.pc.addr().get(),
                cfa: frame.cfa,
                place: Place::find(modules, frame.pc),
            });
            Walk {
                method: *method,
                frames: frames.collect(),
                is_at_end: stack.end.reason.is_outermost(),
                end: stack.end.text,
            }
        });
        let walks = walks.collect();
        let truth = truth.iter().map(|frame| {
            let pc = frame.pc.map(|pc| FramePc::Return(VirtAddr::new(pc)));
            (frame.clone(), pc.and_then(|pc| Place::find(modules, pc)))
        });
        let truth = truth.collect();
        comparisons.push(Comparison { kind: *kind, thread: *thread, truth, walks });
    }
    Ok(comparisons)
}

/// The child, which ends when its standard input does.
#[derive(Debug)]
struct DemoChild {
    child: Child,
}

impl DemoChild {
    fn start(args: &Args) -> Result<Self, Failure> {
        // Leads to this very program even if its file was replaced meanwhile.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("unwind").args(["demo", "--child"]);
        if args.prebuilt {
            command.arg("--prebuilt");
        }
        // In a process group of its own it outlives a Ctrl-C, and cleans up.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().map_err(|error| DemoError::Start { error })?;
        Ok(Self { child })
    }

    fn id(&self) -> i32 {
        // Linux has no process ids above 2^22.
        i32::try_from(self.child.id()).unwrap_or(i32::MAX)
    }

    /// Waits until the threads are parked.
    fn parked(&mut self) -> Result<Vec<ParkedThread>, Failure> {
        let mut line = Vec::new();
        if let Some(stdout) = self.child.stdout.as_mut() {
            let result = BufReader::new(stdout).read_until(b'\n', &mut line);
            result.map_err(|error| DemoError::Io { error })?;
        }
        match serde_json::from_slice::<Message>(&line) {
            Ok(Ok(parked)) => Ok(parked),
            Ok(Err(text)) => Err(DemoError::NotParked(text).into()),
            Err(_) => Err(DemoError::ChildStart { status: self.end()? }.into()),
        }
    }

    /// Lets the child run to its end.
    fn finish(mut self) -> Result<(), Failure> {
        let status = self.end()?;
        if status.success() { Ok(()) } else { Err(DemoError::ChildEnd { status }.into()) }
    }

    fn end(&mut self) -> Result<ExitStatus, Failure> {
        drop(self.child.stdin.take());
        Ok(self.child.wait().map_err(|error| DemoError::Io { error })?)
    }
}

impl Drop for DemoChild {
    fn drop(&mut self) {
        // After an error it is told to end, and leaves nothing over.
        let _ = self.end();
    }
}
