//! A frame of an interpreter, as it is shown.

use std::fmt;

use serde::Serialize;

use crate::untrusted::Untrusted;

/// A call of a function that an interpreter executes. Its text is the function and its place in the
/// source: `Worker.run at worker.py:7`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct InterpretedFrame {
    /// The language: `python`.
    pub language: &'static str,
    /// The function, with the classes and functions that it is in where the interpreter has them.
    pub function: Option<Untrusted>,
    /// The path of the source, as the interpreter has it.
    pub file: Option<Untrusted>,
    /// From 1.
    pub line: Option<u32>,
}

impl fmt::Display for InterpretedFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.function {
            Some(function) => write!(f, "{function}")?,
            None => f.write_str("??")?,
        }
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, " at {file}:{line}"),
            (Some(file), None) => write!(f, " at {file}"),
            (None, _) => Ok(()),
        }
    }
}

/// What is known of the frames of an interpreter in one thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Interpreted {
    /// The interpreter with its version: `CPython 3.11`.
    pub interpreter: String,
    /// Each of its frames is at the native frame that executes it, and none is missing.
    pub complete: bool,
    /// Why not; empty if it is complete.
    pub text: String,
    /// Frames whose native frame is not known, innermost first.
    pub unplaced: Vec<InterpretedFrame>,
}
