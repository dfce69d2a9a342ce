//! A demonstration: stacks that are known beforehand, walked from outside by each method, beside the
//! truth.

#![deny(unsafe_code)]

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
use unwind_target::{HoldLimit, Method, TargetError};

use crate::chain::Object;
use crate::child::{Message, ParkedThread};
use crate::comparison::{Comparison, Place, Walk, WalkedFrame};

pub use crate::chain::{ChainError, Kind};
pub use crate::child::ChildError;

/// The methods in the order of their columns.
const METHODS: [Method; 3] = [Method::Sframe, Method::Fp, Method::Auto];

/// A frame more than the chain has, or a few, would be seen.
const MAX_FRAMES: u32 = 32;

/// How long the child is held at most.
const HOLD_LIMIT: HoldLimit = HoldLimit::new(Duration::from_secs(30));

/// The demonstration.
///
/// ```no_run
/// unwind_demo::Demo::new(&[]).run()?;
/// # Ok::<(), unwind_demo::DemoError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Demo {
    is_prebuilt: bool,
    is_child: bool,
    /// Arguments by which this program is its own child.
    child: Vec<String>,
}

/// Why the demonstration failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
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
    /// The child cannot be looked at.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Standard output cannot be written to.
    #[error("cannot write the output: {0}")]
    Output(#[source] io::Error),
    /// A thread is missing.
    #[error("the demonstration's thread {0} was not found")]
    NoThread(i32),
    /// Stacks are not the true ones.
    #[error("{0} of the demonstration's stacks differ from the truth")]
    Differs(usize),
}

impl Demo {
    /// The demonstration of a program that is its child if it gets `child`, then `--child` and maybe `--prebuilt` as
    /// its arguments, and then runs [`child`](Self::child).
    #[must_use]
    pub fn new(child: &[&str]) -> Self {
        let child = child.iter().map(ToString::to_string).collect();
        Self { is_prebuilt: false, is_child: false, child }
    }

    /// Uses the object that comes with the source, not the one that was compiled.
    #[must_use]
    pub fn prebuilt(self) -> Self {
        Self { is_prebuilt: true, ..self }
    }

    /// Is the program whose stacks are walked.
    #[must_use]
    pub fn child(self) -> Self {
        Self { is_child: true, ..self }
    }

    /// Runs the demonstration, or its child. Writes the stacks and a verdict to standard output.
    ///
    /// # Errors
    ///
    /// [`DemoError`] if a method that has to find the true stack does not, or if the
    /// child cannot be started or looked at.
    pub fn run(&self) -> Result<(), DemoError> {
        let object = if self.is_prebuilt { Object::Prebuilt } else { Object::Default };
        if self.is_child {
            return Ok(child::run(object)?);
        }
        let mut child = DemoChild::start(self)?;
        let comparisons = compare(child.id(), &child.parked()?)?;
        child.finish()?;
        let mut out = io::BufWriter::new(io::stdout().lock());
        text::write(&mut out, object, &comparisons)
            .and_then(|()| out.flush())
            .map_err(DemoError::Output)?;
        match comparisons.iter().flat_map(Comparison::failures).count() {
            0 => Ok(()),
            count => Err(DemoError::Differs(count)),
        }
    }
}

/// Stops the child and walks the stacks of its parked threads by each method.
fn compare(process: i32, parked: &[ParkedThread]) -> Result<Vec<Comparison>, DemoError> {
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
    target.release()?;
    Ok(comparisons)
}

/// The child, which ends when its standard input does.
#[derive(Debug)]
struct DemoChild {
    child: Child,
}

impl DemoChild {
    fn start(demo: &Demo) -> Result<Self, DemoError> {
        // Leads to this very program even if its file was replaced meanwhile.
        let mut command = Command::new("/proc/self/exe");
        let name = std::env::args_os().next().unwrap_or_else(|| "unwind".into());
        command.arg0(name).args(&demo.child).arg("--child");
        if demo.is_prebuilt {
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
    fn parked(&mut self) -> Result<Vec<ParkedThread>, DemoError> {
        let mut line = Vec::new();
        if let Some(stdout) = self.child.stdout.as_mut() {
            let result = BufReader::new(stdout).read_until(b'\n', &mut line);
            result.map_err(|error| DemoError::Io { error })?;
        }
        match serde_json::from_slice::<Message>(&line) {
            Ok(Ok(parked)) => Ok(parked),
            Ok(Err(text)) => Err(DemoError::NotParked(text)),
            Err(_) => Err(DemoError::ChildStart { status: self.end()? }),
        }
    }

    /// Lets the child run to its end.
    fn finish(mut self) -> Result<(), DemoError> {
        let status = self.end()?;
        if status.success() { Ok(()) } else { Err(DemoError::ChildEnd { status }) }
    }

    fn end(&mut self) -> Result<ExitStatus, DemoError> {
        drop(self.child.stdin.take());
        self.child.wait().map_err(|error| DemoError::Io { error })
    }
}

impl Drop for DemoChild {
    fn drop(&mut self) {
        // After an error it is told to end, and leaves nothing over.
        let _ = self.end();
    }
}
