//! Stacks that are walked, and have no names yet.

use unwind_core::CacheStats;

use crate::stack::naming::Naming;
use crate::stack::options::WalkOptions;
use crate::stack::stacks::Stacks;
use crate::stack::walk::{Method, Stack, StackWalker};
use crate::target::Target;
use crate::target::error::TargetError;

/// Stacks that are walked, and have no names yet.
#[derive(Debug)]
pub struct Walked {
    pub(crate) target: Target,
    method: Method,
    stacks: Vec<Stack>,
    rows: CacheStats,
}

impl Walked {
    /// Walks the stacks of a target.
    ///
    /// # Errors
    ///
    /// [`TargetError::NoSuchThread`] if it has no such thread.
    #[doc(hidden)]
    pub fn new(mut target: Target, options: &WalkOptions) -> Result<Self, TargetError> {
        if let Some(thread) = options.thread {
            target.keep_thread(thread)?;
        }
        let (stacks, rows) = walk(&mut target, options);
        if options.interpreters {
            target.read_interpreters(&stacks);
        }
        Ok(Self { target, method: options.ways().method, stacks, rows })
    }

    /// How often a row was kept, and how often it was looked up.
    #[must_use]
    pub const fn rows(&self) -> CacheStats {
        self.rows
    }

    /// Lets the process continue, if it is held. What was found of it stays.
    ///
    /// # Errors
    ///
    /// [`TargetError::Ended`] if it was killed meanwhile, [`TargetError::LetGo`] if it continues already.
    pub fn release(&mut self) -> Result<(), TargetError> {
        self.target.release()
    }

    /// Lets the process continue, and finds names for what was walked.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    pub fn name(mut self, naming: &Naming) -> Result<Stacks, TargetError> {
        self.release()?;
        Ok(Stacks::new(&self.target, self.stacks, self.method, naming))
    }
}

/// Walks the stacks of all threads of a target, and says how often a row had to be looked
/// up.
fn walk(target: &mut Target, options: &WalkOptions) -> (Vec<Stack>, CacheStats) {
    let ways = options.ways();
    let walker = StackWalker::new(&target.modules, &target.mappings, ways);
    let mut walker = walker.progress(options.build_progress());
    let mut left = target.room.frames;
    let mut stacks = Vec::new();
    for thread in &target.threads {
        walker.max_frames(u32::try_from(left.max(1)).unwrap_or(u32::MAX).min(ways.max_frames));
        let stack = match &thread.registers {
            Ok(registers) => walker.walk(registers, &mut target.memory),
            Err(awake) => Stack::of_awake(*awake),
        };
        let stack = if target.no_stop { stack.without_stop() } else { stack };
        left = left.saturating_sub(u64::try_from(stack.frames.len()).unwrap_or(u64::MAX));
        stacks.push(stack);
    }
    let rows = walker.rows();
    let mut warnings = walker.warnings();
    target.warnings.append(&mut warnings);
    if left == 0 {
        let warning = "threads have the same stack: there are no more frames than it has room for";
        target.warnings.push(warning.into());
    }
    (stacks, rows)
}
