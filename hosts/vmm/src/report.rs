//! What came of a run.

use std::fmt;
use std::time::Duration;

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Samples that were taken, and those of them that were refused a stack.
    pub samples: u64,
    pub refused: u64,
    /// Stacks that were handed out.
    pub stacks: u64,
    /// Those of them that are right, and what the other ones are.
    pub right: u64,
    pub wrong: Vec<String>,
    /// Cookies that a second stack was handed out for.
    pub repeated: u64,
    /// Walks that were left to another thread; pages that were brought in, and how many of them a walk of a vCPU's own
    /// thread has waited for.
    pub left: u64,
    pub brought: u64,
    pub waits: u64,
    /// Records that had no room.
    pub lost: u64,
    /// How long a vCPU stood for a sample, on average: one that its own thread walked, and one that was left to another.
    pub pause: Duration,
    pub long_pause: Duration,
}

impl Report {
    /// Whether each sample has one stack, which is the right one, and no walk of a vCPU's own thread has waited.
    pub fn is_right(&self) -> bool {
        let counts = [self.refused, self.repeated, self.waits, self.lost];
        counts == [0; 4] && self.wrong.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { samples, refused, stacks, right, repeated, .. } = self;
        let Self { left, brought, waits, lost, pause, long_pause, .. } = self;
        writeln!(f, "samples   {samples}, refused {refused}, records lost {lost}")?;
        writeln!(f, "stacks    {stacks}, repeated {repeated}")?;
        let wrong = self.wrong.len();
        writeln!(f, "chains    {right} right, {wrong} wrong")?;
        writeln!(
            f,
            "absent    {brought} pages brought in, {left} walks left to another thread, {waits} waits"
        )?;
        write!(
            f,
            "a vCPU stood for {pause:?} a sample, or {long_pause:?} where pages were absent"
        )?;
        self.wrong.iter().take(3).try_for_each(|wrong| write!(f, "\n{wrong}"))
    }
}
