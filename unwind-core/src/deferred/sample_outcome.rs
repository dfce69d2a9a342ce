//! How the story of a sample ends.

use core::fmt;

/// How a sample ends, as far as its user stack is concerned: in exactly one of
/// these ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SampleOutcome {
    /// The whole stack came, with the sample's cookie: it
    /// [is complete](crate::Trace::is_complete).
    Matched,
    /// Part of the stack came, with the sample's cookie: the walk did not
    /// reach the outermost frame, or frames may be missing before it.
    Truncated,
    /// The cookie is known but there is no stack: there was no memory to walk
    /// into, the walk found no frame, or the client was cancelled.
    StackLost,
    /// The cookie is known but the task ended, and its memory with it, before
    /// the stack was walked.
    TaskGone,
    /// The cookie is known but the task executed another program before the
    /// stack was walked.
    Exec,
    /// The request was refused: there is no cookie, and the sample has what
    /// stack the sampler could walk at once.
    Inline,
}

impl SampleOutcome {
    /// A number for records and other languages, which stays the same in later versions:
    /// 1 to 6 in the order of the variants.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Matched => 1,
            Self::Truncated => 2,
            Self::StackLost => 3,
            Self::TaskGone => 4,
            Self::Exec => 5,
            Self::Inline => 6,
        }
    }
}

impl fmt::Display for SampleOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Matched => "matched",
            Self::Truncated => "truncated",
            Self::StackLost => "stack lost",
            Self::TaskGone => "task gone",
            Self::Exec => "lost to exec",
            Self::Inline => "inline",
        })
    }
}

/// What a delivery has to offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stack {
    Whole,
    Partial,
    NoCache,
    NoFrames,
    TaskGone,
    Exec,
}

impl Stack {
    pub(crate) const fn outcome(self) -> SampleOutcome {
        match self {
            Self::Whole => SampleOutcome::Matched,
            Self::Partial => SampleOutcome::Truncated,
            Self::NoCache | Self::NoFrames => SampleOutcome::StackLost,
            Self::TaskGone => SampleOutcome::TaskGone,
            Self::Exec => SampleOutcome::Exec,
        }
    }
}
