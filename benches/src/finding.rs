//! What a report has to be told a reason for.

/// What was found of some stacks of a corpus, by an unwinder, in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// What it is.
    pub kind: Kind,
    /// The unwinder that it is about.
    pub who: &'static str,
    /// The file with the code of the last frame that is certain; empty if the
    /// code is from no file.
    pub image: String,
}

/// Kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The reference came to code without call frame information.
    NotCovered,
    /// The reference needs bytes above those that were captured.
    BytesEnd,
    /// The reference ends in another way before the outermost frame.
    Incomplete,
    /// A walk of this workspace ended early.
    Short,
    /// The same, at a row that needs a register other than the stack and the frame
    /// pointer in a frame where it carries no other.
    NeedsRegister,
    /// A walk of this workspace has another frame, or one too many.
    Differs,
    /// A walk of this workspace says that it is complete and lacks frames.
    FalselyComplete,
    /// A walk of this workspace says that it is complete where the reference
    /// cannot say so.
    BoldlyComplete,
    /// A rival has frames that this workspace's walk has not, which the reference
    /// confirms, or cannot contradict.
    RivalHasMore,
    /// The same above code without call frame information, where the reference
    /// does not know.
    RivalGuesses,
}
