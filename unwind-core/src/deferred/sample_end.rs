//! How the story of a sample ends.

use core::fmt;

/// How a sample ends, as far as its user stack is concerned: in exactly one of
/// these ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SampleEnd {
    /// The whole stack came, with the sample's cookie.
    Matched,
    /// Part of the stack came, with the sample's cookie: the walk did not
    /// reach the outermost frame.
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

impl fmt::Display for SampleEnd {
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
    pub(crate) const fn end(self) -> SampleEnd {
        match self {
            Self::Whole => SampleEnd::Matched,
            Self::Partial => SampleEnd::Truncated,
            Self::NoCache | Self::NoFrames => SampleEnd::StackLost,
            Self::TaskGone => SampleEnd::TaskGone,
            Self::Exec => SampleEnd::Exec,
        }
    }
}
