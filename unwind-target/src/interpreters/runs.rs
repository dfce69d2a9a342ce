//! The frames of an interpreter as it lists them, before they are joined with native ones.

use std::collections::HashMap;

use crate::interpreters::bounded_memory::Doubt;
use crate::interpreters::frame::InterpretedFrame;

/// Frames that one native frame of the evaluator executes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Run {
    /// An address inside that native frame, where the interpreter keeps something there.
    pub(crate) anchor: Option<u64>,
    /// Innermost first; none if it is not known what it executes.
    pub(crate) frames: Vec<InterpretedFrame>,
}

/// The frames of one thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadRuns {
    /// Innermost first.
    pub(crate) runs: Vec<Run>,
    /// Why there may be others.
    pub(crate) doubt: Option<Doubt>,
}

impl ThreadRuns {
    /// The native frame with this address in it executes something, and what is not known.
    pub(crate) fn doubtful(anchor: u64, doubt: Doubt) -> Self {
        Self { runs: vec![Run { anchor: Some(anchor), frames: Vec::new() }], doubt: Some(doubt) }
    }
}

/// The frames of one interpreter.
#[derive(Clone, Debug)]
pub(crate) struct ReadFrames {
    /// What the interpreter is called, with its version.
    pub(crate) interpreter: String,
    /// Whether a function is its evaluator.
    pub(crate) is_evaluator: fn(&[u8]) -> bool,
    /// Whether its evaluator calls a function before or after it executes something.
    pub(crate) is_at_end: fn(&[u8]) -> bool,
    /// By what tells the threads apart: where each has what is its own.
    pub(crate) threads: HashMap<u64, ThreadRuns>,
    /// What is wrong with all of them.
    pub(crate) doubt: Option<Doubt>,
}

impl ReadFrames {
    /// What to say if nothing was read since the interpreter is not known.
    pub(crate) fn unknown(&self) -> Option<String> {
        let doubt = self.doubt.filter(|doubt| doubt.is_unknown())?;
        Some(format!("frames of {} are not shown: {doubt}", self.interpreter))
    }
}
