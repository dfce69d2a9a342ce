//! What a time line counts.

/// Samples of one thread, in one span, with one stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Cell {
    pub(super) thread: u16,
    pub(super) span: u16,
    pub(crate) stack: KeptStack,
}

impl Cell {
    /// The place of its thread.
    pub(crate) fn thread(self) -> usize {
        self.thread.into()
    }

    pub(crate) fn span(self) -> u64 {
        self.span.into()
    }
}

/// What stands for the frames that are not kept.
pub(crate) const SHORTENED: &str = "[not kept by time]";

/// What is kept of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum KeptStack {
    /// Nothing.
    Nothing,
    /// Its outer frames up to this node, at which it ends or which calls its other frames.
    UpTo(u32),
    /// All of it: it ends at this node.
    Whole(u32),
}

impl KeptStack {
    /// The node at which the stack ends, if that is kept.
    pub(crate) fn end(self) -> Option<usize> {
        match self {
            Self::Whole(node) => usize::try_from(node).ok(),
            Self::UpTo(_) | Self::Nothing => None,
        }
    }
}
