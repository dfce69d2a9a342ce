//! Which frames are shown of stacks that have calls of an interpreter.

/// Native frames, calls of the interpreter, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InterpretedCalls {
    /// Both: a call stands before the native frame that executes it.
    #[default]
    Among,
    /// Native frames only.
    Without,
    /// Calls of the interpreter only.
    Only,
}
