//! A process whose stacks are looked at.

use std::time::Duration;

use crate::stack::naming::Naming;
use crate::stack::options::WalkOptions;
use crate::stack::stacks::Stacks;
use crate::stack::walked::Walked;
use crate::target::error::TargetError;
use crate::target::pause::HoldLimit;
use crate::target::{Look, Target, Wanted};

/// How often a process is held at most, for copies that lack nothing.
const HOLDS: usize = 8;

/// How long a process is held at most unless [`Process::hold_limit`] says so.
const HOLD_LIMIT: HoldLimit = HoldLimit::new(Duration::from_secs(30));

/// A running process, to look at its stacks: by ptrace, which needs the rights of a debugger. It is held
/// still while its stacks are copied, for less than a millisecond as a rule, and continues also if this
/// program ends. Each file that it has mapped takes a file descriptor here until its stacks have names.
///
/// ```no_run
/// use unwind_target::Process;
///
/// for thread in &Process::new(4711).stacks()?.threads {
///     println!("thread {}", thread.id);
///     for frame in &thread.frames {
///         println!("  {:#x} {}", frame.pc, frame.symbol);
///     }
///     println!("  {}", thread.end);
/// }
/// # Ok::<(), unwind_target::TargetError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Process {
    id: i32,
    way: Way,
    hold_limit: HoldLimit,
    options: WalkOptions,
    naming: Naming,
}

/// How a process is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// In copies, made while it is held.
    Copies,
    /// Where it stands, for as long as that takes.
    InPlace,
    /// In copies of what sleeps.
    WithoutStop,
}

impl Process {
    /// The process with this id, or that has a thread with this id.
    #[must_use]
    pub fn new(id: i32) -> Self {
        let (options, naming) = (WalkOptions::new(), Naming::new());
        Self { id, way: Way::Copies, hold_limit: HOLD_LIMIT, options, naming }
    }

    /// How its stacks are walked.
    #[must_use]
    pub fn options(self, options: WalkOptions) -> Self {
        Self { options, ..self }
    }

    /// How frames are named.
    #[must_use]
    pub fn naming(self, naming: Naming) -> Self {
        Self { naming, ..self }
    }

    /// How long it may be held; 30 seconds unless this is called.
    #[must_use]
    pub fn hold_limit(self, hold_limit: HoldLimit) -> Self {
        Self { hold_limit, ..self }
    }

    /// Holds it until its stacks are walked, instead of copying them first: a very deep stack is of one moment then,
    /// too, and the process stands still for longer.
    #[must_use]
    pub fn in_place(self) -> Self {
        Self { way: Way::InPlace, ..self }
    }

    /// Stops nothing: threads that sleep have stacks, as far as `/proc` tells where they sleep; those that run have
    /// none, and say so. No stack counts as complete.
    #[must_use]
    pub fn without_stop(self) -> Self {
        Self { way: Way::WithoutStop, ..self }
    }

    /// The stacks of its threads, with names.
    ///
    /// # Errors
    ///
    /// [`TargetError`] if there is no such process or thread, if it may not be traced, or if it ends.
    pub fn stacks(&self) -> Result<Stacks, TargetError> {
        self.walk()?.name(&self.naming)
    }

    /// Walks the stacks of its threads. Where a copy turns out to be too short, the process is stopped again and all
    /// stacks are copied anew, up to eight times: each stack is of one moment. [In place](Self::in_place) the process
    /// stands still until what this returns is [released](Walked::release), named or dropped.
    ///
    /// # Errors
    ///
    /// As [`stacks`](Self::stacks).
    pub fn walk(&self) -> Result<Walked, TargetError> {
        if self.way == Way::InPlace {
            let target = Target::of_process(self.id, self.hold_limit, Look::InPlace)?;
            return Walked::new(target, &self.options);
        }
        let mut wanted = Wanted::new(self.options.interpreters);
        let look = |wanted: &Wanted| {
            let target = match self.way {
                Way::WithoutStop => Target::of_sleeping(self.id, wanted),
                _ => Target::of_process(self.id, self.hold_limit, Look::Copies(wanted)),
            };
            Walked::new(target?, &self.options)
        };
        let mut walked = look(&wanted)?;
        for _ in 1..HOLDS {
            if !walked.target.memory.lacked().is_some_and(|lacked| wanted.add(lacked)) {
                break;
            }
            match look(&wanted) {
                Ok(again) => walked = again,
                // What was found before holds for its time.
                Err(error) if error.is_gone() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(walked)
    }
}
